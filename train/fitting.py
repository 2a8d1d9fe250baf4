"""Asking the sandbox whether fillers fit their slots; what it said is kept."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import PASSING, CachedSandbox, reason_of
from train.slots import Filler

LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

PROBE, NETWORK = "train.fit:probe", "train.fit:check_network"
_ERROR_CHARACTERS = 200

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """Does this filler do what the slot asks for at these sizes, when its builds may name these factories?"""

    slot: str
    filler: Filler
    sizes: Sequence[dict[str, int]]
    support: str
    strict: bool = True

    @property
    def payload(self) -> dict[str, object]:
        """What the sandbox is given."""
        return {
            "slot": self.slot,
            "strict": self.strict,
            "code": self.filler.code,
            "target": self.filler.target,
            "builds": list(self.filler.builds),
            "support": "\n".join([self.support, *self.filler.imports]),
            "sizes": list(self.sizes),
        }


class Fitter:
    """Answers questions, from the cache or by a sandbox that starts with the first new one. A context manager."""

    def __init__(self, *, unsafe: bool = False, jobs: int = 1) -> None:
        entries = [PROBE, NETWORK]
        self._box = CachedSandbox(
            entries=entries, workers=jobs, limits=LIMITS, unsafe=unsafe, attempts=1, usable=_is_answer
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def ask(self, questions: Sequence[Question], advance: Callable[[int], None] = lambda _count: None) -> list[Answer]:
        """The answers, as `train.fit.probe` gives them, in order; `advance` is called with the count done.

        Raises: UserError if no sandbox can be had.
        """
        return self._answers(PROBE, [question.payload for question in questions], advance)

    def check_network(self, code: str, prm: dict[str, float], in_shape: Sequence[int], classes: int) -> Answer:
        """Whether an assembled network runs as LEMUR runs one, as `train.fit.check_network` tells it."""
        payload: dict[str, object] = {"code": code, "prm": prm, "in_shape": list(in_shape), "out_shape": [classes]}
        return self._answers(NETWORK, [payload], lambda _count: None)[0]

    def _answers(
        self, entry: str, payloads: Sequence[dict[str, object]], advance: Callable[[int], None]
    ) -> list[Answer]:
        keys = [self._box.key_of(Job("", entry, payload)) for payload in payloads]
        jobs = {key: Job(key, entry, payload) for key, payload in zip(keys, payloads, strict=True)}
        answers: dict[str, Answer] = {}
        advance(len(keys) - len(jobs))
        for outcome in self._box.run(jobs.values()):
            answers[outcome.key] = _answer(outcome)
            advance(1)
        return [answers[key] for key in keys]


def _is_answer(_job: Job, outcome: Outcome) -> bool:
    """Whether an outcome of an earlier run stands: a busy machine may be the reason of some ends."""
    return outcome.status not in PASSING


def fitter_for(given: Fitter | None, *, unsafe: bool, jobs: int = 1) -> contextlib.AbstractContextManager[Fitter]:
    """The given one, which stays open, or a new one."""
    return contextlib.nullcontext(given) if given is not None else Fitter(unsafe=unsafe, jobs=jobs)


def _answer(outcome: Outcome) -> Answer:
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    return {"fits": False, "reason": f"{outcome.status.value}: {reason_of(outcome, _ERROR_CHARACTERS)}", "build": ""}
