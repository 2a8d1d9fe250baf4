"""Validation: how far each emitted file comes. What executes foreign code happens in the sandbox."""

import ast
import contextlib
import hashlib
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from extract.counts import at_least
from extract.emit import Emitted
from extract.index import Index
from extract.modules import FOUNDATION
from extract.runtime_names import RuntimeNames
from lemur_core.sandbox import PRELOAD, Job, Limits, Outcome, Sandbox, Status
from manifests.records import Level

ENTRY = "extract.probing.entry:climb"
_PRELOAD = (*PRELOAD, "torch.fx.experimental.symbolic_shapes")  # meta tensors need it, and it brings SymPy
ATTEMPTS = 3  # for failures of resources; anything else fails the same way again
_BACK_OFF_SECONDS = 0.5
_RESOURCE = frozenset({Status.TIMEOUT, Status.CRASHED})

# Running a file's top level takes milliseconds, the search for arguments a few seconds; what takes longer hangs.
LIMITS = Limits(wall_seconds=60, cpu_seconds=30)
_SEARCH_LIMITS = Limits(wall_seconds=90, cpu_seconds=30, memory_bytes=4 * 2**30)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a file came."""

    level: Level
    kind: str | None = None  # why no further
    error: str | None = None
    arguments: str | None = None  # that worked, as JSON
    observed: str | None = None  # an Observed record as JSON
    seconds: float = 0.0
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to validate."""

    key: str
    name: str
    code: str
    origin: tuple[str, ...]  # top-level packages of its source
    hints: Mapping[str, Any] | None = None  # what the corpus tells of its arguments

    def cache_key(self, folders: Sequence[Path], goal: Level) -> str:
        """Names everything that the outcome depends on."""
        about = (
            goal,
            self.name,
            self.code,
            self.origin,
            self.hints if at_least(goal, "constructed") else None,
            RuntimeNames.key(),
            [folder.name for folder in folders],
            probe_digest(),
        )
        return "validated:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()


