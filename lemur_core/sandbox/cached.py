"""A sandbox with a cache: known outcomes are not computed again, and jobs that a busy machine may have ended are
retried.

Each outcome is stored under everything that it depends on: the job's entry, payload and limits, our code that runs in
it, and the libraries. An interrupted run resumes from the stored outcomes; if all of them are known, no sandbox is
started.
"""

import hashlib
import json
import os
import pickle
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self

from lemur_core.files.cache import Database, cache_folder, seal, unseal
from lemur_core.files.errors import UserError
from lemur_core.files.workers import current_cluster, map_chunks
from lemur_core.sandbox.client import Sandbox
from lemur_core.sandbox.runtime import find_runtime
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.jobs import OWN_PACKAGES, Job, Limits, Outcome, Status

_TABLES = ("outcomes (key TEXT PRIMARY KEY, outcome BLOB NOT NULL)",)
ATTEMPTS = 3  # in all, if a transient failure ends a job; other failures would repeat

#: Statuses that a busy machine may cause.
TRANSIENT = frozenset({Status.TIMEOUT, Status.CRASHED, Status.OUT_OF_MEMORY})

_ROOT = Path(__file__).parents[2]  # the folder of our packages
_IMPORT = re.compile(
    rf"^[ \t]*(?:from +((?:{'|'.join(OWN_PACKAGES)})[\w.]*) +import +(\([^)]*\)|.*)|import +(.*))$", re.MULTILINE
)
_NAME = re.compile(r"[\w.]+")
_DOCUMENTATION = re.compile(r'""".*?"""', re.DOTALL)


class Store(Protocol):
    """A store of outcomes, each under a key that covers everything it depends on."""

    def recall(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None."""

    def remember(self, key: str, value: bytes) -> None:
        """Store a value at once."""


class SharedSandbox:
    """A sandbox that starts at the first job of any stage that shares it, and ends with it. A context manager.

    A server takes seconds to start, most of them for importing libraries that all stages need.

    Args: options: those of `Sandbox`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._open = ExitStack()
        self._box: Sandbox | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._box = None
        self._open.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes in the order of the jobs. Raises: UserError if no sandbox is available."""
        if current_cluster() is not None:
            work = partial(_run_on_worker, pickle.dumps({**self._options, "workers": 1}))
            for outcomes in map_chunks(work, ([job] for job in jobs), None):
                yield from outcomes
            return
        if self._box is None:
            self._box = self._open.enter_context(Sandbox(**self._options))
        yield from self._box.run(jobs)


def _run_on_worker(options: bytes, job: Job) -> Outcome:
    (outcome,) = _open_on_worker(options).run([job])
    return outcome


@cache
def _open_on_worker(options: bytes) -> Sandbox:
    """Open a sandbox that ends with this worker of a cluster. Raises: UserError if it lacks one, or a folder."""
    settings = pickle.loads(options)
    if missing := [path for path in settings.get("readable", ()) if not path.exists()]:
        raise UserError(f"cannot read {missing[0]}; let LEMUR_CURATOR_CACHE be a folder that all nodes share")
    return Sandbox(**settings).__enter__()


class CachedSandbox:
    """A sandbox that starts at the first job whose outcome is not known. A context manager.

    Args:
        store: None for the user's cache folder.
        limits: the default limits of a job.
        shared: a sandbox to use instead of one with these options.
        hidden: folders that jobs may not read, though the shared sandbox can.
        transient: statuses after which a job is run again, up to `ATTEMPTS` times in all.
        usable: returns whether a stored outcome is still valid for its job.
        options: further options of `Sandbox`.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        transient: frozenset[Status] = TRANSIENT,
        usable: Callable[[Job, Outcome], bool] = lambda _job, _outcome: True,
        shared: SharedSandbox | None = None,
        hidden: Sequence[Path] = (),
        **options: Any,
    ) -> None:
        self.limits = limits
        self._transient, self._usable = transient, usable
        self._options = options
        self._hidden = tuple(sorted(str(path.resolve()) for path in hidden))
        self._open = ExitStack()
        self._shared = shared or self._open.enter_context(SharedSandbox(limits=limits, **options))
        self._store = store or self._open.enter_context(OutcomeStore())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, jobs: Iterable[Job], *, retries: bool = True) -> Iterator[Outcome]:
        """Yield the outcomes in the order of the jobs, except that jobs with a transient failure come last.

        With `retries`, these are run again when everything else is done, one at a time, after increasing pauses.

        Raises: UserError if no sandbox is available.
        """
        known: deque[Outcome] = deque()
        running: deque[tuple[Job, str]] = deque()
        again: list[tuple[Job, str]] = []

        def new() -> Iterator[Job]:
            for job in jobs:
                key = self.key_of(job)
                outcome = self._look_up(job, key)
                if outcome is not None:
                    known.append(outcome)
                else:
                    running.append((job, key))
                    yield job

        for outcome in self._outcomes(new()):
            while known:
                yield known.popleft()
            job, key = running.popleft()
            if retries and is_transient(outcome, self._transient):
                again.append((job, key))
            else:
                yield self._keep(key, outcome)
        yield from known
        for job, key in again:
            yield self._keep(key, self._run_again(job))

    def _run_again(self, job: Job) -> Outcome:
        for attempt in range(1, ATTEMPTS):
            time.sleep(2.0**attempt)
            (outcome,) = self._outcomes(iter([job]))
            if not is_transient(outcome, self._transient):
                break
        return outcome

    def _outcomes(self, jobs: Iterator[Job]) -> Iterator[Outcome]:
        # A sandbox takes seconds to start, so it starts only for a job that needs it.
        first = next(jobs, None)
        if first is not None:
            yield from self._shared.run(replace(job, hidden=self._hidden) for job in chain([first], jobs))

    def key_of(self, job: Job) -> str:
        """Return a key that covers everything the outcome depends on, but not the job's own key."""
        limits = asdict(job.limits or self.limits)
        versions = run_versions(self._options.get("runtime", ()))
        about = [job.entry, job.payload, limits, versions, sys.version_info[:2], code_digest(job.entry)]
        return "outcome:" + hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _look_up(self, job: Job, key: str) -> Outcome | None:
        stored = self._store.recall(key)
        if stored is None:
            return None
        try:
            status, value, error, waited = json.loads(stored)
            outcome = Outcome(job.key, Status(status), value, str(error), waited=waited is True, reused=True)
        except (ValueError, TypeError, RecursionError):
            return None  # damaged: run again
        return outcome if self._usable(job, outcome) else None

    def _keep(self, key: str, outcome: Outcome) -> Outcome:
        self._store.remember(key, json.dumps([outcome.status, outcome.value, outcome.error, outcome.waited]).encode())
        return outcome


