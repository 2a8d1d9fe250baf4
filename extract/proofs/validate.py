"""Validation: find the level that each emitted file reaches. All foreign code runs in the sandbox."""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from extract.emit.emit import Emitted
from extract.model.results import at_least
from extract.resolve.index import Index
from extract.resolve.modules import FOUNDATION
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from manifests.records import Level

T = TypeVar("T")


class Placed(Protocol):
    """An item to compare with an original."""

    @property
    def module(self) -> str:
        """The module from which to import the original."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the original and its dependencies."""


P = TypeVar("P", bound=Placed)

ENTRY = "extract.arguments.search_guest:climb"
_BACK_OFF_SECONDS = 0.5
_TRANSIENT = frozenset({Status.TIMEOUT, Status.CRASHED})  # a search would exceed its memory limit again

# Executing a file takes milliseconds, the search for arguments a few seconds; anything longer hangs.
LIMITS = Limits(wall_seconds=60, cpu_seconds=30)
_SEARCH_LIMITS = Limits(wall_seconds=90, cpu_seconds=30, memory_bytes=4 * 2**30)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The level that a file reached."""

    level: Level
    kind: str | None = None  # category of the error, if it stopped before the goal
    error: str | None = None
    arguments: str | None = None  # working ones, as JSON
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
    hints: Mapping[str, Any] | None = None  # about its arguments, from the corpus


def check_text(emitted: Emitted, goal: Level) -> Verdict:
    """Check the levels that need no execution: parsed and compiled."""
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
    """Validate files up to a level from `executed` on, each in its own sandbox; files that are retried come last.

    Outcomes are cached by content. A search that ends the process (a crash, a limit) says nothing about the lower
    levels, so that these are validated separately.

    Args:
        goal: the highest level to try.
        folders: folders with the requirements of self-contained files.
        retry_failed: run files again whose cached outcome is a failure.

    Raises: UserError if no sandbox is available.
    """

    def usable(job: Job, outcome: Outcome) -> bool:
        return not retry_failed or _verdict(outcome).level == job.payload["goal"]

    box = CachedSandbox(
        index,
        passing=_TRANSIENT,
        back_off=_BACK_OFF_SECONDS,
        usable=usable,
        workers=jobs,
        readable=list(folders),
        unsafe=unsafe,
        preload=META_PRELOAD,
        entries=[ENTRY],
    )
    with box:
        candidates_by_key: dict[str, Candidate] = {}
        failed: dict[str, Outcome] = {}

        def searches() -> Iterator[Job]:
            for candidate in candidates:
                candidates_by_key[candidate.key] = candidate
                yield _job(candidate, folders, goal)

        for outcome in box.run(searches()):
            if outcome.status is Status.OK or goal == "executed":
                yield candidates_by_key.pop(outcome.key), _verdict(outcome)
            else:
                failed[outcome.key] = outcome
        for lower in box.run((_job(candidates_by_key[key], folders, "executed") for key in failed), attempts=1):
            verdict, below = _verdict(failed[lower.key]), _verdict(lower)
            if below.level == "executed":
                seconds, reused = verdict.seconds + below.seconds, verdict.reused and below.reused
                below = replace(verdict, level="executed", seconds=seconds, reused=reused)
            yield candidates_by_key[lower.key], below


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


BLOCK = "extract.proofs.equivalence_guest:sign_block"
ORIGINALS = "extract.proofs.equivalence_guest:sign_originals"
_MAX_TOGETHER = 40  # originals of one package in one process (at most)
_LIMITS = Limits(wall_seconds=120, cpu_seconds=60, memory_bytes=6 * 2**30)
LIMITS_TOGETHER = Limits(wall_seconds=600, cpu_seconds=400, memory_bytes=8 * 2**30)
_PARTS = ("state", "values", "eval", "train", "after")
_MISSING_PACKAGE = ("raises ImportError", "raises ModuleNotFoundError")  # the original's package is incomplete here


@dataclass(frozen=True, slots=True)
class Pair:
    """A block to compare with its original."""

    block: str
    name: str
    code: str
    module: str  # imported for the original
    origin: tuple[str, ...]  # packages that the self-contained file must not import
    folders: tuple[Path, ...]  # with the original and its dependencies
    arguments: Mapping[str, Any]
    digest: str = ""  # of the source of the original
    companions: tuple[Mapping[str, Any], ...] = ()
    original: str = ""  # the expression for the original in its module, if not its name


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a comparison; `fidelity` is None if there was nothing to compare with."""

    block: str
    fidelity: Literal["match", "mismatch"] | None
    detail: str = ""


