"""Indexes of kept items that return the nearest one: the interface of every near-duplicate stage.

A stage compares items (shingle sets, fingerprints) by number. It only returns verified pairs; the caller alone decides
which items are kept.

Lexical near-duplicates: MinHash-LSH proposes pairs of shingle sets, the exact Jaccard decides.

`Banding.miss_chance` states the chance that a pair at the threshold is not proposed (below 1e-7 by default); the
estimate filter adds less than 1e-7 for thresholds of 0.7 and more (Chernoff bound for 256 values, margin 0.15).

Structural near-duplicates: the Jaccard of fingerprints' elements; by construction no pair at the threshold is missed.

Two sets whose Jaccard is at least t share an element among the first `n - ceil(t * n) + 1` of each, in any fixed order
of elements; with the rarest first, few other sets share one (prefix filtering).

Source: Chaudhuri, Ganti, Kaushik 2006, "A primitive operator for similarity joins in data cleaning"; Bayardo, Ma,
Srikant 2007, "Scaling up all pairs similarity search".
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.minhash import ESTIMATE_MARGIN, PERMUTATIONS, Banding, ShingleSets, buckets, jaccard


class Neighbour(NamedTuple):
    """The nearest kept item: its position in the order of keeping, and the exact similarity, 0 to 1."""

    place: int
    similarity: float


class NeighbourIndex(ABC):
    """Kept items of one kind. A stage yields the kept items that may be near an item, with their similarity."""

    stage: str

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.verified = 0  # number of exact similarities computed
        self.clear()

    def clear(self) -> None:
        """Forget the kept items."""
        self._kept: list[int] = []  # items by number
        self._places: list[list[int]] = []  # their positions, first to last
        self._number: dict[int, int] = {}  # item -> its number among the kept ones
        self._seen: dict[int, tuple[int, Neighbour | None]] = {}  # item -> count of numbers compared, nearest of them

    def nearest(self, item: int) -> Neighbour | None:
        """Return the kept item most similar to this one at or above the threshold, if any; the first kept of equals.

        A repeated call compares only with items kept since the last one.
        """
        if item in self._number:
            return Neighbour(self._places[self._number[item]][0], 1.0)
        compared, best = self._seen.get(item, (0, None))
        if compared < len(self._kept):
            for number, similarity in self._likely(item, compared):
                self.verified += 1
                if similarity >= self.threshold:
                    neighbour = Neighbour(self._places[number][0], similarity)
                    best = (
                        neighbour
                        if best is None
                        else max(best, neighbour, key=lambda candidate: (candidate.similarity, -candidate.place))
                    )
            self._seen[item] = (len(self._kept), best)
        return best

    def keep(self, item: int, index: int) -> None:
        """Add an item at a position; positions increase."""
        if item in self._number:
            self._places[self._number[item]].append(index)
            return
        self._number[item] = len(self._kept)
        self._places.append([index])
        self._kept.append(item)
        self._add(item, len(self._kept) - 1)

    def any_near(self, item: int) -> Neighbour | None:
        """Return any kept item at or above the threshold."""
        if item in self._number:
            return Neighbour(self._places[self._number[item]][0], 1.0)
        return next(self.near(item), None)

    def near(self, item: int) -> Iterator[Neighbour]:
        """Yield all kept items at or above the threshold, once per position at which an item was kept."""
        for number, similarity in self._likely(item, 0):
            if similarity >= self.threshold:
                yield from (Neighbour(index, similarity) for index in self._places[number])

    @abstractmethod
    def _likely(self, item: int, looked: int) -> Iterable[tuple[int, float]]:
        """Yield numbers, from `looked` on, of kept items that may be near this one, with their exact similarity."""

    @abstractmethod
    def _add(self, item: int, number: int) -> None:
        """Add an item that is kept under this number."""


class LexicalIndex(NeighbourIndex):
    """Kept shingle sets, queried for the most similar one."""

    stage = "lexical"

    def __init__(self, sets: ShingleSets, threshold: float, banding: Banding) -> None:
        self.banding = banding
        self._sets = sets
        self._buckets = buckets(sets.signatures, banding)
        super().__init__(threshold)

    def clear(self) -> None:
        """Forget the kept items."""
        super().clear()
        self._kept_in: dict[int, list[int]] = {}  # by bucket, the numbers of the kept sets in it

    def _add(self, item: int, number: int) -> None:
        for bucket in self._shared_buckets(item):
            self._kept_in.setdefault(bucket, []).append(number)

    def _shared_buckets(self, item: int) -> list[int]:
        return [bucket for bucket in self._buckets[item].tolist() if bucket >= 0]

    def _likely(self, item: int, looked: int) -> Iterator[tuple[int, float]]:
        """Yield those that share a bucket, and whose sizes and estimate allow a match."""
        near = (self._kept_in.get(bucket, ()) for bucket in self._shared_buckets(item))
        candidates = sorted({number for numbers in near for number in numbers if number >= looked})
        if not candidates:
            return
        numbers = np.array(candidates, np.int64)
        sets = np.array([self._kept[number] for number in numbers.tolist()], np.int64)
        sizes, own = self._sets.set_sizes[sets], self._sets.set_sizes[item]
        # The Jaccard is at most the ratio of the sizes.
        fits = (np.minimum(sizes, own) / np.maximum(sizes, own)) >= self.threshold
        signatures = self._sets.signatures
        estimates = np.count_nonzero(signatures[sets] == signatures[item], axis=1) / PERMUTATIONS
        shingles = self._sets.shingles(item)
        for number in numbers[fits & (estimates >= self.threshold - ESTIMATE_MARGIN)].tolist():
            yield number, jaccard(shingles, self._sets.shingles(self._kept[number]))


class StructuralIndex(NeighbourIndex):
    """Kept fingerprints, queried for the most similar one. A network that calls nothing has no neighbors."""

    stage = "structural"

    def __init__(self, fingerprints: Sequence[npt.NDArray[np.uint64]], threshold: float) -> None:
        self._fingerprints, self._frequency = fingerprints, element_frequency(fingerprints)
        super().__init__(threshold)

    def clear(self) -> None:
        """Forget the kept items."""
        super().clear()
        self._kept_with: dict[int, list[int]] = {}

    def keep(self, item: int, index: int) -> None:
        """Add a fingerprint at a position."""
        if len(self._fingerprints[item]):
            super().keep(item, index)

    def _add(self, item: int, number: int) -> None:
        for element in self._prefix(item):
            self._kept_with.setdefault(element, []).append(number)

    def _likely(self, item: int, looked: int) -> Iterator[tuple[int, float]]:
        own = frozenset(self._fingerprints[item].tolist())
        sharing = {number for element in self._prefix(item) for number in self._kept_with.get(element, ())}
        for number in sharing:
            other = self._fingerprints[self._kept[number]]
            sizes = sorted((len(own), len(other)))
            if number >= looked and sizes[0] >= self.threshold * sizes[1] - 1e-9:
                yield number, set_jaccard(own, frozenset(other.tolist()))

    def _prefix(self, item: int) -> Sequence[int]:
        return prefix(rarest_first(self._fingerprints[item], self._frequency), self.threshold)


#: Elements in the order of `rarest_first`.
Ordered = TypeVar("Ordered", Sequence[int], npt.NDArray[np.uint64])


def element_frequency(fingerprints: Iterable[npt.NDArray[np.uint64]]) -> Counter[int]:
    """Count the fingerprints that contain each element.

    Args: fingerprints: sorted distinct elements each.
    Returns: the counts; 0 for an element that occurs in none.
    """
    frequency: Counter[int] = Counter()
    for elements in fingerprints:
        frequency.update(elements.tolist())
    return frequency


def rarest_first(elements: npt.NDArray[np.uint64], frequency: Mapping[int, int]) -> list[int]:
    """Return the elements of a fingerprint, rarest first.

    Args: frequency: from `element_frequency`, over all fingerprints that are compared.
    Returns: an order that is the same for all fingerprints: equally rare elements are in the order of their numbers.
    """
    return sorted(elements.tolist(), key=lambda element: (frequency[element], element))


def prefix(elements: Ordered, threshold: float) -> Ordered:
    """Return the first elements, of which any two fingerprints that reach the threshold share one.

    Args:
        elements: a whole fingerprint, in an order that is the same for all (`rarest_first`).
        threshold: a Jaccard similarity, above 0.
    Returns: at least one element, unless there are none.
    """
    size = len(elements)
    # 1e-9: a product that should be an integer may be just above it.
    return elements[: size - math.ceil(threshold * size - 1e-9) + 1] if size else elements


def set_jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Return the exact Jaccard similarity of two sets.

    Args: a, b: elements of fingerprints.
    Returns: 0 to 1; 0 if either set is empty, even if both are.
    """
    if not a or not b:
        return 0.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)
