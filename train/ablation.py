"""Ablations: a recipe and its variants without one ingredient, each trained with the same seeds, and compared.

A study is a folder with a plan and one folder for each run. The runs are trained one after another, and resumed by
their records: what is there is not trained again.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike, check_free, write_text
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import code_span, plain, plural, table
from lemur_core.files.progress import hide_progress, note
from manifests.folders import frame, kinds
from manifests.folders.kinds import (
    Check,
    Folder,
    FolderLink,
    FoundItem,
    ListedItem,
    check_faults,
    manifest_link,
    verify_folder,
)
from manifests.folders.manifest import FILE_NAME, Manifest, Stopwatch, read_manifest
from manifests.records import TrainingRecord
from train.compose.assemble import assemble
from train.compose.candidates import open_prober
from train.data import Cifar10, count_images
from train.model.recipe import Recipe, read_changes, to_recipe
from train.model.slots import BUILT_IN
from train.runs.job import read_record
from train.runs.run import Resources, TrainingRun, open_sandbox, train_once
from train.runs.run_folder import (
    RUN,
    RUNS,
    can_resume,
    images_input,
    list_run,
    parents_in,
    result_text,
    runs_library,
    torch_versions,
)

PLAN, RECORDS = "plan.json", "records.jsonl"
FULL = "full"

#: The changes of each standard variant; one that does not change the recipe is skipped.
STANDARD: dict[str, dict[str, object]] = {
    "no attention": {"slots__attention": "none"},
    "no anti-aliasing": {"slots__downsample": "subsample"},
    "no stochastic depth": {"slots__stochastic_depth": "none"},
    "plain augmentation": {
        "augmentation__randaugment_ops": 0,
        "augmentation__mixup_alpha": 0.0,
        "augmentation__cutmix_alpha": 0.0,
        "augmentation__cutout": 0,
    },
}

#: The records of a study by variant and seed.
Records = dict[str, dict[int, TrainingRecord]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences, other minus base, with its confidence interval, in the unit of the values.

    `low` and `high` are None if fewer than two seeds have both values.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over all seeds; test accuracies, 0 to 1. `against` is variant minus full recipe, paired."""

    variant: str
    n: int
    failed: int
    paused: int  # stopped by the time limit or a signal; the same command resumes them
    mean: float | None
    std: float | None
    against: Difference
    train_seconds: float


@dataclass(frozen=True, slots=True)
class Ablation:
    """Hold the results of an ablation.

    Attributes:
        folder: the folder with the table, the page and all runs.
        rows: one for each variant, the full recipe first: accuracy, and the paired difference to the full recipe.
    """

    folder: Path
    rows: tuple[Row, ...]

    def __fspath__(self) -> str:
        return str(self.folder)


