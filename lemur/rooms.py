"""The contents of the cache, kept small: entries that were not used for the longest time go first."""

import contextlib
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lemur_core.files.atomic import unfinished_name
from lemur_core.files.cache import ROOMS, cache_folder, claim_room, find_marker, is_ours, remove_path
from lemur_core.files.errors import UsageError

#: The environment variable that bounds the cache, in GiB; 0 for no bound.
VARIABLE, DEFAULT_GIB = "LEMUR_CURATOR_CACHE_GIB", 20.0

_STAMP, _STAMP_SECONDS = ".measured", 600.0  # how often a command measures the cache


def find_rooms(names: Sequence[str] = ()) -> list[Path]:
    """Return the rooms of the cache, sorted by name, without folders of other programs.

    Args: names: the rooms to find; all if empty.
    Raises: UsageError if a name is unknown.
    """
    rooms = sorted(path for path in cache_folder().iterdir() if is_ours(path))
    known = [room.name for room in rooms]
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"{unknown[0]}: the cache has no such namespace; there are {', '.join(known) or 'none'}")
    return [room for room in rooms if not names or room.name in names]


#: The bytes of files by device and inode: a file with several hard links counts once.
_Sizes = dict[tuple[int, int], int]


def _size(stats: Iterable[os.stat_result]) -> _Sizes:
    return {(status.st_dev, status.st_ino): status.st_size for status in stats}


def measure_rooms(rooms: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return the bytes and the number of the files of each room; a file with links in several counts in the first."""
    seen, measured = _Sizes(), dict[str, tuple[int, int]]()
    for room in rooms:
        files = {file: size for file, size in _size(_list_stats([room])).items() if file not in seen}
        measured[room.name] = sum(files.values()), len(files)
        seen |= files
    return measured


def list_entries(room: Path) -> Iterator[tuple[float, tuple[Path, ...], _Sizes]]:
    """Yield what is removed as a whole: a folder, or files with a common stem, such as a database and its journals.

    Returns: seconds since the epoch when one of its files was last read or written, its paths, and the bytes of its
        files. A file system that does not record reads (`noatime`) knows only when a file was written.
    """
    groups: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for path in _descend(room, ROOMS[room.name]):
        stem = path.name if path.is_dir() or path.name.startswith(".") else path.name.partition(".")[0]
        groups[path.parent, stem].append(path)
    for paths in groups.values():
        stats = list(_list_stats(paths))
        used = max((max(status.st_mtime, status.st_atime) for status in stats), default=0.0)
        yield used, tuple(paths), _size(stats)


def _descend(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the paths that many levels below a folder, and the files above them."""
    for path in sorted(folder.iterdir()):
        if levels and path.is_dir() and not path.is_symlink():
            yield from _descend(path, levels - 1)
        else:
            yield path


def _list_stats(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the states of all files in these paths; of a link its own."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if path.is_dir() and not path.is_symlink():
                yield from _list_stats(path.iterdir())
            else:
                yield path.lstat()


def prune(rooms: Iterable[Path]) -> tuple[int, list[str]]:
    """Remove rooms of the cache; what they held is computed or downloaded again when needed.

    Returns: the bytes freed, and the names of the rooms that were left, since another command uses them.
    """
    before, in_use = measure_rooms(rooms := list(rooms)), []
    for room in rooms:
        with claim_room(room) as free:
            if free:
                remove_path(room)
                remove_path(find_marker(room))
            else:
                in_use.append(room.name)
    return sum(size for size, _ in before.values()) - sum(size for size, _ in measure_rooms(rooms).values()), in_use


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

    Rooms that another command uses are left as they are.

    Args: ceiling: bytes; None for no bound. always: measure again, even if that was done in the last ten minutes.
    Returns: the bytes freed.
    """
    stamp = cache_folder() / _STAMP
    measured = stamp.stat().st_mtime if stamp.is_file() else -math.inf
    if ceiling is None or (not always and 0 <= time.time() - measured < _STAMP_SECONDS):
        return 0
    entries = sorted((*entry, room) for room in find_rooms() for entry in list_entries(room))
    links = Counter(file for *_, files, _ in entries for file in files)
    excess, freed = sum({file: size for *_, files, _ in entries for file, size in files.items()}.values()) - ceiling, 0
    with contextlib.ExitStack() as locks:
        claimed: dict[Path, bool] = {}
        for _, paths, files, room in entries:
            if freed >= excess:
                break
            if room not in claimed:
                claimed[room] = locks.enter_context(claim_room(room))
            if claimed[room]:
                for path in paths:
                    _remove(path)
                links.subtract(files.keys())
                freed += sum(size for file, size in files.items() if not links[file])
    stamp.touch()
    return freed


def _remove(path: Path) -> None:
    """Remove a part of an entry; a folder is never seen with a part of its files."""
    with contextlib.suppress(OSError):  # another user's
        if path.is_dir() and not path.is_symlink():
            aside = path.with_name(unfinished_name(path.name))
            path.rename(aside)
            remove_path(aside)
        else:
            path.unlink(missing_ok=True)
