"""The one selection of kept records: a maximal independent set of the similarity graph, chosen best-first.

Records are taken in order of preference. A record that duplicates a kept one (same tree, or a similarity at or above a
threshold) is removed, with the kept one as its canonical record; any other is kept. So no two kept records are
near-duplicates, every removed one has a kept canonical record that outranks it, nothing is removed through a chain, and
the order of the input does not matter.

Indexes of kept items return the nearest one: the interface of every near-duplicate stage. A stage compares items
(shingle sets, fingerprints) by number. It only returns verified pairs; the selection alone decides which are kept.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.minhash import (
    ESTIMATE_MARGIN,
    PERMUTATIONS,
    Banding,
    IntArray,
    ShingleSets,
    buckets,
    jaccard,
)

#: The sorted distinct elements of a fingerprint.
Elements = npt.NDArray[np.uint64]


class Neighbour(NamedTuple):
    """The nearest kept item: its position in the order of keeping, and the exact similarity, 0 to 1."""

    place: int
    similarity: float


def rank(neighbour: Neighbour) -> tuple[float, int]:
    """Return the key of the nearest: the greatest similarity, and the first kept of equals."""
    return neighbour.similarity, -neighbour.place


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
                    best = neighbour if best is None else max(best, neighbour, key=rank)
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

    def __init__(self, fingerprints: Sequence[Elements], threshold: float) -> None:
        self._fingerprints = fingerprints
        self._known, self._frequency = count_elements(fingerprints)
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
        own = self._fingerprints[item]
        sharing = {number for element in self._prefix(item) for number in self._kept_with.get(element, ())}
        for number in sharing:
            other = self._fingerprints[self._kept[number]]
            sizes = sorted((len(own), len(other)))
            if number >= looked and sizes[0] >= self.threshold * sizes[1] - 1e-9:
                yield number, jaccard(own, other)

    def _prefix(self, item: int) -> list[int]:
        prefix = rarest_first(self._fingerprints[item], self._known, self._frequency, self.threshold)
        return list(prefix.tolist())


def count_elements(fingerprints: Iterable[Elements]) -> tuple[Elements, IntArray]:
    """Return the elements that occur in fingerprints, sorted, and how many fingerprints contain each.

    Args: fingerprints: sorted distinct elements each.
    """
    counts: Counter[int] = Counter()
    for elements in fingerprints:
        counts.update(elements.tolist())
    known = sorted(counts)
    return np.array(known, np.uint64), np.array([counts[element] for element in known], np.int64)


def rarest_first(elements: Elements, known: Elements, frequency: IntArray, threshold: float) -> Elements:
    """Return the rarest elements of a fingerprint, unknown ones first: any two that reach the threshold share one.

    Args:
        known, frequency: from `count_elements`, over all fingerprints that are compared.
        threshold: a Jaccard similarity, above 0.
    Returns: at least one element, unless there are none; equally rare elements in the order of their numbers.
    """
    size = len(elements)
    if not size:
        return elements
    # The index of an unknown element is that of another one; the comparison makes its frequency 0.
    index = np.minimum(np.searchsorted(known, elements), max(0, len(known) - 1))
    frequencies = np.where(known[index] == elements, frequency[index], 0) if len(known) else np.zeros(size, np.int64)
    order = np.lexsort((elements, frequencies))
    # 1e-9: a product that should be an integer may be just above it.
    return elements[order][: size - math.ceil(threshold * size - 1e-9) + 1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one record or input row: the stage that removed it, or None if it is kept.

    `canonical` is the kept code that it duplicates, or itself if kept; None if there is none.
    """

    stage: str | None
    canonical: int | None = None
    similarity: float | None = None
    reason: str = ""
    rescued: str | None = None

    @property
    def kept(self) -> bool:
        """Return whether it is kept."""
        return self.stage is None

    @property
    def outcome(self) -> str:
        """The stage that removed it, or `kept`."""
        return self.stage or "kept"


class Classes(Protocol):
    """Class numbers of the codes 0..n-1, equal for equal ones, int64 of shape (n,)."""

    tree: IntArray
    shingle_set: IntArray
    fingerprint: IntArray


#: Returns whether two codes are not near-duplicates, despite similar texts.
Differ = Callable[[int, int], bool]


class KeptSet:
    """The kept codes, best first, queried for those near another code.

    Args:
        lexical, structural: empty indexes of `features`.
        graphs: known identities of computation graphs: of two codes with the same one, one is kept.
    """

    def __init__(
        self,
        features: Classes,
        lexical: NeighbourIndex,
        structural: NeighbourIndex,
        graphs: Mapping[int, str] = {},
    ) -> None:
        self._features, self.graphs = features, graphs
        self.differ: Differ | None = None  # excludes pairs whose similarity does not count
        self._indexes = (lexical, structural)
        self._codes: list[int] = []
        self._tree: dict[int, int] = {}  # tree (below: graph) -> position of the first code that has it
        self._graph: dict[str, int] = {}

    def clear(self) -> None:
        """Remove all codes."""
        for index in self._indexes:
            index.clear()
        self._codes, self._tree, self._graph = [], {}, {}

    def add(self, code_index: int) -> None:
        """Keep a code, which ranks below those kept so far."""
        position = len(self._codes)
        self._codes.append(code_index)
        self._tree.setdefault(int(self._features.tree[code_index]), position)
        if code_index in self.graphs:
            self._graph.setdefault(self.graphs[code_index], position)
        for index, item in zip(self._indexes, self._items(code_index), strict=True):
            index.keep(item, position)

    def witness(self, code_index: int) -> Verdict | None:
        """Return the verdict that removes a code: the first stage with a near kept one, and the nearest; else None."""
        tree = int(self._features.tree[code_index])
        if tree in self._tree:
            return Verdict("exact", self._codes[self._tree[tree]], 1.0)
        for index, item in zip(self._indexes, self._items(code_index), strict=True):
            near = self._nearest(index, item, code_index)
            if near is not None:
                return Verdict(index.stage, self._codes[near.place], near.similarity)
        position = self._graph.get(self.graphs[code_index]) if code_index in self.graphs else None
        return None if position is None else Verdict("graph", self._codes[position], 1.0)

    def _items(self, code_index: int) -> tuple[int, int]:
        return int(self._features.shingle_set[code_index]), int(self._features.fingerprint[code_index])

    def _nearest(self, index: NeighbourIndex, item: int, code_index: int) -> Neighbour | None:
        if (differ := self.differ) is None:
            return index.nearest(item)
        near = (neighbour for neighbour in index.near(item) if not differ(code_index, self._codes[neighbour.place]))
        return max(near, key=rank, default=None)


def select(order: Sequence[int], kept: KeptSet) -> dict[int, Verdict]:
    """Decide every record.

    Args:
        order: code indices, each once, best first; the result depends on this order alone.
        kept: an empty set of kept codes.
    Returns: a verdict for each code index, in that order.
    """
    verdicts: dict[int, Verdict] = {}
    for code_index in order:
        verdict = kept.witness(code_index)
        if verdict is None:
            kept.add(code_index)
        verdicts[code_index] = verdict or Verdict(None, code_index, 1.0)
    return verdicts
