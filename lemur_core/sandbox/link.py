"""One server: its interpreter, what that must be able to read, its process, and the caller's end of its socket."""

import contextlib
import importlib.util
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.sandbox.runtime import declared_runtime
from lemur_core.sandbox.server.confine import MACHINE_FILES
from lemur_core.sandbox.server.jobs import OWN_PACKAGES, Channel, Job, Message
from lemur_core.sandbox.server.processes import remove_folder

_START_SECONDS = 600.0  # importing PyTorch from a cold disk takes a while
_STOP_SECONDS = 1.0
_LOG_BYTES = 2000

#: System folders and files with libraries and their data: no user's files, no settings of the machine.
_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/lib", "/usr/share"),
    *("/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"),
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Where the interpreter of jobs finds packages, and what it must be able to read.

    It is started without its `site` module, which would run the `.pth` files of whatever is installed there, before
    there are any walls. Of what is installed there, it sees the declared runtime alone: `site_folder`, full of links.
    """

    site_folder: str
    readable: tuple[str, ...]


def scrubbed_environment(home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of the server and its jobs: nothing of the caller's but where libraries lie."""
    clean = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "MALLOC_ARENA_MAX": "2",  # each arena reserves 128 MiB of the address space that a job may take
    }
    clean |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    if "LD_LIBRARY_PATH" in environment:
        clean["LD_LIBRARY_PATH"] = environment["LD_LIBRARY_PATH"]
    return clean


def prepare_interpreter(runtime: Sequence[str], extra: Sequence[Path], home: Path) -> Interpreter:
    """This interpreter, as jobs get it.

    Readable are its standard library, the system's libraries, the declared runtime with `runtime`, and `extra`. A
    prefix that holds the user's home folder (or is it) does not open that folder: only the library folders in it.

    Raises: UserError if a distribution of the runtime is not installed, or a path of `extra` does not exist.
    """
    for given in extra:
        if not given.exists():
            raise UserError(f"{given}: does not exist, so jobs cannot be let read it")
    visible = declared_runtime(tuple(runtime))
    links = str(visible.folder())
    own = [sys.base_prefix, sys.base_exec_prefix, str(Path(os.__file__).parent)]
    real_home = home.resolve()
    found: dict[str, None] = dict.fromkeys((*MACHINE_FILES, *_SYSTEM))
    for path in [*own, links, *visible.readable()]:
        if path and not real_home.is_relative_to(Path(path).resolve()):
            found |= dict.fromkeys((path, str(Path(path).resolve())))
    found |= dict.fromkeys(str(given.resolve()) for given in extra)
    return Interpreter(links, tuple(path for path in found if Path(path).exists()))


class StartError(Exception):
    """The server is gone, or could not import what it has to."""


class WallError(StartError):
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
            **{name: getattr(self, name) for name in ("backend", "slots", "preload", "entries")},
            **{name: str(getattr(self, name)) for name in ("root", "canary", "home")},
            "readable": self.interpreter.readable,
            "sys_path": [self.interpreter.site_folder, *self.sys_path],
            "modules": self.modules({*OWN_PACKAGES, *self.needed()}),
            "sandlock": find_package("sandlock"),
        }

    def needed(self) -> set[str]:
        """Our own top-level packages that the entries need."""
        return {"manifests", "lemur_core", *(entry.partition(":")[0].partition(".")[0] for entry in self.entries)}

    def modules(self, names: Iterable[str]) -> dict[str, str]:
        """Where packages of ours lie: the server's interpreter may not know them, or know others."""
        return {name: folder for name in sorted(names) if (folder := find_package(name))}

    def command(self) -> list[str]:
        """The command line of the server."""
        start = [sys.executable, "-P", "-S", str(Path(__file__).parent / "server" / "start.py")]
        return start if self.backend != "bubblewrap" else [*self._bubblewrap(), *start]

    def _bubblewrap(self) -> list[str]:
        """A view of the file system with nothing in it but what is readable, and the scratch root to write to."""
        shown = [path for path in self.interpreter.readable if not path.startswith(("/proc", "/dev"))]
        shown += [str(Path(__file__).parent / "server"), *self.sys_path, *self.modules(self.needed()).values()]
        command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--cap-drop", "ALL"]
        command += ["--proc", "/proc", "--dev", "/dev"]
        command += ["--perms", "0111", "--dir", str(self.home)]  # an interpreter may lie in it: not to be listed
        for path in dict.fromkeys(shown):
            command += ["--ro-bind", path, path]
        for path in (str(self.root), *([self.scratch] if self.scratch else [])):
            command += ["--bind", path, path]
        command += ["--chdir", str(self.root)]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]


class Link:
    """One server, the jobs that are in its hands, and the channel to its process, which can be started again."""

    channel: Channel
    _process: subprocess.Popen[bytes]

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._log = setup.root.with_name(f"{setup.root.name}.log")
        self.running = False
        self.held: dict[int, Job] = {}

    def start(self) -> None:
        """Start the process; `wait_ready` comes next."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self._setup.root.mkdir(mode=0o700, exist_ok=True)
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._setup.command(),
                    stdin=theirs.fileno(),
                    stdout=log,
                    stderr=log,
                    env=self._setup.environment,
                    cwd=self._setup.root,
                    start_new_session=True,  # Ctrl-C reaches the caller alone, which then closes the socket
                )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.running = True
        self.channel.send(self._setup.message())

    def wait_ready(self) -> None:
        """Return once the server has proved its walls and imported everything.

        Raises: WallError if a job could get out; StartError if an import fails, or it ended.
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
                    raise (WallError if self._setup.backend == "bubblewrap" else StartError)(self.last_words())
        raise StartError(f"not ready within {_START_SECONDS:g} seconds")

    def suits(self, scratch: str | None) -> bool:
        """Whether it can be handed a job with that scratch folder, if need be by starting it anew."""
        return not self.held or not self._must_rebind(scratch)

    def rebind(self, scratch: str | None) -> None:
        """Show it that scratch folder, and no other one of the caller's; it must be idle.

        Raises: StartError if it does not start again.
        """
        if self._must_rebind(scratch):
            self.stop()
            self._setup = replace(self._setup, scratch=scratch)
            start_all([self])

    def _must_rebind(self, scratch: str | None) -> bool:
        return self._setup.backend == "bubblewrap" and self._setup.scratch != scratch

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
        self.held.clear()
        if not self.running:
            return
        self.running = False
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


def start_all(links: Iterable[Link]) -> None:
    """Start the servers that do not run, side by side.

    Raises: StartError if one cannot.
    """
    fresh = [link for link in links if not link.running]
    for link in fresh:
        link.start()
    for link in fresh:
        link.wait_ready()


def find_package(name: str) -> str:
    """The folder of an importable package, or an empty string."""
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return str(folders[0]) if folders else ""
