"""The exact all-pairs Jaccard join, against which the recall of LSH is measured."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from curate.feature_table import FeatureTable

#: Multiply-adds that a join may take; a corpus that needs more is measured on a sample of its sets.
BUDGET = 2_000_000_000

#: Sets whose shingles may be in memory at once; of a larger corpus a random sample of this many is joined.
MAX_SETS = 20_000

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class ExactPairs:
    """All pairs (a, b), a < b, of distinct shingle sets with a Jaccard at or above a threshold."""

    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]
    jaccard: npt.NDArray[np.float64]
    asked: int  # sets whose pairs with `against` others were worked out
    against: int
    sets: int  # sets there are; the join is whole when all three are equal

    @property
    def whole(self) -> bool:
        """Whether these are all pairs, not those of a sample."""
        return self.asked == self.sets

    def at_least(self, threshold: float) -> "ExactPairs":
        """Those of the pairs that reach a higher threshold."""
        at = self.jaccard >= threshold
        return ExactPairs(self.a[at], self.b[at], self.jaccard[at], self.asked, self.against, self.sets)


def exact_pairs(features: FeatureTable, sets: npt.NDArray[np.int64], threshold: float, seed: int = 0) -> ExactPairs:
    """Join `sets` (numbers of shingle sets) with themselves by sparse matrix products.

    Shingles that occur in exactly the same sets become one weighted column, which leaves about an eighth of them.
    Beyond MAX_SETS and BUDGET, a random sample of the sets is joined with a larger one (`whole` tells).
    """
    total = len(sets)
    if not total:
        nothing = np.empty(0, np.int64)
        return ExactPairs(nothing, nothing, np.empty(0), 0, 0, 0)
    # in the order of their content, so that a sample does not depend on how sets are numbered
    sets = sets[np.lexsort(features.signatures[sets][:, :4].T)]
    if total > MAX_SETS:
        sets = sets[np.sort(np.random.default_rng(seed).permutation(total)[:MAX_SETS])]
    incidence, weights = _incidence(features, sets)
    sizes = features.set_sizes[sets]
    count = len(sets)
    frequency = np.diff(incidence.tocsc().indptr).astype(np.float64)
    cost = float((frequency**2).sum())
    asked = count if cost <= BUDGET else max(1, int(count * BUDGET / cost))
    rows = np.arange(count) if asked == count else np.sort(np.random.default_rng(seed).permutation(count)[:asked])
    weighted = incidence @ sp.diags_array(weights)
    transposed = incidence.T.tocsr()
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]] = []
    for start in range(0, asked, _BLOCK):
        block = rows[start : start + _BLOCK]
        shared = (weighted[block] @ transposed).tocoo()
        a, b = block[shared.row], shared.col.astype(np.int64)
        similarity = shared.data / (sizes[a] + sizes[b] - shared.data)
        once = (a < b) | ~np.isin(b, rows) if asked < count else a < b
        chosen = once & (a != b) & (similarity >= threshold)
        one, other = sets[a[chosen]], sets[b[chosen]]
        found.append((np.minimum(one, other), np.maximum(one, other), similarity[chosen]))
    a, b, similarity = (np.concatenate(column) for column in zip(*found, strict=True))
    return ExactPairs(a, b, similarity, asked, count, total)


def _incidence(
    features: FeatureTable, sets: npt.NDArray[np.int64]
) -> tuple[sp.csr_array[np.float64], npt.NDArray[np.float64]]:
    """Sets by column groups, and the number of shingles that each group stands for."""
    values = np.concatenate([features.shingles(int(item)) for item in sets])
    owners = np.repeat(np.arange(len(sets)), features.set_sizes[sets])
    shingles, column = np.unique(values, return_inverse=True)
    marks = np.random.default_rng(0).integers(0, 2**63, len(sets), dtype=np.uint64)
    mark = np.zeros(len(shingles), np.uint64)
    np.add.at(mark, column, marks[owners])  # equal sums: the same sets, but for a chance of 2**-63
    _, first, group, size = np.unique(mark, return_index=True, return_inverse=True, return_counts=True)
    representative = np.zeros(len(shingles), bool)
    representative[first] = True
    chosen = representative[column]
    entries = (np.ones(int(chosen.sum())), (owners[chosen], group[column[chosen]]))
    return sp.csr_array(entries, shape=(len(sets), len(first))), size.astype(np.float64)
