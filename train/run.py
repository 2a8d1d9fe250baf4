"""One training run: a network, a recipe, a seed and images in; a folder and its record out, whatever becomes of it."""

import contextlib
import hashlib
from pathlib import Path
from typing import Literal

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.sandbox import Outcome, Sandbox
from lemur_core.sandbox.processes import remove_folder
from manifests.manifest import Stopwatch
from manifests.records import TrainingRecord
from train.confined import Resources, box_for, run_plan
from train.data import Cifar10
from train.display import Progress, Report, watching
from train.history import StepFigures, read_history
from train.identity import AssembledNetwork, Network, canonical_json, count_images, identify
from train.plan import Plan
from train.recipe import Recipe
from train.recording import can_go_on, make_record, write_result
from train.run_folder import RESULT, finished, open_scratch, own_folder, put_in_place
from train.sealing import seal_run

__all__ = ["Network", "Resources", "train_once"]


def train_once(
    net: Network | AssembledNetwork,
    recipe: Recipe,
    *,
    seed: int,
    data: Cifar10,
    out: Path,
    held_out: int = 5000,
    images: int | None = None,
    tested: bool = True,
    resources: Resources = Resources(),  # noqa: B008 (frozen)
    force: bool = False,
    keep_failed: bool = False,
    report: Report | Literal["stderr"] | None = "stderr",
    box: Sandbox | None = None,
) -> TrainingRecord:
    """Train a network, validate it after each epoch, and read the test images once, at the end.

    While it runs, all it has lies in `OUT.partial`, where the same call goes on after an interruption or a time limit;
    at the end `OUT` holds net.py, recipe.json, record.json, run.json, history.jsonl, curves.png, weights.pt (foreign
    code wrote it: read it with `torch.load(..., weights_only=True)`) and manifest.json. A run that is in `OUT` is not
    trained again.

    Args:
        net: its code is foreign, and is only run in the sandbox.
        held_out: training images to validate on, the same ones whatever the seed; 0 trains on all.
        images: how many of the others to train on; None for all. Fewer are always among more.
        tested: whether to read the test images; a run that only helps to choose does not.
        force: replace another run in `out`, or the same one if it failed.
        keep_failed: take the same run as it is also where it failed.
        report: called about twice a second with how far it is; None is silent.
        box: a sandbox to run in, made by `train.confined.open_box`, opened when it is needed and left open for the
            next run; by default one of its own.

    Raises: UserError if the arguments do not go together, or `out` holds something else.
    """
    watch = Stopwatch()
    network = net if isinstance(net, Network) else Network.of(net)
    resources = resources.checked()
    trained = count_images(data, held_out, images)
    identity = identify(network, recipe, seed, data, held_out, trained, resources.device, tested)
    found = finished(out, identity, force=force, keep_failed=keep_failed)
    if found is not None:
        if report is not None:
            note(f"{out}: the same run is there already; not trained again")
        seal_run(out, data, watch, just_trained=False)
        return found
    with own_folder(out) as partial:
        scratch = open_scratch(partial, identity, quiet=report is None)
        plan = Plan(
            code=network.code,
            prm=dict(network.prm),
            recipe=recipe.to_json(),
            seed=seed,
            data=str(data.folder),
            held_out=held_out,
            images=trained,
            tested=tested,
            device=resources.device,
            threads=resources.threads or 1,
            time_limit=resources.time_limit,
            step_limit=resources.step_limit,
            key=hashlib.sha256(canonical_json(identity).encode()).hexdigest(),
        )
        outcome = _run(network.name, recipe, plan, scratch, resources, report, box)
        record = make_record(network, recipe, identity, data.label, scratch, outcome, resources)
        try:
            write_result(partial, network, record, identity, outcome)
            seal_run(partial / RESULT, data, watch)
        except OSError as error:
            said = f"{partial}: the result cannot be written: {error.strerror}"
            raise UserError(f"{said}; mend that, and the same command goes on from there") from error
        if not can_go_on(outcome):
            put_in_place(partial, out)
            remove_folder(partial)
    return record


def _run(
    name: str,
    recipe: Recipe,
    plan: Plan,
    scratch: Path,
    resources: Resources,
    report: Report | Literal["stderr"] | None,
    box: Sandbox | None,
) -> Outcome:
    epochs, batch = recipe.training.epochs, min(recipe.training.batch_size, plan.images)
    done = tuple(read_history(scratch))
    if done and report is not None:
        note(f"{name}: goes on after epoch {len(done)} of {epochs}")
    empty = Progress(name, epochs, epochs * (plan.images // batch), StepFigures(), done, batch)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(box_for(box, Path(plan.data), resources))
        if report is not None:
            stack.enter_context(watching(scratch, empty, None if report == "stderr" else report))
        outcome = run_plan(opened, plan, scratch, resources.limits())
    notes = outcome.value.get("notes") if isinstance(outcome.value, dict) else None
    for line in notes if report is not None and isinstance(notes, list) else []:
        note(f"{name}: {str(line)[:300]}")
    return outcome
