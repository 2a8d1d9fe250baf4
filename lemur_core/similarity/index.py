"""Indexes of kept items that are asked for the nearest one: what every near-duplicate stage looks like to its caller.

A stage compares items (shingle sets, fingerprints, one day traced graphs) by number. It only finds verified pairs; the
caller alone decides what is kept.

Lexical near-duplicates: MinHash-LSH proposes pairs of shingle sets, the exact Jaccard decides.

The chance that a pair at the threshold is not proposed is stated by `Banding.miss_chance` (below 1e-7 by default) plus
that of the estimate filter, below 1e-7 for thresholds of 0.7 and more (Chernoff bound for 256 values, margin 0.15).

Structural near-duplicates: the Jaccard of fingerprints' elements, every pair at the threshold found by construction.

Two sets whose Jaccard is at least t share an element among the first `n - ceil(t * n) + 1` of each, in any fixed order
of elements; with the rarest first, few others share one (prefix filtering).

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
from datasketch import MinHashLSH

from lemur_core.similarity.features.minhash import ESTIMATE_MARGIN, PERMUTATIONS, Banding, ShingleSets, buckets, jaccard

#: Items up to which datasketch holds the hash tables.
MAX_HASHED = 100_000


class Neighbour(NamedTuple):
    """The nearest kept item: its place in the order in which items were kept, and the exact similarity, 0 to 1."""

    place: int
    similarity: float


class NeighbourIndex(ABC):
    """Kept items of one kind. A stage says which of them may be near an item, and how near they are."""

    stage: str

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.verified = 0  # exact similarities worked out
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._kept: list[int] = []  # items, by their number
        self._places: list[list[int]] = []  # of those, each first to last
        self._number: dict[int, int] = {}  # item -> its number among those kept
        self._seen: dict[int, tuple[int, Neighbour | None]] = {}  # item -> numbers looked at, the nearest of them

    def nearest(self, item: int) -> Neighbour | None:
        """The kept item most similar to this one, if any is at or above the threshold; the first kept of equals.

        Asked again, it only looks at what was kept since.
        """
        if item in self._number:
            return Neighbour(self._places[self._number[item]][0], 1.0)
        looked, best = self._seen.get(item, (0, None))
        if looked < len(self._kept):
            for number, similarity in self._likely(item, looked):
                self.verified += 1
                if similarity >= self.threshold:
                    found = Neighbour(self._places[number][0], similarity)
                    best = found if best is None else max(best, found, key=lambda one: (one.similarity, -one.place))
            self._seen[item] = (len(self._kept), best)
        return best

    def keep(self, item: int, place: int) -> None:
        """Add an item under its place; places grow."""
        if item in self._number:
            self._places[self._number[item]].append(place)
            return
        self._number[item] = len(self._kept)
        self._places.append([place])
        self._kept.append(item)
        self._add(item, len(self._kept) - 1)

    def any_near(self, item: int) -> Neighbour | None:
        """A kept item at or above the threshold, the first that is found."""
        if item in self._number:
            return Neighbour(self._places[self._number[item]][0], 1.0)
        return next(self.near(item), None)

    def near(self, item: int) -> Iterator[Neighbour]:
        """All kept items at or above the threshold, each place of an item that was kept more than once."""
        for number, similarity in self._likely(item, 0):
            if similarity >= self.threshold:
                yield from (Neighbour(place, similarity) for place in self._places[number])

    @abstractmethod
    def _likely(self, item: int, looked: int) -> Iterable[tuple[int, float]]:
        """Numbers, from `looked` on, of kept items that may be near this one, with their exact similarity to it."""

    @abstractmethod
    def _add(self, item: int, number: int) -> None:
        """Take in an item that is kept under this number."""


class HashTables:
    """Kept items by band of their signatures, in datasketch's LSH: for corpora that fit in memory with it."""

    def __init__(self, signatures: npt.NDArray[np.uint32], banding: Banding) -> None:
        self._signatures, self._banding = signatures, banding
        self.clear()

    def clear(self) -> None:
        """Forget all items."""
        self._lsh = MinHashLSH(num_perm=PERMUTATIONS, params=(self._banding.bands, self._banding.rows))

    def insert(self, item: int, number: int) -> None:
        """Add an item under a number."""
        self._lsh.insert(number, _Sketch(self._signatures[item]), check_duplication=False)

    def query(self, item: int) -> list[int]:
        """The numbers of the items that share a band with this one."""
        found: list[int] = self._lsh.query(_Sketch(self._signatures[item]))
        return found


