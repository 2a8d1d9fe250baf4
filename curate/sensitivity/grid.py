"""The grid: every record decided anew at each pair of thresholds."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from curate.corpus import Corpus
from curate.feature_table import FeatureTable
from curate.records import Records
from curate.select import Verdict, select
from lemur_core.files.progress import progress
from lemur_core.similarity.index import LexicalIndex, Near, NearestMemory, NearIndex, StructuralIndex, nearer
from lemur_core.similarity.join import ExactPairs, Recall, enough_effort, exact_pairs
from lemur_core.similarity.minhash import Banding

LEXICAL_GRID: tuple[float, ...] = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00)
#: None stands for no structural stage.
STRUCTURAL_GRID: tuple[float | None, ...] = (0.80, 0.85, 0.90, 0.95, 1.00, None)

#: Prefixes that are counted apart: the most frequent ones, and only those with this share of all records.
PREFIXES, PREFIX_SHARE = 10, 0.005


@dataclass(frozen=True, slots=True)
class GridPoint:
    """What becomes of all records at one pair of thresholds; the four counts add up to them."""

    lexical_threshold: float
    structural_threshold: float | None  # None: no structural stage
    kept: int
    exact: int
    lexical: int
    structural: int
    kept_by_prefix: Mapping[str | None, int]  # None: the prefixes that are not counted apart


@dataclass(frozen=True, slots=True)
class Grid:
    """All points, by lexical, then structural threshold (None last), and LSH's recall at each lexical threshold."""

    points: list[GridPoint]
    recalls: dict[float, Recall]
    records_by_prefix: dict[str | None, int]

    @property
    def records(self) -> int:
        """Distinct codes that were decided at each point."""
        return sum(self.records_by_prefix.values())


def decide_grid(corpus: Corpus, records: Records, lexical: Sequence[float], structural: Sequence[float | None]) -> Grid:
    """Decide all records at every pair of thresholds.

    Args:
        lexical, structural: rising; None, for no structural stage, last.
    """
    features = corpus.features
    sets = np.unique(features.shingle_set[np.array(records.order, np.int64)])
    truth = exact_pairs(features, sets, min(lexical))
    by_prefix = Counter(records.prefixes[code] for code in records.order)
    frequent = [prefix for prefix, number in by_prefix.items() if number >= PREFIX_SHARE * len(records.order)]
    apart = sorted(frequent, key=lambda prefix: (-by_prefix[prefix], prefix))[:PREFIXES]
    group: dict[int, str | None] = {
        code: prefix if prefix in apart else None for code, prefix in records.prefixes.items()
    }
    index_of_structure = StructuralIndex(features.elements, 1.0)
    points, recalls = [], {}
    with progress("grid", len(lexical) * len(structural), "points") as advance:
        for tau in lexical:
            recalls[tau] = enough_effort(features, truth, tau)
            index_of_text = _text_index(features, truth, recalls[tau], tau)
            for kappa in structural:
                second: NearIndex = _NothingNear()
                if kappa is not None:
                    second, index_of_structure.threshold = index_of_structure, kappa
                index_of_text.clear()
                second.clear()
                points.append(_point(tau, kappa, select(records.order, features, index_of_text, second), group))
                advance(1)
    totals = Counter(group.values())
    order: list[str | None] = [*apart, None]
    return Grid(points, recalls, {prefix: totals[prefix] for prefix in order if totals[prefix]})


def _text_index(features: FeatureTable, truth: ExactPairs, recall: Recall, threshold: float) -> NearIndex:
    """An index of shingle sets that finds all near ones; from the exact join where that is whole, for it is faster."""
    if truth.asked == truth.sets:
        return _JoinedIndex(truth.at_least(threshold), len(features.set_sizes), threshold)
    return LexicalIndex(features, threshold, Banding(recall.bands, recall.rows))


class _JoinedIndex:
    """Kept shingle sets, asked for the most similar one, when all pairs are known (see `NearIndex`)."""

    stage = "lexical"

    def __init__(self, pairs: ExactPairs, sets: int, threshold: float) -> None:
        self.threshold = threshold
        items, others = np.concatenate([pairs.a, pairs.b]), np.concatenate([pairs.b, pairs.a])
        by_item = np.argsort(items, kind="stable")
        self._others, self._jaccard = others[by_item], np.concatenate([pairs.jaccard, pairs.jaccard])[by_item]
        self._starts = np.searchsorted(items[by_item], np.arange(sets + 1)).tolist()
        self._place_of = np.full(sets, -1, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._place_of.fill(-1)
        self._kept = 0
        self._memory = NearestMemory()

    def nearest(self, item: int) -> Near | None:
        """The kept set most similar to this one, if any is at or above the threshold; the first kept of equals."""
        if self._place_of[item] >= 0:
            return Near(int(self._place_of[item]), 1.0)
        looked, best = self._memory.recall(item)
        part = slice(self._starts[item], self._starts[item + 1])
        if looked == self._kept or part.start == part.stop:
            return best
        places = self._place_of[self._others[part]]
        for place, similarity in zip(places.tolist(), self._jaccard[part].tolist(), strict=True):
            if place >= 0:
                best = nearer(best, place, similarity)
        return self._memory.remember(item, self._kept, best)

    def keep(self, item: int, place: int) -> None:
        """Add a set under its place."""
        if self._place_of[item] < 0:
            self._place_of[item] = place
            self._kept += 1


def _point(
    tau: float, kappa: float | None, verdicts: Mapping[int, Verdict], group: Mapping[int, str | None]
) -> GridPoint:
    stages = Counter(verdict.stage for verdict in verdicts.values())
    kept = Counter(group[code] for code, verdict in verdicts.items() if verdict.stage is None)
    return GridPoint(tau, kappa, stages[None], stages["exact"], stages["lexical"], stages["structural"], dict(kept))


class _NothingNear:
    """A stage that is switched off (see `NearIndex`)."""

    stage = "structural"
    threshold = math.inf

    def nearest(self, item: int) -> Near | None:  # noqa: ARG002 (named as in the protocol)
        """Nothing is near."""
        return None

    def clear(self) -> None:
        """There is nothing to forget."""

    def keep(self, item: int, place: int) -> None:
        """There is nothing to remember."""
