"""What goes into the sandbox and what comes out. Standard library only: the server reads it too."""

import json
from dataclasses import dataclass
from enum import StrEnum

#: Our own packages, which foreign code cannot import.
OWN_PACKAGES = ("curate", "extract", "lemur", "lemur_core", "manifests", "train")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use.

    `memory_bytes` bounds the growth of the address space over the preloaded worker, which is what an allocator meets:
    NumPy then raises MemoryError, PyTorch RuntimeError. `scratch_bytes` is looked at some ten times a second, so a fast
    writer can pass it by what it writes in that time; `file_bytes` is exact. CPU seconds are rounded up to whole ones.
    A job is one process and starts no other.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float = 30.0
    memory_bytes: int = 3 * 2**30
    threads: int = 64
    file_bytes: int = 64 * 2**20
    scratch_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """One call of trusted code (`entry`, as "package.module:function") on foreign code, in a process of its own.

    The entry is imported before the fork; it is called, confined, with `payload`, and returns what JSON can hold.
    `scratch` is a folder of the caller's to use as the scratch folder: absolute, no link, and still there afterwards.
    What lies in it then was written by foreign code: to be read as plain data, no links followed.
    """

    key: str
    entry: str
    payload: dict[str, object]
    limits: Limits | None = None
    scratch: str | None = None


class Status(StrEnum):
    """How a job ended. Only OK carries a value."""

    OK = "ok"
    ERROR = "error"  # the entry raised
    DENIED = "denied"  # the entry raised an error for lack of permission, or a forbidden system call ended the process
    CRASHED = "crashed"  # ended by a signal, or before it reported
    TIMEOUT = "timeout"  # wall or CPU seconds
    OUT_OF_MEMORY = "out_of_memory"
    OVER_LIMIT = "over_limit"  # scratch space, threads, or the size of what it returned


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job.

    `peak_bytes` is the largest resident set of the process, the preloaded libraries that it touched included. `stdout`
    and `stderr` are the last kilobytes of what was printed: never evidence of anything, foreign code wrote them.
    `reused`: known from an earlier run, with status, value and error alone.
    """

    key: str
    status: Status
    value: object = None
    error: str = ""
    seconds: float = 0.0
    stdout_tail: str = ""
    stderr_tail: str = ""
    peak_bytes: int = 0
    reused: bool = False


def read_report(text: str) -> tuple[Status, object, str]:
    """Status, value and message from a report, which foreign code may have had a hand in."""
    try:
        report = json.loads(text)
        return Status(report["status"]), report["value"], str(report["error"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Status.CRASHED, None, f"the report cannot be read ({type(error).__name__}); nothing counts"