@lru_cache(maxsize=1)
def probe_digest() -> str:
    """SHA-256 of the code that runs inside the sandbox."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in [here / "probe.py", *sorted((here / "probing").glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_text(emitted: Emitted, goal: Level) -> Verdict:
    """The rungs that need no execution: parsed and compiled."""
    if goal == "emitted":
        return Verdict("emitted")
    if emitted.undefined:
        return Verdict("emitted", "undefined_name", f"undefined in the emitted file: {', '.join(emitted.undefined)}")
    if not emitted.fault:
        return Verdict("parsed" if goal == "parsed" else "compiled")
    try:
        ast.parse(emitted.code)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Verdict("emitted", "syntax_error", f"does not parse: {error}")
    return Verdict("parsed", "compile_error", f"does not compile: {emitted.fault}")


def validate_all(
    candidates: Iterable[Candidate],
    index: Index,
    goal: Level,
    *,
    jobs: int,
    folders: Sequence[Path] = (),
    retry_failed: bool = False,
    unsafe: bool = False,
) -> Iterator[tuple[Candidate, Verdict]]:
    """Take files to a rung from `executed` on, each in a sandbox of its own; verdicts in the order of the candidates.

    Outcomes are kept by content. `retry_failed` runs those again that failed before.

    Raises: UserError if no sandbox can be had.
    """
    known: dict[str, Verdict] = {}
    waiting: deque[Candidate] = deque()

    def to_run() -> Iterator[Job]:
        for candidate in candidates:
            waiting.append(candidate)
            stored = index.remembered(candidate.cache_key(folders, goal))
            verdict = Verdict(**json.loads(stored)) if stored is not None else None
            if verdict is not None and (verdict.level == goal or not retry_failed):
                known[candidate.key] = replace(verdict, reused=True)
            else:
                yield _job(candidate, folders, goal)

    def ready() -> Iterator[tuple[Candidate, Verdict]]:
        while waiting and waiting[0].key in known:
            candidate = waiting.popleft()
            yield candidate, known.pop(candidate.key)

    with _LazySandbox(jobs, folders, unsafe) as box:
        for outcome in box.run(to_run()):
            yield from ready()
            candidate = waiting[0]
            assert candidate.key == outcome.key
            verdict = _judge(box, candidate, folders, goal, outcome)
            stored = json.dumps({k: v for k, v in asdict(verdict).items() if k not in ("seconds", "reused")})
            index.remember(candidate.cache_key(folders, goal), stored.encode())
            known[candidate.key] = verdict
            yield from ready()
        yield from ready()


def _judge(
    box: "_LazySandbox", candidate: Candidate, folders: Sequence[Path], goal: Level, outcome: Outcome
) -> Verdict:
    """The verdict on an outcome, after what further attempts are due.

    A search that ends the process (a crash, a limit) says nothing of the rungs below it: these are climbed alone.
    """
    outcome = box.again(_job(candidate, folders, goal), outcome)
    verdict = _verdict(outcome)
    if outcome.status is Status.OK or goal == "executed":
        return verdict
    lower = _verdict(box.once(_job(candidate, folders, "executed")))
    if lower.level != "executed":
        return lower
    return replace(verdict, level="executed", seconds=verdict.seconds + lower.seconds)


def _job(candidate: Candidate, folders: Sequence[Path], goal: Level) -> Job:
    payload: dict[str, object] = {
        "code": candidate.code,
        "name": candidate.name,
        "origin": [package for package in candidate.origin if package != FOUNDATION],
        "folders": [str(folder) for folder in folders],
        "goal": goal,
        "hints": candidate.hints,
    }
    return Job(candidate.key, ENTRY, payload, LIMITS if goal == "executed" else _SEARCH_LIMITS)


class _LazySandbox:
    """A sandbox that starts with the first job, and a second one with the first job that is run again meanwhile.

    A run whose outcomes are all known needs none.
    """

    def __init__(self, jobs: int, folders: Sequence[Path], unsafe: bool) -> None:
        self._arguments = {
            "workers": jobs,
            "readable": list(folders),
            "unsafe": unsafe,
            "preload": _PRELOAD,
            "entries": [ENTRY],
        }
        self._open = contextlib.ExitStack()
        self._second: Sandbox | None = None

    def __enter__(self) -> "_LazySandbox":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def run(self, jobs: Iterator[Job]) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs."""
        first = next(jobs, None)
        if first is None:
            return
        box = self._open.enter_context(Sandbox(**self._arguments))  # type: ignore[arg-type]

        def all_jobs() -> Iterator[Job]:
            yield first
            yield from jobs

        yield from box.run(all_jobs())

    def once(self, job: Job) -> Outcome:
        """The outcome of a job that runs by itself."""
        if self._second is None:
            self._second = self._open.enter_context(Sandbox(**{**self._arguments, "workers": 1}))  # type: ignore[arg-type]
        (outcome,) = self._second.run([job])
        return outcome

    def again(self, job: Job, outcome: Outcome) -> Outcome:
        """The outcome of a job, run again with growing pauses while only resources fail it."""
        for attempt in range(1, ATTEMPTS):
            if outcome.status not in _RESOURCE:
                break
            time.sleep(_BACK_OFF_SECONDS * 2**attempt)
            outcome = self.once(job)
        return outcome


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.status is not Status.OK:
        error = " ".join((outcome.error or outcome.status.value).split())[:400]
        return Verdict("compiled", outcome.status.value, error, seconds=outcome.seconds)
    value = outcome.value
    assert isinstance(value, dict)
    return Verdict(
        level=value["level"],
        kind=value.get("kind"),
        error=value.get("error"),
        arguments=_text(value.get("arguments")),
        observed=_text(value.get("observed")),
        seconds=outcome.seconds,
    )


def _text(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
