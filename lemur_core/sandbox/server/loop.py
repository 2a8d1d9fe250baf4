"""The fork server: import the heavy libraries once, then fork and monitor a child for each job.

It is one loop in one thread. It ends when the caller closes the socket, and its children end with it.
"""

import contextlib
import dataclasses
import gc
import importlib.abc
import importlib.util
import os
import secrets
import selectors
import signal
import site
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from . import confine
from .child import KEY_BYTES, run_child
from .compiler import defer_compiler
from .jobs import Channel, Limits, Message, Status, read_report
from .processes import CHUNK_BYTES, Running, address_space, end_orphans, join_pages, remove_folder
from .usage import available_memory, free_bytes, has_ended

_INSPECT_SECONDS = 0.1
_REST_SECONDS = 0.005  # of a pipe that was not full: reading after each of many short writes costs more than they do
_MOST_SLEEPERS = 16  # sleeping jobs whose slots others use
_JOINED_AFTER = 40  # jobs after which larger pages have saved what they cost: a second, and 20 ms a job

Entry = Callable[[dict[str, object]], object]


class EntryLoader(importlib.abc.MetaPathFinder):
    """Loads entries by name, and finds the caller's own packages in the caller's folders.

    It finds no other package in those folders; once the packages are hidden, it finds others of the same name instead.
    """

    def __init__(self, packages: dict[str, str]) -> None:
        self._entries: dict[str, Entry] = {}
        self._packages = packages
        self._hidden = False
        self._loaded: list[str] = []  # modules of these packages
        sys.meta_path.insert(0, self)

    def preload(self, modules: Sequence[str], entries: Sequence[str]) -> None:
        """Import modules and entries, and make the imported objects cheap to share with forked children.

        The module of an entry may define `warm_up`, which does once what each of its jobs would otherwise do again.

        Raises: whatever a module raises during its import.
        """
        gc.disable()  # imports create hardly any garbage, and collections take a fifth of their time
        for name in modules:
            importlib.import_module(name)
            if name == "torch":
                sys.modules[name].set_num_threads(1)  # a pool of threads would not survive the fork
                defer_compiler()
        for entry in entries:
            self.load(entry)
        names = dict.fromkeys(entry.partition(":")[0] for entry in entries)
        warming = [vars(sys.modules[name])["warm_up"] for name in names if hasattr(sys.modules[name], "warm_up")]
        for warm_up in warming:
            warm_up()
        if warming:
            gc.collect()
        gc.freeze()  # so that a collection in a child does not copy the pages that it visits
        gc.enable()

    def load(self, name: str) -> Entry:
        """Return the function that "package.module:function" names.

        Raises: ImportError or AttributeError if there is none.
        """
        if name not in self._entries:
            module, _, function = name.partition(":")
            self._entries[name] = getattr(importlib.import_module(module), function)
            # Listed before any fork: a job that reads the names of all modules copies the pages that hold them.
            self._loaded = [other for other in sys.modules if other.partition(".")[0] in self._packages]
        return self._entries[name]

    def call(self, entry: Entry, payload: dict[str, object]) -> object:
        """In a job: call an entry with its payload, as the dataclass that it declares, if any. Returns: its result.

        Foreign code that the entry runs cannot import the caller's packages.
        """
        self._hidden = True
        # A module that is already loaded would be found without a finder.
        for name in self._loaded:
            sys.modules.pop(name, None)
        kind = next(iter(getattr(entry, "__annotations__", {}).values()), None)
        return entry(kind(**payload) if dataclasses.is_dataclass(kind) else payload)  # type: ignore[operator, arg-type]

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return the spec of one of these packages; its modules are then imported in the usual way.

        Raises: ModuleNotFoundError if it is hidden, unless another package has the same name.
        """
        folder = self._packages.get(fullname)
        if folder is None:
            return None
        if not self._hidden:
            file = Path(folder) / "__init__.py"
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[folder])
        folders = [entry for entry in sys.path if Path(entry, fullname).resolve() != Path(folder).resolve()]
        spec = PathFinder.find_spec(fullname, folders)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec


def serve() -> None:
    """Serve the caller at the other end of standard input until it disconnects."""
    channel = Channel(socket.socket(fileno=os.dup(0)))
    # Jobs inherit an empty standard input, not the socket.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(channel, _first_message(channel))
    try:
        server.run()
    except _ForkedError as forked:
        run_job = forked.run
    except BaseException:
        server.stop()
        raise
    else:
        server.stop()
        return
    # In a job, no frame of the loop is left to which foreign code could return.
    run_job()


class _ForkedError(BaseException):
    """In a forked process: unwinds the server's frames. `run` runs the job, and ends the process."""

    def __init__(self, run: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.run = run


def _first_message(channel: Channel) -> Message:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            selector.select()
            messages = channel.receive()
            if messages:
                return messages[0]
            if channel.closed:
                sys.exit(0)


class _Server:
    """The loop and its state: the waiting and the running jobs."""

    def __init__(self, channel: Channel, settings: Message) -> None:
        self._channel = channel
        self._settings = settings
        self._backend = str(settings["backend"])
        # Under bubblewrap, all jobs of a server see the same scratch folders, so it runs one at a time.
        self._replaces = self._backend != "bubblewrap"
        self._root = Path(settings["root"])
        self._waiting: deque[Message] = deque()
        self._running: dict[int, Running] = {}
        self._loader = EntryLoader(settings["modules"])
        self._selector = selectors.DefaultSelector()
        self._resting: dict[int, tuple[Running, float]] = {}  # pipes that are not watched until then
        self._inspected = 0.0
        self._base_bytes = 0
        self._forked = 0
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)

    def run(self) -> None:
        """Set up, run the self-test, preload, then serve jobs until the caller disconnects."""
        # The SIGCHLD of a job that ends writes to this pipe, which wakes the selector.
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wake[0], selectors.EVENT_READ, "wake")
        self._selector.register(self._channel, selectors.EVENT_READ, "caller")
        if sys.platform == "linux":
            confine.prepare_server()
        if not self._is_ready():
            return
        while not self._channel.closed or self._channel.pending:
            self._turn()

    def _is_ready(self) -> bool:
        stage = "breached"
        try:
            if self._backend == "sandlock":
                confine.load_sandlock(self._settings["sandlock"])
            if self._backend != "none":
                self._self_test()
            stage = "failed"
            sys.path.extend(path for path in self._settings["sys_path"] if path not in sys.path)
            # An interpreter that is started without the `site` module lacks `exit`, `quit` and the like.
            site.setquit()
            site.setcopyright()
            site.sethelper()
            self._loader.preload(self._settings["preload"], self._settings["entries"])
            self._base_bytes = address_space()
        except Exception as error:  # noqa: BLE001 (the caller reports whatever an import raises)
            self._channel.send({"kind": stage, "error": f"{type(error).__name__}: {error}"})
            return False
        self._channel.send({"kind": "ready"})
        return True

    def _self_test(self) -> None:
        """Run the self-test in a confined child, before anything is preloaded.

        Raises: OSError that names the forbidden actions that succeeded.
        """
        entry = f"{__package__}.confine:find_breaches"
        payload = {"canary": self._settings["canary"], "home": self._settings["home"]}
        outcomes: list[Message] = []
        self._fork({"number": 0, "entry": entry, "payload": payload, "limits": {}, "scratch": None, "hidden": ()})
        while self._running:
            outcomes += self._turn(report=False)
        text = outcomes[0]["text"]
        status, value, error = (outcomes[0]["status"], [], text) if outcomes[0]["status"] else read_report(text)
        if status != Status.OK:
            raise OSError(f"self-test of the sandbox failed: {error} {outcomes[0]['stderr_tail']}".rstrip())
        if value != []:
            breaches = ", ".join(map(str, value)) if isinstance(value, list) else "answer nonsense"
            raise OSError(f"self-test of the sandbox: a job could {breaches}")

    def _turn(self, report: bool = True) -> list[Message]:
        """Wait for the next event, handle it, and return the outcomes of the jobs that ended."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.pending else 0)
        self._selector.modify(self._channel, events, "caller")
        now = time.monotonic()
        for descriptor in [descriptor for descriptor, (_, until) in self._resting.items() if until <= now]:
            self._selector.register(descriptor, selectors.EVENT_READ, self._resting.pop(descriptor)[0])
        for key, mask in self._selector.select(self._pause()):
            if key.data == "wake":
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
            elif key.data == "caller":
                if mask & selectors.EVENT_WRITE:
                    self._channel.flush()
                self._waiting.extend(self._channel.receive())
            elif (size := key.data.take(key.fd)) is None or size < CHUNK_BYTES // 2:
                self._selector.unregister(key.fd)
                if size != 0:
                    self._resting[key.fd] = key.data, time.monotonic() + _REST_SECONDS
        if self._channel.closed:
            sys.exit(0)
        self._watch()
        done = self._reap()
        if report:
            for outcome in done:
                self._channel.send({"kind": "outcome", **outcome})
        while self._waiting and self._can_start(self._waiting[0]):
            self._start(self._waiting.popleft())
        return done

    def _can_start(self, message: Message) -> bool:
        """Return whether this job can run in addition to the running ones."""
        limits = Limits(**message["limits"])
        if len(self._running) >= self._settings["slots"] and not self._can_replace_sleeper(limits):
            return False
        return message["scratch"] is not None or self._has_room(limits.scratch_bytes)

    def _can_replace_sleeper(self, limits: Limits) -> bool:
        """Return whether a job can use the slot of a sleeping one, even if that wakes up."""
        awake = sum(not job.asleep for job in self._running.values())
        return (
            self._replaces
            and awake < self._settings["slots"]
            and len(self._running) < self._settings["slots"] + _MOST_SLEEPERS
            and available_memory() >= limits.memory_bytes
        )

    def _has_room(self, wanted: int) -> bool:
        """Return whether the disk has room for a job besides the running ones; report if it has none for it alone."""
        others = sum(job.limits.scratch_bytes for job in self._running.values() if not job.keep)
        free = free_bytes(self._root)
        if free < wanted and not self._running:
            sizes = f"{free >> 20} MiB are free there, and a job may write {wanted >> 20} MiB"
            self._channel.send({"kind": "full", "error": f"{self._root.parents[1]}: {sizes}"})
        return free >= wanted + others

    def _pause(self) -> float | None:
        """Return the seconds until a deadline or the next inspection; None without jobs."""
        if not self._running:
            return None
        nearest = min(job.deadline for job in self._running.values())
        return max(0.0, min(nearest - time.monotonic(), _REST_SECONDS if self._resting else _INSPECT_SECONDS))

    def _watch(self) -> None:
        now = time.monotonic()
        due = now - self._inspected >= _INSPECT_SECONDS
        for job in self._running.values():
            job.check(now)
            if due and job.verdict is None and now - job.started >= _INSPECT_SECONDS:
                replaced = self._replaces and job.asleep
                job.inspect(now)
                if self._replaces and job.asleep and not replaced:
                    self._channel.send({"kind": "asleep", "number": job.number})
        if due:
            self._inspected = now

    def _start(self, message: Message) -> None:
        try:
            self._fork(message)
        except Exception as error:  # noqa: BLE001 (a module may raise anything; the loop must continue)
            text = f"could not be started: {type(error).__name__}: {error}"
            self._channel.send({"kind": "outcome", "number": message["number"], "status": Status.ERROR, "text": text})
        else:
            self._channel.send({"kind": "started", "number": message["number"]})

    def _fork(self, message: Message) -> None:
        own = message["scratch"] is None
        name = f"job-{message['number']}-{secrets.token_hex(4)}"
        scratch = self._root / name if own else Path(message["scratch"])
        # A report begins with it, so text that foreign code writes to the pipe is not mistaken for one.
        key = secrets.token_bytes(KEY_BYTES)
        entry, limits = self._loader.load(message["entry"]), Limits(**message["limits"])
        base_bytes = self._base_bytes or address_space()
        if own:
            scratch.mkdir(mode=0o700)
        output, errors, result = pipes = [os.pipe() for _ in range(3)]
        server_id = os.getpid()
        try:
            process = os.fork()
        except OSError:
            for end in (*output, *errors, *result):
                os.close(end)
            raise
        if process == 0:
            ends = (output[1], errors[1], result[1])
            entry = partial(self._loader.call, entry)
            job = (entry, message, limits, str(scratch), self._settings, key, base_bytes, server_id, ends)
            raise _ForkedError(partial(run_child, *job))
        for read, write in pipes:
            os.close(write)
            os.set_blocking(read, False)
        ends = (output[0], errors[0], result[0])
        self._forked += 1
        if self._forked == _JOINED_AFTER:
            join_pages()
        running = Running(message["number"], process, limits, scratch, key, ends, keep=not own)
        self._running[process] = running
        for descriptor in running.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ, running)

    def _reap(self) -> list[Message]:
        done = []
        for process in list(self._running):
            ended, status, usage = os.wait4(process, os.WNOHANG)
            if ended:
                done.append(self._finish(self._running.pop(process), status, usage))
        return done

    def _finish(self, job: Running, status: int, usage: Any) -> Message:
        if self._backend == "none":  # a confined job leaves nothing behind: it cannot start processes
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process, signal.SIGKILL)
            end_orphans(set(self._running))
        registered = self._selector.get_map()
        for descriptor in job.descriptors:
            if self._resting.pop(descriptor, None) is None and descriptor in registered:
                self._selector.unregister(descriptor)
        # The pipes of an ended process may still hold output.
        job.drain()
        verdict, text = job.judge(status, usage.ru_utime + usage.ru_stime)
        if not job.keep:
            remove_folder(job.scratch)
        return {
            "number": job.number,
            "status": verdict,
            "text": text,
            "waited": job.waited,
            "seconds": round(time.monotonic() - job.started, 6),
            "stdout_tail": job.tail(job.descriptors[0]),
            "stderr_tail": job.tail(job.descriptors[1]),
            "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        }

    def stop(self) -> None:
        """End the running jobs, and remove every scratch folder."""
        for job in self._running.values():
            job.end(Status.CRASHED, "the server was stopped")
            os.waitpid(job.process, 0)
        if self._backend == "none":
            end_orphans(set())
        remove_folder(self._root)
        if self._backend != "bubblewrap" and has_ended(self._settings["caller"]):
            remove_folder(self._root.parent)  # which the caller would have removed
