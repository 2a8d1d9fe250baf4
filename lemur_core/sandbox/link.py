"""One server process and the caller's end of its socket."""

import contextlib
import importlib.util
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.sandbox.interpreter import Interpreter
from lemur_core.sandbox.processes import remove_folder
from lemur_core.sandbox.protocol import Channel, Message

_START_SECONDS = 600.0  # importing PyTorch from a cold disk takes a while
_STOP_SECONDS = 1.0
_LOG_BYTES = 2000


class ServerDiedError(Exception):
    """The server is gone. The message holds the last of what it logged."""


class StartError(Exception):
    """The server could not import what it has to."""


class WallError(Exception):
    """This back end does not keep jobs in, on this machine."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a server is started with.

    `root` is the folder that its jobs get their scratch folders in, `scratch` the caller's own one of its next jobs:
    bubblewrap shows a server nothing that is not known when it starts.
    """

    interpreter: Interpreter
    backend: str
    slots: int
    root: Path
    canary: Path
    home: Path
    sys_path: Sequence[str]
    preload: Sequence[str]
    entries: Sequence[str]
    environment: dict[str, str]
    scratch: str | None = None

    def message(self) -> Message:
        """The first message to the server."""
        return {
            "backend": self.backend,
            "slots": self.slots,
            "root": str(self.root),
            "canary": str(self.canary),
            "home": str(self.home),
            "readable": list(self.interpreter.readable),
            "sys_path": [*self.interpreter.site_folders, *self.sys_path],
            "preload": list(self.preload),
            "entries": list(self.entries),
            "modules": self.modules(),
            "sandlock": find_package("sandlock"),
        }

    def modules(self) -> dict[str, str]:
        """Where our own top-level packages lie: the server's interpreter may not know them, or know others."""
        names = {"manifests", "lemur_core", *(entry.partition(":")[0].partition(".")[0] for entry in self.entries)}
        return {name: folder for name in sorted(names) if (folder := find_package(name))}

    def command(self) -> list[str]:
        """The command line of the server."""
        start = [*self.interpreter.command, str(Path(__file__).with_name("start.py"))]
        return start if self.backend != "bubblewrap" else [*self._bubblewrap(), *start]

    def _bubblewrap(self) -> list[str]:
        """A view of the file system with nothing in it but what is readable, and the scratch root to write to."""
        shown = [path for path in self.interpreter.readable if not path.startswith(("/proc", "/dev"))]
        shown += [str(Path(__file__).parent), *self.sys_path, *self.modules().values()]
        command = [
            shutil.which("bwrap") or "bwrap",
            "--unshare-all",
            "--cap-drop",
            "ALL",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]
        command += ["--perms", "0111", "--dir", str(self.home)]  # an interpreter may lie in it: not to be listed
        for path in dict.fromkeys(shown):
            command += ["--ro-bind", path, path]
        for path in (str(self.root), *([self.scratch] if self.scratch else [])):
            command += ["--bind", path, path]
        command += ["--chdir", str(self.root)]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]


class Link:
    """A running server. Use `start`, then `channel`, then `stop`."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self._log = setup.root.with_name(f"{setup.root.name}.log")
        setup.root.mkdir(mode=0o700, exist_ok=True)
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    setup.command(),
                    stdin=theirs.fileno(),
                    stdout=log,
                    stderr=log,
                    env=setup.environment,
                    cwd=setup.root,
                    start_new_session=True,  # Ctrl-C reaches the caller alone, which then closes the socket
                )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.channel.send(setup.message())

    def wait_ready(self) -> None:
        """Return once the server has proved its walls and imported everything.

        Raises: WallError if a job could get out; StartError if an import fails; ServerDiedError if it ended.
        """
        deadline = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                selector.select(1.0)
                for message in self.channel.receive():
                    if message["kind"] == "ready":
                        return
                    raise (WallError if message["kind"] == "breached" else StartError)(message["error"])
                if self.channel.closed:
                    raise (WallError if self._setup.backend == "bubblewrap" else ServerDiedError)(self.last_words())
        raise ServerDiedError(f"not ready within {_START_SECONDS:g} seconds")

    def last_words(self) -> str:
        """How the server ended, and the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        log = self._log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip()
        return f"exit code {self._process.returncode}" + (f": {log.splitlines()[-1]}" if log else "")

    @property
    def process_id(self) -> int:
        """The server's process (bubblewrap's, where that runs it)."""
        return int(self._process.pid)

    def stop(self) -> None:
        """Close the socket, at which the server ends its jobs and itself; kill it if it does not; clean up."""
        self.channel.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            remove_folder(self._setup.root)
            self._log.unlink(missing_ok=True)


def find_package(name: str) -> str:
    """The folder of an importable package, or an empty string."""
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return str(folders[0]) if folders else ""
