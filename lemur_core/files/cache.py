"""Where downloads and features are kept between runs, what is there, and how it is removed."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.errors import UsageError, UserError


def cache_folder(*parts: str) -> Path:
    """The user's cache folder of this tool (made when missing), or a folder below it.

    `LEMUR_CURATOR_CACHE` names it outright; else it lies in the platform's cache folder.

    Raises: UserError if it cannot be made.
    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    named = os.environ.get("LEMUR_CURATOR_CACHE")
    if named:
        root = Path(named).expanduser()
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches" / "lemur-curator"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lemur-curator"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lemur-curator"
    folder = root.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache folder {folder}: {error.strerror}; set LEMUR_CURATOR_CACHE to a writable one"
        ) from error
    return folder


@dataclass(frozen=True, slots=True)
class Room:
    """One folder of the cache: `size` in bytes, `files`, and when the last one was written, seconds since the epoch."""

    name: str
    size: int
    files: int
    written: float


def rooms(names: Sequence[str] = ()) -> list[Room]:
    """What the cache holds, by name; all of it, or these rooms. Raises: UsageError if there is no such room."""
    folders = sorted(folder for folder in cache_folder().iterdir() if folder.is_dir() and not folder.is_symlink())
    known = [folder.name for folder in folders]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"{unknown[0]}: no room of the cache; there are {', '.join(known) or 'none'}")
    return [_room(folder) for folder in folders if not names or folder.name in names]


def _room(folder: Path) -> Room:
    found = [path.lstat() for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return Room(folder.name, sum(s.st_size for s in found), len(found), max((s.st_mtime for s in found), default=0.0))


def prune(chosen: Sequence[Room], *, older_than: float | None = None) -> int:
    """Remove rooms of the cache, or what in them was not written in so many seconds. Returns: bytes that were freed.

    What is removed is worked out or fetched again when it is needed; a run that uses it meanwhile may fail.
    """
    freed = 0
    for room in chosen:
        folder = cache_folder(room.name)
        if older_than is None:
            freed += room.size
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for path in sorted(folder.rglob("*"), reverse=True):  # what lies in a folder before the folder
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()
            elif time.time() - (told := path.lstat()).st_mtime > older_than:
                freed += told.st_size
                path.unlink(missing_ok=True)
    return freed
