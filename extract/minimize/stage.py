"""Lean forms of blocks: what runs is watched in the sandbox, the file is cut, and what is left is compared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from extract.minimize.cuts import Watched
from extract.minimize.cutter import Cutter, Lean
from extract.proofs.validate import Pair, payload_of
from lemur_core.files.progress import progress
from lemur_core.graphs.serialization import restore
from lemur_core.graphs.sizes import never_run
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox, Store

WATCH = "extract.minimize.watch_guest:watch_block"
SIGN = "extract.minimize.watch_guest:sign_lean"

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
    sets: tuple[Mapping[str, Any], ...] = ()  # of arguments, beside those of the block, for which it is proved


@dataclass(slots=True)
class _Work:
    """A block on its way."""

    payload: Mapping[str, object]
    name: str
    code: str
    answer: Mapping[str, Any]
    spared: set[int] = field(default_factory=set)
    lean: Lean | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A block that runs forward, and what is known of how it may be run.

    Attributes:
        observed: an `Observed` record.
        hints: calls that the corpus makes, as `extract.arguments.hints.Hints.to_json` gives them.
        traced: what was traced of it, if it was.
    """

    pair: Pair
    observed: Mapping[str, Any]
    hints: Mapping[str, Any] = field(default_factory=dict)
    traced: Mapping[str, Any] | None = None

    def payload(self, runtime: Sequence[Path]) -> dict[str, object]:
        """What the sandbox is given."""
        others = {name: self.hints.get(name, []) for name in ("init", "forward", "inputs")}
        own = {one["name"] for one in self.pair.companions}
        told = str(others)
        more = [one for one in self.hints.get("companions", ()) if one["name"] not in own and one["name"] in told]
        return {
            **payload_of(self.pair, runtime),
            "companions": [*self.pair.companions, *more],
            "sizes": sizes_of(self.observed, self.traced),
            "others": others,
        }


def lean_all(
    blocks: Sequence[Running],
    store: Store | None,
    *,
    jobs: int,
    runtime: Sequence[Path] = (),
    unsafe: bool = False,
) -> Iterator[Leaned]:
    """Cut blocks to what they can reach; outcomes are kept by content.

    Args:
        runtime: folders with what closed files require.
    Raises: UserError if no sandbox can be had.
    """
    options: dict[str, Any] = {
        "readable": list(runtime),
        "unsafe": unsafe,
        "preload": META_PRELOAD,
        "entries": [WATCH, SIGN],
    }
    given = {one.pair.block: (one.payload(runtime), one.pair.name, one.pair.code) for one in blocks}
    with CachedSandbox(store, workers=jobs, **options) as box:
        waiting: dict[str, _Work] = {}
        with progress("watch", len(given), "blocks") as advance:
            for outcome in box.run_within(Job(key, WATCH, payload, LIMITS) for key, (payload, _, _) in given.items()):
                answer = _answer(outcome)
                if "error" in answer:
                    yield Leaned(outcome.key, None, _short(f"does not run again: {answer['error']}"))
                else:
                    waiting[outcome.key] = _Work(*given[outcome.key], answer)
                advance(1)
        with progress("lean", len(waiting), "blocks") as advance:
            for number in range(1, ROUNDS + 1):
                again: dict[str, _Work] = {}
                # One is cut while others are proved.
                for outcome in box.run_within(_proof(key, work) for key, work in waiting.items()):
                    work = waiting[outcome.key]
                    judged = _judged(outcome, work, last=number == ROUNDS)
                    if judged is None:
                        again[outcome.key] = work
                        continue
                    yield replace(judged, rounds=number)
                    advance(1)
                waiting = again


def _judged(outcome: Outcome, work: _Work, *, last: bool) -> Leaned | None:
    """What the proof of a lean form says; None where it is to be cut again, and less."""
    answer, lean = _answer(outcome), work.lean
    assert lean is not None
    wrong = f"only the full form runs: {answer['error']}" if "error" in answer else ""
    if not wrong and (differs := difference(answer, work.answer["signature"]["steps"])):
        wrong = f"not as the full form: {differs}"
    if not wrong and answer["steps"].keys() != work.answer["signature"]["steps"].keys():
        wrong = "not as the full form: other steps"
    if not wrong:
        return Leaned(outcome.key, lean, sets=tuple(work.answer["sets"]))
    spared = _to_spare(answer, lean) - work.spared
    if last or not spared:
        return Leaned(outcome.key, None, _short(wrong))
    work.spared |= spared
    return None


def _proof(block: str, work: _Work) -> Job:
    work.lean = Cutter(work.code, work.name, Watched.of(work.answer)).cut(work.spared)
    payload = {**work.payload, "code": work.lean.text, "sets": work.answer["sets"]}
    return Job(block, SIGN, payload, LIMITS)


def sizes_of(observed: Mapping[str, Any], traced: Mapping[str, Any] | None = None) -> list[list[list[int]]]:
    """The shapes of the inputs of each further call that was seen to work; one of sizes that tracing met together."""
    cases = []
    for case in observed.get("cases", ()):
        shapes = [_SHAPE.fullmatch(text) for text in case["inputs"].values()]
        cases.append([[int(size) for size in shape[1].split("x")] for shape in shapes if shape is not None])
    own, found = cases[:1], [shapes for shapes in cases[1:] if shapes]
    if own and traced is not None and traced["sizes"]:
        try:
            met = [[list(shape) for shape in shapes] for shapes in never_run(restore(traced), list(map(tuple, own[0])))]
        except (ValueError, LookupError, StopIteration):  # inputs that are not told in the order of the graph's
            met = []
        found += [shapes for shapes in met[-1:] if shapes not in (*found, *own)]
    return found


def _answer(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"error": f"{outcome.status.value}: {outcome.error or ''}"}


def difference(answer: Mapping[str, Any], steps: Mapping[str, Any]) -> str:
    """The first step in which what was signed differs from what it should be, with the error it ended in; "" if none.

    Args: answer: of `extract.minimize.watch_guest.sign_lean`. steps: what it should have signed, by step.
    """
    wrong = next((name for name, value in steps.items() if answer["steps"].get(name) != value), None)
    if wrong is None:
        return ""
    told = next((f": {stop['message']}" for stop in answer["stops"] if stop["step"] == wrong), "")
    return f"{wrong}{told}"


def _to_spare(answer: Mapping[str, Any], lean: Lean) -> set[int]:
    """The cuts that an error is owed to: those that it came from, else those that took the name away."""
    found: set[int] = set()
    for stop in answer.get("stops", ()):
        hit = {lean.stops[line] for line in stop["lines"] if line in lean.stops}
        found |= hit or set(lean.named.get(stop["name"] or "", ()))
    return found


def _short(text: str) -> str:
    return " ".join(text.split())[:_CHARACTERS]
