"""The cache folder for downloads and features: where it is, what it holds, and how it is pruned."""

import contextlib
import os
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.progress import note


def cache_folder(*parts: str) -> Path:
    """Return the user's cache folder of this tool, or a folder below it; create it if needed.

    It holds prompts, answers and results about private code, so only the user can enter it, also if it exists already.

    Args: parts: names of nested folders; none for the cache folder itself.
    Returns: `LEMUR_CURATOR_CACHE`, if that variable is set, else `lemur-curator` in the platform's cache folder.
    Raises: UserError if it cannot be created.
    """
    root = _find_root()
    folder = root.joinpath(*parts)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for each in reversed((folder, *folder.parents)):
            if each.is_relative_to(root):
                each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache folder {folder}: {error.strerror}; set LEMUR_CURATOR_CACHE to a writable one"
        ) from error
    status = root.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX:
        with contextlib.suppress(OSError):  # a disk without permissions
            root.chmod(0o700)
    return folder


def is_cached(path: Path) -> bool:
    """Return whether a path is in the cache folder."""
    return path.resolve().is_relative_to(_find_root().resolve())


def _find_root() -> Path:
    """Return the path of the cache folder. Source: https://specifications.freedesktop.org/basedir-spec/latest/"""
    named = os.environ.get("LEMUR_CURATOR_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lemur-curator"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lemur-curator"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lemur-curator"


def open_database(path: Path, kind: str, tables: Sequence[str], on_damage: str | None = None) -> sqlite3.Connection:
    """Open a cache in one SQLite file, which concurrent processes may share; replace a damaged one by an empty one.

    Args:
        kind: what it is, for messages: "index", "cache".
        tables: definitions of its tables, `name (columns ...)`; a table that exists is left as it is.
        on_damage: message to print if a damaged file is replaced; None for none.
    Returns: a connection for the caller to close; every table exists.
    Raises: UserError if it cannot be opened or written.
    """
    try:
        return _connect(path, tables)
    except sqlite3.OperationalError as error:
        # A special case of DatabaseError: locked, or not writable. The file may be sound, so it is kept.
        raise UserError(f"{kind} {path}: {error}; set LEMUR_CURATOR_CACHE to a writable folder") from error
    except sqlite3.DatabaseError:
        if on_damage is not None:
            note(on_damage)
        # The journal of a damaged database would damage its successor, too.
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return _connect(path, tables)


def _connect(path: Path, tables: Sequence[str]) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    with contextlib.suppress(OSError):  # another user's
        path.chmod(0o600)  # the journals get the same mode
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            for table in tables:
                database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    except sqlite3.Error:
        database.close()
        raise
    return database


@dataclass(frozen=True, slots=True)
class Room:
    """One folder of the cache: `size` in bytes, number of `files`, and last write in seconds since the epoch."""

    name: str
    size: int
    files: int
    written: float


def list_rooms(names: Sequence[str] = ()) -> list[Room]:
    """List the rooms of the cache, sorted by name.

    Args: names: of the rooms to list; empty for all.
    Returns: the rooms with their sizes, as of now.
    Raises: UsageError if a name is unknown.
    """
    folders = sorted(folder for folder in cache_folder().iterdir() if folder.is_dir() and not folder.is_symlink())
    known = [folder.name for folder in folders]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"{unknown[0]}: no room of the cache; there are {', '.join(known) or 'none'}")
    return [_measure_room(folder) for folder in folders if not names or folder.name in names]


def _measure_room(folder: Path) -> Room:
    stats = [path.lstat() for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return Room(
        folder.name,
        sum(stat.st_size for stat in stats),
        len(stats),
        max((stat.st_mtime for stat in stats), default=0.0),
    )


def prune(chosen: Sequence[Room], *, older_than: float | None = None) -> int:
    """Remove rooms of the cache, or only their older files.

    Removed entries are computed or downloaded again when needed; a run that is using them may fail.

    Args:
        chosen: from `list_rooms`.
        older_than: seconds since a file was last written; None removes the whole rooms.
    Returns: the bytes freed.
    """
    freed = 0
    for room in chosen:
        folder = cache_folder(room.name)
        if older_than is None:
            freed += room.size
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for path in sorted(folder.rglob("*"), reverse=True):  # the contents of a folder before the folder
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()
            # lstat: a link counts for itself, as its target may lie outside of the cache.
            elif time.time() - (stat := path.lstat()).st_mtime > older_than:
                freed += stat.st_size
                path.unlink(missing_ok=True)
    return freed
