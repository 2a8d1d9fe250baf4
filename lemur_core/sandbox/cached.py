"""A sandbox that remembers: what is known is not run again, and what a busy machine may have ended is.

Outcomes are kept by everything that they depend on: the job's entry, payload and limits, the code of ours that runs in
it, and the libraries. A run that is interrupted goes on from what it kept; one whose outcomes are all known starts no
sandbox.
"""

import ast
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.sandbox.client import Sandbox
from lemur_core.sandbox.runtime import declared_runtime
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.jobs import OWN_PACKAGES, Job, Limits, Outcome, Status

_WIDER = 4  # times the seconds, the second time, where limits decide
ATTEMPTS = 3  # in all, where passing trouble ends a job; anything else fails the same way again

#: Ends that a busy machine may be the reason of.
PASSING = frozenset({Status.TIMEOUT, Status.CRASHED, Status.OUT_OF_MEMORY})

_ROOT = Path(__file__).parents[2]  # where our packages lie


class Store(Protocol):
    """Where outcomes are kept, each under a key that names all it depends on."""

    def remembered(self, key: str) -> bytes | None:
        """What was stored under a key, if anything."""

    def remember(self, key: str, value: bytes) -> None:
        """Store it at once."""


class CachedSandbox:
    """A sandbox that starts with the first job whose outcome is not known. A context manager.

    Args:
        store: None: the user's cache folder.
        limits: for jobs that bring none of their own.
        passing: statuses that are no answer yet: such a job is run again, `attempts` times in all.
        back_off: seconds; the pause before the second attempt is twice as long, and doubles with each further one.
        usable: whether a stored outcome still answers its job.
        options: further ones of `Sandbox`.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        passing: frozenset[Status] = PASSING,
        attempts: int = ATTEMPTS,
        back_off: float = 1.0,
        usable: Callable[[Job, Outcome], bool] = lambda _job, _outcome: True,
        **options: Any,
    ) -> None:
        self.limits = limits
        self._passing, self._attempts, self._back_off, self._usable = passing, attempts, back_off, usable
        self._options = options
        self._box: Sandbox | None = None
        self._open = ExitStack()
        self._store = store or self._open.enter_context(OutcomeStore())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, jobs: Iterable[Job], *, attempts: int | None = None) -> Iterator[Outcome]:
        """The outcomes, in the order of the jobs, but last those of jobs that passing trouble ended.

        These are run again when all else is done, one at a time, after growing pauses.

        Raises: UserError if no sandbox can be had.
        """
        known: deque[Outcome] = deque()
        running: deque[tuple[Job, str]] = deque()
        again: list[tuple[Job, str]] = []

        def new() -> Iterator[Job]:
            for job in jobs:
                key = self.key_of(job)
                outcome = self._recall(job, key)
                if outcome is not None:
                    known.append(outcome)
                else:
                    running.append((job, key))
                    yield job

        attempts = self._attempts if attempts is None else attempts
        for outcome in self._outcomes(new()):
            while known:
                yield known.popleft()
            job, key = running.popleft()
            if outcome.status in self._passing and attempts > 1:
                again.append((job, key))
            else:
                yield self._keep(key, outcome)
        yield from known
        for job, key in again:
            yield self._keep(key, self._run_again(job, attempts))

    def run_within(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """The same where limits decide: a job that was ended for its time, or crashed, runs once more, alone, with four
        times the CPU and wall seconds. One that needs more memory than its limit does not: the limit is the same on
        every machine, however much memory that has.

        Raises: UserError if no sandbox can be had.
        """
        given: dict[str, Job] = {}
        again = []

        def remembered() -> Iterator[Job]:
            for job in jobs:
                given[job.key] = job
                yield job

        for outcome in self.run(remembered(), attempts=1):
            job = given.pop(outcome.key)
            if outcome.status in (Status.TIMEOUT, Status.CRASHED):
                again.append(replace(job, limits=_widened(job.limits or self.limits)))
            else:
                yield outcome
        for job in again:
            yield from self.run([job], attempts=1)

    def _run_again(self, job: Job, attempts: int) -> Outcome:
        for attempt in range(1, attempts):
            time.sleep(self._back_off * 2**attempt)
            (outcome,) = self._outcomes(iter([job]))
            if outcome.status not in self._passing:
                break
        return outcome

    def _outcomes(self, jobs: Iterator[Job]) -> Iterator[Outcome]:
        first = next(jobs, None)
        if first is None:
            return
        if self._box is None:
            self._box = self._open.enter_context(Sandbox(limits=self.limits, **self._options))

        def all_jobs() -> Iterator[Job]:
            yield first
            yield from jobs

        yield from self._box.run(all_jobs())

    def key_of(self, job: Job) -> str:
        """Names everything that the outcome of a job depends on; the job's own key does not count."""
        limits = asdict(job.limits or self.limits)
        versions = run_versions(self._options.get("runtime", ()))
        about = [job.entry, job.payload, limits, versions, sys.version_info[:2], code_digest(job.entry)]
        return "outcome:" + hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _recall(self, job: Job, key: str) -> Outcome | None:
        stored = self._store.remembered(key)
        if stored is None:
            return None
        status, value, error = json.loads(stored)
        outcome = Outcome(job.key, Status(status), value, error, reused=True)
        return outcome if self._usable(job, outcome) else None

    def _keep(self, key: str, outcome: Outcome) -> Outcome:
        self._store.remember(key, json.dumps([outcome.status, outcome.value, outcome.error]).encode())
        return outcome


