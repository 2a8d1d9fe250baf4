"""Decide all records at every pair of a grid of lexical and structural thresholds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from curate.model.corpus import LoadedRecords
from curate.model.features import FeatureTable
from curate.model.records import Records
from lemur_core.files.progress import progress
from lemur_core.similarity.index import LexicalIndex, NeighbourIndex, StructuralIndex
from lemur_core.similarity.join import ExactPairs, Recall, enough_effort, exact_pairs
from lemur_core.similarity.minhash import Banding
from lemur_core.similarity.selection import KeptSet, Verdict, select


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The outcomes of all records at one pair of thresholds; the four counts add up to their number."""

    lexical_threshold: float
    structural_threshold: float | None  # None: no structural stage
    kept: int
    exact: int
    lexical: int
    structural: int


@dataclass(frozen=True, slots=True)
class Grid:
    """All points, by lexical, then structural threshold (None last), and LSH's recall at each lexical threshold.

    `records` is the number of distinct codes decided at each point.
    """

    points: list[GridPoint]
    recalls: dict[float, Recall]
    records: int

    @property
    def taus(self) -> list[float]:
        """The lexical thresholds."""
        return list(self.recalls)

    @property
    def kappas(self) -> list[float | None]:
        """The structural thresholds."""
        return list(dict.fromkeys(point.structural_threshold for point in self.points))

    @property
    def kept(self) -> dict[tuple[float, float | None], int]:
        """The records kept at each pair of thresholds."""
        return {(point.lexical_threshold, point.structural_threshold): point.kept for point in self.points}


def decide_grid(
    corpus: LoadedRecords, records: Records, lexical: Sequence[float], structural: Sequence[float | None]
) -> Grid:
    """Decide all records at every pair of thresholds.

    Args:
        lexical, structural: rising; None, for no structural stage, last.
    """
    features = corpus.features
    truth = exact_pairs(features, corpus.sets(records.order), min(lexical))
    # One index for all points: another threshold and an empty index cost less than a new one.
    index_of_structure = StructuralIndex(features.elements, 1.0)
    no_structure = StructuralIndex([np.empty(0, np.uint64)] * len(features.elements), 1.0)
    points, recalls = [], {}
    with progress("grid", len(lexical) * len(structural), "points") as advance:
        for tau in lexical:
            recalls[tau] = enough_effort(features, truth, tau)
            index_of_text = _text_index(features, truth, recalls[tau], tau)
            for kappa in structural:
                second = no_structure if kappa is None else index_of_structure
                second.threshold = kappa or 1.0
                index_of_text.clear()
                second.clear()
                verdicts = select(records.order, KeptSet(features, index_of_text, second))
                points.append(_count_outcomes(tau, kappa, verdicts))
                advance(1)
    return Grid(points, recalls, len(records.order))


def _text_index(features: FeatureTable, truth: ExactPairs, recall: Recall, threshold: float) -> NeighbourIndex:
    """Return an index that finds all near shingle sets; from the exact join if that is complete: it is faster."""
    if truth.joined == truth.sets:
        return _JoinedIndex(truth.at_least(threshold), len(features.set_sizes), threshold)
    return LexicalIndex(features, threshold, Banding(recall.bands, recall.rows))


class _JoinedIndex(NeighbourIndex):
    """Kept shingle sets, searched for the most similar one, if all pairs are known."""

    stage = "lexical"

    def __init__(self, pairs: ExactPairs, sets: int, threshold: float) -> None:
        items, others = np.concatenate([pairs.a, pairs.b]), np.concatenate([pairs.b, pairs.a])
        by_item = np.argsort(items, kind="stable")
        self._others, self._jaccard = others[by_item], np.concatenate([pairs.jaccard, pairs.jaccard])[by_item]
        self._starts = np.searchsorted(items[by_item], np.arange(sets + 1)).tolist()
        self._number_of = np.empty(sets, np.int64)
        super().__init__(threshold)

    def clear(self) -> None:
        """Forget all kept sets."""
        super().clear()
        self._number_of.fill(-1)

    def _add(self, item: int, number: int) -> None:
        self._number_of[item] = number

    def _likely(self, item: int, looked: int) -> Iterator[tuple[int, float]]:
        part = slice(self._starts[item], self._starts[item + 1])
        numbers = self._number_of[self._others[part]]
        fresh = numbers >= looked
        return zip(numbers[fresh].tolist(), self._jaccard[part][fresh].tolist(), strict=True)


def _count_outcomes(tau: float, kappa: float | None, verdicts: Mapping[int, Verdict]) -> GridPoint:
    stages = Counter(verdict.stage for verdict in verdicts.values())
    return GridPoint(tau, kappa, stages[None], stages["exact"], stages["lexical"], stages["structural"])
