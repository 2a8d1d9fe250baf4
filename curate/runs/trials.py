"""One network's trial, and running trials in the sandbox. Nothing foreign is executed in this process."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from curate.runs.contract import Case
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from lemur_core.sandbox.foreign import one_line

ENTRY = "curate.runs.probe:run_network"
ATTEMPTS = 3  # for failures of resources; anything else fails the same way again

LIMITS = Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30)

_BACK_OFF_SECONDS = 1.0
_ERROR_CHARACTERS = 400
_RESOURCE = frozenset({Status.TIMEOUT, Status.CRASHED, Status.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class Trial:
    """A network with what it is given."""

    code: int  # its number in the corpus
    case: Case
    prm: dict[str, Any]


def reason_of(outcome: Outcome) -> str:
    """Why a trial gave no answer, in one short line."""
    return one_line((outcome.error or "the sandbox gave no reason").splitlines()[0], _ERROR_CHARACTERS)


class TrialRunner:
    """A sandbox that starts with the first trial: a run whose outcomes are all known needs none."""

    def __init__(self, *, jobs: int | None, unsafe: bool, limits: Limits) -> None:
        self.limits = limits
        self._workers = _workers(jobs or available_cores(), limits)
        self._unsafe = unsafe
        self._box: Sandbox | None = None

    def run(
        self, trials: Sequence[Trial], text_of: Callable[[int], str], entry: str = ENTRY
    ) -> Iterator[tuple[int, Outcome]]:
        """The place and outcome of each trial, in order but for those that resources failed.

        These are run again at the end, one at a time, after growing pauses.

        Raises: UserError if no sandbox can be had.
        """
        again: list[int] = []
        jobs = (self._job(place, trial, text_of, entry) for place, trial in enumerate(trials))
        for place, outcome in enumerate(self._outcomes(jobs)):
            if outcome.status in _RESOURCE:
                again.append(place)
            else:
                yield place, outcome
        for place in again:
            yield place, self._again(self._job(place, trials[place], text_of, entry))

    def close(self) -> None:
        """End the sandbox, if it was started."""
        if self._box is not None:
            self._box.close()

    def _job(self, place: int, trial: Trial, text_of: Callable[[int], str], entry: str) -> Job:
        payload: dict[str, object] = {"code": text_of(trial.code), "case": asdict(trial.case), "prm": trial.prm}
        return Job(str(place), entry, payload, self.limits)

    def _again(self, job: Job) -> Outcome:
        for attempt in range(1, ATTEMPTS):
            time.sleep(_BACK_OFF_SECONDS * 2**attempt)
            (outcome,) = self._outcomes([job])
            if outcome.status not in _RESOURCE:
                break
        return outcome

    def _outcomes(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        if self._box is None:
            self._box = Sandbox(entries=[ENTRY], workers=self._workers, limits=self.limits, unsafe=self._unsafe)
            self._box.__enter__()
        return self._box.run(jobs)


def _workers(jobs: int, limits: Limits) -> int:
    """Jobs at a time: no more than memory has room for, should each take all that it may."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(jobs, memory // limits.memory_bytes))
