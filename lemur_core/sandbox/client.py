"""The caller's side: a `Sandbox` takes jobs and gives their outcomes, in order, whatever the jobs do."""

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from lemur_core.files.errors import UserError
from lemur_core.sandbox.flow import Flow, Pool
from lemur_core.sandbox.interpreter import examine, scrubbed_environment
from lemur_core.sandbox.jobs import Job, Limits, Outcome
from lemur_core.sandbox.link import ServerDiedError, Setup, StartError, WallError, find_package
from lemur_core.sandbox.processes import remove_folder

#: The walls, the preferred ones first.
BACKENDS = ("sandlock", "bubblewrap")

#: What nearly every job would import by itself.
PRELOAD = ("torch", "torchvision", "numpy.random", "torch.nested._internal.nested_tensor")


class Sandbox:
    """Runs jobs in confined processes forked from a server that has the heavy libraries imported. A context manager.

    The environment holds nothing of the caller's; the network, other processes, and all files but the interpreter's,
    the system's libraries, `readable` and a scratch folder (the working folder, HOME and TMPDIR of a job) are out of
    reach. `docs/sandbox.md` says what each back end covers, and what none does.

    Args:
        preload: modules that the server imports before it forks.
        entries: entries (as in `Job.entry`) to import with them; one that is not listed is imported at its first job.
        python: the interpreter to run jobs in; it need not have this distribution installed.
        sys_path: folders appended to its `sys.path`, for the modules of the entries. Jobs may not read them.
        readable: further files and folders that jobs may read.
        workers: jobs at the same time.
        limits: for jobs that bring none of their own.
        environment: variables of the jobs' environment, beside those that it has in any case.
        unsafe: no walls at all: still a process, limits of memory and time, and a scratch folder for each job.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = PRELOAD,
        entries: Sequence[str] = (),
        python: str = sys.executable,
        sys_path: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        workers: int = 2,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        environment: Mapping[str, str] = MappingProxyType({}),
        unsafe: bool = False,
    ) -> None:
        if workers < 1:
            raise UserError(f"workers: {workers}; at least 1 is needed")
        self.backend = ""
        self._preload, self._entries, self._python = preload, entries, python
        self._sys_path, self._readable = sys_path, readable
        self._workers, self._limits, self._unsafe = workers, limits, unsafe
        self._environment = environment
        self._folder: Path | None = None
        self._pool: Pool | None = None
        self._busy = False

    @property
    def is_open(self) -> bool:
        """Whether its server has been started, and not ended."""
        return self._pool is not None

    def __enter__(self) -> Self:
        """Start the server behind the first back end that passes its self-test.

        Raises: UserError if none does, or a library cannot be imported.
        """
        if self._folder is not None:
            raise UserError("this sandbox is open already; make another one")
        self._folder = Path(tempfile.mkdtemp(prefix="lemur-sandbox-")).resolve()
        try:
            self._choose_backend(self._folder)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove every folder. Harmless when done twice."""
        try:
            if self._pool is not None:
                self._pool.stop()
        finally:
            self._pool = None
            if self._folder is not None:
                remove_folder(self._folder)
            self._folder = None

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """The outcomes of the jobs, in the jobs' order; jobs are taken from the iterable as workers get free.

        A job that was running when the server itself died is run once more, alone; if it dies again, it has CRASHED.
        Closing the iterator ends the jobs that still run.
        """
        if self._pool is None:
            raise UserError("the sandbox is not open; use it as a context manager: with Sandbox() as sandbox")
        if self._busy:
            raise UserError("the sandbox is running jobs already; finish or close that run, or open a second sandbox")
        self._busy = True
        try:
            yield from Flow(self._pool, self._limits).run(jobs)
        finally:
            self._busy = False
            if self._pool is not None:  # closed meanwhile, otherwise
                self._pool.stop_busy()

    def _choose_backend(self, folder: Path) -> None:
        home = Path.home()
        environment = scrubbed_environment(folder) | dict(self._environment)
        interpreter = examine(self._python, self._readable, home, environment)
        canary = folder / "canary"
        canary.write_bytes(b"not for jobs to read")
        setup = Setup(
            interpreter=interpreter,
            backend="none",
            slots=self._workers,
            root=folder / "server",
            canary=canary,
            home=home,
            sys_path=[str(Path(path).resolve()) for path in self._sys_path],
            preload=self._preload,
            entries=self._entries,
            environment=environment,
        )
        if self._unsafe:
            self._start(setup, 1)
            return
        refusals = []
        for backend in BACKENDS:
            alone = backend == "bubblewrap"  # jobs of one server share its view of the scratch folders there
            chosen = dataclasses.replace(setup, backend=backend, slots=1 if alone else self._workers)
            try:
                self._start(chosen, self._workers if alone else 1)
            except WallError as refusal:
                refusals.append(f"{backend}: {refusal}")
            else:
                return
        raise UserError(
            "foreign code cannot be confined on this machine, so it is not run "
            f"({'; '.join(refusals)}). Use Linux 6.2 or later with Landlock, or install bubblewrap; "
            "--unsafe-no-sandbox runs it without walls"
        )

    def _start(self, setup: Setup, servers: int) -> None:
        if setup.backend == "sandlock" and not find_package("sandlock"):
            raise WallError("the package is not installed")
        if setup.backend == "bubblewrap" and shutil.which("bwrap") is None:
            raise WallError("bwrap is not on the PATH")
        self._pool = Pool(setup, servers)
        try:
            self._pool.start()
        except (StartError, ServerDiedError) as error:
            self._pool.stop()
            raise UserError(f"{self._python}: the sandbox's server cannot start: {error}") from error
        except BaseException:
            self._pool.stop()
            raise
        self.backend = setup.backend
