"""Search for good combinations of blocks: random compositions, screened by successive halving.

Source: Jamieson and Talwalkar 2016, arXiv:1502.07943.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import code_span, plain, plural, table
from lemur_core.files.progress import note
from manifests.folders import frame
from manifests.folders.manifest import Manifest
from manifests.folders.reading import read_text
from manifests.records import TrainingRecord
from train.compose.assemble import assemble
from train.compose.candidates import Prober, candidates
from train.compose.library import open_library
from train.data import Cifar10
from train.model.recipe import Network, Recipe
from train.runs.page import list_finished_runs, percent_text, runs_library
from train.runs.run import Resources, TrainingRun
from train.studies.study import Study, summarize_record

TRIALS = "trials.jsonl"

#: The slots that vary by default.
SLOTS = ("residual", "attention", "downsample", "stochastic_depth", "activation")
_DRAWS = 50  # per composition, before the space counts as exhausted
_DIGEST = 12  # hex digits in the name of a composition


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The settings of a search. In the first round, `budget` compositions train on `images` images for `epochs` epochs.

    Of n compositions, the best ceil(n / `eta`) train in the next round, from scratch on `eta` times the images, until
    one is left or a round used all images. They are ranked by their accuracy on `held_out` training images; the
    test images are not read.
    """

    budget: int
    seed: int = 0
    slots: tuple[str, ...] = SLOTS
    images: int = 5000
    epochs: int = 3
    eta: int = 3
    held_out: int = 5000


@dataclass(slots=True)
class SearchTrial:
    """One composition, with its record from each round that it reached."""

    name: str
    recipe: Recipe
    net: Network | None
    error: str | None = None
    records: list[TrainingRecord] = field(default_factory=list)

    @property
    def complete_runs(self) -> list[TrainingRecord]:
        """The records of the runs that finished."""
        return [record for record in self.records if record.status == "ok"]

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        """The sort key, best first: no failure, most rounds, highest held-out accuracy in the last round, name."""
        runs = self.complete_runs
        accuracy = runs[-1].val_accuracy if runs else None
        failed = not runs or len(runs) < len(self.records)
        return (failed, -len(runs), -(accuracy if accuracy is not None else -1.0), self.name)


def search(
    base: Recipe, folder: Path, plan: SearchPlan, *, data: Cifar10, out: Path, resources: Resources, force: bool = False
) -> list[SearchTrial]:
    """Screen compositions of `base` with other blocks in its slots; a repeated call resumes the search.

    Returns: all trials, best first; those that could not be assembled come last, with the reason.
    Raises: UserError if no slot has candidates, or `out` holds another study.
    """
    if len(data.train_images) <= plan.held_out:
        raise UserError(f"{data.label}: {len(data.train_images)} images; a search holds out {plan.held_out}, use more")
    study = Study(out, data, resources, force=force)  # before probing, which takes minutes
    with Prober(unsafe=resources.unsafe, jobs=resources.jobs) as prober:
        choices = find_choices(folder, plan.slots, base, prober)
        identity = {
            "study": "search",
            "data": data.label,
            "data_sha256": data.sha256,
            "base": json.loads(base.to_json()),
            "choices": choices,
            **{name: value for name, value in asdict(plan).items() if name != "slots"},
        }
        study.open(identity, folder)
        recipes = draw_compositions(base, choices, plan.budget, plan.seed)
        trials = [_assemble_trial(recipe, plan.epochs, folder, prober) for recipe in recipes]
    _screen(study, trials, plan, data, out)
    trials.sort(key=lambda trial: trial.rank)
    _write(out, trials, data.label, plan)
    study.close([record for trial in trials for record in trial.records], {TRIALS: len(trials)}, search_page)
    return trials


def search_page(folder: Path, manifest: Manifest) -> frame.Page:
    """Return the page of a search: the ranking, and every run."""
    trials = [json.loads(line) for line in read_text(folder / TRIALS).splitlines()]
    slots = list(trials[0]["slots"]) if trials else []
    rows = [
        [trial["place"], trial["name"], trial["rungs"], percent_text(trial["val_accuracy"]), trial["error"]]
        + [str(trial["slots"].get(slot)).rpartition(".")[2] for slot in slots]
        for trial in trials
    ]
    head = ["place", "composition", "rounds", "held out", "not assembled", *(slot.replace("_", " ") for slot in slots)]
    names = {name: name.rpartition("-")[0] or name for name in list_finished_runs(folder)}
    best = f" The first reaches {percent_text(trials[0]['val_accuracy'])} on images held out." if trials else ""
    lead = f"{plural(len(trials), 'composition')} on {manifest.parameters['data']}, {plural(len(names), 'run')}.{best}"
    return frame.Page("Search", manifest.kind, lead, [frame.table("Ranking", head, rows)], runs_library(folder, names))


def find_choices(folder: Path, slots: Sequence[str], base: Recipe, prober: Prober) -> dict[str, list[str]]:
    """Return the choices for each slot: the blocks that fit at the recipe's widths, and the recipe's own filler.

    Raises: UserError if no slot has more than one choice.
    """
    library = open_library(folder)
    choices: dict[str, list[str]] = {}
    for slot in slots:
        tried = candidates(slot, folder, widths=base.model.widths, prober=prober)
        fitting = {candidate.block for candidate in tried if candidate.fits}
        note(f"{slot}: {len(fitting)} of {len(tried)} candidates fit")
        used = getattr(base.slots, slot).use
        block = library.find(used)
        choices[slot] = sorted({used} | fitting - ({block.block} if block else set()))
    if all(len(names) == 1 for names in choices.values()):
        raise UserError(f"{folder}: no other block fits any of the slots {', '.join(slots)}; extract more")
    return choices


