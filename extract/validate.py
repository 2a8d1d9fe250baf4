"""Validation: how far each emitted file comes. What executes foreign code happens in the sandbox."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.emit import Emitted
from extract.index import Index
from extract.modules import FOUNDATION
from extract.results import at_least
from lemur_core.sandbox import PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from manifests.records import Level

ENTRY = "extract.probing.entry:climb"
_PRELOAD = (*PRELOAD, "torch.fx.experimental.symbolic_shapes")  # meta tensors need it, and it brings SymPy
_BACK_OFF_SECONDS = 0.5
_PASSING = frozenset({Status.TIMEOUT, Status.CRASHED})  # a search meets its memory limit again

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
    """Take files to a rung from `executed` on, each in a sandbox of its own; what is run again comes last.

    Outcomes are kept by content. `retry_failed` runs those again that failed before. A search that ends the process (a
    crash, a limit) says nothing of the rungs below it: these are climbed alone.

    Raises: UserError if no sandbox can be had.
    """

    def usable(job: Job, outcome: Outcome) -> bool:
        return not retry_failed or _verdict(outcome).level == job.payload["goal"]

    box = CachedSandbox(
        index,
        passing=_PASSING,
        back_off=_BACK_OFF_SECONDS,
        usable=usable,
        workers=jobs,
        readable=list(folders),
        unsafe=unsafe,
        preload=_PRELOAD,
        entries=[ENTRY],
    )
    with box:
        given: dict[str, Candidate] = {}
        ended: dict[str, Outcome] = {}

        def searches() -> Iterator[Job]:
            for candidate in candidates:
                given[candidate.key] = candidate
                yield _job(candidate, folders, goal)

        for outcome in box.run(searches()):
            if outcome.status is Status.OK or goal == "executed":
                yield given.pop(outcome.key), _verdict(outcome)
            else:
                ended[outcome.key] = outcome
        for lower in box.run((_job(given[key], folders, "executed") for key in ended), attempts=1):
            verdict, below = _verdict(ended[lower.key]), _verdict(lower)
            if below.level == "executed":
                seconds, reused = verdict.seconds + below.seconds, verdict.reused and below.reused
                below = replace(verdict, level="executed", seconds=seconds, reused=reused)
            yield given[lower.key], below


def _job(candidate: Candidate, folders: Sequence[Path], goal: Level) -> Job:
    payload: dict[str, object] = {
        "code": candidate.code,
        "name": candidate.name,
        "origin": [package for package in candidate.origin if package != FOUNDATION],
        "folders": [str(folder) for folder in folders],
        "goal": goal,
        "hints": candidate.hints if at_least(goal, "constructed") else None,
    }
    return Job(candidate.key, ENTRY, payload, LIMITS if goal == "executed" else _SEARCH_LIMITS)


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.status is not Status.OK:
        error = " ".join((outcome.error or outcome.status.value).split())[:400]
        return Verdict("compiled", outcome.status.value, error, seconds=outcome.seconds, reused=outcome.reused)
    value = outcome.value
    assert isinstance(value, dict)
    return Verdict(
        level=value["level"],
        kind=value.get("kind"),
        error=value.get("error"),
        arguments=_text(value.get("arguments")),
        observed=_text(value.get("observed")),
        seconds=outcome.seconds,
        reused=outcome.reused,
    )


def _text(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
