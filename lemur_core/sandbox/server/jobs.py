"""Jobs, outcomes, and how they are sent. Standard library only: the server imports this module too."""

import json
import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .received import clean_text, receive

#: Our own packages, which foreign code cannot import.
OWN_PACKAGES = ("curate", "extract", "lemur", "lemur_core", "manifests", "train")
#: The largest message either side accepts.
MAX_MESSAGE_BYTES = 64 * 2**20
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18
_ERROR_CHARACTERS = 8_000

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one job.

    `memory_bytes` bounds the growth of the address space over the preloaded server; at this limit NumPy raises
    MemoryError, PyTorch RuntimeError. `scratch_bytes` and `files`, the names in the scratch folder, are checked about
    ten times a second, so a fast writer can exceed them by what it writes in that time; `file_bytes`,
    the size of one file, and `open_files` are exact. `file_bytes` may be printed to each of the two outputs as well.
    CPU seconds are rounded up to whole ones. `idle_seconds` ends a job that sleeps, whatever it waits for. A job is one
    process and cannot start another.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float = 30.0
    idle_seconds: float = 30.0
    memory_bytes: int = 3 * 2**30
    threads: int = 64
    file_bytes: int = 64 * 2**20
    open_files: int = 64
    files: int = 4096
    scratch_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """One call of trusted code (`entry`, as "package.module:function") on foreign code, in a separate process.

    The entry is imported before the fork; it is called, confined, with `payload`, and returns a JSON-serializable
    value. `scratch` is a folder of the caller to use as the scratch folder: absolute, without links, and not removed
    afterwards. Its contents were then written by foreign code: read them as plain data, and follow no links. `name`
    stands for the key where progress is shown. `hidden` are folders that this job may not read, though the sandbox can.
    """

    key: str
    entry: str
    payload: dict[str, object]
    limits: Limits | None = None
    scratch: str | None = None
    name: str = ""
    hidden: tuple[str, ...] = ()


class Status(StrEnum):
    """How a job ended. Only OK has a value."""

    OK = "ok"
    ERROR = "error"  # the entry raised
    DENIED = "denied"  # the entry raised an error for lack of permission, or a forbidden system call ended the process
    CRASHED = "crashed"  # ended by a signal, or before the report
    TIMEOUT = "timeout"  # wall, CPU or idle seconds
    OUT_OF_MEMORY = "out_of_memory"
    OVER_LIMIT = "over_limit"  # scratch space, threads, or the size of the returned value


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one job.

    `peak_bytes` is the largest resident set of the process, including the preloaded libraries that it touched.
    `waited`: its time ended while it waited and did not compute, so in another attempt it would wait again.
    `stdout_tail` and `stderr_tail` are the last kilobytes of the output: never evidence of anything, foreign code wrote
    them. `reused`: known from an earlier run, with only status, value, error and `waited`.

    All of it is foreign, whether it comes from a job or from a cache. So no outcome can be made whose texts are not
    clean (`clean_text`); a value that is out of bounds (`receive`) is a crash of the job.
    """

    key: str
    status: Status
    value: object = None
    error: str = ""
    seconds: float = 0.0
    stdout_tail: str = ""
    stderr_tail: str = ""
    peak_bytes: int = 0
    waited: bool = False
    reused: bool = False

    def __post_init__(self) -> None:
        """Clean the texts, and check the value."""
        object.__setattr__(self, "error", self.error[:_ERROR_CHARACTERS])
        for name in ("error", "stdout_tail", "stderr_tail"):
            object.__setattr__(self, name, clean_text(getattr(self, name)))
        try:
            object.__setattr__(self, "value", receive(self.value))
        except ValueError as error:
            for name, value in (("status", Status.CRASHED), ("value", None), ("error", f"invalid answer: {error}")):
                object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer of a guest that could not fulfill its request."""

    error: str


def read_report(text: str) -> tuple[Status, object, str]:
    """Parse a report, which foreign code may have influenced, into status, value and message."""
    try:
        report = json.loads(text)
        return Status(report["status"]), report["value"], str(report["error"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Status.CRASHED, None, f"invalid answer: the report cannot be read ({type(error).__name__})"


class Channel:
    """One end of the socket. Both ends are trusted: no job ever has one."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Return whether data is waiting to be written."""
        return bool(self._outgoing) and not self.closed

    def send(self, message: Message) -> None:
        """Queue one message and write as much as the socket accepts now.

        Raises: TypeError or ValueError if it is too large, or not serializable as JSON.
        """
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        self._outgoing += len(body).to_bytes(_LENGTH_BYTES, "big") + body
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket accepts without blocking."""
        while self._outgoing and not self.closed:
            try:
                written = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
                return
            del self._outgoing[:written]

    def receive(self) -> list[Message]:
        """Return the complete messages that have arrived; set `closed` once the other end is closed."""
        while not self.closed:
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.closed = True
            self._incoming += chunk
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._incoming) < _LENGTH_BYTES:
            return None
        end = _LENGTH_BYTES + int.from_bytes(self._incoming[:_LENGTH_BYTES], "big")
        if len(self._incoming) < end:
            return None
        message: Message = json.loads(self._incoming[_LENGTH_BYTES:end])
        del self._incoming[:end]
        return message

    def close(self) -> None:
        """Close this end; the other end notices at once."""
        self.closed = True
        self._socket.close()
