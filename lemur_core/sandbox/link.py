"""One sandbox server: its interpreter, the files it can read, its process, and the caller's end of its socket."""

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.sandbox.runtime import find_runtime
from lemur_core.sandbox.server.confine import MACHINE_FILES
from lemur_core.sandbox.server.jobs import OWN_PACKAGES, Channel, Job, Message
from lemur_core.sandbox.server.processes import remove_folder

_START_SECONDS = 600.0  # PyTorch imports slowly from a cold disk
_STOP_SECONDS = 1.0
_LOG_BYTES = 2000

#: System folders and files with libraries and their data: no user files, no machine settings.
_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/lib", "/usr/share"),
    *("/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"),
)

#: Of an interpreter's prefix: programs, which bubblewrap starts, libraries and the data of time zones.
_OF_PREFIX = ("bin", "lib", "lib32", "lib64", "share/zoneinfo")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter of the jobs: where it finds packages, and the files that it must be able to read.

    It is started without the `site` module, which would run the `.pth` files of installed packages before any
    confinement. Of the installed packages it sees only the declared runtime: `site_folder`, a folder of links.
    """

    site_folder: str
    readable: tuple[str, ...]


def build_environment(home: Path) -> dict[str, str]:
    """Return the full environment of the server and its jobs: from the caller's, only the path of libraries."""
    clean = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        # Equal jobs must iterate over sets in the same order.
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "MALLOC_ARENA_MAX": "2",  # each arena reserves 128 MiB of a job's address space
    }
    clean |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    if "LD_LIBRARY_PATH" in os.environ:
        clean["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return clean


def prepare_interpreter(runtime: Sequence[str], extra: Sequence[Path], home: Path) -> Interpreter:
    """Return this interpreter in the form that jobs use.

    Readable are its standard library, the system's libraries, the declared runtime with `runtime`, and `extra`. Of the
    interpreter's prefix only the folders of an environment are: the prefix may be a project, or the user's home folder.

    Raises: UserError if a distribution of the runtime is not installed, or a path of `extra` does not exist.
    """
    for extra_path in extra:
        if not extra_path.exists():
            raise UserError(f"{extra_path}: does not exist, so jobs cannot be allowed to read it")
    visible = find_runtime(tuple(runtime))
    links = str(visible.folder())
    prefixes = dict.fromkeys((sys.base_prefix, sys.base_exec_prefix))
    own = [*(f"{prefix}/{name}" for prefix in prefixes for name in _OF_PREFIX), str(Path(os.__file__).parent)]
    real_home = home.resolve()
    paths: dict[str, None] = dict.fromkeys((*MACHINE_FILES, *_SYSTEM))
    for path in [*own, links, *visible.readable()]:
        if path and not real_home.is_relative_to(Path(path).resolve()):
            paths |= dict.fromkeys((path, str(Path(path).resolve())))
    paths |= dict.fromkeys(str(extra_path.resolve()) for extra_path in extra)
    return Interpreter(links, tuple(path for path in paths if Path(path).exists()))


class StartError(Exception):
    """The server ended, or could not import its modules."""


class BackendError(StartError):
    """This back end cannot confine jobs on this machine."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that a server is started with.

    `root` is the folder for the scratch folders of its jobs, `scratch` the caller's own scratch folder for its next
    jobs, and `hidden` the folders that these may not read: under bubblewrap, a server sees what it was started with.
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
    hidden: tuple[str, ...] = ()

    def message(self) -> Message:
        """Return the first message to the server."""
        return {
            **{name: getattr(self, name) for name in ("backend", "slots", "preload", "entries")},
            **{name: str(getattr(self, name)) for name in ("root", "canary", "home")},
            "readable": self.interpreter.readable,
            "sys_path": [self.interpreter.site_folder, *self.sys_path],
            "modules": self.modules({*OWN_PACKAGES, *self.own_packages()}),
            "sandlock": find_package("sandlock"),
            "caller": os.getpid(),
        }

    def own_packages(self) -> set[str]:
        """Return our top-level packages that the entries need."""
        return {"manifests", "lemur_core", *(entry.partition(":")[0].partition(".")[0] for entry in self.entries)}

    def modules(self, names: Iterable[str]) -> dict[str, str]:
        """Return the folders of our packages: the server's interpreter may not know them, or know other versions."""
        return {name: folder for name in sorted(names) if (folder := find_package(name))}

    def command(self) -> list[str]:
        """Return the command line of the server."""
        options = ["-P", "-S", str(Path(__file__).parent / "server" / "start.py")]
        if self.backend != "bubblewrap":
            return [sys.executable, *options]
        # Of a virtual environment only the link to the interpreter is visible there, which does not find its library.
        return [*self._bubblewrap(), os.path.realpath(sys.executable), *options]

    def _bubblewrap(self) -> list[str]:
        """Return the bwrap command: a file system with only the readable paths, and the writable scratch root."""
        # bwrap mounts its own /proc and /dev below.
        readable = (path for path in self.interpreter.readable if path not in self.hidden)
        visible = [path for path in readable if not path.startswith(("/proc", "/dev"))]
        own = self.modules(self.own_packages()).values()
        visible += [sys.executable, str(Path(__file__).parent / "server"), *self.sys_path, *own]
        command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--cap-drop", "ALL"]
        command += ["--proc", "/proc", "--dev", "/dev"]
        # An interpreter may be in the home folder, but that must not be listed.
        command += ["--perms", "0111", "--dir", str(self.home)]
        for path in dict.fromkeys(visible):
            command += ["--ro-bind", path, path]
        for path in (str(self.root), *([self.scratch] if self.scratch else [])):
            command += ["--bind", path, path]
        command += ["--chdir", str(self.root)]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]


