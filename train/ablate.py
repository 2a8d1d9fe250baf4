"""The ablation: a recipe against itself with one ingredient left out, with the same seeds."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import UsageError
from lemur_core.files.markdown import code_span, plain, table
from lemur_core.files.progress import note
from manifests.manifest import Stopwatch
from manifests.records import TrainingRecord
from train.assemble import assemble
from train.data import Cifar10
from train.figures import draw_differences
from train.fitting import Fitter
from train.paired import Difference, paired_difference
from train.recipe import Recipe
from train.run import Network, Resources, count_images
from train.study import StudyRun, check_study, close_study, open_study, open_trainers
from train.variants import FULL, folder_name, variants

RECORDS = "records.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over all seeds; accuracies on the test images, 0 to 1. `against` is other minus full, paired."""

    variant: str
    n: int
    failed: int
    mean: float | None
    std: float | None
    against: Difference
    train_seconds: float


def ablate(
    recipe: Recipe,
    folder: Path | None,
    *,
    data: Cifar10,
    out: Path,
    seeds: Sequence[int],
    written: Sequence[str] = (),
    held_out: int = 5000,
    images: int | None = None,
    jobs: int = 1,
    resources: Resources,
    force: bool = False,
) -> list[Row]:
    """Train every variant with every seed, and write the table and the figure; run again, it goes on where it was.

    A seed is trained in all variants before the next one, so that what is there early can be compared.

    Args:
        folder: the extraction folder of the recipe's blocks.
        written: variants in place of the standard ones, see `variants`.
        held_out: training images to validate on.
        images: how many of the others to train on; None for all.
        jobs: runs at the same time.

    Returns: a row a variant, the full recipe first.
    Raises: UsageError for seeds or variants that cannot be used; UserError if a variant cannot be assembled, or `out`
        holds another study.
    """
    if len(set(seeds)) != len(seeds) or not seeds:
        raise UsageError(f"seeds: {', '.join(map(str, seeds)) or 'none'}; give different ones, for example 0,1,2")
    check_study(out)  # this and the next before its networks are assembled
    trained = count_images(data, held_out, images)
    watch = Stopwatch()
    recipes = variants(recipe, written)
    with Fitter(unsafe=resources.unsafe) as fitter:
        nets = {name: Network.of(assemble(changed, folder, fitter=fitter)) for name, changed in recipes.items()}
    plan = {
        "study": "ablation",
        "data": data.label,
        "data_sha256": data.sha256,
        "held_out": held_out,
        "images": trained,
        "seeds": list(seeds),
        "variants": {name: json.loads(changed.to_json()) for name, changed in recipes.items()},
    }
    open_study(out, plan, force=force)
    planned = [
        StudyRun(f"{folder_name(name)}-seed{seed}", nets[name], recipes[name], seed, held_out, images)
        for seed in seeds
        for name in recipes
    ]
    with open_trainers(jobs) as trainers:
        runs = list(trainers.train(planned, out, data=data.folder, resources=resources, again=force))
    records = {name: {} for name in recipes}  # type: dict[str, dict[int, TrainingRecord]]
    names = [name for _ in seeds for name in recipes]
    for name, (run, record) in zip(names, runs, strict=True):
        records[name][run.seed] = record
    rows = [_row(name, found, records[FULL]) for name, found in records.items()]
    _write(out, rows, records, data)
    every = [record for _, record in runs]
    library = folder if any(net.ingredients for net in nets.values()) else None
    close_study(out, plan, every, library, data, watch, {RECORDS: len(every)})
    note(f"ablation: {len(runs)} runs of {len(recipes)} variants -> {out}")
    return rows


def _row(name: str, found: dict[int, TrainingRecord], full: dict[int, TrainingRecord]) -> Row:
    values = _accuracies(found)
    return Row(
        variant=name,
        n=len(values),
        failed=len(found) - len(values),
        mean=statistics.fmean(values.values()) if values else None,
        std=statistics.stdev(values.values()) if len(values) > 1 else None,
        against=paired_difference(_accuracies(full), values),
        train_seconds=statistics.fmean(record.train_seconds for record in found.values()),
    )


def _accuracies(found: dict[int, TrainingRecord]) -> dict[int, float]:
    return {seed: record.test_accuracy for seed, record in found.items() if record.test_accuracy is not None}


def _write(out: Path, rows: Sequence[Row], records: dict[str, dict[int, TrainingRecord]], data: Cifar10) -> None:
    every = [record.model_dump(mode="json") for found in records.values() for record in found.values()]
    with atomic_file(out / RECORDS) as part:
        part.write_text("".join(json.dumps(record, sort_keys=True) + "\n" for record in every), encoding="utf-8")
    draw_differences(out / "ablation.png", [(row.variant, row.against) for row in rows if row.variant != FULL])
    with atomic_file(out / "ablation.md") as part:
        part.write_text("\n".join(page(rows, records[FULL], data.label, len(data.test_labels))), encoding="utf-8")


def page(rows: Sequence[Row], full: dict[int, TrainingRecord], label: str, tested: int) -> list[str]:
    """The table as Markdown, with what its figures are of; `tested` is the number of test images."""
    some = next((record for record in full.values() if record.status == "ok"), next(iter(full.values())))
    cells = [
        [
            plain(row.variant),
            str(row.n) if not row.failed else f"{row.n} ({row.failed} failed)",
            points(row.mean),
            points(row.std),
            "" if row.variant == FULL else points(row.against.mean, signed=True),
            "" if row.variant == FULL else interval(row.against),
            f"{row.train_seconds:.0f}",
        ]
        for row in rows
    ]
    head = ["variant", "runs", "accuracy, %", "std", "against full, points", "95 % interval", "training, s"]
    return [
        f"# Ablation on {plain(label)}",
        "",
        *table(head, cells),
        f"Accuracy on the {tested:,} test images, read once after the last of {some.epochs} epochs on"
        f" {some.train_images:,} images, no test-time augmentation. Differences are paired by seed; intervals after"
        f" Student's t. {plain(some.device)}, {some.precision}, torch {some.torch};"
        f" recipe {code_span(some.recipe_sha256[:12])}.",
        "",
        "![Paired differences with 95 % intervals](ablation.png)",
        "",
    ]


def row_text(row: Row) -> str:
    """One line to print."""
    what = f"{points(row.mean)} % (n = {row.n}, std {points(row.std)})"
    if row.variant == FULL:
        return f"{row.variant:<22} {what}"
    return f"{row.variant:<22} {what}, against full {points(row.against.mean, signed=True)} [{interval(row.against)}]"


def points(value: float | None, *, signed: bool = False) -> str:
    """A ratio in percent, or percentage points, with two decimals; a dash for none."""
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.2f}"


def interval(found: Difference) -> str:
    """An interval in percentage points."""
    if found.low is None or found.high is None:
        return "–"
    return f"{points(found.low, signed=True)} to {points(found.high, signed=True)}"
