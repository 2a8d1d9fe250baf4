"""Structural near-duplicates: the Jaccard of fingerprints' elements, every pair at the threshold found by construction.

Two sets whose Jaccard is at least t share an element among the first `n - ceil(t * n) + 1` of each, in any fixed order
of elements; with the rarest first, few others share one (prefix filtering).

Source: Chaudhuri, Ganti, Kaushik 2006, "A primitive operator for similarity joins in data cleaning"; Bayardo, Ma,
Srikant 2007, "Scaling up all pairs similarity search".
"""

import math
from collections import Counter
from collections.abc import Sequence

from curate.feature_table import FeatureTable
from curate.near import Near, NearestMemory, nearer


class StructuralIndex:
    """Kept fingerprints, asked for the most similar one (see `curate.near.NearIndex`).

    A network that calls nothing has no elements and is near to nothing.
    """

    stage = "structural"

    def __init__(self, features: FeatureTable, threshold: float) -> None:
        self.threshold = threshold
        self.verified = 0  # exact Jaccards worked out
        frequency: Counter[int] = Counter()
        for elements in features.elements:
            frequency.update(elements.tolist())
        self._rarest_first = [
            sorted(elements.tolist(), key=lambda element: (frequency[element], element))
            for elements in features.elements
        ]
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._kept_with: dict[int, list[int]] = {}
        self._kept: list[frozenset[int]] = []
        self._places: list[int] = []
        self._first: dict[int, int] = {}
        self._memory = NearestMemory()

    def nearest(self, item: int) -> Near | None:
        """The kept fingerprint most similar to this one, if any is at or above the threshold; the first of equals."""
        if item in self._first:
            return Near(self._first[item], 1.0)
        elements = self._rarest_first[item]
        looked, best = self._memory.recall(item)
        candidates = {
            number
            for element in self._prefix(elements)
            for number in self._kept_with.get(element, ())
            if number >= looked
        }
        own = frozenset(elements)
        for number in sorted(candidates):
            other = self._kept[number]
            if min(len(own), len(other)) < self.threshold * max(len(own), len(other)) - 1e-9:
                continue
            self.verified += 1
            similarity = set_jaccard(own, other)
            if similarity >= self.threshold:
                best = nearer(best, self._places[number], similarity)
        return self._memory.remember(item, len(self._kept), best)

    def keep(self, item: int, place: int) -> None:
        """Add a fingerprint under its place."""
        elements = self._rarest_first[item]
        if item in self._first or not elements:
            return
        self._first[item] = place
        number = len(self._kept)
        self._kept.append(frozenset(elements))
        self._places.append(place)
        for element in self._prefix(elements):
            self._kept_with.setdefault(element, []).append(number)

    def _prefix(self, elements: Sequence[int]) -> Sequence[int]:
        size = len(elements)
        return elements[: size - math.ceil(self.threshold * size - 1e-9) + 1] if size else elements


def set_jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Exact Jaccard similarity; 0 when either set is empty."""
    if not a or not b:
        return 0.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)
