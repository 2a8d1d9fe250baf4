"""The server's view of job processes: a running job, how it ended, and the removal of what it leaves behind."""

import contextlib
import ctypes
import hmac
import os
import re
import secrets
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .child import KEY_BYTES, LENGTH_BYTES, MAX_VALUE_BYTES
from .jobs import Limits, Status
from .syscalls import call_kernel
from .usage import OverLimitError, Scratch, SleepMeter, count_threads, list_processes, read_stat

_MOST_ROUNDS = 100_000
_TAIL_BYTES = 8192
CHUNK_BYTES = 1 << 16  # as much as a pipe holds; full of short writes, it may hold half of that
_ASLEEP_SECONDS = 2.0
_MADV_COLLAPSE = 25
_PRIVATE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE
)  # neither file nor stack
_MAX_PIPE = 1 << 20  # the kernel's largest pipe
_MAX_FRAME = KEY_BYTES + LENGTH_BYTES + MAX_VALUE_BYTES + 1


@dataclass(slots=True)
class Running:
    """A forked job that is running."""

    number: int
    process: int
    limits: Limits
    scratch: Path
    key: bytes
    descriptors: tuple[int, int, int]  # read ends for output, errors and result
    keep: bool = False  # the scratch folder belongs to the caller
    started: float = field(default_factory=time.monotonic)
    verdict: tuple[Status, str] | None = None
    waited: bool = False
    sleep: SleepMeter = field(default_factory=SleepMeter)
    tails: dict[int, bytearray] = field(default_factory=dict)
    printed: Counter[int] = field(default_factory=Counter)  # bytes, by descriptor
    written: Scratch = field(init=False)

    def __post_init__(self) -> None:
        self.written = Scratch(self.scratch, self.limits)

    @property
    def result(self) -> int:
        """The descriptor on which the report arrives."""
        return self.descriptors[2]

    @property
    def deadline(self) -> float:
        """The end of its wall time, on the monotonic clock."""
        return self.started + self.limits.wall_seconds

    @property
    def asleep(self) -> bool:
        """Return whether it has slept for so long that another job can compute in its place."""
        return self.sleep.asleep >= _ASLEEP_SECONDS

    def take(self, descriptor: int) -> int | None:
        """Read available data once, keeping only the tail of prints. Returns: the size; 0 at the end of the stream,
        None if there is no data yet.
        """
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        tail = self.tails.setdefault(descriptor, bytearray())
        tail += chunk
        if descriptor != self.result:
            del tail[:-_TAIL_BYTES]
            self.printed[descriptor] += len(chunk)
            if self.printed[descriptor] > self.limits.file_bytes:
                self.end(Status.OVER_LIMIT, f"printed too many bytes; the limit is {self.limits.file_bytes}")
        elif len(tail) > _MAX_FRAME:
            self.end(Status.OVER_LIMIT, "wrote more to the result channel than a result may have")
            del tail[_MAX_FRAME:]
        return len(chunk)

    def drain(self) -> None:
        """Read the rest of the pipes after the process ended, and close them."""
        for descriptor in self.descriptors:
            for _ in range(_MAX_PIPE // CHUNK_BYTES):  # bounded: if unconfined, an escaped process may still write
                if not self.take(descriptor):
                    break
            os.close(descriptor)

    def end(self, status: Status, message: str, *, waited: bool = False) -> None:
        """Kill it and record why; the first reason counts."""
        if self.verdict is None:
            self.verdict, self.waited = (status, message), waited
        for kill in (os.killpg, os.kill):  # its process group may not exist yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.process, signal.SIGKILL)

    def check(self, now: float) -> None:
        """End it if its wall time is over."""
        if now >= self.deadline:
            message = f"ran longer than {self.limits.wall_seconds:g} seconds (wall)"
            self.end(Status.TIMEOUT, message, waited=self.sleep.mostly_waited)

    def inspect(self, now: float) -> None:
        """End it if its scratch space or number of threads exceeds the limit, or if it only waits."""
        processes = list_processes(self.process)
        self.sleep.watch(processes, now)
        if self.sleep.asleep >= self.limits.idle_seconds:
            self.end(Status.TIMEOUT, f"used almost no CPU for {self.limits.idle_seconds:g} seconds", waited=True)
        try:
            self.written.check(processes)
        except OverLimitError as error:
            self.end(Status.OVER_LIMIT, str(error))
        threads = count_threads(processes)
        if threads > self.limits.threads:
            self.end(Status.OVER_LIMIT, f"started too many threads; the limit is {self.limits.threads}")

    def judge(self, wait_status: int, cpu_seconds: float) -> tuple[Status | None, str]:
        """Return how it ended and why; None and the report, as JSON, if there is a report that can be trusted."""
        if self.verdict is not None:
            return self.verdict
        if os.WIFSIGNALED(wait_status):
            return self._judge_signal(os.WTERMSIG(wait_status), cpu_seconds)
        code = os.WEXITSTATUS(wait_status)
        frame = bytes(self.tails.get(self.result, b""))
        if not frame:
            early = "the code, or a thread that it started, called exit or _exit"
            return Status.CRASHED, f"exited with code {code} before the entry returned: {early}"
        body = frame[KEY_BYTES + LENGTH_BYTES :]
        length = int.from_bytes(frame[KEY_BYTES : KEY_BYTES + LENGTH_BYTES], "big")
        if code != 0 or not hmac.compare_digest(frame[:KEY_BYTES], self.key) or length != len(body):
            return Status.CRASHED, "something other than the entry wrote to the result channel; nothing counts"
        return None, body.decode("ascii", "replace")

    def _judge_signal(self, number: int, cpu_seconds: float) -> tuple[Status, str]:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        # A job that ignores SIGXCPU gets a SIGKILL one second later.
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_seconds >= self.limits.cpu_seconds):
            return Status.TIMEOUT, f"used more than {self.limits.cpu_seconds:g} seconds of CPU"
        if number == signal.SIGSYS:
            return Status.DENIED, "used a system call of another architecture, which is forbidden (SIGSYS)"
        if number == signal.SIGABRT and b"bad_alloc" in self.tails.get(self.descriptors[1], b""):
            return Status.OUT_OF_MEMORY, "aborted on a failed allocation in C++ (std::bad_alloc)"
        return Status.CRASHED, f"ended by {name} before the entry returned"

    def tail(self, descriptor: int) -> str:
        """Return the last part of its output on a descriptor."""
        return bytes(self.tails.get(descriptor, b"")).decode("utf-8", "replace")


