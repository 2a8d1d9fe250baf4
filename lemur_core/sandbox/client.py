"""The caller's side: a `Sandbox` takes jobs and yields their outcomes, in order, whatever the jobs do.

Jobs are sent to servers, which are restarted when they die.
"""

import contextlib
import dataclasses
import logging
import os
import selectors
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lemur_core.files.atomic import scratch_folder, writing_in
from lemur_core.files.errors import NoSandboxError, UserError
from lemur_core.files.progress import show_longest
from lemur_core.sandbox.link import (
    BackendError,
    Interpreter,
    Link,
    Setup,
    StartError,
    build_environment,
    find_package,
    prepare_interpreter,
    start_all,
)
from lemur_core.sandbox.server.jobs import Job, Limits, Message, Outcome, Status, read_report
from lemur_core.sandbox.server.processes import remove_folder

#: Sandbox back ends, the preferred ones first.
BACKENDS = ("sandlock", "bubblewrap")

#: Modules that nearly every job would import itself.
PRELOAD = ("torch", "torchvision", "numpy.random", "torch.nested._internal.nested_tensor")

#: `PRELOAD` and the imports of jobs on the meta device: mainly SymPy, a quarter of a second.
META_PRELOAD = (*PRELOAD, "torch.fx.experimental.symbolic_shapes", "torch.utils._device")

_LOG = logging.getLogger(__name__)
_AHEAD = 512  # jobs per slot to send after the oldest unfinished one, so that others finish while it sleeps
_AHEAD_BYTES = 64 * 2**20  # approximate limit of reports that wait for the oldest unfinished job
_LOOK_SECONDS = 1.0
_LONG_SECONDS = 5.0  # a job that runs longer is shown
_QUEUED = 2  # jobs at a server per slot: one running and one waiting, so that no slot is idle


