"""The page of a training run (result, curves, blocks), and the list of runs on the page of a study."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lemur_core.files.markdown import count, plural
from manifests.folders.frame import Entry, EntryLibrary, Page, View, curves, facts, link, table
from manifests.folders.kinds import lines_text
from manifests.folders.manifest import Manifest
from manifests.folders.reading import read_bytes, read_text
from manifests.provenance import find_inlined_blocks
from manifests.records import TrainingRecord
from train.runs.job import HISTORY, list_curves, read_history

RUNS = "runs"
RECORD, NET = "record.json", "net.py"


def read_record(folder: Path) -> TrainingRecord:
    """Read the record in a run's folder.

    Args: folder: of one run, finished or failed.
    Returns: the record, validated.
    Raises: OSError, or ValueError if it is not a record.
    """
    return TrainingRecord.model_validate_json(read_bytes(folder / RECORD))


def run_page(folder: Path, manifest: Manifest) -> Page:
    """Return the page of one training run."""
    record = read_record(folder)
    setup = f"{plural(record.epochs, 'epoch')} of {count(record.train_images)} images, seed {record.seed}"
    lead = f"{record.data}, {setup}: {result_text(record)}."
    files = [NET, "recipe.json", HISTORY, RECORD, "manifest.json"]
    views = [*_views(folder, record), facts("Files", [("as they are", [link(name, name) for name in files])])]
    return Page(record.name, manifest.kind, lead, views)


def runs_library(folder: Path, names: Mapping[str, str]) -> EntryLibrary:
    """Return the runs of a study, each with its curves.

    Args: names: the label of each run, by the name of its folder.
    """
    records = {name: read_record(folder / RUNS / name) for name in names}
    entries = [
        Entry(
            name=name,
            note=f"{plural(record.epochs, 'epoch')} of {count(record.train_images)} images: {result_text(record)}",
            facets=(names[name], record.status, f"seed {record.seed}"),
            numbers=(
                *(_percent(value) for value in (record.test_accuracy, record.val_accuracy)),
                round(record.train_seconds),
                record.parameters,
            ),
        )
        for name, record in records.items()
    ]
    views = (_views(folder / RUNS / name, record) for name, record in records.items())
    numbers = ("test, %", "held out, %", "seconds", "parameters")
    facets = ("variant", "status", "seed")
    results: dict[tuple[str, str, str], dict[int, list[tuple[int | None, float]]]] = {}
    for number, record in enumerate(records.values()):
        if (accuracy := _percent(record.val_accuracy)) is not None:
            benchmark = ("img-classification", record.data, "held out, %")
            results.setdefault(benchmark, {})[number] = [(record.epochs, accuracy)]
    return EntryLibrary(
        "Runs",
        "runs",
        facets,
        numbers,
        entries,
        views,
        len(names),
        RUNS,
        "held out, %",
        sizes=("parameters",),
        results=results,
    )


def list_finished_runs(folder: Path) -> list[str]:
    """Return the names of a study's finished runs."""
    return sorted(path.parent.name for path in (folder / RUNS).glob(f"[!.]*/{RECORD}"))


def result_text(record: TrainingRecord) -> str:
    """Summarize the result of a run in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.error}"
    values = (("test", record.test_accuracy), ("held out", record.val_accuracy))
    return ", ".join(f"{label} {percent_text(value)}" for label, value in values if value is not None) or "no accuracy"


def percent_text(value: float | None) -> str:
    """Format an accuracy in percent with two decimals; a dash for None."""
    return "–" if value is None else f"{100 * value:.2f} %"


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def _views(folder: Path, record: TrainingRecord) -> list[View]:
    training = f"{plural(record.epochs, 'epoch')}, {plural(record.steps, 'step')}, {record.train_seconds:,.0f} s"
    rows: list[tuple[str, Any]] = [
        ("network", record.name),
        ("status", record.status if record.status == "ok" else f"{record.status}: {record.error}"),
        ("test images", None if record.test_accuracy is None else percent_text(record.test_accuracy)),
        ("held out", None if record.val_accuracy is None else percent_text(record.val_accuracy)),
        ("data", f"{record.data}, {count(record.train_images)} images to train on"),
        ("training", training),
        ("parameters", None if record.parameters is None else count(record.parameters)),
        ("device", f"{record.device}, {record.precision}, torch {record.torch}"),
        ("hyperparameters", ", ".join(f"{name} {value}" for name, value in json.loads(record.prm).items())),
        ("recipe", record.recipe_sha256[:16]),
    ]
    return [facts("Run", rows), *_curves(folder), *_blocks(folder, record)]


def _curves(folder: Path) -> list[View]:
    history, charts = read_history(folder), []
    for kind, factor, unit in (("loss", 1.0, ""), ("accuracy", 100.0, ", %")):
        points = list_curves(history, kind).items()
        lines = [(label, [(epoch, factor * value) for epoch, value in curve]) for label, curve in points if curve]
        charts += [(f"{kind}{unit}", lines)] if lines else []
    return [curves("Curves", "epoch", charts)] if charts else []


def _blocks(folder: Path, record: TrainingRecord) -> list[View]:
    inlined = {block.slot: block for block in find_inlined_blocks(read_text(folder / NET))}
    rows = []
    for part in record.ingredients:
        lines = f", lines {lines_text(*inlined[part.slot].lines)}" if part.slot in inlined else ""
        rows.append([part.slot, part.block, f"{part.path}{lines}", part.license])
    return [table("Blocks in it", ["slot", "block", "from", "license"], rows)] if rows else []
