"""Experiments on network codes in the sandbox, each made once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from curate.runs.check import LIMITS, answer_of, open_box
from curate.runs.contract import Case
from lemur_core.files.progress import progress
from lemur_core.sandbox import Job, Limits

#: Twice those of one run: a network is run with two seeds.
CHAT_LIMITS = replace(LIMITS, wall_seconds=2 * LIMITS.wall_seconds, cpu_seconds=2 * LIMITS.cpu_seconds)

Answer = dict[str, Any]
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
        self._box = open_box(["curate.chat.probe:measure"], jobs=jobs, unsafe=unsafe, limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def make(self, experiments: Sequence[Experiment], what: str, method: Method = "measure") -> list[Answer]:
        """The answers of `curate.chat.probe`, in order.

        Args:
            what: is done, for the line of progress.

        Raises: UserError if no sandbox can be had.
        """
        entry = f"curate.chat.probe:{method}"
        jobs = (Job(str(place), entry, asdict(experiment)) for place, experiment in enumerate(experiments))
        answers: dict[str, Answer] = {}
        with progress(what, len(experiments), "networks") as advance:
            for outcome in self._box.run(jobs):
                answers[outcome.key] = answer_of(outcome)
                advance(1)
        return [answers[str(place)] for place in range(len(experiments))]
