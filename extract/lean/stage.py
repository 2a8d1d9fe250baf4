"""Lean forms of blocks: what runs is watched in the sandbox, the file is cut, and what is left is compared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.lean.cuts import Watched
from extract.lean.cutter import Cutter, Lean
from extract.validate import Pair, payload_of
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox, Store

WATCH = "extract.probing.lean:watch_block"
SIGN = "extract.probing.lean:sign_lean"

#: CPU seconds and memory decide, so that a busy machine changes nothing.
LIMITS = Limits(wall_seconds=600, cpu_seconds=60, memory_bytes=4 * 2**30)
ROUNDS = 8  # of fewer cuts
_CHARACTERS = 300  # of why there is no lean form
_SHAPE = re.compile(r"\w+ (\d+(?:x\d+)*)")


@dataclass(frozen=True, slots=True)
class Leaned:
    """The lean form of one block, or why there is none."""

    block: str
    lean: Lean | None
    error: str | None = None
    rounds: int = 0


@dataclass(slots=True)
class _Work:
    """A block on its way."""

    pair: Pair
    sizes: list[list[list[int]]]
    answer: Mapping[str, Any]
    spared: set[int] = field(default_factory=set)
    lean: Lean | None = None


def lean_all(
    pairs: Sequence[tuple[Pair, Mapping[str, Any]]],
    store: Store | None,
    *,
    jobs: int,
    runtime: Sequence[Path] = (),
    unsafe: bool = False,
) -> Iterator[Leaned]:
    """Cut blocks to what they can reach; outcomes are kept by content.

    Args:
        pairs: blocks that run forward, each with what was observed (an `Observed` record).
        runtime: folders with what closed files require.
    Raises: UserError if no sandbox can be had.
    """
    options: dict[str, Any] = {
        "readable": list(runtime),
        "unsafe": unsafe,
        "preload": META_PRELOAD,
        "entries": [WATCH, SIGN],
    }
    given = {pair.block: (pair, sizes_of(observed)) for pair, observed in pairs}
    with CachedSandbox(store, workers=jobs, **options) as box:
        waiting: dict[str, _Work] = {}
        watching = [Job(key, WATCH, _payload(pair, sizes, runtime), LIMITS) for key, (pair, sizes) in given.items()]
        for outcome in box.run_within(watching):
            answer = _answer(outcome)
            if "error" in answer:
                yield Leaned(outcome.key, None, _short(f"does not run again: {answer['error']}"))
            else:
                waiting[outcome.key] = _Work(*given[outcome.key], answer)
        for number in range(1, ROUNDS + 1):
            again: dict[str, _Work] = {}
            for outcome in box.run_within([job for work in waiting.values() for job in _proofs(work, runtime)]):
                work = waiting[outcome.key]
                answer, lean = _answer(outcome), work.lean
                assert lean is not None
                wrong = _difference(answer, work.answer["signature"])
                if wrong is None:
                    yield Leaned(outcome.key, lean, None, number)
                    continue
                spared = _to_spare(answer, lean) - work.spared
                if not spared or number == ROUNDS:
                    yield Leaned(outcome.key, None, _short(wrong), number)
                    continue
                work.spared |= spared
                again[outcome.key] = work
            waiting = again


def _proofs(work: _Work, runtime: Sequence[Path]) -> Iterator[Job]:
    pair = work.pair
    work.lean = Cutter(pair.code, pair.name, Watched.of(work.answer)).cut(work.spared)
    payload = _payload(pair, work.sizes, runtime) | {"code": work.lean.text}
    yield Job(pair.block, SIGN, payload, LIMITS)


def _payload(pair: Pair, sizes: list[list[list[int]]], runtime: Sequence[Path]) -> dict[str, object]:
    return {**payload_of(pair, runtime), "sizes": sizes}


def sizes_of(observed: Mapping[str, Any]) -> list[list[list[int]]]:
    """The shapes of the inputs of each further call that was seen to work."""
    found = []
    for case in observed.get("cases", ())[1:]:
        shapes = [_SHAPE.fullmatch(text) for text in case["inputs"].values()]
        found.append([[int(size) for size in shape[1].split("x")] for shape in shapes if shape is not None])
    return [shapes for shapes in found if shapes]


def _answer(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"error": f"{outcome.status.value}: {outcome.error or ''}"}


def _difference(lean: Mapping[str, Any], full: Mapping[str, Any]) -> str | None:
    """Where a lean form is not as the full one; None if it is."""
    if "error" in lean:
        return f"only the full form runs: {lean['error']}"
    names = [name for name, value in full["steps"].items() if lean["steps"].get(name) != value]
    if not names and lean["steps"].keys() == full["steps"].keys():
        return None
    told = "; ".join(stop["message"] for stop in lean["stops"][:1] if stop["step"] in names)
    return f"not as the full form: {names[0] if names else 'other steps'}{': ' + told if told else ''}"


def _to_spare(answer: Mapping[str, Any], lean: Lean) -> set[int]:
    """The cuts that an error is owed to: those that it came from, else those that took the name away."""
    found: set[int] = set()
    for stop in answer.get("stops", ()):
        hit = {lean.stops[line] for line in stop["lines"] if line in lean.stops}
        found |= hit or set(lean.named.get(stop["name"] or "", ()))
    return found


def _short(text: str) -> str:
    return " ".join(text.split())[:_CHARACTERS]
