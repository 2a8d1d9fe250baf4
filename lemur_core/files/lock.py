"""A file or folder for one process alone."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from lemur_core.files.errors import UserError


@contextlib.contextmanager
def own(folder: Path, lock: str, at_work: str) -> Iterator[None]:
    """The folder, made when missing, for this process until the end of the block, however the process ends.

    Args:
        lock: the name of a file in it.
        at_work: what to say of another process that has it, such as `another run works there`.
    Raises: UserError if it cannot be made, or another process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / lock).open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another --out") from error
    with file:
        if not claim(file.fileno()):
            raise UserError(f"{folder}: {at_work}; wait for it, or choose another --out")
        yield


def claim(handle: int) -> bool:
    """Whether a file or folder is now this process's, for as long as it lives and has it open."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
