"""The cache folder for downloads and features: its path, its rooms, and the locks of processes that use them."""

import contextlib
import fcntl
import os
import shutil
import sqlite3
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

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

T = TypeVar("T")

_held: dict[Path, int] = {}  # the marker, open and locked, of each room that this process uses
_holding = threading.Lock()  # a second thread, too, waits until the first one has the lock


def cache_folder(*parts: str) -> Path:
    """Return the user's cache folder of this tool, or a folder below it; create it if needed.

    It holds prompts, answers and results about private code: only the user can enter the folders that are created.

    Args: parts: names of nested folders, the first one from `ROOMS`; none for the cache folder itself. As long as this
        process runs, no other process removes entries of that room.
    Returns: `LEMUR_CURATOR_CACHE`, if that variable is set, else `lemur-curator` in the user's cache folder.
    Raises: UserError if the folder cannot be created.
    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    assert not parts or parts[0] in ROOMS, parts
    root = _find_root()
    folder, room = root.joinpath(*parts), root.joinpath(*parts[:1])
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for each in reversed((folder, *folder.parents)):
            if each.is_relative_to(root):
                each.mkdir(mode=0o700, exist_ok=True)
            if each == room != root:  # before anything is in it: a folder that holds something is not ours
                _hold(room)
    except OSError as error:
        raise UserError(
            f"cache folder {folder}: {error.strerror}; set LEMUR_CURATOR_CACHE to a writable one"
        ) from error
    return folder


def _hold(room: Path) -> None:
    with contextlib.suppress(OSError), _holding:  # a file system without locks, or a folder of another user
        if room not in _held and (is_ours(room) or not any(room.iterdir())):
            _held[room] = _open_marker(room)
            fcntl.flock(_held[room], fcntl.LOCK_SH)  # waits while another process removes entries


def _find_root() -> Path:
    named = os.environ.get("LEMUR_CURATOR_CACHE")
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "lemur-curator")).expanduser()


def uses_rooms() -> bool:
    """Return whether this process uses a room of the cache."""
    return bool(_held)


def find_marker(room: Path) -> Path:
    """Return the path of the marker of a room, a file outside the room, which need not exist."""
    return room.parent / _MARKERS / room.name


def _open_marker(room: Path) -> int:
    marker = find_marker(room)
    marker.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_ours(room: Path) -> bool:
    """Return whether a folder is one of our rooms: the cache's folder may have some of other programs, too."""
    return room.name in ROOMS and room.is_dir() and not room.is_symlink() and find_marker(room).is_file()


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


# What is damaged in the cache is dropped and made again.

_READ_ERRORS = (
    *(OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, NotImplementedError),
    *(sqlite3.DatabaseError, zipfile.BadZipFile, zlib.error),
)
_SEAL_BYTES = 4


def is_cached(path: Path) -> bool:
    """Return whether a path is in the cache folder."""
    return path.resolve().is_relative_to(_find_root().resolve())


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
                return work(self._connect())
            except sqlite3.DatabaseError as error:
                self.close()
                # Others are about the disk, or another process. All statements are ours, so one that is wrong for this
                # file means that the file is not as we wrote it.
                is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_NOTADB),
                )
                if is_last or not is_damage:
                    raise UserError(
                        f"cache {self._path}: {error}; no output was written: free space, or set LEMUR_CURATOR_CACHE to"
                        " a writable folder"
                    ) from error
                drop_damaged(self._path)
                for suffix in ("-wal", "-shm"):  # it would damage the new file, too
                    Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        raise AssertionError

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=60)
            # Of two processes that make a new file, SQLite would refuse one its journal at once.
            with FileLock(f"{self._path}.lock"), self._connection:
                self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
                for table in self._tables:
                    self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        return self._connection
