"""One kept record with all that conversations about it may say."""

from dataclasses import dataclass
from typing import Any

from curate.chat.facts import Facts
from curate.chat.lab import Experiment
from curate.chat.reading import Reading
from curate.chat.text import Source
from curate.runs.contract import Case


@dataclass(frozen=True, slots=True)
class Best:
    """The best value that was recorded on one benchmark, the fewest epochs that gave it, and how it was trained."""

    task: str
    dataset: str
    metric: str
    accuracy: float
    epoch: int | None
    transform: str | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class Subject:
    """A record. `facts` are None where it did not run; `fault` then says why: category, colon, line.

    `results` are the best of all its trials on each benchmark; `reached` are those on its own benchmarks that trials
    with its own hyperparameters gave.
    """

    id: str
    nn: str
    split: str
    source: Source
    reading: Reading
    task: str | None
    dataset: str | None
    pretrained: bool
    prm: dict[str, Any]  # as the network was given it
    case: Case | None
    facts: Facts | None
    fault: str
    results: tuple[Best, ...]
    reached: tuple[Best, ...]

    @property
    def code(self) -> str:
        """The text of its file."""
        return self.source.text

    def experiment(self, code: str) -> Experiment:
        """The experiment of running another code as this record's network is run."""
        assert self.case is not None
        return Experiment(code, self.case, self.prm)

    @property
    def call(self) -> str:
        """The arguments with which its network was built."""
        assert self.case is not None
        prm = dict(sorted(self.prm.items()))
        return f"in_shape={self.case.in_shape!r}, out_shape={self.case.out_shape!r}, prm={prm!r}"
