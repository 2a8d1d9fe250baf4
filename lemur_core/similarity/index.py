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
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from datasketch import MinHashLSH

from lemur_core.similarity.minhash import ESTIMATE_MARGIN, PERMUTATIONS, Banding, ShingleSets, buckets, jaccard

#: Items up to which datasketch holds the hash tables.
MAX_HASHED = 100_000


class Neighbour(NamedTuple):
    """The nearest kept item: its place in the order in which items were kept, and the exact similarity, 0 to 1."""

    place: int
    similarity: float


class NeighbourIndex(Protocol):
    """An index of kept items of one kind."""

    stage: str
    threshold: float

    def nearest(self, item: int) -> Neighbour | None:
        """The kept item most similar to this one, if any is at or above the threshold; the first kept of equals."""
        ...

    def clear(self) -> None:
        """Forget what was kept."""
        ...

    def keep(self, item: int, place: int) -> None:
        """Add an item under its place; places grow."""
        ...


class NeighbourMemory:
    """The nearest found so far for each item, so that asking again only looks at what was kept since."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Neighbour | None]] = {}

    def recall(self, item: int) -> tuple[int, Neighbour | None]:
        """(places below this one were looked at, the best among them)."""
        return self._seen.get(item, (0, None))

    def remember(self, item: int, looked: int, best: Neighbour | None) -> Neighbour | None:
        """Store and return what was found after looking at all places below `looked`."""
        self._seen[item] = (looked, best)
        return best


def closer_of(best: Neighbour | None, place: int, similarity: float) -> Neighbour:
    """The better of two: higher similarity, then the earlier place."""
    if best is None or similarity > best.similarity or (similarity == best.similarity and place < best.place):
        return Neighbour(place, similarity)
    return best


class HashTables:
    """Kept items by band of their signatures, in datasketch's LSH: for corpora that fit in memory with it."""

    def __init__(self, signatures: npt.NDArray[np.uint32], banding: Banding) -> None:
        self._signatures = signatures
        self._lsh = MinHashLSH(num_perm=PERMUTATIONS, params=(banding.bands, banding.rows))

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
        self.buckets_of = buckets_of
        self._kept_in: dict[int, list[int]] = {}

    def insert(self, item: int, number: int) -> None:
        """Add an item under a number."""
        for bucket in self.buckets_of[item].tolist():
            if bucket >= 0:
                self._kept_in.setdefault(bucket, []).append(number)

    def query(self, item: int) -> set[int]:
        """The numbers of the items that share a band with this one."""
        return {number for bucket in self.buckets_of[item].tolist() for number in self._kept_in.get(bucket, ())}


def band_tables(
    signatures: npt.NDArray[np.uint32], banding: Banding, before: BandTables | HashTables | None = None
) -> BandTables | HashTables:
    """Empty tables that propose, for an item, the kept ones that share a band of their signatures with it.

    Args: before: tables for the same signatures and bands, whose buckets need not be worked out again.
    """
    if len(signatures) <= MAX_HASHED:
        return HashTables(signatures, banding)
    return BandTables(before.buckets_of if isinstance(before, BandTables) else buckets(signatures, banding))


class LexicalIndex:
    """Kept shingle sets, asked for the most similar one (see `NeighbourIndex`)."""

    stage = "lexical"

    def __init__(self, sets: ShingleSets, threshold: float, banding: Banding) -> None:
        self.threshold = threshold
        self.banding = banding
        self.verified = 0  # exact Jaccards worked out
        self._sets = sets
        self._tables: BandTables | HashTables | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._tables = band_tables(self._sets.signatures, self.banding, self._tables)
        self._kept_sets: list[int] = []  # by place among the kept sets
        self._places: list[int] = []  # of those, the place among the kept records
        self._shingles: list[npt.NDArray[np.uint64]] = []
        self._first: dict[int, int] = {}  # shingle set -> first place that has it
        self._memory = NeighbourMemory()

    def nearest(self, item: int) -> Neighbour | None:
        """The kept set most similar to this one, if any is at or above the threshold; the first kept of equals."""
        if item in self._first:
            return Neighbour(self._first[item], 1.0)
        looked, best = self._memory.recall(item)
        numbers = self._candidates(item, looked)
        if numbers:
            own = self._sets.shingles(item)
            for number in numbers:
                self.verified += 1
                similarity = jaccard(own, self._shingles[number])
                if similarity >= self.threshold:
                    best = closer_of(best, self._places[number], similarity)
        return self._memory.remember(item, len(self._kept_sets), best)

    def keep(self, item: int, place: int) -> None:
        """Add a set under its place."""
        if item in self._first:
            return
        self._first[item] = place
        number = len(self._kept_sets)
        self._kept_sets.append(item)
        self._places.append(place)
        self._shingles.append(self._sets.shingles(item))
        assert self._tables is not None
        self._tables.insert(item, number)

    def _candidates(self, item: int, looked: int) -> list[int]:
        """Numbers of kept sets, not looked at yet, that share a bucket and whose sizes and estimate allow a match."""
        assert self._tables is not None
        found = [number for number in self._tables.query(item) if number >= looked]
        if not found:
            return []
        numbers = np.array(sorted(found), np.int64)
        sets = np.array([self._kept_sets[number] for number in numbers.tolist()], np.int64)
        sizes, own = self._sets.set_sizes[sets], self._sets.set_sizes[item]
        fits = (np.minimum(sizes, own) / np.maximum(sizes, own)) >= self.threshold
        signatures = self._sets.signatures
        estimates = np.count_nonzero(signatures[sets] == signatures[item], axis=1) / PERMUTATIONS
        chosen: list[int] = numbers[fits & (estimates >= self.threshold - ESTIMATE_MARGIN)].tolist()
        return chosen


class StructuralIndex:
    """Kept fingerprints, asked for the most similar one (see `NeighbourIndex`).

    A network that calls nothing has no elements and is near to nothing.
    """

    stage = "structural"

    def __init__(self, fingerprints: Sequence[npt.NDArray[np.uint64]], threshold: float) -> None:
        self.threshold = threshold
        self.verified = 0  # exact Jaccards worked out
        frequency: Counter[int] = Counter()
        for elements in fingerprints:
            frequency.update(elements.tolist())
        self._rarest_first = [
            sorted(elements.tolist(), key=lambda element: (frequency[element], element)) for elements in fingerprints
        ]
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._kept_with: dict[int, list[int]] = {}
        self._kept: list[frozenset[int]] = []
        self._places: list[int] = []
        self._first: dict[int, int] = {}
        self._memory = NeighbourMemory()

    def nearest(self, item: int) -> Neighbour | None:
        """The kept fingerprint most similar to this one, if any is at or above the threshold; the first of equals."""
        if item in self._first:
            return Neighbour(self._first[item], 1.0)
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
                best = closer_of(best, self._places[number], similarity)
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
