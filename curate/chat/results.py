"""The best recorded result of each network on each benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from curate.chat.subject import Best
from curate.corpus import Corpus
from curate.runs.check import read_parameters

_Benchmark = tuple[str, str, str]


@dataclass(slots=True)
class Results:
    """The best by task, dataset and metric: the highest value, and the fewest epochs that gave it."""

    best: dict[_Benchmark, Best] = field(default_factory=dict)

    def add(self, found: Best) -> None:
        """Keep a result if it is the best of its benchmark so far."""
        benchmark = found.task, found.dataset, found.metric
        if _rank(found) < _rank(self.best.setdefault(benchmark, found)):
            self.best[benchmark] = found

    def listed(self) -> tuple[Best, ...]:
        """All, by benchmark."""
        return tuple(self.best[benchmark] for benchmark in sorted(self.best))


def best_results(
    corpus: Corpus, codes: Sequence[int], shown: Sequence[int]
) -> list[tuple[tuple[Best, ...], tuple[Best, ...]]]:
    """For each code the best of all its rows, and of those with task, dataset and hyperparameters of the row shown."""
    place_of = {code: place for place, code in enumerate(codes)}
    wanted = np.flatnonzero(np.isin(corpus.code_of_row, np.array(codes, np.int64)))
    columns = ["task", "dataset", "metric", "epoch", "accuracy", "prm"]
    rows = dict(zip(wanted.tolist(), corpus.rows.take(wanted).select(columns).to_pylist(), strict=True))
    everywhere, reached = [Results() for _ in codes], [Results() for _ in codes]
    for number, row in rows.items():
        benchmark = row["task"], row["dataset"], row["metric"]
        value = row["accuracy"]
        if None in benchmark or value is None or not np.isfinite(value):
            continue
        prm = read_parameters(row["prm"])
        found = Best(*benchmark, value, row["epoch"], prm.get("transform"), prm.get("batch"))
        place = place_of[int(corpus.code_of_row[number])]
        everywhere[place].add(found)
        home = rows[shown[place]]
        if benchmark[:2] == (home["task"], home["dataset"]) and prm == read_parameters(home["prm"]):
            reached[place].add(found)
    return [(one.listed(), other.listed()) for one, other in zip(everywhere, reached, strict=True)]


def _rank(best: Best) -> tuple[float, float]:
    return -best.accuracy, float("inf") if best.epoch is None else best.epoch
