"""The forked process: confine itself, call the entry, report once, and exit without cleanup.

The report is the key of the job, a length, and JSON. The key is random, the descriptor has a random number, and both
are used only after the entry has returned, so prints, forged lines and early exits never pass for a result. What this
does NOT stop: the entry and the foreign code that it calls share one process, so code that intends to deceive can walk
the stack for the key. A result says what well-meaning code did, not what hostile code is.
"""

import dataclasses
import errno
import fcntl
import json
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn

from . import confine
from .foreign import is_kind, list_causes, list_frames, name_type, read_errno, read_message
from .jobs import Limits, Message, Status

#: The most that an entry may return, as JSON.
MAX_VALUE_BYTES = 16 * 2**20
KEY_BYTES = 16
LENGTH_BYTES = 8
_REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS)
_FRAMES = 6
_ERROR_CHARACTERS = 4000
_LOWEST, _HIGHEST = 64, 1000  # range of the result descriptor

# Bound here, so that foreign code that replaces them in their modules does not change how we report and exit.
_write, _exit, _dumps = os.write, os._exit, json.dumps
_Base, _set_mask, _BLOCK, _SIGNALS = BaseException, signal.pthread_sigmask, signal.SIG_BLOCK, signal.valid_signals()

#: The report if none can be made, since foreign code left the interpreter so that ours fails, too.
_NO_REPORT = b'{"status": "crashed", "value": null, "error": "the code broke the interpreter: no report can be made"}'


def run_child(
    entry: Callable[[dict[str, object]], object],
    job: Message,
    limits: Limits,
    scratch: str,
    settings: Message,
    key: bytes,
    base_bytes: int,
    server_id: int,
    pipes: tuple[int, int, int],
) -> NoReturn:
    """Run one job in this freshly forked process; never returns.

    Args: settings: the settings of the server. pipes: write ends for output, errors and result.
    """
    result, frame = pipes[2], _frame(key, _NO_REPORT)
    report: tuple[Status, object, str]
    try:
        try:
            _leave_server(server_id)
            result = _arrange_files(*pipes)
            readable = [path for path in settings["readable"] if path not in job["hidden"]]
            _prepare(limits, scratch, settings | {"readable": readable}, base_bytes)
        except BaseException as error:  # noqa: BLE001 (an outcome, too)
            report = (Status.CRASHED, None, f"could not be confined, so was not run: {_describe(error)}")
        else:
            report = _call(entry, job["payload"])
        frame = _frame(key, _encode(*report))
    finally:
        _send_and_exit(result, frame)


def _prepare(limits: Limits, scratch: str, settings: Message, base_bytes: int) -> None:
    """Move to the scratch folder, and confine this process."""
    os.chdir(scratch)
    os.umask(0o077)
    for name in ("HOME", "TMPDIR"):
        os.environ[name] = scratch
    # It may hold the server's folder, from an import that asked for it.
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    confine.limit_resources(limits, base_bytes if sys.platform == "linux" else 0)
    if settings["backend"] != "none":
        confine.confine(settings["backend"], settings["readable"], scratch)


def _call(entry: Callable[[dict[str, object]], object], payload: dict[str, object]) -> tuple[Status, object, str]:
    try:
        return Status.OK, entry(payload), ""
    except SystemExit as error:
        return Status.CRASHED, None, f"the code tried to exit the interpreter (SystemExit: {read_message(error)[:100]})"
    except BaseException as error:  # noqa: BLE001 (whatever foreign code raises is an outcome)
        return _classify(error), None, _describe(error)


def _encode(status: Status, value: object, message: str) -> bytes:
    """Return a report as JSON."""
    try:
        body = _dumps({"status": status, "value": value, "error": message}, default=_to_json).encode()
    except BaseException as error:  # noqa: BLE001 (__str__ and the like of foreign objects may run here)
        failure = f"the entry returned what JSON cannot hold: {_describe(error)}"
        return _dumps({"status": Status.ERROR, "value": None, "error": failure}).encode()
    if len(body) > MAX_VALUE_BYTES:
        failure = f"the entry returned {len(body)} bytes of JSON; the limit is {MAX_VALUE_BYTES}"
        return _dumps({"status": Status.OVER_LIMIT, "value": None, "error": failure}).encode()
    return body


def _frame(key: bytes, body: bytes) -> memoryview:
    return memoryview(key + len(body).to_bytes(LENGTH_BYTES, "big") + body)


def _send_and_exit(result: int, frame: memoryview) -> NoReturn:
    """Write the report and end the process: no exit handlers, no waiting for threads.

    Foreign code may have left a profile function or a signal handler that raises before each of these calls, so they
    are repeated until the last one is made: nothing may fall back into the server's loop.
    """
    while True:
        try:
            _set_mask(_BLOCK, _SIGNALS)
            # A pipe takes a long report in parts.
            while frame:
                frame = frame[_write(result, frame) :]
        except OSError:  # the server is gone
            frame = frame[:0]
        except _Base:
            continue
        try:
            _exit(0)
        except _Base:
            continue


def _to_json(value: object) -> dict[str, object]:
    """Return an answer's dataclass as a dictionary; called by `json` for what it cannot hold."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _leave_server(server_id: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        confine.prepare_job()
    if os.getppid() != server_id:  # the server died before the lines above took effect
        _exit(1)


def _arrange_files(output: int, errors: int, result: int) -> int:
    """Keep the three pipes and an empty input, close everything else, and move the result to a random number."""
    number = fcntl.fcntl(result, fcntl.F_DUPFD_CLOEXEC, random.SystemRandom().randrange(_LOWEST, _HIGHEST))
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    os.closerange(3, number)
    os.closerange(number + 1, max(_HIGHEST + 64, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    return number


def _classify(error: BaseException) -> Status:
    causes = list_causes(error)
    if any(is_kind(cause, MemoryError) for cause in causes):
        return Status.OUT_OF_MEMORY
    if is_kind(error, RuntimeError) and "can't allocate memory" in read_message(error):  # PyTorch's CPU allocator
        return Status.OUT_OF_MEMORY
    if any(read_errno(cause) in _REFUSALS for cause in causes):
        return Status.DENIED
    return Status.ERROR


def _describe(error: BaseException) -> str:
    """Return type, message, and the last frames, without source lines (a frame's file may not be readable here)."""
    frames = [f"  {file}:{line} in {function}" for file, line, function in list_frames(error)]
    return "\n".join([f"{name_type(error)}: {read_message(error)}"[:_ERROR_CHARACTERS], *frames[-_FRAMES:]])