def draw_compositions(base: Recipe, choices: Mapping[str, Sequence[str]], budget: int, seed: int) -> list[Recipe]:
    """Return the recipe and up to `budget - 1` variants of it, with each slot drawn uniformly from its choices.

    Where the recipe's own filler is drawn, it keeps its arguments.
    """
    generator = random.Random(seed)
    recipes = [base]
    # The draws are limited, since a small space has fewer compositions than the budget.
    for _ in range(budget * _DRAWS):
        if len(recipes) >= budget:
            break
        draw = {slot: generator.choice(names) for slot, names in choices.items() if names}
        change = {f"slots__{slot}": name for slot, name in draw.items() if name != getattr(base.slots, slot).use}
        if (recipe := base.changed(**change)) not in recipes:
            recipes.append(recipe)
    return recipes


def plan_rounds(plan: SearchPlan, count: int, available: int) -> list[int]:
    """Return the number of images per round: it grows by `eta` until one composition is left or all images are used."""
    sizes: list[int] = []
    images = min(plan.images, available)
    while count > 0:
        sizes.append(images)
        if count == 1 or images == available:
            break
        count, images = math.ceil(count / plan.eta), min(images * plan.eta, available)
    return sizes


def _screen(study: Study, trials: Sequence[SearchTrial], plan: SearchPlan, data: Cifar10, out: Path) -> None:
    """In each round, train the remaining compositions, write the results, and keep the best."""
    left = [trial for trial in trials if trial.net is not None]
    for number, images in enumerate(plan_rounds(plan, len(left), len(data.train_images) - plan.held_out)):
        size = f"{images:,} images, {plural(plan.epochs, 'epoch')}"
        note(f"round {number + 1}: {plural(len(left), 'composition')}, {size}")
        runs = {f"rung{number + 1}-{trial.name}": _run(trial, images, plan, data) for trial in left}
        for trial, record in zip(left, study.train(runs), strict=True):
            trial.records.append(record)
        _write(out, trials, data.label, plan)
        left = sorted((trial for trial in left if trial.records[-1].status == "ok"), key=lambda trial: trial.rank)
        left = left[: math.ceil(len(left) / plan.eta)]


def _assemble_trial(recipe: Recipe, epochs: int, folder: Path, prober: Prober) -> SearchTrial:
    """Assemble the trial of a recipe. Its network trains for `epochs`; the recipe keeps its own number of epochs."""
    name = recipe.sha256[:_DIGEST]
    try:
        return SearchTrial(name, recipe, assemble(recipe.changed(training__epochs=epochs), folder, prober=prober))
    except UserError as error:
        return SearchTrial(name, recipe, None, str(error))


def _run(trial: SearchTrial, images: int, plan: SearchPlan, data: Cifar10) -> TrainingRun:
    assert trial.net is not None
    recipe = trial.recipe.changed(training__epochs=plan.epochs)
    return TrainingRun(trial.net, recipe, plan.seed, data, plan.held_out, images, tested=False)


def _write(out: Path, trials: Sequence[SearchTrial], label: str, plan: SearchPlan) -> None:
    ranked = sorted(trials, key=lambda trial: trial.rank)
    rows = [
        {
            "place": rank,
            "name": trial.name,
            "rungs": len(trial.records),
            "val_accuracy": trial.records[-1].val_accuracy if trial.records else None,
            "error": trial.error,
            "slots": {slot: value["use"] for slot, value in trial.recipe.slots.model_dump().items()},
            "records": [record.model_dump(mode="json") for record in trial.records],
        }
        for rank, trial in enumerate(ranked, 1)
    ]
    write_text(out / TRIALS, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    write_text(out / "search.md", "\n".join(format_ranking(ranked, label, plan)))
    if ranked and ranked[0].complete_runs:
        write_text(out / "best.toml", ranked[0].recipe.to_toml())


def format_ranking(ranked: Sequence[SearchTrial], label: str, plan: SearchPlan) -> list[str]:
    """Return the ranking as Markdown."""
    cells = []
    for rank, trial in enumerate(ranked, 1):
        sources = {part.source for part in trial.net.ingredients} if trial.net else set()
        uses = trial.recipe.slots.model_dump()
        filled = ", ".join(
            f"{slot.replace('_', ' ')} {code_span(value['use'].rpartition('.')[2])}" for slot, value in uses.items()
        )
        rounds = "; ".join(map(summarize_record, trial.records[-2:])) or f"not assembled: {trial.error}"
        cells.append([str(rank), code_span(trial.name), filled, ", ".join(sorted(sources)), plain(rounds)])
    return [
        f"# Search on {plain(label)}",
        "",
        *table(["place", "composition", "slots", "sources", "last rounds"], cells, left=5),
        f"Accuracy on {plan.held_out:,} training images held out. `best.toml` is the recipe of the first.",
        "",
    ]
