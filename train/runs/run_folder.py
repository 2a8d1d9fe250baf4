"""The folder of a finished training run. While it runs, its checkpoint and figures are in the cache."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from lemur_core.files.atomic import check_ours, check_writable, hold_lock
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.frame import finish
from manifests.folders.manifest import (
    FILE_NAME,
    Input,
    Manifest,
    Parent,
    Stopwatch,
    describe_parent,
    list_outputs,
    package_versions,
    write_manifest,
)
from manifests.folders.reading import read_json
from manifests.records import TrainingRecord
from train.compose.library import open_library
from train.data import Cifar10
from train.runs.job import HISTORY, WEIGHTS, copy_plain, draw_curves, read_history
from train.runs.page import NET, RECORD, percent_text, read_record, run_page

KIND = "run"
IDENTITY, RECIPE = "run.json", "recipe.json"
FINAL = ("ok", "diverged")  # running it again would end in the same way
_MOST_WEIGHTS = 4 * 2**30
#: How the errors begin of runs that were stopped from outside.
_STOPPED: dict[str, tuple[str, ...]] = {
    "timeout": ("stopped after ",),
    "error": ("ended by SIGKILL", "ended by SIGTERM", "the sandbox's server died"),
}
_MORE = {"out_of_memory": "; --memory gives it more", "timeout": "; --step-limit gives it longer"}


def read_identity(folder: Path) -> dict[str, object]:
    """Read the identity of a folder's run. Raises: OSError, or ValueError, KeyError, TypeError if it is invalid."""
    identity: dict[str, object] = read_json(folder / IDENTITY)["identity"]
    return identity


def find_finished(
    out: Path, wanted: Mapping[str, object], *, force: bool, keep_failed: bool = False
) -> TrainingRecord | None:
    """Return the record of the same run if `out` has it; another run that failed is ignored.

    Args: force: also ignore any other run, and the same run if it failed. keep_failed: accept the same failed run.
    Raises: UserError if `out` has other content, unless `force` is set and it is a run with nothing else in it.
    """
    if not out.exists() and not out.is_symlink():
        return None
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if not any(out.iterdir()):
        return None
    try:
        identity, record = read_identity(out), read_record(out)
    except (OSError, ValueError, KeyError, TypeError) as error:  # ValidationError is a ValueError
        raise UserError(f"{out}: is not the folder of a complete training run; choose another --out") from error
    same, final = identity == dict(wanted), record.status in FINAL
    if same and (keep_failed or final):
        return record
    if force or not (same or final):
        check_ours(out)
        return None
    if same:
        raise UserError(f"{out}: this run ended with {record.status} ({record.error}); add --force to retrain it")
    raise UserError(
        f"{out}: contains another run ({_difference(identity, wanted)}); choose another --out, or add --force"
    )


@contextlib.contextmanager
def own_scratch(out: Path, key: str) -> Iterator[Path]:
    """Yield the folder in the cache that a run with this key works in for `out`; foreign code writes there.

    It keeps the files of an earlier part of the same run; the caller removes it once the result is in place.
    Raises: UserError if another process trains there, or `out` cannot be put in place afterwards.
    """
    check_writable(out)
    if out.is_mount():
        raise UserError(f"{out}: is a mount point, which cannot be replaced; choose a folder in it as --out")
    name = hashlib.sha256(f"{key} {out.absolute()}".encode()).hexdigest()[:32]
    scratch = cache_folder("training") / name
    with hold_lock(scratch.with_suffix(".lock"), out, "another run trains there"):
        scratch.mkdir(mode=0o700, exist_ok=True)
        yield scratch
    if not scratch.exists():
        scratch.with_suffix(".lock").unlink(missing_ok=True)


def write_result(
    result: Path,
    scratch: Path,
    code: str,
    record: TrainingRecord,
    identity: Mapping[str, object],
    weights_sha256: str | None,
) -> None:
    """Write the files of a finished run, except for the manifest, from those of its scratch folder."""
    history = read_history(scratch)[: record.epochs]
    if record.status == "ok" and not copy_plain(scratch, WEIGHTS, result / WEIGHTS, _MOST_WEIGHTS):
        weights_sha256 = None
    texts = {
        NET: code,
        RECIPE: recipe_text(record),
        HISTORY: "".join(epoch.model_dump_json() + "\n" for epoch in history),
        IDENTITY: canonical_json({"identity": dict(identity), "weights_sha256": weights_sha256}) + "\n",
        RECORD: record_text(record),
    }
    for name, text in texts.items():
        (result / name).write_text(text, encoding="utf-8", newline="\n")
    if history:
        draw_curves(history, f"{record.name}, seed {record.seed}, {record.data}", result / "curves.png")


