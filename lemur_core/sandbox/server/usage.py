"""Resource usage of a job, as the kernel reports it: disk space, threads, CPU time, and whether it sleeps.

A job is the process that the server forked and, if it is not confined, the descendants of that process.
"""

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .jobs import Limits

_NAME_BYTES = 4096  # charged for each name, so that empty files are not free
_MOST_LOOKS = 20  # while entries vanish
_LONGEST_PATH = 3500  # the kernel's limit is 4095 bytes
_SPARE_BYTES = 256 * 2**20  # a job that has written more is ended when the disk has less than this left
_SAMPLE_SECONDS = 1.0
_LOST_BYTES = 16 * 2**20  # if the disk has lost more since the last reading, the mapped files are read again at once
_SLEEP_PER_CPU = 4.0  # seconds of sleep that each CPU second cancels
_EXITING = 0x4  # the kernel's PF_EXITING, set before the process closes its files
_DELETED = " (deleted)"
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +(/.*)$", re.MULTILINE)  # inode and path of a mapped file


class OverLimitError(Exception):
    """A job has written more than it may, or files that cannot be counted.

    The message names the limit and never the count, which differs from run to run.
    """


def list_processes(leader: int) -> list[int]:
    """Return a process and all its descendants; only itself where the kernel does not list children."""
    processes: list[int] = []
    waiting = [leader]
    while waiting:
        processes.append(process := waiting.pop())
        for thread in _list_threads(process):
            waiting += map(int, _read(thread / "children").split())
    return processes


class Scratch:
    """The files that a job has written: those in its folder, and deleted ones that are still open or mapped."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self._mapped: list[int | str] = []
        self._mapped_at, self._free = 0.0, 0

    def check(self, processes: Sequence[int]) -> None:
        """Measure the files. Raises: OverLimitError if they are too large, too many, too deep or cannot be read."""
        with _paused(processes):  # what it moves meanwhile might be in no place when we look there
            sizes = self._measure_named()
            for process in processes:
                sizes |= _measure_open(process)
        # The size of a file that is only mapped cannot be read: it counts as the largest that it can be.
        sizes = dict.fromkeys(self._find_mapped(processes), self._limits.file_bytes) | sizes
        used, limit = sum(sizes.values()), self._limits.scratch_bytes
        if used > limit:
            raise OverLimitError(f"wrote too many bytes to its scratch folder; the limit is {limit}")
        if used > _SPARE_BYTES > self._free:
            raise OverLimitError(f"wrote {_SPARE_BYTES} bytes to its scratch folder, and its disk is nearly full")

    def _measure_named(self) -> dict[int | str, int]:
        """Return the sizes of files and folders, by inode, and what is charged for names, by path.

        Where an entry vanishes before it is measured, as in the folder of the caller, they are all looked at again.
        """
        sizes: dict[int | str, int] = {}
        for _ in range(_MOST_LOOKS):
            if self._add_named(sizes):
                break
        return sizes

    def _add_named(self, sizes: dict[int | str, int]) -> bool:
        """Add what the folder holds now. Returns: whether nothing vanished meanwhile."""
        names, waiting, whole = 0, [str(self._folder)], True
        while waiting:
            path = waiting.pop()
            if len(path) > _LONGEST_PATH:
                raise OverLimitError("nested its folders too deep")
            try:
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except PermissionError as error:
                raise OverLimitError("made a folder that cannot be read") from error
            except OSError:  # moved, removed, or something else by now
                whole = False
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        names += 1
                        if names > self._limits.files:
                            raise OverLimitError(f"made more than {self._limits.files} files")
                        inside = f"{path}/{entry.name}"
                        sizes[inside] = _NAME_BYTES
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            whole = False
                            continue
                        sizes[status.st_ino] = status.st_blocks * 512
                        if stat.S_ISDIR(status.st_mode):
                            waiting.append(inside)
            finally:
                os.close(folder)
        return whole

    def _find_mapped(self, processes: Sequence[int]) -> list[int | str]:
        """Return the inodes of deleted files that are mapped.

        The list of mappings is long, so it is read once a second, or at once if the disk has lost space.
        """
        free, now = free_bytes(self._folder), time.monotonic()
        if self._free - free > _LOST_BYTES or now - self._mapped_at >= _SAMPLE_SECONDS:
            self._mapped = [inode for process in processes for inode in _list_mapped(self._folder, process)]
            self._mapped_at, self._free = now, free
        return self._mapped


@contextlib.contextmanager
def _paused(processes: Sequence[int]) -> Iterator[None]:
    """Stop processes until the block ends, but for those that have stopped themselves."""
    running = [process for process in processes if read_stat(f"/proc/{process}")[:1] not in ([], ["T"], ["Z"])]
    try:
        _signal(running, signal.SIGSTOP)
        yield
    finally:
        _signal(running, signal.SIGCONT)


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(process, number)


def _measure_open(process: int) -> dict[int | str, int]:
    """Return the sizes of deleted files that are open, by inode."""
    sizes: dict[int | str, int] = {}
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in the meantime
                status = file.stat()
                if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                    sizes[status.st_ino] = status.st_blocks * 512
    return sizes


def _list_mapped(folder: Path, process: int) -> list[int | str]:
    """Return the inodes of mapped files that were deleted from the folder."""
    text = _read(f"/proc/{process}/maps")
    # Few jobs map a file of their own, and the list is long.
    if f"{folder}/" not in text:
        return []
    mappings = _MAPPED.findall(text)
    return [int(inode) for inode, path in mappings if path.endswith(_DELETED) and path.startswith(f"{folder}/")]


def available_memory() -> int:
    """Return the bytes of memory that are free or can be freed; 0 if unknown."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def has_ended(process: int) -> bool:
    """Return whether a process has ended or is exiting, even if nobody has waited for it yet."""
    fields = read_stat(f"/proc/{process}")
    return not fields or bool(int(fields[6]) & _EXITING)


