"""Validation: how far each emitted file comes. What executes foreign code happens in the sandbox."""

import ast
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from extract.emit import Emitted
from extract.index import Index
from extract.runtime_names import RuntimeNames
from manifests.records import Level
from sandbox import Job, Limits, Outcome, Sandbox, Status

PROBE_VERSION = 2
ENTRY = "extract.probe:execute"
ATTEMPTS = 3  # for failures of resources; anything else fails the same way again
_BACK_OFF_SECONDS = 0.5
_RESOURCE = frozenset({Status.TIMEOUT, Status.CRASHED})

# Running a file's top level takes milliseconds; what takes longer than this hangs.
LIMITS = Limits(wall_seconds=60, cpu_seconds=30)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a file came."""

    level: Level
    kind: str | None = None  # why no further
    error: str | None = None
    seconds: float = 0.0
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to validate."""

    key: str
    name: str
    code: str
    origin: tuple[str, ...]  # top-level packages of its source

    def cache_key(self, folders: Sequence[Path]) -> str:
        """Names everything that the outcome depends on."""
        about = (
            self.name,
            self.code,
            self.origin,
            RuntimeNames.key(),
            [folder.name for folder in folders],
            PROBE_VERSION,
        )
        return "executed:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()


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


def execute_all(
    candidates: Iterable[Candidate],
    index: Index,
    *,
    jobs: int,
    folders: Sequence[Path] = (),
    retry_failed: bool = False,
    unsafe: bool = False,
) -> Iterator[tuple[Candidate, Verdict]]:
    """Execute files, each in a sandbox of its own; verdicts in the order of the candidates.

    Outcomes are kept by content. `retry_failed` runs those again that failed before.

    Raises: UserError if no sandbox can be had.
    """
    known: dict[str, Verdict] = {}
    waiting: list[Candidate] = []

    def to_run() -> Iterator[Job]:
        for candidate in candidates:
            waiting.append(candidate)
            stored = index.remembered(candidate.cache_key(folders))
            verdict = Verdict(**json.loads(stored)) if stored is not None else None
            if verdict is not None and (verdict.level == "executed" or not retry_failed):
                known[candidate.key] = replace(verdict, reused=True)
            else:
                yield _job(candidate, folders)

    def ready() -> Iterator[tuple[Candidate, Verdict]]:
        while waiting and waiting[0].key in known:
            candidate = waiting.pop(0)
            yield candidate, known.pop(candidate.key)

    with _LazySandbox(jobs, folders, unsafe) as box:
        for outcome in box.run(to_run()):
            yield from ready()
            candidate = waiting[0]
            assert candidate.key == outcome.key
            verdict = _verdict(box.again(_job(candidate, folders), outcome))
            stored = json.dumps({"level": verdict.level, "kind": verdict.kind, "error": verdict.error})
            index.remember(candidate.cache_key(folders), stored.encode())
            known[candidate.key] = verdict
            yield from ready()
        yield from ready()


def _job(candidate: Candidate, folders: Sequence[Path]) -> Job:
    payload: dict[str, object] = {
        "code": candidate.code,
        "name": candidate.name,
        "folders": [str(folder) for folder in folders],
    }
    return Job(candidate.key, ENTRY, payload, LIMITS)


class _LazySandbox:
    """A sandbox that starts with the first job: a run whose outcomes are all known needs none."""

    def __init__(self, jobs: int, folders: Sequence[Path], unsafe: bool) -> None:
        self._arguments = {"workers": jobs, "readable": list(folders), "unsafe": unsafe, "entries": [ENTRY]}
        self._box: Sandbox | None = None

    def __enter__(self) -> "_LazySandbox":
        return self

    def __exit__(self, *error: object) -> None:
        if self._box is not None:
            self._box.__exit__(None, None, None)

    def run(self, jobs: Iterator[Job]) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs."""
        first = next(jobs, None)
        if first is None:
            return
        self._box = Sandbox(**self._arguments)  # type: ignore[arg-type]
        self._box.__enter__()

        def all_jobs() -> Iterator[Job]:
            yield first
            yield from jobs

        yield from self._box.run(all_jobs())

    def again(self, job: Job, outcome: Outcome) -> Outcome:
        """The outcome of a job, run again with growing pauses while only resources fail it."""
        if outcome.status not in _RESOURCE:
            return outcome
        for attempt in range(1, ATTEMPTS):
            time.sleep(_BACK_OFF_SECONDS * 2**attempt)
            with Sandbox(**{**self._arguments, "workers": 1}) as box:  # type: ignore[arg-type]
                outcome = next(iter(box.run([job])))
            if outcome.status not in _RESOURCE:
                break
        return outcome


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.status is Status.OK:
        value = outcome.value
        assert isinstance(value, dict)
        if value.get("ok") is True:
            return Verdict("executed", seconds=outcome.seconds)
        return Verdict("compiled", str(value.get("kind")), str(value.get("error")), outcome.seconds)
    error = " ".join((outcome.error or outcome.status.value).split())[:400]
    return Verdict("compiled", outcome.status.value, error, outcome.seconds)
