"""The contents of the cache, kept small: entries that were not used for the longest time go first."""

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.atomic import remove_dead, unfinished_name
from lemur_core.files.cache import ROOMS, cache_folder, claim_room, find_marker, is_ours, remove_path
from lemur_core.files.errors import UsageError

#: The environment variable that bounds the cache, in GiB; 0 for no bound.
VARIABLE, DEFAULT_GIB = "LEMUR_CURATOR_CACHE_GIB", 20.0

_STAMP, _STAMP_SECONDS = ".measured", 600.0  # how often a command measures the cache


@dataclass(frozen=True, slots=True)
class Room:
    """One folder of the cache: `size` in bytes, number of `files`, and last write in seconds since the epoch."""

    name: str
    size: int
    files: int
    written: float


@dataclass(frozen=True, slots=True)
class CachedPart:
    """A part that is removed as a whole: paths that belong together, their bytes, and when they were last used."""

    room: Path
    paths: tuple[Path, ...]
    size: int
    used: float


def list_rooms(names: Sequence[str] = ()) -> list[Room]:
    """List the rooms of the cache, sorted by name.

    Args: names: the rooms to list; all if empty.
    Returns: the rooms with their current sizes, without folders of other programs.
    Raises: UsageError if a name is unknown.
    """
    rooms = _find_rooms()
    known = [room.name for room in rooms]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"{unknown[0]}: the cache has no such namespace; there are {', '.join(known) or 'none'}")
    measured = []
    for room in rooms:
        if not names or room.name in names:
            stats = list(_list_stats([room]))
            written = max((status.st_mtime for status in stats), default=0.0)
            measured.append(Room(room.name, sum(status.st_size for status in stats), len(stats), written))
    return measured


def _find_rooms() -> list[Path]:
    return sorted(path for path in cache_folder().iterdir() if is_ours(path))


def _list_stats(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the states of all files in these paths; of a link its own."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if path.is_dir() and not path.is_symlink():
                yield from _list_stats(path.iterdir())
            else:
                yield path.lstat()


def prune(chosen: Sequence[Room], *, older_than: float | None = None) -> tuple[int, list[str]]:
    """Remove rooms of the cache, or only their older entries; they are computed or downloaded again when needed.

    Args: chosen: from `list_rooms`. older_than: seconds since an entry was last used; None removes all entries.
    Returns: the bytes freed, and the names of the rooms that were left, since another command uses them.
    """
    freed, in_use = 0, []
    for room in (cache_folder() / room.name for room in chosen):
        with claim_room(room) as free:
            if not free:
                in_use.append(room.name)
                continue
            old = [
                entry for entry in _list_entries(room) if older_than is None or time.time() - entry.used > older_than
            ]
            for entry in old:
                _remove(entry)
            freed += sum(entry.size for entry in old)
            if older_than is None:
                remove_path(room)
                remove_path(find_marker(room))
    return freed, in_use


def read_ceiling() -> int | None:
    """Return the most bytes that the cache may hold, as `LEMUR_CURATOR_CACHE_GIB` says; None for any number.

    Raises: UsageError if the variable is not a number of GiB.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        gib = float(text) if text else DEFAULT_GIB
    except ValueError:
        gib = -1.0
    if not (math.isfinite(gib) and gib >= 0):
        raise UsageError(f"{VARIABLE}: {text[:40]!r}; it must be a number of GiB, or 0 for no bound")
    return int(gib * 2**30) if gib else None


def bound_cache(ceiling: int | None, *, always: bool = False) -> int:
    """Remove the entries that were not used for the longest time, until the cache is within its ceiling.

    Rooms that another command uses are left as they are. A file system that does not record reads (`noatime`) knows
    only when an entry was written.

    Args: ceiling: bytes; None for no bound. always: measure again, even if that was done in the last ten minutes.
    Returns: the bytes freed.
    """
    stamp = cache_folder() / _STAMP
    if ceiling is None or (not always and _is_fresh(stamp)):
        return 0
    rooms = _find_rooms()
    entries = [entry for room in rooms for entry in _list_entries(room)]
    excess, freed = sum(entry.size for entry in entries) - ceiling, 0
    with contextlib.ExitStack() as locks:
        claimed: dict[Path, bool] = {}
        for entry in sorted(entries, key=lambda entry: (entry.used, entry.paths)):
            if freed >= excess:
                break
            if entry.room not in claimed:
                claimed[entry.room] = locks.enter_context(claim_room(entry.room))
            if claimed[entry.room]:
                _remove(entry)
                freed += entry.size
    stamp.touch()
    return freed


def remove_leftovers() -> None:
    """Remove the unfinished entries of processes that were killed."""
    for room in _find_rooms():
        remove_dead(room)


def _is_fresh(stamp: Path) -> bool:
    try:
        return 0 <= time.time() - stamp.stat().st_mtime < _STAMP_SECONDS
    except OSError:
        return False


def _list_entries(room: Path) -> list[CachedPart]:
    """List the entries of a room. Files with a common stem are one, such as a database and its journals."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in _descend(room, ROOMS[room.name]):
        stem = path.name if path.is_dir() or path.name.startswith(".") else path.name.partition(".")[0]
        groups.setdefault((path.parent, stem), []).append(path)
    entries = []
    for paths in groups.values():
        stats = list(_list_stats(paths))
        used = max((max(status.st_mtime, status.st_atime) for status in stats), default=0.0)
        entries.append(CachedPart(room, tuple(sorted(paths)), sum(status.st_size for status in stats), used))
    return entries


def _descend(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the paths that many levels below a folder, and the files above them."""
    for path in sorted(folder.iterdir()):
        if levels and path.is_dir() and not path.is_symlink():
            yield from _descend(path, levels - 1)
        else:
            yield path


def _remove(entry: CachedPart) -> None:
    """Remove an entry; a folder is never seen with a part of its files."""
    for path in entry.paths:
        with contextlib.suppress(OSError):  # another user's
            if path.is_dir() and not path.is_symlink():
                aside = path.with_name(unfinished_name(path.name))
                path.rename(aside)
                remove_path(aside)
            else:
                path.unlink(missing_ok=True)
