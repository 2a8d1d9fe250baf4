"""The cache folder for downloads and features: its path, its rooms, and the locks of processes that use them."""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lemur_core.files.errors import DamagedError, UserError
from lemur_core.files.progress import note

#: The folders of the cache, called rooms, with the number of folder levels between each and its entries.
ROOMS: Mapping[str, int] = {
    **dict.fromkeys(("cifar10", "experts", "index", "lemur", "lemur-db", "pages", "published", "runtime-links"), 0),
    **dict.fromkeys(("sandbox", "search", "secrets", "synthesis", "training"), 0),
    "features": 1,
    "runtime": 2,
    "sources": 2,
}

#: A folder in the cache with a marker for each of our rooms, which the processes that use the room lock until they end.
_MARKERS = ".lemur"

#: Errors of SQLite about a file that is not as we wrote it; others are about the disk, or another process.
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_NOTADB)
_READ_ERRORS = (
    *(OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, NotImplementedError),
    *(sqlite3.DatabaseError, zipfile.BadZipFile, zlib.error),
)
_SOME_BYTES = 2**20  # with less, a disk is full
_SEAL_BYTES = 4

T = TypeVar("T")

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
                if parts and each.is_file() and find_marker(root / parts[0]).is_file():  # else the user's own
                    drop_damaged(each)
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
    """Return whether this process uses a room of the cache."""
    return bool(_held)


def _hold(room: Path) -> None:
    """Mark a room as ours, and lock it as used by this process."""
    with contextlib.suppress(OSError), _holding:  # a file system without locks, or a folder of another user
        if room not in _held and (is_ours(room) or not any(room.iterdir())):
            _held[room] = _open_marker(room)
            fcntl.flock(_held[room], fcntl.LOCK_SH)  # waits while another process removes entries


def find_marker(room: Path) -> Path:
    """Return the path of the marker of a room, a file outside the room, which need not exist."""
    return room.parent / _MARKERS / room.name


def _open_marker(room: Path) -> int:
    marker = find_marker(room)
    if marker.parent.is_file() or marker.is_dir():
        remove_path(marker if marker.is_dir() else marker.parent)
    marker.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_ours(room: Path) -> bool:
    """Return whether a folder of the cache is one of our rooms: it has a marker, or all other folders there are rooms.

    False for a folder of another program; the marker decides where the cache's folder has others, too.
    """
    if room.name not in ROOMS or room.is_symlink() or not room.is_dir():
        return False
    return find_marker(room).is_file() or all(
        path.name in ROOMS or path.name.startswith(".") for path in room.parent.iterdir()
    )


@contextlib.contextmanager
def claim_room(room: Path) -> Iterator[bool]:
    """End this process's use of a room, and lock it until the block ends; yield False if another process uses it."""
    if (own := _held.pop(room, None)) is not None:
        os.close(own)
    with contextlib.ExitStack() as opened:
        try:
            handle = _open_marker(room)
            opened.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free


def remove_path(path: Path) -> None:
    """Remove a file, a link, or a folder and everything in it, if it exists; what a link points to is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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


def drop_damaged(path: Path) -> None:
    """Remove what is not as it was written from the cache, a file or a folder, and say so: it is made again."""
    remove_path(path)
    note(f"cache: {path} is damaged and was dropped; what it held is made again")


@contextlib.contextmanager
def read_cached(path: Path) -> Iterator[None]:
    """In the block, a file or folder of the cache is read: drop it if that fails. Raises: DamagedError then."""
    try:
        yield
    except _READ_ERRORS as error:
        if not is_cached(path):
            raise
        drop_damaged(path)
        raise DamagedError(f"{path}: damaged, and dropped; run again") from error


def seal(value: bytes) -> bytes:
    """Return a value with its checksum, for a place where some of its bytes may be lost."""
    return zlib.crc32(value).to_bytes(_SEAL_BYTES, "big") + value


def unseal(sealed: object) -> bytes | None:
    """Return the value of `seal`; None if it is damaged."""
    if isinstance(sealed, bytes) and sealed[:_SEAL_BYTES] == zlib.crc32(sealed[_SEAL_BYTES:]).to_bytes(_SEAL_BYTES):
        return sealed[_SEAL_BYTES:]
    return None


class Database:
    """A cache in one SQLite file, which concurrent processes may share; where it is damaged, an empty one replaces it.

    Args: tables: their definitions, `name (columns ...)`; existing tables are left unchanged.
    Raises: UserError, here and in each method, if the file cannot be read or written.
    """

    def __init__(self, path: Path, tables: Sequence[str]) -> None:
        self._path, self._tables = path, tables
        self._connection: sqlite3.Connection | None = None
        self.read("SELECT 1")

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._use(lambda connection: connection.execute(query, values).fetchall())

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute a statement with each row; all are written, or none."""
        rows = list(rows)

        def execute(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(statement, rows)

        self._use(execute)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for is_last in (False, True):
            try:
                self._connection = self._connection or _connect(self._path, self._tables)
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                self.close()
                files = [self._path, *(Path(f"{self._path}{suffix}") for suffix in ("-wal", "-shm"))]
                # All statements are ours, so one that is wrong for this file means that the file is not ours.
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if is_last or not (code in _DAMAGE or any(file.is_dir() for file in files)):
                    raise self._explain(error, code) from error
                drop_damaged(files[0])
                for journal in files[1:]:  # it would damage the new file, too
                    remove_path(journal)
        raise AssertionError

    def _explain(self, error: sqlite3.DatabaseError, code: int) -> UserError:
        folder = next(parent for parent in self._path.parents if parent.exists())
        # The error of a full disk depends on the file that has no room.
        if code == sqlite3.SQLITE_FULL or shutil.disk_usage(folder).free < _SOME_BYTES:
            reason = f"{os.strerror(errno.ENOSPC)}; no output was written: free space, or"
        else:
            reason = f"{error};"
        return UserError(f"cache {self._path}: {reason} set LEMUR_CURATOR_CACHE to a writable folder")


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