class _Sketch:
    """A signature of ours as datasketch's LSH takes it; it is never compared with a signature of datasketch's."""

    seed, scheme = 0, "legacy"

    def __init__(self, hashvalues: npt.NDArray[np.uint32]) -> None:
        self.hashvalues = hashvalues

    def __len__(self) -> int:
        return len(self.hashvalues)


class BandTables:
    """The same for larger corpora, of which datasketch would hold 11 MiB for each thousand items."""

    def __init__(self, buckets_of: npt.NDArray[np.int32]) -> None:
        self._buckets_of = buckets_of
        self.clear()

    def clear(self) -> None:
        """Forget all items."""
        self._kept_in: dict[int, list[int]] = {}

    def insert(self, item: int, number: int) -> None:
        """Add an item under a number."""
        for bucket in self._buckets_of[item].tolist():
            if bucket >= 0:
                self._kept_in.setdefault(bucket, []).append(number)

    def query(self, item: int) -> set[int]:
        """The numbers of the items that share a band with this one."""
        return {number for bucket in self._buckets_of[item].tolist() for number in self._kept_in.get(bucket, ())}


class LexicalIndex(NeighbourIndex):
    """Kept shingle sets, asked for the most similar one."""

    stage = "lexical"

    def __init__(self, sets: ShingleSets, threshold: float, banding: Banding) -> None:
        self.banding = banding
        self._sets = sets
        self._tables: BandTables | HashTables = (
            HashTables(sets.signatures, banding)
            if len(sets.signatures) <= MAX_HASHED
            else BandTables(buckets(sets.signatures, banding))
        )
        super().__init__(threshold)

    def clear(self) -> None:
        """Forget what was kept."""
        super().clear()
        self._tables.clear()

    def _add(self, item: int, number: int) -> None:
        self._tables.insert(item, number)

    def _likely(self, item: int, looked: int) -> Iterator[tuple[int, float]]:
        """Those that share a bucket, and whose sizes and estimate allow a match."""
        found = [number for number in self._tables.query(item) if number >= looked]
        if not found:
            return
        numbers = np.array(sorted(found), np.int64)
        sets = np.array([self._kept[number] for number in numbers.tolist()], np.int64)
        sizes, own = self._sets.set_sizes[sets], self._sets.set_sizes[item]
        fits = (np.minimum(sizes, own) / np.maximum(sizes, own)) >= self.threshold
        signatures = self._sets.signatures
        estimates = np.count_nonzero(signatures[sets] == signatures[item], axis=1) / PERMUTATIONS
        shingles = self._sets.shingles(item)
        for number in numbers[fits & (estimates >= self.threshold - ESTIMATE_MARGIN)].tolist():
            yield number, jaccard(shingles, self._sets.shingles(self._kept[number]))


class StructuralIndex(NeighbourIndex):
    """Kept fingerprints, asked for the most similar one. A network that calls nothing is near to nothing."""

    stage = "structural"

    def __init__(self, fingerprints: Sequence[npt.NDArray[np.uint64]], threshold: float) -> None:
        self._fingerprints, self._frequency = fingerprints, element_frequency(fingerprints)
        super().__init__(threshold)

    def clear(self) -> None:
        """Forget what was kept."""
        super().clear()
        self._kept_with: dict[int, list[int]] = {}

    def keep(self, item: int, place: int) -> None:
        """Add a fingerprint under its place."""
        if len(self._fingerprints[item]):
            super().keep(item, place)

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


#: Elements in the order that `rarest_first` gives them.
Ordered = TypeVar("Ordered", Sequence[int], npt.NDArray[np.uint64])


def element_frequency(fingerprints: Iterable[npt.NDArray[np.uint64]]) -> Counter[int]:
    """In how many fingerprints each element is."""
    frequency: Counter[int] = Counter()
    for elements in fingerprints:
        frequency.update(elements.tolist())
    return frequency


def rarest_first(elements: npt.NDArray[np.uint64], frequency: Mapping[int, int]) -> list[int]:
    """The elements of a fingerprint in the order that all fingerprints of these frequencies share."""
    return sorted(elements.tolist(), key=lambda element: (frequency[element], element))


def prefix(elements: Ordered, threshold: float) -> Ordered:
    """The first of a fingerprint's elements, of which two that reach the threshold share one."""
    size = len(elements)
    return elements[: size - math.ceil(threshold * size - 1e-9) + 1] if size else elements


def set_jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Exact Jaccard similarity; 0 when either set is empty."""
    if not a or not b:
        return 0.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)