def free_bytes(folder: Path) -> int:
    """Return the free space on the disk of a folder, in bytes; 0 if the folder is missing."""
    try:
        status = os.statvfs(folder)
    except FileNotFoundError:  # an unconfined job can remove its own
        return 0
    return status.f_bavail * status.f_frsize


def count_threads(processes: Sequence[int]) -> int:
    """Return the number of threads of these processes; 0 without /proc."""
    return sum(len(_list_threads(process)) for process in processes)


class SleepMeter:
    """Measures how long a job has slept instead of computing.

    A thread that could run or waits for a disk counts as computing, so that no job seems asleep because the machine is
    busy. Each CPU second cancels only four seconds of sleep, so that a job that wakes up for moments still sleeps.
    """

    def __init__(self) -> None:
        self.asleep = self.runnable = self.watched = 0.0  # seconds
        self._cpu_seconds, self._sampled = 0.0, time.monotonic()

    @property
    def mostly_waited(self) -> bool:
        """Return whether the job could compute for less than half of the time."""
        return self.runnable < self.watched / 2

    def watch(self, processes: Sequence[int], now: float) -> None:
        """Sample the job at most once a second; more frequent calls do nothing."""
        if now - self._sampled < _SAMPLE_SECONDS:
            return
        cpu_seconds, states = _read_activity(processes)
        # If the server itself was held up, it does not know what the job did in the meantime.
        elapsed = min(now - self._sampled, 2 * _SAMPLE_SECONDS)
        used = max(0.0, cpu_seconds - self._cpu_seconds)
        self._sampled, self._cpu_seconds = now, cpu_seconds
        self.watched += elapsed
        if "R" in states:  # it computes, or would if the machine were not busy
            self.runnable += elapsed
        elif states and "D" not in states:  # nor does it wait for a disk; without /proc there are no states
            self.asleep += elapsed
        self.asleep = max(0.0, self.asleep - _SLEEP_PER_CPU * used)


def _read_activity(processes: Sequence[int]) -> tuple[float, str]:
    """Return the CPU seconds that these processes have used so far, and the states of their threads, a letter each."""
    ticks, states = 0, ""
    for process in processes:
        # The CPU time of threads and children that have ended is only in the figures of the whole process.
        ticks += sum(map(int, read_stat(f"/proc/{process}")[11:15]))
        for thread in _list_threads(process):
            states += "".join(read_stat(thread)[:1])
    return ticks / os.sysconf("SC_CLK_TCK"), states


def read_stat(folder: Path | str) -> list[str]:
    """Return the fields of a process or thread after its name, which is in parentheses and may hold anything.

    Args: folder: in /proc.
    Returns: from the state on; none if it has ended.
    """
    return _read(f"{folder}/stat").rpartition(")")[2].split()


def _list_threads(process: int) -> list[Path]:
    """Return the folders of a process's threads in /proc; none if it has ended."""
    try:
        return list(Path(f"/proc/{process}/task").iterdir())
    except OSError:
        return []


def _read(path: Path | str) -> str:
    """Return the text of a file in /proc; empty if it cannot be read, as when the process has ended."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
