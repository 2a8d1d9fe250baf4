"""How many of the true near-duplicate pairs LSH proposes, measured against the exact join."""

from dataclasses import asdict, dataclass

import numpy as np

from curate.exact_join import ExactPairs
from curate.feature_table import FeatureTable
from curate.lexical import ESTIMATE_MARGIN, buckets
from curate.minhash import PERMUTATIONS, Banding, banding_for


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall of the proposals: `found` of `pairs` pairs of distinct shingle sets at or above the threshold.

    `sets_asked` of `sets` were joined with `sets_against` (fewer than all only where the join would take too long).
    """

    bands: int
    rows: int
    miss_chance: float  # at the threshold, for one pair
    pairs: int
    found: int
    sets_asked: int
    sets_against: int
    sets: int

    @property
    def recall(self) -> float:
        """found / pairs; 1.0 when there is nothing to find."""
        return self.found / self.pairs if self.pairs else 1.0

    def facts(self) -> dict[str, object]:
        """For the manifest."""
        return {**asdict(self), "recall": self.recall}


def measure_recall(features: FeatureTable, truth: ExactPairs, banding: Banding, threshold: float) -> Recall:
    """Count the true pairs that share a bucket and pass the estimate filter."""
    table = buckets(features.signatures, banding)
    together = ((table[truth.a] == table[truth.b]) & (table[truth.a] >= 0)).any(axis=1)
    signatures = features.signatures
    estimate = np.count_nonzero(signatures[truth.a] == signatures[truth.b], axis=1) / PERMUTATIONS
    found = int(np.count_nonzero(together & (estimate >= threshold - ESTIMATE_MARGIN)))
    return Recall(
        bands=banding.bands,
        rows=banding.rows,
        miss_chance=banding.miss_chance(threshold),
        pairs=len(truth.a),
        found=found,
        sets_asked=truth.asked,
        sets_against=truth.against,
        sets=truth.sets,
    )


def enough_effort(features: FeatureTable, truth: ExactPairs, threshold: float) -> Recall:
    """LSH's recall on the true pairs, with the least effort that misses none of them.

    Args:
        truth: all pairs at or above this threshold, perhaps with others below it.
    """
    truth = truth.at_least(threshold)
    effort = 0
    while True:
        banding = banding_for(threshold, effort=effort)
        measured = measure_recall(features, truth, banding, threshold)
        if measured.found == measured.pairs or banding.rows == 1:
            return measured
        effort += 1
