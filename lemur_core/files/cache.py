"""The cache folder for downloads and features: its path, its rooms, and the locks of processes that use them."""

import contextlib
import fcntl
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note

#: The folders of the cache, called rooms, with the number of folder levels between each and its entries.
ROOMS: Mapping[str, int] = {
    **dict.fromkeys(("cifar10", "experts", "index", "lemur", "lemur-db", "pages", "published", "runtime-links"), 0),
    **dict.fromkeys(("sandbox", "search", "secrets", "synthesis"), 0),
    "features": 1,
    "runtime": 2,
    "sources": 2,
}

#: A folder in the cache with a marker for each of our rooms, which the processes that use the room lock until they end.
_MARKERS = ".lemur"

_held: dict[Path, int] = {}  # the marker, open and locked, of each room that this process uses
_holding = threading.Lock()  # a second thread, too, waits until the first one has the lock


def cache_folder(*parts: str) -> Path:
    """Return the user's cache folder of this tool, or a folder below it; create it if needed.

    It holds prompts, answers and results about private code, so only the user can enter it, even if it existed before.

    Args: parts: names of nested folders, the first one from `ROOMS`; none for the cache folder itself. As long as this
        process runs, no other process removes entries of that room.
    Returns: `LEMUR_CURATOR_CACHE`, if that variable is set, else `lemur-curator` in the platform's cache folder.
    Raises: UserError if the folder cannot be created.
    """
    root = _find_root()
    folder = root.joinpath(*parts)
    assert not parts or parts[0] in ROOMS, parts
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
        with contextlib.suppress(OSError):  # a file system without permissions
            root.chmod(0o700)
    if parts:
        _hold(root / parts[0])
    return folder


def uses_rooms() -> bool:
    """Return whether this process has used a room of the cache.

    Returns: True once a room was opened.
    """
    return bool(_held)


def _hold(room: Path) -> None:
    """Mark a room as ours, and lock it as used by this process."""
    with contextlib.suppress(OSError), _holding:  # a file system without locks, or a folder of another user
        if room not in _held and (is_ours(room) or not any(room.iterdir())):
            _held[room] = _open_marker(room)
            fcntl.flock(_held[room], fcntl.LOCK_SH)  # waits while another process removes entries


def find_marker(room: Path) -> Path:
    """Return the path of the marker of a room.

    Args: room: a folder directly in the cache.
    Returns: a file outside the room, which need not exist.
    """
    return room.parent / _MARKERS / room.name


def _open_marker(room: Path, suffix: str = "") -> int:
    marker = find_marker(room).with_suffix(suffix)
    marker.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_ours(room: Path) -> bool:
    """Return whether a folder of the cache is one of our rooms: it has a marker, or all other folders there are rooms.

    Args: room: a folder directly in the cache.
    Returns: False for a folder of another program; the marker decides where the cache's folder has others, too.
    """
    if room.name not in ROOMS or room.is_symlink() or not room.is_dir():
        return False
    return find_marker(room).is_file() or all(
        path.name in ROOMS or path.name.startswith(".") for path in room.parent.iterdir()
    )


@contextlib.contextmanager
def claim_room(room: Path) -> Iterator[bool]:
    """Lock a room until the block ends, so that no other process uses it; yield False if another process does.

    Args: room: a folder directly in the cache.
    Returns: a context manager, whose value is True if the room is free.
    """
    own = _held.get(room)
    with contextlib.ExitStack() as opened:
        try:
            turn = _open_marker(room, ".turn")
            opened.callback(os.close, turn)
            handle = own if own is not None else _open_marker(room)
        except OSError:
            yield False
            return
        if own is None:
            opened.callback(os.close, handle)
        else:
            opened.callback(fcntl.flock, handle, fcntl.LOCK_SH)
        try:
            # A failed attempt loses the shared lock for a moment, in which nobody else may try.
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free


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
    """Open a cache in one SQLite file, which concurrent processes may share; replace a damaged one with an empty one.

    Args:
        kind: the noun for messages: "index", "cache".
        tables: definitions of its tables, `name (columns ...)`; existing tables are left unchanged.
        on_damage: message to print when a damaged file is replaced, if any.
    Returns: a connection for the caller to close; every table exists.
    Raises: UserError if the file cannot be opened or written.
    """
    try:
        return _connect(path, tables)
    except sqlite3.OperationalError as error:
        # A subclass of DatabaseError: locked, or not writable. The file may be intact, so it is kept.
        raise UserError(f"{kind} {path}: {error}; set LEMUR_CURATOR_CACHE to a writable folder") from error
    except sqlite3.DatabaseError:
        if on_damage is not None:
            note(on_damage)
        # The journals of a damaged database would damage its replacement, too.
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
