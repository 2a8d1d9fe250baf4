"""The manifests of runs and studies, written last: what went in, what came out, and what the blocks are from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.manifest import (
    FILE_NAME,
    Input,
    Manifest,
    Parent,
    Stopwatch,
    list_outputs,
    package_versions,
    parent_of,
    read_manifest,
    write_manifest,
)
from manifests.records import Ingredient, TrainingRecord
from train.data import Cifar10
from train.library import open_library
from train.plan import HISTORY
from train.run_folder import IDENTITY, NET, RECORD

KIND, RUNS = "run", "runs"


def seal_run(folder: Path, data: Cifar10, watch: Stopwatch, *, just_trained: bool = True) -> None:
    """Write the manifest of a run, unless it has one.

    Args: just_trained: by this process, so that its packages are those of the run; else only torch's are known.
    Raises: UserError if one of its files is gone.
    """
    if (folder / FILE_NAME).exists():
        return
    try:
        record: TrainingRecord = TrainingRecord.model_validate_json((folder / RECORD).read_bytes())
        identity = json.loads((folder / IDENTITY).read_bytes())["identity"]
        code, recipe = (folder / NET).read_bytes(), record.recipe.encode()
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: is gone; the run is not whole, train it again with --force") from error
    asked = {name: identity[name] for name in ("seed", "held_out", "train_images", "tested", "device")}
    manifest = Manifest(
        kind=KIND,
        versions=_versions([record], just_trained=just_trained),
        parameters={**asked, "prm": json.loads(record.prm), "recipe": json.loads(record.recipe)},
        inputs=[
            Input(name=NET, sha256=record.code_sha256, bytes=len(code)),
            Input(name="recipe", sha256=record.recipe_sha256, bytes=len(recipe)),
            _images(data),
        ],
        counts={name: getattr(record, name) for name in ("epochs", "steps", "train_images", "parameters")},
        details={name: getattr(record, name) for name in ("name", "status", "val_accuracy", "test_accuracy")},
        outputs=list_outputs(folder, {HISTORY: record.epochs}),
        measured=watch.measured(),
    )
    write_manifest(folder, manifest)


def complete_run(out: Path, library: Path | None) -> None:
    """Bring the manifest of a finished run up to date: what lies in its folder now, and where its blocks are from.

    Args: library: the extraction folder that it was assembled from; one that lacks a block of it is not named.
    """
    if not (out / FILE_NAME).is_file():  # it goes on another time
        return
    manifest = read_manifest(out)
    record: TrainingRecord = TrainingRecord.model_validate_json((out / RECORD).read_bytes())
    changes: dict[str, Any] = {"outputs": list_outputs(out, {HISTORY: record.epochs})}
    parents = parents_in(library) if record.ingredients and _holds(library, record.ingredients) else []
    if parents:
        changes["parents"] = parents
    changed = manifest.model_copy(update=changes)
    if changed != manifest:
        write_manifest(out, changed)


def parents_in(library: Path | None) -> list[Parent]:
    """An extraction folder as a parent; none, and a note, where it was not finished by `lemur extract`."""
    if library is None:
        return []
    if not (library / FILE_NAME).is_file():
        note(f"{library}: no {FILE_NAME}; what is made from it cannot be traced further back")
        return []
    return [parent_of(library)]


def _holds(library: Path | None, parts: Sequence[Ingredient]) -> bool:
    """Whether an extraction folder has the very code of all these blocks."""
    if library is None:
        return False
    codes = {row["block"]: row["code_sha256"] for row in open_library(library).rows.values()}
    other = next((part.block for part in parts if codes.get(part.block) != part.code_sha256), None)
    if other is not None:
        note(f"{library}: holds no {other} with that code; the folder is not named as a parent")
    return other is None


def reopen_study(out: Path, plan: Mapping[str, Any]) -> None:
    """Remove the manifest of another plan: until this one is through, the folder is of neither."""
    if (out / FILE_NAME).is_file() and read_manifest(out).parameters != _plain(plan):
        (out / FILE_NAME).unlink()


def seal_study(
    out: Path,
    plan: Mapping[str, Any],
    records: Sequence[TrainingRecord],
    library: Path | None,
    data: Cifar10,
    watch: Stopwatch,
    rows: Mapping[str, int],
) -> None:
    """Complete the runs of a study and write its manifest, of the kind that its plan names.

    One that says the same but for what was measured stays as it is. A study with a run that can go on gets none.

    Args: records: of all its runs. library: the extraction folder of its blocks. rows: of its tables.
    """
    open_runs = sorted(path.stem for path in (out / RUNS).glob("*.partial"))
    if open_runs:
        (out / FILE_NAME).unlink(missing_ok=True)
        note(f"{out}: no {FILE_NAME} yet: {open_runs[0]} can go on; run the same command again")
        return
    for run in sorted((out / RUNS).glob("*")):
        complete_run(run, library)
    statuses = [record.status for record in records]
    manifest = Manifest(
        kind=plan["study"],
        versions=_versions(records, just_trained=True),
        parameters=_plain(plan),
        inputs=[_images(data)],
        parents=parents_in(library),
        counts={"runs": len(records), "status": {name: statuses.count(name) for name in sorted(set(statuses))}},
        details={},
        outputs=list_outputs(out, dict(rows)),
        measured=watch.measured(),
    )
    if (out / FILE_NAME).is_file():
        older = read_manifest(out)
        if older == manifest.model_copy(update={"measured": older.measured}):
            return
    write_manifest(out, manifest)


def _versions(records: Sequence[TrainingRecord], *, just_trained: bool) -> dict[str, str]:
    torch = {"torch": records[0].torch, "torchvision": records[0].torchvision} if records else {}
    return {**(package_versions() if just_trained else {}), **torch}


def _images(data: Cifar10) -> Input:
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    return Input(name=data.label, sha256=data.sha256, bytes=sum(array.nbytes for array in arrays))


def _plain(plan: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    return plain
