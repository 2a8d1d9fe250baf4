"""The folder of a training run: `OUT.partial` while it runs, `OUT` when it is over."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import UserError
from lemur_core.files.lock import own
from lemur_core.files.progress import note
from lemur_core.sandbox.processes import remove_folder
from manifests.records import TrainingRecord
from train.identity import canonical_json, difference

RECORD, IDENTITY, RESULT, SCRATCH, NET = "record.json", "run.json", "result", "scratch", "net.py"
_LOCK, _OLDER = "lock", "older"
_FINAL = ("ok", "diverged")  # the same run again would end in the same way


def finished(out: Path, wanted: Mapping[str, Any], *, force: bool, keep_failed: bool = False) -> TrainingRecord | None:
    """The record of the same run, if `out` holds it; another one that failed is as good as none.

    Args: force: another run, or the same one that failed, is none either. keep_failed: the same one that failed counts.
    Raises: UserError if it holds something else, unless `force` is given and it is a run.
    """
    if not out.exists() and not out.is_symlink():
        return None
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if not any(out.iterdir()):
        return None
    try:
        identity = json.loads((out / IDENTITY).read_text(encoding="utf-8"))["identity"]
        record: TrainingRecord = TrainingRecord.model_validate_json((out / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:  # ValidationError is a ValueError
        raise UserError(f"{out}: is not the folder of a whole training run; choose another --out") from error
    if identity == dict(wanted) and (keep_failed or record.status in _FINAL):
        return record
    if force or (identity != dict(wanted) and record.status not in _FINAL):
        return None
    if identity == dict(wanted):
        raise UserError(f"{out}: this run ended with {record.status} ({record.error}); add --force to train it again")
    raise UserError(f"{out}: holds another run ({difference(identity, wanted)}); choose another --out, or add --force")


@contextlib.contextmanager
def own_folder(out: Path) -> Iterator[Path]:
    """`OUT.partial`, for this run alone.

    Raises: UserError if another process trains there, it cannot be made or put in place, or it holds something else.
    """
    if out.is_mount():
        raise UserError(f"{out}: is a mount point, which no folder can replace; choose a folder in it as --out")
    partial = out.absolute().with_name(f"{out.absolute().name}.partial")
    if partial.is_dir() and any(partial.iterdir()) and not (partial / _LOCK).exists():
        raise UserError(f"{partial}: is not the folder of an unfinished training run; move it, or choose another --out")
    with own(partial, _LOCK, "another run trains there"):
        yield partial


def open_scratch(partial: Path, wanted: Mapping[str, Any], *, quiet: bool) -> Path:
    """The job's folder, with what the same run left there, and nothing of another."""
    scratch = partial / SCRATCH
    identity: object = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        identity = json.loads((partial / IDENTITY).read_text(encoding="utf-8"))["identity"]
    if identity != dict(wanted):
        if identity is not None and not quiet:
            note(f"{partial}: is of another run ({difference(identity, wanted)}); training starts anew")
        remove_folder(scratch)
        with atomic_file(partial / IDENTITY) as part:
            part.write_text(canonical_json({"identity": dict(wanted)}) + "\n", encoding="utf-8")
    scratch.mkdir(mode=0o700, exist_ok=True)
    return scratch


def put_in_place(partial: Path, out: Path) -> None:
    """Put the result in place of what `out` was; that goes only once the new folder is there."""
    older = partial / _OLDER
    remove_folder(older)
    if out.exists() or out.is_symlink():
        out.rename(older)
    (partial / RESULT).rename(out)
    if older.is_symlink():
        older.unlink()
    remove_folder(older)
