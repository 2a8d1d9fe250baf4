"""The search for good combinations of blocks: random compositions, screened by successive halving.

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
from manifests.folders.manifest import Manifest, Stopwatch
from manifests.records import TrainingRecord
from train.compose.assemble import assemble
from train.compose.candidates import Prober, candidates
from train.compose.library import open_library
from train.data import Cifar10
from train.model.recipe import Network, Recipe
from train.runs.page import finished_runs, percent_text, runs_library
from train.runs.run import Resources, TrainingRun
from train.studies.study import check_study, close_study, described, open_study, train_all

TRIALS = "trials.jsonl"

#: The slots that vary unless the user names others.
SLOTS = ("residual", "attention", "downsample", "stochastic_depth", "activation")
_TRIES = 50  # draws a composition, before the space counts as used up
_DIGEST = 12  # hex digits that name a composition


@dataclass(frozen=True, slots=True)
class Plan:
    """How to search: `budget` compositions start, on `images` images for `epochs` epochs; the best part goes on.

    Of n compositions ceil(n / `eta`) reach the next rung, which trains anew on `eta` times the images, until one is
    left or a rung had all images. Ranked is by accuracy on `held_out` training images; the test images are not read.
    """

    budget: int
    seed: int = 0
    slots: tuple[str, ...] = SLOTS
    images: int = 5000
    epochs: int = 3
    eta: int = 3
    held_out: int = 5000


@dataclass(slots=True)
class Trial:
    """One composition and what became of it on each rung that it reached."""

    name: str
    recipe: Recipe
    net: Network | None
    error: str | None = None
    records: list[TrainingRecord] = field(default_factory=list)

    @property
    def passed(self) -> list[TrainingRecord]:
        """The runs that came to their end."""
        return [record for record in self.records if record.status == "ok"]

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        """Sorts the best first: what never failed, rungs passed, accuracy on held-out images on the last, name."""
        accuracy = self.passed[-1].val_accuracy if self.passed else None
        failed = not self.passed or len(self.passed) < len(self.records)
        return (failed, -len(self.passed), -(accuracy if accuracy is not None else -1.0), self.name)


def search(
    base: Recipe,
    folder: Path,
    plan: Plan,
    *,
    data: Cifar10,
    out: Path,
    resources: Resources,
    force: bool = False,
) -> list[Trial]:
    """Screen compositions of `base` with other blocks in its slots; run again, it goes on where it was.

    Returns: all trials, the best first; those that could not be assembled last, with the reason.
    Raises: UserError if no slot has candidates, or `out` holds another study.
    """
    if len(data.train_images) <= plan.held_out:
        raise UserError(f"{data.label}: {len(data.train_images)} images; a search holds {plan.held_out} out, give more")
    check_study(out)  # before the minutes that fitting takes
    watch = Stopwatch()
    with Prober(unsafe=resources.unsafe, jobs=resources.jobs) as prober:
        choices = find_choices(folder, plan.slots, base, prober)
        described_plan = _described_plan(plan, base, choices, data)
        open_study(out, described_plan, force=force)
        drawn = compositions(base, choices, plan.budget, plan.seed)
        trials = [_assembled(recipe, plan.epochs, folder, prober) for recipe in drawn]
    _screen(trials, plan, out, data, resources, folder, again=force)
    trials.sort(key=lambda trial: trial.rank)
    _write(out, trials, data.label, plan)
    every = [record for trial in trials for record in trial.records]
    close_study(out, described_plan, every, folder, data, watch, {TRIALS: len(trials)}, search_page)
    return trials


def search_page(folder: Path, manifest: Manifest) -> frame.Page:
    """The page of a search: the ranking, and every run."""
    trials = [json.loads(line) for line in (folder / TRIALS).read_text(encoding="utf-8").splitlines()]
    slots = list(trials[0]["slots"]) if trials else []
    rows = [
        [trial["place"], trial["name"], trial["rungs"], percent_text(trial["val_accuracy"]), trial["error"]]
        + [str(trial["slots"].get(slot)).rpartition(".")[2] for slot in slots]
        for trial in trials
    ]
    head = ["place", "composition", "rungs", "held out", "not assembled", *(slot.replace("_", " ") for slot in slots)]
    names = {name: name.rpartition("-")[0] or name for name in finished_runs(folder)}
    best = f" The first reaches {percent_text(trials[0]['val_accuracy'])} on images held out." if trials else ""
    lead = f"{plural(len(trials), 'composition')} on {manifest.parameters['data']}, {plural(len(names), 'run')}.{best}"
    return frame.Page("Search", manifest.kind, lead, [frame.table("Ranking", head, rows)], runs_library(folder, names))


def find_choices(folder: Path, slots: Sequence[str], base: Recipe, prober: Prober) -> dict[str, list[str]]:
    """The names that may fill each slot: blocks that fit at the recipe's widths, and what the recipe has there.

    Raises: UserError if no slot has more than one.
    """
    library = open_library(folder)
    found: dict[str, list[str]] = {}
    for slot in slots:
        tried = candidates(slot, folder, widths=base.model.widths, prober=prober)
        fitting = {candidate.block for candidate in tried if candidate.fits}
        note(f"{slot}: {len(fitting)} of {len(tried)} candidates fit")
        used = getattr(base.slots, slot).use
        block = library.find(used)
        found[slot] = sorted({used} | fitting - ({block.block} if block else set()))
    if all(len(names) == 1 for names in found.values()):
        raise UserError(f"{folder}: no other block fits any of the slots {', '.join(slots)}; extract more")
    return found


def compositions(base: Recipe, choices: Mapping[str, Sequence[str]], budget: int, seed: int) -> list[Recipe]:
    """The recipe itself and up to `budget - 1` different ones, each slot drawn evenly from its choices.

    Where the recipe's own name is drawn, its arguments stay too.
    """
    generator = random.Random(seed)
    found = [base]
    for _ in range(budget * _TRIES):
        if len(found) >= budget:
            break
        drawn = {slot: generator.choice(names) for slot, names in choices.items() if names}
        change = {f"slots__{slot}": name for slot, name in drawn.items() if name != getattr(base.slots, slot).use}
        recipe = base.changed(**change)
        if recipe not in found:
            found.append(recipe)
    return found


def rungs(plan: Plan, count: int, available: int) -> list[int]:
    """Images of each rung: grows by `eta` until one composition is left or all images are used."""
    sizes: list[int] = []
    images = min(plan.images, available)
    while count > 0:
        sizes.append(images)
        if count == 1 or images == available:
            break
        count, images = math.ceil(count / plan.eta), min(images * plan.eta, available)
    return sizes


def _screen(
    trials: Sequence[Trial],
    plan: Plan,
    out: Path,
    data: Cifar10,
    resources: Resources,
    folder: Path,
    *,
    again: bool,
) -> None:
    """Rung for rung: train those that are left, write down what came out, keep the best part."""
    left = [trial for trial in trials if trial.net is not None]
    for rung, images in enumerate(rungs(plan, len(left), len(data.train_images) - plan.held_out)):
        size = f"{images:,} images, {plural(plan.epochs, 'epoch')}"
        note(f"rung {rung + 1}: {plural(len(left), 'composition')}, {size}")
        runs = {f"rung{rung + 1}-{trial.name}": _run(trial, images, plan, data) for trial in left}
        for trial, record in zip(left, train_all(runs, out, resources, library=folder, again=again), strict=True):
            trial.records.append(record)
        _write(out, trials, data.label, plan)
        left = sorted((trial for trial in left if trial.records[-1].status == "ok"), key=lambda trial: trial.rank)
        left = left[: math.ceil(len(left) / plan.eta)]


def _assembled(recipe: Recipe, epochs: int, folder: Path, prober: Prober) -> Trial:
    """A trial whose network says how long it trains here; the recipe stays as long as it was."""
    name = recipe.sha256[:_DIGEST]
    try:
        return Trial(name, recipe, assemble(recipe.changed(training__epochs=epochs), folder, prober=prober))
    except UserError as error:
        return Trial(name, recipe, None, str(error))


def _run(trial: Trial, images: int, plan: Plan, data: Cifar10) -> TrainingRun:
    assert trial.net is not None
    recipe = trial.recipe.changed(training__epochs=plan.epochs)
    return TrainingRun(trial.net, recipe, plan.seed, data, plan.held_out, images, tested=False)


def _described_plan(plan: Plan, base: Recipe, choices: Mapping[str, Sequence[str]], data: Cifar10) -> dict[str, object]:
    return {
        "study": "search",
        "data": data.label,
        "data_sha256": data.sha256,
        "base": json.loads(base.to_json()),
        "choices": {slot: list(names) for slot, names in choices.items()},
        **{name: value for name, value in asdict(plan).items() if name != "slots"},
    }


def _write(out: Path, trials: Sequence[Trial], label: str, plan: Plan) -> None:
    ranked = sorted(trials, key=lambda trial: trial.rank)
    rows = [
        {
            "place": place,
            "name": trial.name,
            "rungs": len(trial.records),
            "val_accuracy": trial.records[-1].val_accuracy if trial.records else None,
            "error": trial.error,
            "slots": {slot: value["use"] for slot, value in trial.recipe.slots.model_dump().items()},
            "records": [record.model_dump(mode="json") for record in trial.records],
        }
        for place, trial in enumerate(ranked, 1)
    ]
    write_text(out / TRIALS, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    write_text(out / "search.md", "\n".join(page(ranked, label, plan)))
    if ranked and ranked[0].passed:
        write_text(out / "best.toml", ranked[0].recipe.to_toml())


def page(ranked: Sequence[Trial], label: str, plan: Plan) -> list[str]:
    """The ranking as Markdown."""
    cells = []
    for place, trial in enumerate(ranked, 1):
        sources = {part.source for part in trial.net.ingredients} if trial.net else set()
        uses = trial.recipe.slots.model_dump()
        filled = ", ".join(
            f"{slot.replace('_', ' ')} {code_span(value['use'].rpartition('.')[2])}" for slot, value in uses.items()
        )
        result = "; ".join(map(described, trial.records[-2:])) if trial.records else f"not assembled: {trial.error}"
        cells.append([str(place), code_span(trial.name), filled, ", ".join(sorted(sources)), plain(result)])
    return [
        f"# Search on {plain(label)}",
        "",
        *table(["place", "composition", "slots", "sources", "last rungs"], cells, left=5),
        f"Accuracy on {plan.held_out:,} training images held out. `best.toml` is the recipe of the first.",
        "",
    ]
