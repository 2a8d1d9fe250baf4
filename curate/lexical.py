"""Lexical near-duplicates: MinHash-LSH proposes pairs of shingle sets, the exact Jaccard decides.

The chance that a pair at the threshold is not proposed is stated by `Banding.miss_chance` (below 1e-7 by default) plus
that of the estimate filter, below 1e-7 for thresholds of 0.7 and more (Chernoff bound for 256 values, margin 0.15).
"""

import numpy as np
import numpy.typing as npt

from curate.feature_table import FeatureTable
from curate.minhash import PERMUTATIONS, Banding, band_keys
from curate.near import Near, NearestMemory, nearer

#: How far below the threshold the MinHash estimate may lie for the exact Jaccard to be worked out.
ESTIMATE_MARGIN = 0.15


def jaccard(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> float:
    """Exact Jaccard similarity of two sets given as sorted distinct numbers; 0 when either is empty."""
    if not len(a) or not len(b):
        return 0.0
    if len(a) > len(b):
        a, b = b, a
    places = np.searchsorted(b, a)
    places[places == len(b)] = 0
    shared = int(np.count_nonzero(b[places] == a))
    return shared / (len(a) + len(b) - shared)


def buckets(signatures: npt.NDArray[np.uint32], banding: Banding) -> npt.NDArray[np.int32]:
    """LSH buckets of all sets, shape (sets, bands); -1 where a set shares its band with no other."""
    count = len(signatures)
    table = np.full((count, banding.bands), -1, np.int32)
    step = 100_000
    keys = np.concatenate(
        [band_keys(signatures[i : i + step], banding) for i in range(0, count, step)]
        or [np.empty((0, banding.bands), np.uint64)]
    )
    used = 0
    for band in range(banding.bands):
        _, inverse, sizes = np.unique(keys[:, band], return_inverse=True, return_counts=True)
        shared = sizes > 1
        number = np.where(shared, np.cumsum(shared) - 1 + used, -1)
        table[:, band] = number[inverse]
        used += int(shared.sum())
    return table


class LexicalIndex:
    """Kept shingle sets, asked for the most similar one (see `curate.near.NearIndex`)."""

    stage = "lexical"

    def __init__(self, features: FeatureTable, threshold: float, banding: Banding) -> None:
        self.threshold = threshold
        self.banding = banding
        self.verified = 0  # exact Jaccards worked out
        self._features = features
        self._buckets = buckets(features.signatures, banding)
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._kept_in: dict[int, list[int]] = {}
        self._kept_sets: list[int] = []  # by place among the kept sets
        self._places: list[int] = []  # of those, the place among the kept records
        self._shingles: list[npt.NDArray[np.uint64]] = []
        self._first: dict[int, int] = {}  # shingle set -> first place that has it
        self._memory = NearestMemory()

    def nearest(self, item: int) -> Near | None:
        """The kept set most similar to this one, if any is at or above the threshold; the first kept of equals."""
        if item in self._first:
            return Near(self._first[item], 1.0)
        looked, best = self._memory.recall(item)
        numbers = self._candidates(item, looked)
        if numbers:
            own = self._features.shingles(item)
            for number in numbers:
                self.verified += 1
                similarity = jaccard(own, self._shingles[number])
                if similarity >= self.threshold:
                    best = nearer(best, self._places[number], similarity)
        return self._memory.remember(item, len(self._kept_sets), best)

    def keep(self, item: int, place: int) -> None:
        """Add a set under its place."""
        if item in self._first:
            return
        self._first[item] = place
        number = len(self._kept_sets)
        self._kept_sets.append(item)
        self._places.append(place)
        self._shingles.append(self._features.shingles(item))
        for bucket in self._buckets[item].tolist():
            if bucket >= 0:
                self._kept_in.setdefault(bucket, []).append(number)

    def _candidates(self, item: int, looked: int) -> list[int]:
        """Numbers of kept sets, not looked at yet, that share a bucket and whose sizes and estimate allow a match."""
        found: set[int] = set()
        for bucket in self._buckets[item].tolist():
            if bucket >= 0 and (kept := self._kept_in.get(bucket)) is not None:
                found.update(kept if looked == 0 else [number for number in kept if number >= looked])
        if not found:
            return []
        numbers = np.array(sorted(found), np.int64)
        sets = np.array([self._kept_sets[number] for number in numbers.tolist()], np.int64)
        sizes, own = self._features.set_sizes[sets], self._features.set_sizes[item]
        fits = (np.minimum(sizes, own) / np.maximum(sizes, own)) >= self.threshold
        signatures = self._features.signatures
        estimates = np.count_nonzero(signatures[sets] == signatures[item], axis=1) / PERMUTATIONS
        chosen: list[int] = numbers[fits & (estimates >= self.threshold - ESTIMATE_MARGIN)].tolist()
        return chosen
