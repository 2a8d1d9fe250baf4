"""Denial tests that the server runs on itself at start: each one harmless even where the sandbox is broken."""

import ctypes
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def find_breaches(payload: dict[str, object]) -> list[str]:
    """What a confined job could do although it must not; empty if the walls stand.

    `canary` is a file of the caller's outside the scratch folder; `home` the user's home folder.
    """
    canary, home = Path(str(payload["canary"])), Path(str(payload["home"]))
    attempts: dict[str, Callable[[], object]] = {
        "read a file outside": canary.read_bytes,
        "list the home folder": lambda: list(home.iterdir()),
        "write to a file outside": lambda: canary.open("ab").close(),
        "truncate a file outside": lambda: os.truncate(canary, 1),
        "open a file outside for truncation": lambda: os.close(os.open(canary, os.O_RDONLY | os.O_TRUNC)),
        "change the mode of a file outside": lambda: canary.chmod(0o600),
        "create a file outside": lambda: canary.with_name("made").touch(),
        "rename a file outside": lambda: canary.rename(canary.with_name("moved")),
        "open an internet socket": lambda: socket.socket(socket.AF_INET).close(),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "start a process": _fork,
        "signal the server": lambda: os.kill(os.getppid(), 0),
        "read the server's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "trace the server": _trace_parent,
        "lift a limit": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
    }
    breaches = [name for name, attempt in attempts.items() if _succeeds(attempt)]
    own = Path("self-test")
    own.write_bytes(b"x")  # what is allowed must work, or nothing was proved
    own.unlink()
    return breaches


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, ValueError):
        return False
    return True


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _trace_parent() -> None:
    """Ask to attach and let go at once: PTRACE_SEIZE does not stop the process."""
    assert sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, os.getppid(), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    libc.ptrace(17, os.getppid(), 0, 0)
