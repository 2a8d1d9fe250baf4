"""Tells of records whether they run, and chooses among those that do. Nothing foreign is executed in this process."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from curate.corpus import Corpus
from curate.records import Records, leave_out
from curate.runs.contract import case_of
from curate.select import Rescue
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox, reason_of, workers_within_memory

ENTRY = "lemur_core.sandbox.net:run_network"
LIMITS = Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30)

_OF_TORCH = frozenset({"torch", "torchvision"})  # what is missing there stays so: their versions are in the key
_MARK = "(--require-runs):"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Whether a network runs; None where that could not be tried. `error` starts with its category and a colon."""

    runs: bool | None
    error: str | None = None

    @property
    def category(self) -> str | None:
        """Why it does not run, or why that was not tried, in one short word; None when it runs."""
        return None if self.error is None else _category_of(self.error)


#: Whether each of these codes runs, as the row that shows it describes it.
Check = Callable[[Mapping[int, int]], dict[int, RunResult]]


class RunChecker:
    """A Check for the records of a corpus. A context manager; its sandbox starts with the first network to run."""

    def __init__(
        self, corpus: Corpus, *, jobs: int | None = None, unsafe: bool = False, limits: Limits = LIMITS
    ) -> None:
        self.ran = 0  # networks whose outcome was not known yet
        self._corpus = corpus
        self._box = open_box([ENTRY], jobs=jobs, unsafe=unsafe, limits=limits)
        self._known: dict[tuple[int, int], RunResult] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def __call__(self, shown: Mapping[int, int]) -> dict[int, RunResult]:
        """Whether each of these codes runs, as the row that shows it describes it.

        Raises: UserError if no sandbox can be had.
        """
        new: list[tuple[int, int, dict[str, object]]] = []
        for code, row in shown.items():
            if (code, row) not in self._known:
                given = self._given(row)
                if isinstance(given, str):
                    self._known[code, row] = RunResult(None, f"unknown_input: {given}")
                else:
                    new.append((code, row, given))
        jobs = (
            Job(str(place), ENTRY, given | {"code": self._corpus.codes[code]})
            for place, (code, _, given) in enumerate(new)
        )
        with progress("runs", len(new), "networks") as advance:
            for outcome in self._box.run(jobs):
                code, row, _ = new[int(outcome.key)]
                told = answer_of(outcome)
                error = None if told["runs"] else f"{told['category']}: {told['error']}"
                self._known[code, row] = RunResult(told["runs"], error)
                self.ran += not outcome.reused
                advance(1)
        return {code: self._known[code, row] for code, row in shown.items()}

    def _given(self, row: int) -> dict[str, object] | str:
        """What the sandbox is given beside the code, or why that cannot be told."""
        (record,) = self._corpus.rows.slice(row, 1).select(["task", "dataset", "prm"]).to_pylist()
        prm = read_parameters(record["prm"])
        case = case_of(record["task"], record["dataset"], prm.get("transform"))
        if isinstance(case, str):
            return case
        # LEMUR's batch size is in both places, and a network may read either.
        return {"case": asdict(case), "prm": prm | {"batch": case.in_shape[0]}}


def open_box(entries: list[str], *, jobs: int | None, unsafe: bool, limits: Limits) -> CachedSandbox:
    """A sandbox for networks; where a package was missing that is there now, its outcome is not used."""
    workers = workers_within_memory(jobs or available_cores(), limits)
    return CachedSandbox(entries=entries, workers=workers, limits=limits, unsafe=unsafe, usable=_still_answers)


def _still_answers(_job: Job, outcome: Outcome) -> bool:
    name = outcome.value.get("missing") if isinstance(outcome.value, dict) else ""
    package = str(name or "").partition(".")[0]
    return not package or package in _OF_TORCH or importlib.util.find_spec(package) is None


def answer_of(outcome: Outcome) -> dict[str, Any]:
    """What the sandbox answered of a network: `runs`; where that is false, `category`, `error` and `missing`."""
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"runs": False, "category": outcome.status.value, "error": reason_of(outcome), "missing": ""}


def read_parameters(prm: str | None) -> dict[str, Any]:
    """The hyperparameters of a record; none where there is no JSON object."""
    try:
        found = json.loads(prm or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def choose_running(
    records: Records, corpus: Corpus, choose: Callable[[Records], Rescue], check: Check
) -> tuple[Records, Rescue]:
    """`--require-runs`: select until every kept record runs.

    Records are tried as they are about to be kept. Those that do not run are left out, as by a filter, and the
    selection is made again without them. A record that was not tried has no part in the outcome: it is near a kept one
    that outranks it. So the kept set is what the selection over all running records would be, all guarantees hold for
    it, and only a small part of a corpus is ever run.

    Args:
        choose: the selection; its outcome depends on the records alone.

    Returns: the records that were not left out, and the selection among them.
    """
    while True:
        chosen = choose(records)
        kept = {code: records.shown[code] for code, verdict in chosen.verdicts.items() if verdict.stage is None}
        reasons = {code: reason_to_leave_out(result) for code, result in check(kept).items() if not result.runs}
        if not reasons:
            return records, chosen
        records = leave_out(records, corpus, reasons)


def reason_to_leave_out(result: RunResult) -> str:
    """Why `--require-runs` leaves a record out, for its decision."""
    what = "does not run" if result.runs is False else "cannot be tried"
    return f"{what} {_MARK} {result.error}"


def category_left_out(reason: str) -> str | None:
    """The category in such a reason; None for any other reason."""
    _, mark, error = reason.partition(f"{_MARK} ")
    return _category_of(error) if mark else None


def _category_of(error: str) -> str:
    """The category that an error line starts with."""
    return error.partition(":")[0]