def is_transient(outcome: Outcome, transient: frozenset[Status] = TRANSIENT) -> bool:
    """Return whether another attempt may end differently.

    Args: transient: the statuses that a busy machine may cause.
    Returns: False also for a job that waited: in another attempt it would wait again.
    """
    return outcome.status in transient and not outcome.waited


class OutcomeStore:
    """Outcomes in one SQLite database in a room of the user's cache folder, which concurrent runs may share."""

    def __init__(self, room: str = "sandbox") -> None:
        self._database = Database(cache_folder(room) / "outcomes.sqlite", _TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def recall(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None."""
        rows = self._database.read("SELECT outcome FROM outcomes WHERE key = ?", key)
        return unseal(rows[0][0]) if rows else None

    def remember(self, key: str, value: bytes) -> None:
        """Store a value at once."""
        self._database.write("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", [(key, seal(value))])


def run_versions(runtime: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of what foreign code can import.

    Args: runtime: further distributions, by name or named set.
    Returns: the versions of the declared runtime, of `runtime`, and of their dependencies, by distribution.
    """
    return dict(find_runtime(tuple(runtime)).versions)


@cache
def code_digest(entry: str) -> str:
    """Return the SHA-256 of an entry's file and of all our files that it imports, directly or indirectly.

    Args: entry: as in `Job.entry`, `package.module:function`.
    Returns: 64 hexadecimal digits. Imports are read, not run: those in functions count, those by a string do not.
    """
    digests: dict[str, str] = {}
    waiting = [entry.partition(":")[0]]
    while waiting:
        name = waiting.pop()
        if name not in digests and (file := _read_module(name)) is not None:
            digests[name] = file[0]
            waiting += file[1]
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _read_module(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the SHA-256 of one of our modules, and the names that it imports; None if it is not ours."""
    if name.partition(".")[0] not in OWN_PACKAGES:
        return None
    paths = [_ROOT.joinpath(*name.split(".")).with_suffix(".py"), _ROOT.joinpath(*name.split("."), "__init__.py")]
    file = next((path for path in paths if path.is_file()), None)
    if file is None:
        return None
    code = file.read_bytes()
    imported: list[str] = []
    # As text: syntax trees of all files take half a second, and what only looks like an import does no harm.
    for module, members, modules in _IMPORT.findall(_DOCUMENTATION.sub("", code.decode())):
        # A member may be a module itself.
        imported += [module, *(f"{module}.{member}" for member in _NAME.findall(members))] if module else []
        imported += _NAME.findall(modules)
    return hashlib.sha256(code).hexdigest(), tuple(imported)


def describe_failure(outcome: Outcome, limit: int = 400) -> str:
    """Return why a job gave no answer, in one short line.

    Args: limit: the maximum number of characters.
    Returns: the first line of its error, since the next ones are places in this process; its status without one.
    """
    return one_line((outcome.error or outcome.status.value).splitlines()[0], limit)


def workers_within_memory(jobs: int, limits: Limits) -> int:
    """Return how many jobs may run in parallel: as many as fit in memory if each uses all that it may.

    Args: jobs: the number that is wanted.
    Returns: 1 to `jobs`. All of the machine's memory counts, including what other processes use.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(jobs, memory // limits.memory_bytes))
