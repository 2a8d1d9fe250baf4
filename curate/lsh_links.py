"""Enough near pairs to connect all that is near, for corpora whose exact join would take too long."""

import numpy as np
from scipy.sparse import csr_array

from curate.feature_table import FeatureTable, IntArray
from curate.lexical import ESTIMATE_MARGIN, buckets, jaccard
from curate.minhash import PERMUTATIONS, banding_for

_BLOCK = 256


def linked_by_lsh(features: FeatureTable, sets: IntArray, threshold: float) -> tuple[IntArray, IntArray]:
    """Pairs of places in `sets`, each of Jaccard >= threshold, whose components are those of all such pairs.

    LSH proposes (a pair at the threshold is missed at most once in ten million), the exact Jaccard decides; pairs that
    are connected already are not worked out, and the likeliest come first.
    """
    signatures = features.signatures[sets]
    table = buckets(signatures, banding_for(threshold))
    owners, bands = np.nonzero(table >= 0)
    shape = (len(sets), int(table.max(initial=-1)) + 1)
    incidence = csr_array((np.ones(len(owners), np.int32), (owners, table[owners, bands])), shape=shape)
    transposed = incidence.T.tocsr()
    group = _Groups(len(sets))
    left: list[int] = []
    right: list[int] = []
    for start in range(0, len(sets), _BLOCK):
        shared = (incidence[start : start + _BLOCK] @ transposed).tocoo()
        a, b = shared.row + start, shared.col
        roots = group.roots()
        apart = (a > b) & (roots[a] != roots[b])
        a, b = a[apart], b[apart]
        estimate = np.concatenate(
            [
                np.count_nonzero(signatures[a[i : i + 50_000]] == signatures[b[i : i + 50_000]], axis=1)
                for i in range(0, len(a), 50_000)
            ]
            or [np.empty(0, np.int64)]
        )
        likely = np.flatnonzero(estimate >= (threshold - ESTIMATE_MARGIN) * PERMUTATIONS)
        for place in likely[np.argsort(-estimate[likely], kind="stable")].tolist():
            first, second = int(a[place]), int(b[place])
            if group.root(first) == group.root(second):
                continue
            if jaccard(features.shingles(int(sets[first])), features.shingles(int(sets[second]))) >= threshold:
                group.join(first, second)
                left.append(first)
                right.append(second)
    return np.array(left, np.int64), np.array(right, np.int64)


class _Groups:
    """Union-find over 0..n-1."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, item: int) -> int:
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def roots(self) -> IntArray:
        return np.array([self.root(item) for item in range(len(self._parent))], np.int64)

    def join(self, a: int, b: int) -> None:
        self._parent[self.root(a)] = self.root(b)
