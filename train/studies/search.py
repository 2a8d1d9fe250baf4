"""Studies, each many runs in one folder by a written plan; and the search for good combinations of blocks.

A search draws random compositions and screens them by successive halving; `train.studies.ablation` compares variants.

Source: Jamieson and Talwalkar 2016, arXiv:1502.07943.
"""

import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import code_span, plain, plural, table
from lemur_core.files.progress import note
from lemur_core.sandbox import Job, Outcome
from manifests.folders import frame
from manifests.folders.frame import Page, write_page
from manifests.folders.manifest import (
    FILE_NAME,
    Manifest,
    Stopwatch,
    list_outputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from manifests.folders.reading import read_text
from manifests.records import TrainingRecord
from train.compose.assemble import assemble
from train.compose.candidates import Prober, candidates
from train.compose.library import open_library
from train.data import Cifar10
from train.model.recipe import Network, Recipe
from train.runs.job import loads_or_none
from train.runs.page import RUNS, list_finished_runs, percent_text, result_text, runs_library
from train.runs.run import Resources, Training, TrainingRun, advance, open_sandbox, training
from train.runs.run_folder import images_input, parents_in, torch_versions

PLAN = "plan.json"


class Study:
    """The folder of a study, in four steps: check it (on construction), then `open`, `train` and `close` it.

    Args: force: resume with another plan, and retrain failed runs.
    Raises: UserError if `out` has other content, or cannot be created.
    """

    def __init__(self, out: Path, data: Cifar10, resources: Resources, *, force: bool = False) -> None:
        if not out.exists():
            check_writable(out)
        if out.is_dir() and any(out.iterdir()) and not _is_study(out):
            raise UserError(f"{out}: is not the folder of such a study; choose another --out")
        self._out, self._data, self._resources, self._force = out, data, resources, force
        self._plan: Mapping[str, object] = {}
        self._library: Path | None = None
        self._watch = Stopwatch()

    def open(self, plan: Mapping[str, object], library: Path | None) -> None:
        """Create the folder, or open an unfinished study of the same plan.

        The manifest of another plan is removed: until this study is finished, the folder is not complete.

        Args: plan: JSON data that identify the study; `study` names the kind of the folder.
        Raises: UserError if it is a study with another plan and `force` is not set, or cannot be written.
        """
        self._plan, self._library = plan, library
        out, path = self._out, self._out / PLAN
        text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
        if path.is_file() and path.read_text(encoding="utf-8") != text and not self._force:
            raise UserError(
                f"{out}: contains a study with another plan; choose another --out, or --force to resume with this plan"
            )
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
        if (out / FILE_NAME).is_file() and read_manifest(out).parameters != json.loads(text):
            (out / FILE_NAME).unlink()

    def train(self, runs: Mapping[str, TrainingRun]) -> list[TrainingRecord]:
        """Train the unfinished runs, in parallel as the resources allow.

        Args: runs: by the name of their folder below `runs`.
        Returns: their records, in that order.
        """
        resources = self._resources.resolve()
        under_way: deque[tuple[str, Training]] = deque()
        records: dict[str, TrainingRecord] = {}

        def advance_run(name: str, steps: Training, outcome: Outcome | None = None) -> Job | None:
            """Return the job of a run that starts; None for one that is finished, with its outcome or at once."""
            step = advance(steps, outcome)
            if isinstance(step, Job):
                return step
            records[name] = step
            note(f"{len(records)} of {len(runs)}  {name}: {summarize_record(step)}")
            return None

        def jobs() -> Iterator[Job]:
            for name, run in runs.items():
                folder, keep = self._out / RUNS / name, not self._force
                steps = training(run, folder, resources, force=True, library=self._library, keep_failed=keep)
                if job := advance_run(name, steps):
                    under_way.append((name, steps))
                    yield job

        left = jobs()
        first = next(left, None)  # it decides whether a sandbox is needed: starting one takes seconds
        try:
            if first is not None:
                with open_sandbox(self._data.folder, resources) as box:
                    for outcome in box.run(chain([first], left)):
                        advance_run(*under_way.popleft(), outcome)
        finally:
            for _, steps in under_way:
                steps.close()
        return [records[name] for name in runs]

    def close(
        self, records: Sequence[TrainingRecord], rows: Mapping[str, int], page: Callable[[Path, Manifest], Page]
    ) -> None:
        """Write the manifest, of the kind that the plan names, unless a run can be resumed.

        An existing manifest that differs only in measured values is kept.

        Args: records: records of all its runs. rows: row counts of its tables. page: builds the page of this kind.
        """
        out = self._out
        open_runs = sorted(path.stem for path in (out / RUNS).glob("*.partial"))
        if open_runs:
            (out / FILE_NAME).unlink(missing_ok=True)
            note(f"{out}: no {FILE_NAME} yet: {open_runs[0]} can be resumed; run the same command again")
            return
        plan = json.loads(json.dumps(self._plan))  # not read from the file, whose keys are sorted: pages keep the order
        statuses = [record.status for record in records]
        manifest = Manifest(
            kind=plan["study"],
            versions=package_versions() | (torch_versions(records[0]) if records else {}),
            parameters=plan,
            inputs=[images_input(self._data)],
            parents=parents_in(self._library),
            counts={"runs": len(records), "status": {name: statuses.count(name) for name in sorted(set(statuses))}},
            details={},
            outputs=list_outputs(out, dict(rows)),
            measured=self._watch.measure(),
        )
        write_page(out, page(out, manifest))
        if (out / FILE_NAME).is_file():
            older = read_manifest(out)
            if older == manifest.model_copy(update={"measured": older.measured}):
                return
        write_manifest(out, manifest)


def _is_study(folder: Path) -> bool:
    """Return whether the plan in a folder is one of a study; other programs use this file name, too."""
    plan = loads_or_none((folder / PLAN).read_bytes()) if (folder / PLAN).is_file() else None
    return isinstance(plan, dict) and "study" in plan


def summarize_record(record: TrainingRecord) -> str:
    """Summarize the outcome of a run in a few words, with the time of a complete one."""
    more = f", {record.train_seconds:.0f} s of training" if record.status == "ok" else ""
    return result_text(record) + more


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