def ablate(
    recipe: Recipe | PathLike,
    library: PathLike | None = None,
    *,
    data: PathLike | Cifar10,
    out: PathLike,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[str] = (),
    held_out: int = 5000,
    images: int | None = None,
    resources: Resources | None = None,
    force: bool = False,
    progress: bool = False,
) -> Ablation:
    """Train a recipe with one ingredient left out at a time, with the same seeds, and compare the accuracies in pairs.

    Args:
        recipe: a recipe, a TOML file, or the name of a shipped recipe.
        library: the extraction that holds the blocks.
        data: CIFAR-10 in any of its forms, or `synthetic[:COUNT]` for smoke tests.
        out: the folder to write, or to continue in.
        seeds: every variant is trained with each.
        variants: `NAME: KEY=VALUE` in place of the standard variants; values as in TOML.
        held_out: training images to validate on.
        images: how many of the other images to train on; all by default.
        resources: threads, device, memory and time limits.
        force: continue with another plan, and train again what failed.
        progress: show progress on stderr.

    Returns:
        The folder and a row for each variant.

    Raises:
        UsageError: if seeds or variants cannot be used.
        UserError: if a variant cannot be assembled, or `out` holds another study.

    Example:
        ```python
        from train import ablate

        changes = ["no flip: augmentation.flip=false"]
        study = ablate(small, data="synthetic:320", out="ablation", seeds=[0], variants=changes, held_out=64)
        print([(row.variant, row.mean) for row in study.rows])
        ```
    """
    if len(set(seeds)) != len(seeds) or not seeds:
        raise UsageError(f"seeds: {', '.join(map(str, seeds)) or 'none'}; use different ones, for example 0,1,2")
    from train.data.sources import open_data  # here: who reads the folder of a study must not wait for it

    out, folder, watch = Path(out), None if library is None else Path(library), Stopwatch()
    resources = resources or Resources()
    with hide_progress(unless=progress):
        recipes, cifar10 = list_variants(to_recipe(recipe), variants), open_data(data)
        plan = {
            "study": "ablation",
            "data": cifar10.label,
            "data_sha256": cifar10.sha256,
            "held_out": held_out,
            "images": count_images(cifar10, held_out, images),
            "test_images": len(cifar10.test_labels),
            "seeds": list(seeds),
            "variants": {name: json.loads(changed.to_json()) for name, changed in recipes.items()},
        }
        check_study_folder(out, plan, force=force)  # before the seconds that assembling takes
        with open_prober(unsafe=resources.unsafe) as box:
            nets = {name: assemble(changed, folder, box=box) for name, changed in recipes.items()}
        open_study(out, plan)
        folder = folder if any(net.ingredients for net in nets.values()) else None
        # Each seed in all variants before the next seed, so that early results can be compared.
        runs = {
            run_name(name, seed): TrainingRun(nets[name], recipes[name], seed, cifar10, held_out, images)
            for seed in seeds
            for name in recipes
        }
        trained = train_runs(out, runs, cifar10, resources, folder, force=force)
        records: Records = {name: {seed: trained[run_name(name, seed)] for seed in seeds} for name in recipes}
        close_study(out, plan, records, cifar10, folder, watch)
        note(f"ablation: {len(runs)} runs of {len(recipes)} variants -> {out}")
    return Ablation(out, tuple(_rows(records)))


# --- the folder of a study --------------------------------------------------------------------------------------------


def run_name(variant: str, seed: int) -> str:
    """Return the name of the folder of a run, below `runs`."""
    return f"{folder_name(variant)}-seed{seed}"


def folder_name(variant: str) -> str:
    """Return the prefix of the folders of a variant's runs."""
    return "".join(char if char.isalnum() else "-" for char in variant.lower()).strip("-")


def check_study_folder(out: Path, plan: Mapping[str, object], *, force: bool = False) -> None:
    """Raise UserError if `out` cannot be written, or holds anything but a study of this plan (or any, with `force`)."""
    if not out.exists():
        check_free(out, force=False)
    if not out.is_dir() or not any(out.iterdir()):
        return
    stored = (out / PLAN).read_text(encoding="utf-8", errors="replace") if (out / PLAN).is_file() else ""
    if '\n "study": ' not in stored:  # other programs use this file name, too
        raise UserError(f"{out}: is not the folder of such a study; choose another --out")
    if stored != _plan_text(plan) and not force:
        raise UserError(
            f"{out}: contains a study with another plan; choose another --out, or --force to resume with this plan"
        )


