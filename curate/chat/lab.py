"""Experiments on network codes in the sandbox, each made once: answers are kept by everything they depend on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

from curate.runs.contract import Case
from curate.runs.store import RunStore, Told, outcome_key
from curate.runs.trials import LIMITS, Trial, TrialRunner, reason_of
from lemur_core.files.progress import progress
from lemur_core.sandbox import Limits, Outcome, Status

#: Changes with what is measured or told: answers that were kept under another version are not used.
CHAT_PROBE_VERSION = 3

#: Twice those of one run: a network is run with two seeds.
CHAT_LIMITS = replace(LIMITS, wall_seconds=2 * LIMITS.wall_seconds, cpu_seconds=2 * LIMITS.cpu_seconds)

Method = Literal["measure", "train_step"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A code with what its network is given."""

    code: str
    case: Case
    prm: dict[str, Any]


class Lab:
    """Answers experiments. A context manager; its sandbox starts with the first one that was never made before."""

    def __init__(self, *, jobs: int | None = None, unsafe: bool = False, limits: Limits = CHAT_LIMITS) -> None:
        self._runner = TrialRunner(jobs=jobs, unsafe=unsafe, limits=limits)
        self._store = RunStore()

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._store.close()
        self._runner.close()

    def make(self, experiments: Sequence[Experiment], what: str, method: Method = "measure") -> list[Told]:
        """The answers of `curate.chat.probe`, in order.

        Args:
            what: is done, for the line of progress.

        Raises: UserError if no sandbox can be had.
        """
        keys = [self._key(experiment, method) for experiment in experiments]
        answers = [self._store.get(key) for key in keys]
        new = [place for place, answer in enumerate(answers) if answer is None]
        if new:
            trials = [Trial(place, experiments[place].case, experiments[place].prm) for place in new]
            with progress(what, len(new), "networks") as advance:
                entry = f"curate.chat.probe:{method}"
                for number, outcome in self._runner.run(trials, lambda place: experiments[place].code, entry):
                    answers[new[number]] = answer = _told(outcome)
                    self._store.put(keys[new[number]], answer)
                    advance(1)
        return [answer for answer in answers if answer is not None]

    def _key(self, experiment: Experiment, method: Method) -> str:
        code = hashlib.sha256(experiment.code.encode()).hexdigest()
        return outcome_key(code, experiment.case, experiment.prm, self._runner.limits, method, CHAT_PROBE_VERSION)


def _told(outcome: Outcome) -> Told:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"runs": False, "category": outcome.status.value, "error": reason_of(outcome), "missing": ""}