class Flow:
    """One run: takes jobs, yields outcomes."""

    def __init__(self, links: Sequence[Link], slots: int, limits: Limits) -> None:
        self._links, self._slots, self._limits = links, slots, limits
        self._done: dict[int, Outcome] = {}
        self._sizes: dict[int, int] = {}  # sizes of the reports in `_done`
        self._suspects: deque[tuple[int, Job]] = deque()  # jobs of a server that died
        self._tried: set[int] = set()
        self._taken: tuple[int, Job] | None = None  # taken from the iterable, waiting for a free server
        self._alone = False  # only a suspect is running

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes, in the order of the jobs. Raises: UserError if a dead server cannot be restarted."""
        source = enumerate(jobs)
        sent, yielded, exhausted = 0, 0, False
        while True:
            with _convert_start_error("the sandbox's server died and cannot be started again"):
                start_all(self._links)
            while not exhausted and not self._suspects and not self._alone and self._may_send(sent - yielded):
                link = min(self._links, key=lambda candidate: candidate.load)
                if link.load >= _QUEUED * self._slots:
                    break
                self._taken = self._taken or next(source, None)
                if self._taken is None:
                    exhausted = True
                elif not link.suits(self._taken[1]):
                    break
                else:
                    pair, self._taken = self._taken, None
                    sent += 1
                    self._send(link, *pair)
            # Suspects run alone: if the server dies again, we know which job killed it.
            if not self._holding:
                self._alone = bool(self._suspects)
                if self._suspects:
                    self._send(self._links[0], *self._suspects.popleft())
            while yielded in self._done:
                self._sizes.pop(yielded, None)
                yield self._done.pop(yielded)
                yielded += 1
            if exhausted and yielded == sent:
                return
            if self._holding:
                self._listen()

    def _may_send(self, ahead: int) -> bool:
        """Return whether another job can be sent. Args: ahead: jobs sent since the oldest unfinished one."""
        return ahead < _AHEAD * self._slots * len(self._links) and sum(self._sizes.values()) < _AHEAD_BYTES

    @property
    def _holding(self) -> bool:
        return any(link.held for link in self._links)

    def _send(self, link: Link, number: int, job: Job) -> None:
        fault = _check_scratch(job.scratch)
        if fault:
            self._done[number] = Outcome(job.key, Status.ERROR, error=fault)
            return
        with _convert_start_error(f"{job.scratch}: the sandbox's server cannot be started with this folder"):
            link.rebind(job)
        message = {name: getattr(job, name) for name in ("entry", "payload", "scratch", "hidden")} | {"number": number}
        try:
            link.channel.send({**message, "limits": dataclasses.asdict(job.limits or self._limits)})
        except (TypeError, ValueError) as error:
            self._done[number] = Outcome(job.key, Status.ERROR, error=f"the payload cannot be sent: {error}")
            return
        link.held[number] = job

    def _listen(self) -> None:
        """Wait until a server sends a message or dies."""
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                pending = selectors.EVENT_WRITE if link.channel.pending else 0
                selector.register(link.channel, selectors.EVENT_READ | pending, link)
            for key, _ in selector.select(_LOOK_SECONDS):
                link = key.data
                link.channel.flush()
                for message in link.channel.receive():
                    self._take(link, message)
                if link.channel.closed:
                    self._retry_jobs(link)
        started = {at: link.held[number] for link in self._links for number, at in link.started.items()}
        if started and (seconds := time.monotonic() - min(started)) >= _LONG_SECONDS:
            job = started[min(started)]
            show_longest(job.name or job.key, seconds)

    def _take(self, link: Link, message: Message) -> None:
        """Handle one message of a server."""
        match message["kind"]:
            case "full":
                raise UserError(f"{message['error']}; free some space, or set TMPDIR to a larger disk")
            case "started":
                link.started[message["number"]] = time.monotonic()
            case "asleep":
                link.asleep.add(message["number"])
            case _:
                self._record(link.release(message["number"]), message["number"], message)

    def _record(self, job: Job, number: int, message: Message) -> None:
        status, text = message["status"], message["text"]
        ended, value, error = (Status(status), None, text) if status else read_report(text)
        if ended is Status.OUT_OF_MEMORY:  # which allocation hits the limit depends on the machine
            error = f"needs more memory than {(job.limits or self._limits).memory_bytes / 2**30:g} GiB"
        self._sizes[number] = len(text)
        self._done[number] = Outcome(
            key=job.key,
            status=ended,
            value=value,
            error=error,
            seconds=message.get("seconds", 0.0),
            stdout_tail=message.get("stdout_tail", ""),
            stderr_tail=message.get("stderr_tail", ""),
            peak_bytes=message.get("peak_bytes", 0),
            waited=message.get("waited", False),
        )

    def _retry_jobs(self, link: Link) -> None:
        """Schedule the jobs of a dead server to run again, alone; after the second time, mark them as crashed."""
        words = link.last_words()
        for number, job in link.held.items():
            if number in self._tried:
                error = f"the sandbox's server died twice while this job ran ({words})"
                self._done[number] = Outcome(job.key, Status.CRASHED, error=error)
            else:
                self._tried.add(number)
                self._suspects.append((number, job))
        _LOG.warning("the sandbox's server died (%s); %d jobs are run again", words, len(self._suspects))
        link.stop()


@contextlib.contextmanager
def _convert_start_error(trouble: str) -> Iterator[None]:
    """Convert a StartError in the block to a UserError that begins with `trouble`."""
    try:
        yield
    except StartError as error:
        raise UserError(f"{trouble}: {error}") from error


def _check_scratch(scratch: str | None) -> str:
    """Return why a caller's folder cannot be a scratch folder; empty if it can.

    Links are refused, because an earlier job may have replaced a folder that it could write to by a link.
    """
    if scratch is None:
        return ""
    if not Path(scratch).is_absolute() or os.path.realpath(scratch) != scratch:
        return f"{scratch}: not a path without links and dots, so not a scratch folder; resolve it first"
    return "" if Path(scratch).is_dir() else f"{scratch}: no such folder, so not a scratch folder; create it first"


@dataclass(eq=False, kw_only=True)
class Sandbox:
    """Run jobs in confined processes, forked from a server that has imported the heavy libraries. A context manager.

    The environment contains nothing of the caller's. A job cannot reach the network, other processes, or files other
    than the interpreter's, the system's libraries, `readable` and a scratch folder (its working folder, HOME and
    TMPDIR). `docs/sandbox.md` states what each back end covers, and what none does.

    Args:
        preload: modules that the server imports before it forks.
        entries: entries (as in `Job.entry`) to import as well; any other entry is imported at its first job.
        runtime: further distributions that jobs can import, by name or named set.
        sys_path: folders appended to the server's `sys.path`, for the modules of entries. Jobs cannot read them.
        readable: further files and folders that jobs may read.
        workers: the number of parallel jobs.
        limits: the default limits of a job.
        environment: additional environment variables of the jobs.
        unsafe: no confinement: each job still has its own process, memory and time limits, and scratch folder.
    """

    preload: Sequence[str] = PRELOAD
    entries: Sequence[str] = ()
    runtime: Sequence[str] = ()
    sys_path: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    workers: int = 2
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    unsafe: bool = False
    backend: str = field(default="", init=False)
    _folder: Path | None = field(default=None, init=False)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _links: list[Link] = field(default_factory=list, init=False)
    _slots: int = field(default=1, init=False)
    _busy: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"workers: {self.workers}; at least 1 is needed")

    @property
    def is_open(self) -> bool:
        """Return whether the server is running."""
        return bool(self._links)

    def __enter__(self) -> Self:
        """Start the server with the first back end that passes its self-test.

        Raises: UserError if no back end passes, or a library cannot be imported.
        """
        if self._folder is not None:
            raise UserError("this sandbox is open already; create another one")
        interpreter = prepare_interpreter(self.runtime, self.readable, Path.home())
        # If this process is killed, its server removes the folder or, failing that, the next command.
        self._folder = self._open.enter_context(scratch_folder("sandbox", remove_folder))
        try:
            with writing_in(self._folder.parent):
                self._choose_backend(self._folder, interpreter)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove every folder. Safe to call twice."""
        links, self._links = self._links, []
        try:
            for link in links:
                link.stop()
        finally:
            self._folder = None
            self._open.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes in the order of the jobs; jobs are taken from the iterable as workers become free.

        A job that was running when the server itself died is run once more, alone; if the server dies again, its status
        is CRASHED. Closing the iterator ends the jobs that still run.
        """
        if not self._links:
            raise UserError("the sandbox is not open; use it as a context manager: with Sandbox() as sandbox")
        if self._busy:
            raise UserError("the sandbox is running jobs already; finish or close that run, or open a second sandbox")
        self._busy = True
        try:
            yield from Flow(self._links, self._slots, self.limits).run(jobs)
        finally:
            self._busy = False
            for link in self._links:
                if link.held:  # the next run restarts it
                    link.stop()

    def _choose_backend(self, folder: Path, interpreter: Interpreter) -> None:
        environment = build_environment(folder) | dict(self.environment)
        canary = folder / "canary"
        canary.write_bytes(b"not for jobs to read")
        setup = Setup(
            interpreter=interpreter,
            backend="none",
            slots=self.workers,
            root=folder / "server",
            canary=canary,
            home=Path.home(),
            sys_path=[str(Path(path).resolve()) for path in self.sys_path],
            preload=self.preload,
            entries=self.entries,
            environment=environment,
        )
        if self.unsafe:
            self._start(setup, 1)
            return
        refusals = []
        for backend in BACKENDS:
            alone = backend == "bubblewrap"  # there, all jobs of a server see the same scratch folders
            chosen = dataclasses.replace(setup, backend=backend, slots=1 if alone else self.workers)
            try:
                self._start(chosen, self.workers if alone else 1)
            except BackendError as refusal:
                refusals.append(f"{backend}: {refusal}")
            else:
                return
        raise NoSandboxError(
            "foreign code cannot be confined on this machine, so it is not run "
            f"({'; '.join(refusals)}). Use Linux 6.2 or later with Landlock, or install bubblewrap; "
            "--unsafe-no-sandbox runs it unconfined"
        )

    def _start(self, setup: Setup, servers: int) -> None:
        if setup.backend == "sandlock" and not find_package("sandlock"):
            raise BackendError("the package is not installed")
        if setup.backend == "bubblewrap" and shutil.which("bwrap") is None:
            raise BackendError("bwrap is not on the PATH")
        roots = [setup.root.with_name(f"{setup.root.name}-{number}") for number in range(servers)]
        self._links = [Link(dataclasses.replace(setup, root=root)) for root in roots]
        self.backend, self._slots = setup.backend, setup.slots
        try:
            start_all(self._links)
        except BaseException as error:
            for link in self._links:
                link.stop()
            if isinstance(error, StartError) and not isinstance(error, BackendError):
                raise UserError(f"the sandbox's server cannot start: {error}") from error
            raise