def open_study(out: Path, plan: Mapping[str, object]) -> None:
    """Write the plan. The manifest of another one is removed: until this study is finished, its folder is not."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / PLAN, _plan_text(plan))
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    if (out / FILE_NAME).is_file() and read_manifest(out).parameters != json.loads(_plan_text(plan)):
        (out / FILE_NAME).unlink()


def _plan_text(plan: Mapping[str, object]) -> str:
    return json.dumps(plan, indent=1, sort_keys=True) + "\n"


def train_runs(
    out: Path,
    runs: Mapping[str, TrainingRun],
    data: Cifar10,
    resources: Resources,
    library: Path | None = None,
    *,
    force: bool = False,
) -> dict[str, TrainingRecord]:
    """Train the unfinished runs one after another; one that was interrupted resumes.

    Args: runs: by the name of their folder below `runs`. force: train again what failed.
    Returns: their records, by the same names.
    """
    resources, records = resources.resolve(), dict[str, TrainingRecord]()
    with open_sandbox(data.folder, resources) as box:
        for name, run in runs.items():
            with hide_progress():
                record = train_once(
                    run, out / RUNS / name, resources=resources, force=force, library=library, box=box, page=False
                )
            records[name] = record
            took = f", {record.train_seconds:.0f} s of training" if record.status == "ok" else ""
            note(f"{len(records)} of {len(runs)}  {name}: {result_text(record)}{took}")
    return records


def close_study(
    out: Path, plan: Mapping[str, Any], records: Records, data: Cifar10, library: Path | None, watch: Stopwatch
) -> None:
    """Write the tables; then page and manifest, unless a run can be resumed."""
    write_tables(out, records, plan)
    every = [record for runs in records.values() for record in runs.values()]
    if open_runs := [record for record in every if can_resume(record)]:
        (out / FILE_NAME).unlink(missing_ok=True)
        first = f"{open_runs[0].name}, seed {open_runs[0].seed}"
        note(f"{out}: no {FILE_NAME} yet: {first} can be resumed; run the same command again")
        return
    ABLATION.finish(
        out,
        watch,
        versions=torch_versions(every[0]),
        parameters=json.loads(json.dumps(plan)),
        inputs=[images_input(data)],
        parents=parents_in(library),
        counts=_count(every),
    )


def _count(records: Sequence[TrainingRecord]) -> dict[str, object]:
    """Return the counts that the manifest of a study states."""
    statuses = [record.status for record in records]
    return {"runs": len(records), "status": {name: statuses.count(name) for name in sorted(set(statuses))}}


def read_study(folder: Path, plan: Mapping[str, Any]) -> Records:
    """Return the records of a study's finished runs."""
    return {
        variant: {
            seed: read_record(run)
            for seed in plan["seeds"]
            if (run := folder / RUNS / run_name(variant, seed)).is_dir()
        }
        for variant in plan["variants"]
    }


# --- rows, table and page ---------------------------------------------------------------------------------------------


def _rows(records: Records) -> list[Row]:
    accuracies = {
        name: {seed: record.test_accuracy for seed, record in runs.items() if record.test_accuracy is not None}
        for name, runs in records.items()
    }
    return [
        Row(
            variant=name,
            n=len(values := accuracies[name]),
            failed=sum(record.status != "ok" and not can_resume(record) for record in runs.values()),
            paused=sum(map(can_resume, runs.values())),
            mean=statistics.fmean(values.values()) if values else None,
            std=statistics.stdev(values.values()) if len(values) > 1 else None,
            against=mean_difference(accuracies[FULL], values),
            train_seconds=statistics.fmean(record.train_seconds for record in runs.values()),
        )
        for name, runs in records.items()
        if runs
    ]