def end_orphans(spare: set[int]) -> None:
    """Kill every child of this process except those in `spare`: leftovers of unconfined jobs. Linux only."""
    if sys.platform != "linux":
        return
    # Until none is left: the children of one that is killed become ours.
    while orphans := _list_children() - spare:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _list_children() -> set[int]:
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return {int(folder.name) for folder in folders if read_stat(folder)[1:2] == [str(os.getpid())]}


def address_space() -> int:
    """Return the bytes of address space that this process uses; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def join_pages() -> None:
    """Move the memory of this process to pages of 2 MiB: a fork copies one entry for each instead of 512.

    Before Linux 6.1, and where memory is short, some or all of it stays as it is.
    """
    with contextlib.suppress(OSError):  # no /proc
        for start, end in _PRIVATE.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")):
            first, last = int(start, 16), int(end, 16)
            with contextlib.suppress(OSError):
                call_kernel("madvise", ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def remove_folder(folder: Path) -> None:
    """Remove a folder that a job has filled, however deeply nested, and whatever permissions were removed.

    Folders two levels down are moved up until none is left: no recursion, and no path that is too long for the kernel.

    Args: folder: need not exist; no link in it is followed. Entries that cannot be removed are left, without an error.
    """
    for _ in range(_MOST_ROUNDS):  # an unconfined process could keep creating new ones
        try:
            if _remove_level(folder):
                return
        except FileNotFoundError:  # another process removes it, too
            if not folder.exists():
                return
        except OSError:
            return


def _remove_level(folder: Path) -> bool:
    """Remove the entries of a folder, or move up what is two levels down. Returns: True once the folder is gone."""
    entries = list(folder.iterdir())
    for entry in entries:
        if not _unlock(entry):
            entry.unlink()
            continue
        for child in list(entry.iterdir()):
            if _unlock(child):
                child.rename(folder / f"{secrets.token_hex(8)}.moved")
            else:
                child.unlink()
        entry.rmdir()
    if not entries:
        folder.rmdir()
    return not entries


def _unlock(path: Path) -> bool:
    """Make a folder removable. Returns: False if the path is not a folder (a link is not one)."""
    if path.is_symlink() or not path.is_dir():
        return False
    path.chmod(0o700)
    return True