def write_run_manifest(
    folder: Path,
    record: TrainingRecord,
    identity: Mapping[str, object],
    data: Cifar10,
    library: Path | None,
    watch: Stopwatch,
    *,
    page: bool = True,
) -> None:
    """Write the manifest of a run, after all its other files.

    Args: library: the extraction folder that it was assembled from; not named if it lacks one of the blocks. page:
        write its page too; a study shows its runs on its own page.
    """
    manifest = Manifest(
        kind=KIND,
        versions=package_versions() | torch_versions(record),
        parameters=state_parameters(record, identity),
        inputs=[
            Input(name=NET, sha256=record.code_sha256, bytes=(folder / NET).stat().st_size),
            Input(name="recipe", sha256=record.recipe_sha256, bytes=len(record.recipe.encode())),
            images_input(data),
        ],
        parents=_parents(library, record),
        counts=count_run(record),
        details=describe_run(record),
        outputs=list_outputs(folder, {HISTORY: record.epochs}),
        measured=watch.measure(),
    )
    if page:
        finish(folder, manifest, run_page, watch)
    else:
        write_manifest(folder, manifest)


def recipe_text(record: TrainingRecord) -> str:
    """Return the content of the file of the recipe."""
    return json.dumps(json.loads(record.recipe), indent=1, sort_keys=True) + "\n"


def record_text(record: TrainingRecord) -> str:
    """Return the content of the file of the record."""
    return record.model_dump_json(indent=1) + "\n"


def state_parameters(record: TrainingRecord, identity: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that the manifest of a run states."""
    parameters = {name: identity[name] for name in ("seed", "held_out", "train_images", "tested", "device")}
    return {**parameters, "prm": json.loads(record.prm), "recipe": json.loads(record.recipe)}


def count_run(record: TrainingRecord) -> dict[str, object]:
    """Return the counts that the manifest of a run states."""
    return {name: getattr(record, name) for name in ("epochs", "steps", "train_images", "parameters")}


def describe_run(record: TrainingRecord) -> dict[str, object]:
    """Return the details that the manifest of a run states."""
    return {name: getattr(record, name) for name in ("name", "status", "val_accuracy", "test_accuracy")}


def _parents(library: Path | None, record: TrainingRecord) -> list[Parent]:
    """Return the extraction folder of a run's blocks as its parent, unless it lacks the code of one of them."""
    if library is None or not record.ingredients:
        return []
    known = open_library(library)
    codes = {(block, row["code_sha256"]) for rows in (known.rows, known.full_facts) for block, row in rows.items()}
    for part in record.ingredients:
        if (part.block, part.code_sha256) not in codes:
            note(f"{library}: has no {part.block} with that code; the folder is not named as a parent")
            return []
    return parents_in(library)


def parents_in(library: Path | None) -> list[Parent]:
    """Return an extraction folder as a parent; no parent, and a note, if `lemur extract` has not finished it."""
    if library is None:
        return []
    if not (library / FILE_NAME).is_file():
        note(f"{library}: no {FILE_NAME}; results built from it cannot be traced further back")
        return []
    return [describe_parent(library)]


def torch_versions(record: TrainingRecord) -> dict[str, str]:
    """Return the package versions that trained a run."""
    return {"torch": record.torch, "torchvision": record.torchvision}


def images_input(data: Cifar10) -> Input:
    """Return the images as an input of a manifest."""
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    return Input(name=data.label, sha256=data.sha256, bytes=sum(array.nbytes for array in arrays))


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys."""
    return json.dumps(value, sort_keys=True)


def _difference(stored: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Describe the first difference."""
    words = {
        "code_sha256": "another network",
        "recipe_sha256": "another recipe",
        "data_sha256": "other data",
        "prm": "other hyperparameters",
    }
    for name, value in wanted.items():
        if stored.get(name) != value:
            return words.get(name) or f"{name.replace('_', ' ')} {stored.get(name)}, not {value}"
    return "the same"


def can_resume(record: TrainingRecord) -> bool:
    """Return whether a run was stopped by its time limit or a signal, so that the same call goes on with it."""
    return (record.error or "").startswith(_STOPPED.get(record.status, ()))


def run_text(record: TrainingRecord, out: Path) -> str:
    """Summarize the result of a run in a few lines.

    Args: out: the folder of the run as the user named it.
    Returns: a table of the result; one line with the reason and what to do if training failed.
    """
    if record.status != "ok" and can_resume(record):
        return f"{record.name}: {record.error}; run the same command again to resume"
    if record.status != "ok":
        return f"{record.name}: {record.status}: {record.error}{_MORE.get(record.status, '')}; see {out / RECORD}"
    rows = [
        ("data", f"{record.data}, {record.train_images:,} images to train on"),
        (
            "training",
            f"{plural(record.epochs, 'epoch')}, {plural(record.steps, 'step')}, {record.train_seconds:,.0f} s",
        ),
        ("waiting for data", f"{100 * record.data_seconds / max(record.train_seconds, 1e-9):.1f} %"),
        ("parameters", f"{record.parameters or 0:,}"),
        ("arithmetic", f"{(record.flop or 0) / 1e15:.3g} PFLOP, {plural(record.images_seen or 0, 'image')} seen"),
        ("held out", percent_text(record.val_accuracy)),
        ("test", percent_text(record.test_accuracy)),
        ("device", f"{record.device}, {record.precision}"),
    ]
    lines = [f"{record.name}, seed {record.seed}", *(f"  {name:<17} {value}" for name, value in rows)]
    return "\n".join([*lines, f"-> {out}"])