def _widened(limits: Limits) -> Limits:
    return replace(
        limits,
        wall_seconds=limits.wall_seconds * _WIDER,
        cpu_seconds=limits.cpu_seconds * _WIDER,
    )


class OutcomeStore:
    """Outcomes in one SQLite database of a room of the user's cache folder, which runs side by side may share."""

    def __init__(self, room: str = "sandbox") -> None:
        path = cache_folder(room) / "outcomes.sqlite"
        try:
            self._database = _connect(path)
        except sqlite3.OperationalError as error:
            raise UserError(f"cache {path}: {error}; set LEMUR_CURATOR_CACHE to a writable folder") from error
        except sqlite3.DatabaseError:
            note(f"run cache: {path.name} is damaged and was dropped; what it held is run anew")
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._database = _connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def remembered(self, key: str) -> bytes | None:
        """What was stored under a key, if anything."""
        row = self._database.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def remember(self, key: str, value: bytes) -> None:
        """Store it at once."""
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, value))


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome BLOB NOT NULL)")
    except sqlite3.Error:
        database.close()
        raise
    return database


def run_versions(runtime: Sequence[str] = ()) -> dict[str, str]:
    """What foreign code can import, with versions: the declared runtime and what it needs, and `runtime`."""
    return dict(declared_runtime(tuple(runtime)).versions)


@cache
def code_digest(entry: str) -> str:
    """SHA-256 of the file in which an entry stands, and of all of ours that it imports, directly or not."""
    found: dict[str, bytes] = {}
    waiting = [entry.partition(":")[0]]
    while waiting:
        name = waiting.pop()
        places = [_ROOT.joinpath(*name.split(".")).with_suffix(".py"), _ROOT.joinpath(*name.split("."), "__init__.py")]
        file = next((place for place in places if place.is_file()), None)
        if name in found or name.partition(".")[0] not in OWN_PACKAGES or file is None:
            continue
        found[name] = file.read_bytes()
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    text = "".join(f"{name} {hashlib.sha256(code).hexdigest()}\n" for name, code in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def reason_of(outcome: Outcome, limit: int = 400) -> str:
    """Why a job gave no answer, in one short line."""
    return one_line((outcome.error or "the sandbox gave no reason").splitlines()[0], limit)


def answer_of(outcome: Outcome, limit: int = 400) -> dict[str, Any]:
    """What a job answered; `error`, its status and the reason in one line, where that is nothing."""
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    return {"error": f"{outcome.status.value}: {reason_of(outcome, limit)}"}


def workers_within_memory(jobs: int, limits: Limits) -> int:
    """Jobs at a time: no more than memory has room for, should each take all that it may."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(jobs, memory // limits.memory_bytes))
