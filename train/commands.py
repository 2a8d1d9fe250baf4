"""The functions behind the commands of training: typed options in, the text to print out.

The package loads this module when a command runs: `--help`, and the report of a typing error in a recipe, must not wait
for PyTorch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from manifests.records import TrainingRecord
from train.compose.assemble import assemble as assemble_recipe
from train.compose.assemble import assemble_to, choose_fillers
from train.compose.candidates import candidates
from train.data import count_images, load_cifar10
from train.lemur.check import CheckSettings as CheckSettings
from train.lemur.check import check_file as check_file
from train.model.recipe import Recipe, agree_on_training, network_in
from train.runs.run import Resources as Resources
from train.runs.run import TrainingRun, train_once
from train.runs.run_folder import run_text
from train.studies.ablation import Ablation, row_text


def assemble(recipe: Recipe, folder: Path | None, out: Path, *, unsafe: bool, force: bool, as_json: bool) -> str:
    """Assemble a network into a file, and return its blocks."""
    assembled = assemble_to(out, recipe, folder, unsafe=unsafe, force=force)
    if as_json:
        ingredients = [part.model_dump(mode="json") for part in assembled.ingredients]
        return to_json({"name": assembled.name, "file": str(out), "prm": assembled.prm, "ingredients": ingredients})
    lines = [make_visible(f"{part.slot:<17} {part.block}  ({part.license})") for part in assembled.ingredients]
    return "\n".join([*lines, f"{assembled.name} -> {out}"])


def list_candidates(slot: str, folder: Path, *, unsafe: bool, as_json: bool) -> str:
    """Return the blocks that can fill a slot, then those that cannot, each with the reason."""
    results = candidates(slot, folder, unsafe=unsafe)
    if as_json:
        return to_json({"slot": slot, "candidates": [asdict(candidate) for candidate in results]})
    lines = [make_visible(candidate.line()) for candidate in results]
    return "\n".join([*lines, f"{sum(candidate.fits for candidate in results)} of {len(results)} fit"])


def run(
    network: Path | None,
    recipe: Recipe,
    out: Path,
    *,
    prm: str | None,
    changes: Sequence[str],
    folder: Path | None,
    seed: int,
    data: str,
    held_out: int,
    images: int | None,
    resources: Resources,
    force: bool,
    as_json: bool,
) -> tuple[TrainingRecord, str]:
    """Train the network of a file, or else that of the recipe. Returns: the record, and its text.

    Args: changes: those applied to the recipe, which override the hyperparameters of a file.
    """
    read = None if network is None else network_in(network, prm)
    if read is not None:
        recipe, read = agree_on_training(recipe, read, changes)
    if read is None:
        choose_fillers(recipe, folder)  # before the Hub is asked for images
    cifar10 = load_cifar10(data)
    count_images(cifar10, held_out, images)  # before the seconds that assembling takes
    net = read or assemble_recipe(recipe, folder, unsafe_no_sandbox=resources.unsafe)
    training = TrainingRun(net, recipe, seed, cifar10, held_out, images)
    record = train_once(training, out, resources=resources, force=force, library=folder if read is None else None)
    return record, to_json(record.model_dump(mode="json")) if as_json else run_text(record, out)


def describe_ablation(study: Ablation, *, as_json: bool) -> tuple[str, UserError | None]:
    """Return a line for each variant, and an error if no run was completed."""
    out = study.folder
    text = "\n".join([*(make_visible(row_text(row)) for row in study.rows), f"-> {out / 'ablation.md'}"])
    if as_json:
        text = to_json({"folder": str(out), "rows": [asdict(row) for row in study.rows]})
    if any(row.n for row in study.rows):
        return text, None
    if any(row.paused for row in study.rows):
        return text, UserError(f"{out}: no run finished within --time-limit; run the same command again to resume")
    return text, UserError(f"{out}: every run failed; the records in {out / 'runs'} say why")


def to_json(value: object) -> str:
    """Return the summary of a command as one JSON object."""
    return json.dumps(value, sort_keys=True)
