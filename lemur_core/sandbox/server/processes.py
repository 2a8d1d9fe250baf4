"""The processes of jobs as the server sees them: one in progress, the verdict at its end, and what it leaves behind."""

import contextlib
import hmac
import os
import re
import secrets
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .child import KEY_BYTES, LENGTH_BYTES, MAX_VALUE_BYTES
from .jobs import Limits, Status

_BLOCK = 4096
_LONGEST_PATH = 3500  # the kernel takes 4095 bytes
_MOST_ROUNDS = 100_000
_TAIL_BYTES = 8192
_CHUNK = 1 << 16
_MAX_PIPE = 1 << 20  # the kernel's largest pipe
_MAX_FRAME = KEY_BYTES + LENGTH_BYTES + MAX_VALUE_BYTES + 1


@dataclass(slots=True)
class Running:
    """A forked job."""

    number: int
    process: int
    limits: Limits
    scratch: Path
    key: bytes
    descriptors: tuple[int, int, int]  # where its output, errors and result arrive
    keep: bool = False  # the scratch folder is the caller's
    started: float = field(default_factory=time.monotonic)
    verdict: tuple[Status, str] | None = None
    tails: dict[int, bytearray] = field(default_factory=dict)

    @property
    def result(self) -> int:
        """Where its report arrives."""
        return self.descriptors[2]

    @property
    def deadline(self) -> float:
        """When its wall time is up, on the monotonic clock."""
        return self.started + self.limits.wall_seconds

    def take(self, descriptor: int) -> int | None:
        """Read once what has arrived; of prints only the tail is kept. 0 at the end of the stream, None before more."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        tail = self.tails.setdefault(descriptor, bytearray())
        tail += chunk
        if descriptor != self.result:
            del tail[:-_TAIL_BYTES]
        elif len(tail) > _MAX_FRAME:
            self.end(Status.OVER_LIMIT, "wrote more to the result channel than a result may have")
            del tail[_MAX_FRAME:]
        return len(chunk)

    def drain(self) -> None:
        """Read what is left in the pipes, once the process is gone, and close them."""
        for descriptor in self.descriptors:
            for _ in range(_MAX_PIPE // _CHUNK):  # bounded: without walls, something that escaped may still write
                if not self.take(descriptor):
                    break
            os.close(descriptor)

    def end(self, status: Status, message: str) -> None:
        """Kill it and remember why; the first reason stands."""
        if self.verdict is None:
            self.verdict = (status, message)
        for kill in (os.killpg, os.kill):  # it may not have made its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.process, signal.SIGKILL)

    def check(self, now: float) -> None:
        """End it when its wall time is up."""
        if now >= self.deadline:
            self.end(Status.TIMEOUT, f"ran longer than {self.limits.wall_seconds:g} seconds (wall)")

    def inspect(self) -> None:
        """End it when its scratch folder or its number of threads is over the limit."""
        used = folder_bytes(self.scratch)
        if used is None:
            self.end(Status.OVER_LIMIT, "nested its folders too deep")
        elif used > self.limits.scratch_bytes:
            limit = self.limits.scratch_bytes
            self.end(Status.OVER_LIMIT, f"wrote {used} bytes to its scratch folder; the limit is {limit}")
        threads = count_threads(self.process)
        if threads > self.limits.threads:
            self.end(Status.OVER_LIMIT, f"started {threads} threads; the limit is {self.limits.threads}")

    def judge(self, wait_status: int, cpu_seconds: float) -> tuple[Status | None, str]:
        """How it ended and why; None and the report, as JSON, if it reported and that is to be believed."""
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
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_seconds >= self.limits.cpu_seconds):
            return Status.TIMEOUT, f"used more than {self.limits.cpu_seconds:g} seconds of CPU"
        if number == signal.SIGSYS:
            return Status.DENIED, "made a system call of another architecture, which is forbidden (SIGSYS)"
        if number == signal.SIGABRT and b"bad_alloc" in self.tails.get(self.descriptors[1], b""):
            return Status.OUT_OF_MEMORY, "aborted on a failed allocation in C++ (std::bad_alloc)"
        return Status.CRASHED, f"ended by {name} before the entry returned"

    def tail(self, descriptor: int) -> str:
        """The last of what it printed."""
        return bytes(self.tails.get(descriptor, b"")).decode("utf-8", "replace")


def folder_bytes(folder: Path) -> int | None:
    """Bytes that a folder takes on disk, each entry counted as a block at least; None if it is nested too deep."""
    total, waiting = 0, [str(folder)]
    while waiting:
        path = waiting.pop()
        if len(path) > _LONGEST_PATH:
            return None
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += max(_BLOCK, status.st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the job moves, removes and locks things meanwhile
    return total


def count_threads(process: int) -> int:
    """Threads of a process; 0 once it is gone, or where there is no /proc."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^Threads:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def end_orphans(spare: set[int]) -> None:
    """Kill every child of this process but the ones to spare: what jobs without walls left behind. Linux only."""
    if sys.platform != "linux":
        return
    while orphans := _children() - spare:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _children() -> set[int]:
    own, found = os.getpid(), set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == own:
                    found.add(int(folder.name))
    return found


def address_space() -> int:
    """Bytes of address space that this process takes; 0 where that cannot be seen."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def remove_folder(folder: Path) -> None:
    """Remove a folder that a job has filled, however deep it nested its folders and whatever rights it took from them.

    Folders two levels down are moved up until none is left: no recursion, and no path that the kernel finds too long.
    What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        for _ in range(_MOST_ROUNDS):  # a process without walls could go on making new ones
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
                break
        folder.rmdir()


def _unlock(path: Path) -> bool:
    """Whether it is a folder (a link is not); if so, it can now be emptied."""
    if path.is_symlink() or not path.is_dir():
        return False
    path.chmod(0o700)
    return True