class Link:
    """One server, the jobs that it holds, and the channel to its process, which can be restarted."""

    channel: Channel
    _process: subprocess.Popen[bytes]

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._log = setup.root.with_name(f"{setup.root.name}.log")
        self.running = False
        self.held: dict[int, Job] = {}
        self.started: dict[int, float] = {}  # times on the monotonic clock, of held jobs
        self.asleep: set[int] = set()  # held jobs whose place others can take

    @property
    def load(self) -> int:
        """The number of held jobs that are not asleep."""
        return len(self.held) - len(self.asleep)

    def start(self) -> None:
        """Start the process; `wait_ready` comes next."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self._setup.root.mkdir(mode=0o700, exist_ok=True)
        self.channel.send(self._setup.message())
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._setup.command(),
                    stdin=theirs.fileno(),
                    stdout=log,
                    stderr=log,
                    env=self._setup.environment,
                    cwd=self._setup.root,
                    start_new_session=True,  # Ctrl-C reaches only the caller, which then closes the socket
                )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.running = True

    def wait_ready(self) -> None:
        """Return once the server has passed its self-test and imported everything.

        Raises: BackendError if a job could escape; StartError if an import fails, or the server ends.
        """
        deadline = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                selector.select(1.0)
                for message in self.channel.receive():
                    if message["kind"] == "ready":
                        return
                    if message["kind"] in ("breached", "failed"):
                        raise (BackendError if message["kind"] == "breached" else StartError)(message["error"])
                if self.channel.closed:
                    # bwrap ends at once on a machine that does not let it create namespaces.
                    raise (BackendError if self._setup.backend == "bubblewrap" else StartError)(self.last_words())
        raise StartError(f"not ready within {_START_SECONDS:g} seconds")

    def suits(self, job: Job) -> bool:
        """Return whether the server can take a job with its scratch folder, restarting if necessary."""
        return not self.held or not self._must_rebind(job)

    def rebind(self, job: Job) -> None:
        """Give the server access to the folders of that job instead of the previous ones; it must be idle.

        Raises: StartError if it does not restart.
        """
        if self._must_rebind(job):
            self.stop()
            self._setup = replace(self._setup, scratch=job.scratch, hidden=job.hidden)
            start_all([self])

    def _must_rebind(self, job: Job) -> bool:
        same = (self._setup.scratch, self._setup.hidden) == (job.scratch, job.hidden)
        return self._setup.backend == "bubblewrap" and not same

    def last_words(self) -> str:
        """Return how the server ended, and the last line of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        log = self._log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip()
        return f"exit code {self._process.returncode}" + (f": {log.splitlines()[-1]}" if log else "")

    def release(self, number: int) -> Job:
        """Return a held job that is done, and forget it."""
        self.started.pop(number, None)
        self.asleep.discard(number)
        return self.held.pop(number)

    def stop(self) -> None:
        """Close the socket, which tells the server to end its jobs and itself; kill it if it does not; clean up."""
        self.held.clear()
        self.started.clear()
        self.asleep.clear()
        if not self.running:
            return
        self.running = False
        self.channel.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except BaseException as error:
            # Also at Ctrl-C during the wait: no server may outlive its caller.
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
    """Start the servers that are not running, in parallel. Raises: StartError if one does not start."""
    fresh = [link for link in links if not link.running]
    for link in fresh:
        link.start()
    for link in fresh:
        link.wait_ready()


def find_package(name: str) -> str:
    """Return the folder of an importable package, or an empty string."""
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return str(folders[0]) if folders else ""