def compare_all(
    pairs: Sequence[Pair], index: Index, *, jobs: int, runtime: Sequence[Path] = (), unsafe: bool = False
) -> Iterator[Comparison]:
    """Compare blocks with their originals; outcomes are cached by content.

    Args:
        runtime: folders with the requirements of self-contained files.
    Raises: UserError if no sandbox is available.
    """
    by_block = {pair.block: pair for pair in pairs}
    folders = sorted({folder for pair in pairs for folder in pair.folders} | set(runtime))
    with CachedSandbox(
        index, attempts=1, workers=jobs, readable=folders, unsafe=unsafe, entries=[BLOCK, ORIGINALS]
    ) as box:
        theirs = _originals(box, list(group_by_package(pairs)))
        missing = [pair for pair in pairs if "missing" in theirs[pair.block]]
        yield from (compare(pair.block, None, theirs[pair.block]) for pair in missing)
        present = [pair for pair in pairs if "missing" not in theirs[pair.block]]
        doubtful: dict[str, Mapping[str, Any]] = {}
        for outcome in box.run(Job(pair.block, BLOCK, payload_of(pair, runtime), _LIMITS) for pair in present):
            ours = _value(outcome)
            comparison = compare(outcome.key, ours, theirs[outcome.key])
            if comparison.fidelity == "mismatch":
                doubtful[outcome.key] = ours
            else:
                yield comparison
        # Originals in one process share module state such as counters and caches, so mismatches are repeated alone.
        groups = [[by_block[block]] for block in doubtful]
        alone, again = _originals(box, groups), _originals(box, groups, stir=True)
        for block, ours in doubtful.items():
            comparison = compare(block, ours, alone[block])
            if comparison.fidelity == "mismatch" and alone[block] != again[block]:
                comparison = Comparison(
                    block, None, "the original is not the same twice: it reads memory that was not set"
                )
            yield comparison


def compare(block: str, ours: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> Comparison:
    """Compare two signatures; the detail states where they first differ."""
    if ours is None or "missing" in theirs:
        return Comparison(block, None, f"no original: {theirs.get('missing', '')}")
    if "error" in theirs:
        return Comparison(block, None, f"the original does not run: {theirs['error']}")
    if "error" in ours:
        return Comparison(block, "mismatch", f"only the original runs: {ours['error']}")
    differs = next((part for part in _PARTS if ours[part] != theirs[part]), None)
    if differs is None:
        return Comparison(block, "match")
    if theirs[differs] in _MISSING_PACKAGE:
        return Comparison(block, None, f"the original does not run: {differs}: {theirs[differs]}")
    detail = f"{differs}: {_first_difference(ours[differs], theirs[differs])}"
    return Comparison(block, "mismatch", detail)


def _first_difference(ours: object, theirs: object) -> str:
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip([*ours, *[""] * len(theirs)], [*theirs, *[""] * len(ours)], strict=False)
        a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return f"{a or 'nothing'} here, {b or 'nothing'} there"
    return f"{str(ours)[:24]} here, {str(theirs)[:24]} there"


def _originals(box: CachedSandbox, groups: Sequence[list[Pair]], *, stir: bool = False) -> dict[str, Mapping[str, Any]]:
    """Return the signatures of the originals, by block."""

    def job(index: int, group: Sequence[Pair]) -> Job:
        return Job(str(index), ORIGINALS, {**_originals_payload(group), "stir": stir}, LIMITS_TOGETHER)

    return collect_answers(box, groups, job, lambda pair: pair.block)


def collect_answers(
    box: CachedSandbox, groups: Sequence[list[T]], job: Callable[[int, Sequence[T]], Job], key: Callable[[T], str]
) -> dict[str, Mapping[str, Any]]:
    """Run one job per group and return the answers by item; a group whose process dies is split in half and repeated.

    Args:
        job: creates the job of a group from its index, which is the job's key.
        key: returns the key of an item in the answers.
    """
    answers: dict[str, Mapping[str, Any]] = {}
    while groups:
        again: list[list[T]] = []
        for outcome in box.run(job(index, group) for index, group in enumerate(groups)):
            group = groups[int(outcome.key)]
            if outcome.status is Status.OK:
                assert isinstance(outcome.value, dict)
                answers |= outcome.value
            elif len(group) == 1:
                answers[key(group[0])] = {"error": _reason(outcome)}
            else:
                middle = len(group) // 2
                again += [group[:middle], group[middle:]]
        groups = again
    return answers


def _originals_payload(group: Sequence[Pair]) -> dict[str, object]:
    return {
        "folders": [str(folder) for folder in group[0].folders],
        "blocks": [
            {
                "block": pair.block,
                "module": pair.module,
                "name": pair.original or pair.name,
                "arguments": pair.arguments,
                "companions": [{k: c[k] for k in ("name", "qualname")} for c in pair.companions],
                "digest": pair.digest,
            }
            for pair in group
        ],
    }


def group_by_package(items: Iterable[P]) -> Iterator[list[P]]:
    """Yield groups of items of one package, limited in size."""
    by_place: dict[tuple[Path, ...], list[P]] = {}
    for item in items:
        by_place.setdefault(item.folders, []).append(item)
    for members in by_place.values():
        members.sort(key=lambda item: item.module)
        for start in range(0, len(members), _MAX_TOGETHER):
            yield members[start : start + _MAX_TOGETHER]


def payload_of(pair: Pair, runtime: Sequence[Path]) -> dict[str, object]:
    """Return the payload to run a block in the sandbox with its working arguments."""
    return {
        "code": pair.code,
        "name": pair.name,
        "origin": list(pair.origin),
        "folders": [str(folder) for folder in runtime],
        "arguments": pair.arguments,
        "companions": list(pair.companions),
    }


def _value(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"error": _reason(outcome)}


def _reason(outcome: Outcome) -> str:
    return " ".join((outcome.error or outcome.status.value).split())[:200]