_HEAD = ("variant", "runs", "accuracy, %", "std", "against full, points", "95 % interval", "training, s")


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table of an ablation, a list a row."""
    cells = []
    for row in rows:
        others = [f"{number} {what}" for number, what in ((row.failed, "failed"), (row.paused, "paused")) if number]
        runs = f"{row.n} ({', '.join(others)})" if others else str(row.n)
        against = ["", ""] if row.variant == FULL else [points(row.against.mean, signed=True), interval(row.against)]
        figures = [points(row.mean), points(row.std), *against, f"{row.train_seconds:.0f}"]
        cells.append([row.variant, runs, *figures])
    return cells


def write_tables(out: Path, records: Records, plan: Mapping[str, Any]) -> None:
    """Write the records of an ablation, and its table."""
    dumps = [record.model_dump(mode="json") for runs in records.values() for record in runs.values()]
    write_text(out / RECORDS, "".join(json.dumps(record, sort_keys=True) + "\n" for record in dumps))
    full = records[FULL].values()
    some = next((record for record in full if record.status == "ok"), next(iter(full)))
    lines = [
        f"# Ablation on {plain(plan['data'])}",
        "",
        *table(_HEAD, [[plain(name), *cells] for name, *cells in _cells(_rows(records))]),
        f"Accuracy on the {plan['test_images']:,} test images, read once after {plural(some.epochs, 'epoch')} on"
        f" {some.train_images:,} images, no test-time augmentation. Differences are paired by seed; intervals after"
        f" Student's t. {plain(some.device)}, {some.precision}, torch {some.torch};"
        f" recipe {code_span(some.recipe_sha256[:12])}.",
        "",
    ]
    write_text(out / "ablation.md", "\n".join(lines))


def ablation_page(folder: Path, manifest: Manifest) -> frame.Page:
    """Return the page of an ablation: its variants, their paired differences, and every run."""
    parameters = manifest.parameters
    records = read_study(folder, parameters)
    rows = _rows(records)
    bars = []
    for row in rows:
        mean, low, high = (value and 100 * value for value in (row.against.mean, row.against.low, row.against.high))
        if row.variant != FULL and mean is not None:
            bars.append((row.variant, mean, low, high))
    intro = "Accuracy on the test images against the full recipe, paired by seed; 95 % intervals after Student's t."
    views = [
        frame.table("Variants", _HEAD, _cells(rows)),
        frame.pairs("Against the full recipe", "points", bars, intro),
    ]
    names = {run_name(variant, seed): variant for variant, runs in records.items() for seed in runs}
    counts = f"{plural(len(names), 'run')} of {plural(len(rows), 'variant')}"
    lead = f"{counts} on {parameters['data']}, each seed in all of them."
    shown = [view for view in views if view["rows"]]
    return frame.Page("Ablation", manifest.kind, lead, shown, runs_library(folder, names))


def row_text(row: Row) -> str:
    """Return one line to print."""
    what = f"{points(row.mean)} % (n = {row.n}, std {points(row.std)})"
    if row.variant == FULL:
        return f"{row.variant:<22} {what}"
    return f"{row.variant:<22} {what}, against full {points(row.against.mean, signed=True)} [{interval(row.against)}]"


def points(value: float | None, *, signed: bool = False) -> str:
    """Format a ratio in percent or percentage points with two decimals; a dash for None."""
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.2f}"


def interval(difference: Difference) -> str:
    """Format an interval in percentage points."""
    if difference.low is None or difference.high is None:
        return "–"
    return f"{points(difference.low, signed=True)} to {points(difference.high, signed=True)}"


def list_variants(recipe: Recipe, written: Sequence[str] = ()) -> dict[str, Recipe]:
    """Return recipes by name: the full one, then the written variants, or the standard ones if none is written.

    Args: written: each `NAME: KEY=VALUE, KEY=VALUE`; keys as in a recipe (`slots.attention`), values as in TOML.
    Raises: UsageError if a variant cannot be parsed, has no effect, gives an invalid recipe, or has a name too similar
        to another; UserError if there are no variants.
    """
    aliased = recipe.slots.downsample.use in BUILT_IN["downsample"].keys() - {"avg_pool"}
    standard = [(name, change) for name, change in STANDARD.items() if not (aliased and "slots__downsample" in change)]
    changes = [_read_variant(text) for text in written] if written else standard
    recipes = {FULL: recipe}
    folders = {folder_name(FULL): FULL}
    for name, change in changes:
        other = folders.setdefault(folder_name(name), name)
        if other != name or name in recipes or not folder_name(name):
            reason = f"is too like {other!r}" if folder_name(name) else "has no letter or digit"
            raise UsageError(f"variant {name!r}: {reason}, and its runs need a folder of their own; give another name")
        changed = recipe.changed(**change)
        if changed != recipe:
            recipes[name] = changed
        elif written:
            raise UsageError(f"variant {name!r}: has no effect on this recipe; remove it")
    if len(recipes) == 1:
        raise UserError(
            "the recipe has no attention, anti-aliasing, stochastic depth or augmentation to remove; use another"
            " recipe, or specify changes: --variant 'NAME: KEY=VALUE'"
        )
    return recipes


def _read_variant(text: str) -> tuple[str, dict[str, object]]:
    name, colon, rest = text.partition(":")
    if not colon or name.strip() in ("", FULL):
        example = "'no attention: slots.attention=\"none\"'"
        raise UsageError(f"variant {text!r}: write NAME: KEY=VALUE, for example {example}")
    return name.strip(), read_changes(rest)


def mean_difference(base: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Return the mean difference over the common seeds, with its two-sided 95 % interval by Student's t.

    Args: base, other: value by seed.
    Source: https://en.wikipedia.org/wiki/Student%27s_t-test#Dependent_t-test_for_paired_samples
    """
    from scipy.stats import t

    differences = [other[seed] - base[seed] for seed in sorted(base.keys() & other.keys())]
    n = len(differences)
    mean = statistics.fmean(differences) if n else None
    if mean is None or n == 1:
        return Difference(n, mean, None, None)
    half = float(t.ppf(0.975, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(n, mean, mean - half, mean + half)


# --- the kind of folder -----------------------------------------------------------------------------------------------


def derive_study(folder: Folder, made: Path) -> Json:
    """Write the tables of a study again from its runs; see `Derive`."""
    plan = folder.manifest.parameters
    records = read_study(folder.path, plan)
    if not records[FULL]:
        raise UserError(f"{folder.path}: has no run of the full recipe that its plan names")
    (made / PLAN).write_text(_plan_text(plan), encoding="utf-8")
    write_tables(made, records, plan)
    every = [record for runs in records.values() for record in runs.values()]
    return {"counts": _count(every), "versions": torch_versions(every[0])}


def check_study(folder: Folder) -> Check:
    """Check every run below `runs` as a folder of its own."""
    runs = sorted((folder.path / RUNS).glob("*"))
    wrong = [
        f"{run.name}: {check.name}: {check.detail}"
        for run in runs
        for check in verify_folder(RUN, run, jobs=folder.jobs)
        if not check.ok
    ]
    plan = folder.manifest.parameters
    if [(item.name, item.sha256) for item in folder.manifest.inputs] != [(plan["data"], plan["data_sha256"])]:
        wrong.append("the input is not the data of the plan")
    return check_faults("runs", wrong, f"{plural(len(runs), 'run')} as records and manifests state")


def list_study(folder: Path) -> Iterator[ListedItem]:
    """Yield the runs of a study by their folders, and as `NAME/BLOCK` the blocks of their networks."""
    seen: set[str] = set()  # of runs with one network, its code leads to the first
    for run in sorted(path for path in (folder / RUNS).glob("*") if (path / FILE_NAME).is_file()):
        items = list(list_run(run))
        for item in items:
            names, facts = tuple(f"{run.name}/{name}" for name in item.names), item.facts
            if not item.listed:
                record = read_record(run)
                facts = {"network": record.name, "seed": record.seed, "outcome": record.status}
                names, facts = (run.name, *names), {**facts, "test": record.test_accuracy}
            codes = tuple(code for code in item.codes if code not in seen)
            yield ListedItem(names, facts, codes, partial(_show_in_study, run, item), listed=not item.listed)
        seen |= {code for item in items for code in item.codes}


def _show_in_study(run: Path, item: ListedItem) -> FoundItem:
    assert item.show is not None
    found, of_run = item.show(), FolderLink("in", f"{RUNS}/{run.name}", {})
    return FoundItem((of_run, *found.links, manifest_link(run, read_manifest(run))), found.codes)


ABLATION = replace(kinds.ABLATION, derive=derive_study, laws=(check_study,), page=ablation_page, items=list_study)
#: The kinds of folder that `lemur train` writes.
KINDS = (RUN, ABLATION)
