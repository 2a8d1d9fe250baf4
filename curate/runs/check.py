"""Tells of records whether they run, from outcomes that are kept by everything they depend on."""

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from curate.corpus import Corpus
from curate.runs.contract import case_of
from curate.runs.result import RunResult
from curate.runs.store import RunStore, Told, outcome_key
from curate.runs.trials import LIMITS, Trial, TrialRunner, reason_of
from lemur_core.files.progress import progress
from lemur_core.sandbox import Limits, Outcome, Status

#: Changes with what is tried or told: outcomes that were kept under another version are not used.
PROBE_VERSION = 1

#: Whether each of these codes runs, as the row that shows it describes it.
Check = Callable[[Mapping[int, int]], dict[int, RunResult]]


class RunChecker:
    """A Check for the records of a corpus. A context manager; its sandbox starts with the first network to run."""

    def __init__(
        self, corpus: Corpus, *, jobs: int | None = None, unsafe: bool = False, limits: Limits = LIMITS
    ) -> None:
        self.ran = 0  # networks whose outcome was not known yet
        self._corpus = corpus
        self._runner = TrialRunner(jobs=jobs, unsafe=unsafe, limits=limits)
        self._store = RunStore()
        self._known: dict[tuple[int, int], RunResult] = {}

    def __enter__(self) -> "RunChecker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._store.close()
        self._runner.close()

    def __call__(self, shown: Mapping[int, int]) -> dict[int, RunResult]:
        """Whether each of these codes runs, as the row that shows it describes it.

        Raises: UserError if no sandbox can be had.
        """
        new: list[tuple[tuple[int, int], Trial]] = []
        for place in shown.items():
            if place not in self._known:
                trial = self._trial(*place)
                known = RunResult(None, f"unknown_input: {trial}") if isinstance(trial, str) else self._stored(trial)
                if known is not None:
                    self._known[place] = known
                elif isinstance(trial, Trial):
                    new.append((place, trial))
        if new:
            self._run(new)
        return {code: self._known[code, row] for code, row in shown.items()}

    def _trial(self, code: int, row: int) -> Trial | str:
        (record,) = self._corpus.rows.slice(row, 1).select(["task", "dataset", "prm"]).to_pylist()
        prm = read_parameters(record["prm"])
        case = case_of(record["task"], record["dataset"], prm.get("transform"))
        if isinstance(case, str):
            return case
        # LEMUR's batch size is in both places, and a network may read either.
        return Trial(code, case, prm | {"batch": case.in_shape[0]})

    def _run(self, new: Sequence[tuple[tuple[int, int], Trial]]) -> None:
        trials = [trial for _, trial in new]
        with progress("runs", len(new), "networks") as advance:
            for number, outcome in self._runner.run(trials, self._corpus.codes.__getitem__):
                told = _told(outcome)
                self._store.put(self._key(trials[number]), told)
                self._known[new[number][0]] = RunResult(told["runs"], told["error"])
                self.ran += 1
                advance(1)

    def _stored(self, trial: Trial) -> RunResult | None:
        told = self._store.get(self._key(trial))
        return None if told is None else RunResult(told["runs"], told["error"])

    def _key(self, trial: Trial) -> str:
        return outcome_key(self._corpus.ids[trial.code], trial.case, trial.prm, self._runner.limits, PROBE_VERSION)


def read_parameters(prm: str | None) -> dict[str, Any]:
    """The hyperparameters of a record; none where there is no JSON object."""
    try:
        found = json.loads(prm or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(outcome: Outcome) -> Told:
    """What is kept of an outcome."""
    if outcome.status is Status.OK:
        value = outcome.value
        assert isinstance(value, dict)
        if value["runs"]:
            return {"runs": True, "error": None, "missing": ""}
        return {"runs": False, "error": f"{value['category']}: {value['error']}", "missing": value["missing"]}
    error = f"{outcome.status.value}: {reason_of(outcome)}"
    return {"runs": False, "error": error, "missing": ""}
