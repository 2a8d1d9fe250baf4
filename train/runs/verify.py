"""Verify a finished training run or study: its files, records and manifest must agree."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.folders.checks import Check, check_faults, check_files
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.reading import CHECK_ERRORS, READ_ERRORS, describe, read_bytes
from manifests.provenance import find_inlined_blocks
from manifests.records import TrainingRecord
from train.runs.job import HISTORY, loads_or_none, read_history
from train.runs.page import NET, RECORD, RUNS, read_record
from train.runs.run_folder import IDENTITY, KIND, read_identity


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:  # noqa: ARG001 (same signature for all verifiers)
    """Run all checks of a finished run or study, in a fixed order.

    Raises: UserError if it has no valid manifest of such a folder.
    """
    manifest = read_manifest(folder)
    if manifest.kind not in (KIND, "ablation"):
        raise UserError(f"{folder}: contains {article(manifest.kind)}; pass a folder written by `lemur train`")
    files = check_files(folder, manifest)
    return [files, *(_check_run(folder, manifest) if manifest.kind == KIND else _check_study(folder, manifest))]


def _check_run(folder: Path, manifest: Manifest) -> list[Check]:
    try:
        record = read_record(folder)
    except READ_ERRORS as error:
        wrong = [f"{RECORD}: {describe(error)}"]
        return [check_faults("record", wrong, ""), Check("run", ok=False, detail="not checked: there is no record")]
    stated = f"{record.name}, seed {record.seed}, {record.status}"
    return [
        check_faults("record", [], stated),
        check_faults("network", list(_network_faults(folder, record)), "net.py and its blocks are those of the record"),
        check_faults("history", list(_history_faults(folder, record)), f"{record.epochs:,} epochs, ends as recorded"),
        check_faults("manifest", list(_manifest_faults(folder, record, manifest)), "states what the record states"),
    ]


def _network_faults(folder: Path, record: TrainingRecord) -> Iterator[str]:
    """Check that the network's digest is the recorded one, and that its comments name the recorded blocks."""
    try:
        code = read_bytes(folder / NET)
    except OSError as error:
        yield f"{NET}: {describe(error)}"
        return
    if hashlib.sha256(code).hexdigest() != record.code_sha256:
        yield f"{NET}: its SHA-256 is not that of the record, {record.code_sha256[:16]}…"
    named = {
        (block.slot, block.block, block.code_sha256) for block in find_inlined_blocks(code.decode("utf-8", "replace"))
    }
    for part in record.ingredients:
        if (part.slot, part.block, part.code_sha256) not in named:
            yield f"{NET}: has no comment for {part.block} in slot {part.slot}, which the record names"


def _history_faults(folder: Path, record: TrainingRecord) -> Iterator[str]:
    """Check that the number of epochs and the figures of the last one are as recorded."""
    try:
        lines = read_bytes(folder / HISTORY).splitlines()
    except OSError as error:
        yield f"{HISTORY}: {describe(error)}"
        return
    epochs = read_history(folder)
    if len(epochs) != len(lines):
        yield f"{HISTORY}: line {len(epochs) + 1} is not epoch {len(epochs) + 1}"
        return
    if len(epochs) != record.epochs:
        yield f"{HISTORY}: {len(epochs)} epochs, {record.epochs} recorded"
        return
    for last in epochs[-1:]:
        for name in ("train_loss", "val_accuracy"):
            if getattr(last, name) != getattr(record, name):
                yield f"{HISTORY}: {name} is {getattr(last, name)} in the last epoch, {getattr(record, name)} recorded"
        if last.steps > record.steps or (record.status == "ok" and last.steps != record.steps):
            yield f"{HISTORY}: {last.steps:,} steps up to the last epoch, {record.steps:,} recorded"


def _manifest_faults(folder: Path, record: TrainingRecord, manifest: Manifest) -> Iterator[str]:
    """Check that the manifest and recipe.json agree with the record."""
    inputs = {item.name: item.sha256 for item in manifest.inputs}
    digests = {NET: record.code_sha256, "recipe": record.recipe_sha256, record.data: record.data_sha256}
    for name, digest in digests.items():
        if inputs.get(name) != digest:
            yield f"input {name}: SHA-256 {str(inputs.get(name))[:16]}… stated, {digest[:16]}… recorded"
    if hashlib.sha256(record.recipe.encode()).hexdigest() != record.recipe_sha256:
        yield f"{RECORD}: recipe_sha256 is not the SHA-256 of the recipe in it"
    stated = {**manifest.counts, **{name: manifest.details.get(name) for name in ("name", "status", "test_accuracy")}}
    for name, value in stated.items():
        if getattr(record, name, None) != value:
            yield f"{name}: {value} stated, {getattr(record, name, None)} recorded"
    if _find_json(folder / "recipe.json") != json.loads(record.recipe):
        yield "recipe.json: is not the recipe of the record"
    try:
        other = read_identity(folder)["code_sha256"] != record.code_sha256
    except CHECK_ERRORS:
        other = True
    if other:
        yield f"{IDENTITY}: belongs to another network than the record"


def _check_study(folder: Path, manifest: Manifest) -> list[Check]:
    """Check every run below `runs`, and that the table names only their records."""
    runs, wrong, records = sorted((folder / RUNS).glob("*")), [], []
    for run in runs:
        try:
            checks = _check_run(run, read_manifest(run))
        except UserError as error:
            wrong.append(str(error))
            continue
        wrong += [f"{run.name}: {check.name}: {check.detail}" for check in checks if not check.ok]
        records.append(_find_json(run / RECORD))
    table, missing, rows = "records.jsonl", [], 0
    lines = read_bytes(folder / table).splitlines() if (folder / table).is_file() else []
    for number, line in enumerate(lines, 1):
        row = loads_or_none(line)
        rows += 1
        if row not in records:
            missing.append(f"{table}, line {number}: no run has this record")
    if rows != manifest.counts.get("runs"):
        missing.append(f"{table}: {rows} records, {manifest.counts.get('runs')} runs stated")
    return [
        check_faults("runs", wrong, f"{len(runs):,} runs as their records and manifests state"),
        check_faults("records", missing, f"{rows:,} records of {table} are those of the runs"),
    ]


def _find_json(path: Path) -> Any:
    return loads_or_none(path.read_bytes() if path.is_file() else b"")
