"""`stages.json`: what each finished stage was made from and what came out, so that a rerun knows what still holds."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import UserError
from lemur_core.files.lock import own
from manifests.records import Record, Sha256

STATE = "stages.json"
_LOCK = ".lock"


class StageRecord(Record):
    """A stage that was finished: digests of its inputs, by kind or parent, and of the outputs, every byte of them."""

    inputs: dict[str, Sha256]
    output: Sha256


class State(Record):
    """The finished stages, by name."""

    stages: dict[str, StageRecord]


@contextlib.contextmanager
def own_folder(out: Path) -> Iterator[None]:
    """The folder of a run, made when missing, for this process alone; what killed runs left half done is removed.

    Raises: UserError if it holds something else, cannot be written, or another run works there.
    """
    if out.is_symlink() or out.exists():
        if not out.is_dir():
            raise UserError(f"{out}: is a file, not a folder; choose another --out")
        if not (out / STATE).is_file() and any(path.name != _LOCK for path in out.iterdir()):
            raise UserError(f"{out}: holds no {STATE}, so it was not made by `lemur run`; choose another --out")
    with own(out, _LOCK, "another run works there"):
        for left in sorted([*out.glob(".*.part"), *out.glob(".*.old")]):
            remove(left)
        yield


def read_state(out: Path, *, anew: bool) -> State:
    """What is known of the finished stages; nothing when none was finished yet.

    Args: anew: all is made again, so a damaged file does no harm.
    Raises: UserError if the file is not one of ours.
    """
    path = out / STATE
    if not path.is_file():
        return State(stages={})
    try:
        return State.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        if anew:
            return State(stages={})
        raise UserError(f"{path}: is damaged; add --force to make every stage again") from error


def write_state(out: Path, state: State) -> None:
    """Put the state in place of the older one."""
    with atomic_file(out / STATE) as part:
        part.write_text(state.model_dump_json(indent=2) + "\n", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
