"""Minimize blocks: trace the executed lines in the sandbox, cut the file, and compare the result with the original."""

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

#: CPU time and memory are the effective limits, so outcomes do not depend on machine load.
LIMITS = Limits(wall_seconds=600, cpu_seconds=60, memory_bytes=4 * 2**30)
ROUNDS = 8  # attempts, each with fewer cuts
_CHARACTERS = 300  # maximum length of an error message
_SHAPE = re.compile(r"\w+ (\d+(?:x\d+)*)")


@dataclass(frozen=True, slots=True)
class Leaned:
    """The minimized file of one block, or the reason why there is none."""

    block: str
    lean: Lean | None
    error: str | None = None
    rounds: int = 0
    sets: tuple[Mapping[str, Any], ...] = ()  # further arguments that the result was verified with


@dataclass(slots=True)
class _Work:
    """A block in progress."""

    payload: Mapping[str, object]
    name: str
    code: str
    answer: Mapping[str, Any]
    spared: set[int] = field(default_factory=set)
    lean: Lean | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A block that runs forward, with everything known about how to run it.

    Attributes:
        observed: an `Observed` record.
        hints: calls found in the corpus, in the format of `extract.arguments.hints.Hints.to_json`.
        traced: its traced graphs, if available.
    """

    pair: Pair
    observed: Mapping[str, Any]
    hints: Mapping[str, Any] = field(default_factory=dict)
    traced: Mapping[str, Any] | None = None

    def payload(self, runtime: Sequence[Path]) -> dict[str, object]:
        """Return the payload for the sandbox."""
        others = {name: self.hints.get(name, []) for name in ("init", "forward", "inputs")}
        own = {one["name"] for one in self.pair.companions}
        text = str(others)
        more = [one for one in self.hints.get("companions", ()) if one["name"] not in own and one["name"] in text]
        return {
            **payload_of(self.pair, runtime),
            "companions": [*self.pair.companions, *more],
            "sizes": list_sizes(self.observed, self.traced),
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
    """Cut blocks to the code they can reach; outcomes are cached by content.

    Args:
        runtime: folders with the packages that closed files require.
    Raises: UserError if no sandbox is available.
    """
    options: dict[str, Any] = {
        "readable": list(runtime),
        "unsafe": unsafe,
        "preload": META_PRELOAD,
        "entries": [WATCH, SIGN],
    }
    work_items = {one.pair.block: (one.payload(runtime), one.pair.name, one.pair.code) for one in blocks}
    with CachedSandbox(store, workers=jobs, **options) as box:
        waiting: dict[str, _Work] = {}
        with progress("watch", len(work_items), "blocks") as advance:
            for outcome in box.run_within(
                Job(key, WATCH, payload, LIMITS) for key, (payload, _, _) in work_items.items()
            ):
                answer = _answer(outcome)
                if "error" in answer:
                    yield Leaned(outcome.key, None, _short(f"does not run again: {answer['error']}"))
                else:
                    waiting[outcome.key] = _Work(*work_items[outcome.key], answer)
                advance(1)
        with progress("lean", len(waiting), "blocks") as advance:
            for number in range(1, ROUNDS + 1):
                again: dict[str, _Work] = {}
                # Files are cut while others are being verified.
                for outcome in box.run_within(_proof(key, work) for key, work in waiting.items()):
                    work = waiting[outcome.key]
                    result = _judge(outcome, work, last=number == ROUNDS)
                    if result is None:
                        again[outcome.key] = work
                        continue
                    yield replace(result, rounds=number)
                    advance(1)
                waiting = again


def _judge(outcome: Outcome, work: _Work, *, last: bool) -> Leaned | None:
    """Return the result of comparing a minimized file with the original; None to retry with fewer cuts."""
    answer, minimized = _answer(outcome), work.lean
    assert minimized is not None
    wrong = f"only the full form runs: {answer['error']}" if "error" in answer else ""
    if not wrong and (differs := difference(answer, work.answer["signature"]["steps"])):
        wrong = f"not as the full form: {differs}"
    if not wrong and answer["steps"].keys() != work.answer["signature"]["steps"].keys():
        wrong = "not as the full form: other steps"
    if not wrong:
        return Leaned(outcome.key, minimized, sets=tuple(work.answer["sets"]))
    spared = _blame_cuts(answer, minimized) - work.spared
    if last or not spared:
        return Leaned(outcome.key, None, _short(wrong))
    work.spared |= spared
    return None


def _proof(block: str, work: _Work) -> Job:
    work.lean = Cutter(work.code, work.name, Watched.from_answer(work.answer)).cut(work.spared)
    payload = {**work.payload, "code": work.lean.text, "sets": work.answer["sets"]}
    return Job(block, SIGN, payload, LIMITS)


def list_sizes(observed: Mapping[str, Any], traced: Mapping[str, Any] | None = None) -> list[list[list[int]]]:
    """Return the input shapes of each further working call, plus one set of sizes observed during tracing."""
    cases = []
    for case in observed.get("cases", ()):
        shapes = [_SHAPE.fullmatch(text) for text in case["inputs"].values()]
        cases.append([[int(size) for size in shape[1].split("x")] for shape in shapes if shape is not None])
    own, further = cases[:1], [shapes for shapes in cases[1:] if shapes]
    if own and traced is not None and traced["sizes"]:
        try:
            met = [[list(shape) for shape in shapes] for shapes in never_run(restore(traced), list(map(tuple, own[0])))]
        except (ValueError, LookupError, StopIteration):  # inputs in another order than in the graph
            met = []
        further += [shapes for shapes in met[-1:] if shapes not in (*further, *own)]
    return further


def _answer(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"error": f"{outcome.status.value}: {outcome.error or ''}"}


def difference(answer: Mapping[str, Any], steps: Mapping[str, Any]) -> str:
    """Return the first step whose signature differs from the expected one, with its error; "" if all agree.

    Args: answer: from `extract.minimize.watch_guest.sign_lean`. steps: step -> expected signature.
    """
    wrong = next((name for name, value in steps.items() if answer["steps"].get(name) != value), None)
    if wrong is None:
        return ""
    error = next((f": {stop['message']}" for stop in answer["stops"] if stop["step"] == wrong), "")
    return f"{wrong}{error}"


def _blame_cuts(answer: Mapping[str, Any], minimized: Lean) -> set[int]:
    """Return the cuts that caused an error: those that raised it, else those that removed the missing name."""
    spared: set[int] = set()
    for stop in answer.get("stops", ()):
        hit = {minimized.stops[line] for line in stop["lines"] if line in minimized.stops}
        spared |= hit or set(minimized.named.get(stop["name"] or "", ()))
    return spared


def _short(text: str) -> str:
    return " ".join(text.split())[:_CHARACTERS]
