"""Joins of shingle sets: all near pairs exactly, the recall of LSH measured on them, and links by LSH alone."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.cluster.hierarchy import DisjointSet

from lemur_core.similarity.minhash import (
    ESTIMATE_MARGIN,
    PERMUTATIONS,
    Banding,
    IntArray,
    ShingleSets,
    banding_for,
    buckets,
    jaccard,
)

#: The maximum sets in memory at once; a random sample of this size is joined for a larger corpus.
MAX_SETS = 10_000

#: Pairs of items by their places, with the Jaccard similarity of each.
PairBlock = tuple[IntArray, IntArray, npt.NDArray[np.float64]]

_CELLS = 4_000_000  # pairs of sets that are compared at once
_DENSE_COLUMNS, _FREQUENT = 2_048, 0.01  # columns that this share of the sets has are multiplied as dense ones
_LINK_BLOCK = 256
_PAIRS = 50_000


@dataclass(frozen=True, slots=True)
class ExactPairs:
    """All pairs (a, b), a < b, of distinct shingle sets with a Jaccard at or above a threshold."""

    a: IntArray
    b: IntArray
    jaccard: npt.NDArray[np.float64]
    joined: int  # sets of the sample
    sets: int  # of all

    @property
    def complete(self) -> bool:
        """Return whether these are all pairs, not those of a sample."""
        return self.joined == self.sets


def in_order(sets: IntArray) -> IntArray:
    """Return the distinct numbers in order of first occurrence.

    Args: sets: the number of each code's shingle set, shape (n,).
    Returns: shape (distinct numbers,).
    """
    return sets[np.sort(np.unique(sets, return_index=True)[1])]


def exact_pairs(shingle_sets: ShingleSets, sets: IntArray, threshold: float) -> ExactPairs:
    """Join sets with themselves; beyond MAX_SETS, a random sample of them (see `complete`).

    The sample is drawn by position: sets in order of first occurrence (`in_order`) give the same sample, however they
    are numbered.

    Args: sets: distinct numbers of shingle sets. threshold: the least Jaccard similarity, above 0.
    Returns: the pairs as numbers of shingle sets, each once, the smaller number first.
    """
    total = len(sets)
    if total > MAX_SETS:
        sets = sets[np.sort(np.random.default_rng(0).permutation(total)[:MAX_SETS])]
    one, other, similarity = _concatenate(
        (sets[a], sets[b], near) for a, b, near in iterate_pairs(shingle_sets, sets, threshold)
    )
    return ExactPairs(np.minimum(one, other), np.maximum(one, other), similarity, len(sets), total)


def pairs_between(shingle_sets: ShingleSets, new: IntArray, other: IntArray, threshold: float) -> ExactPairs:
    """Join new sets with others, by blocks of both: all pairs of a new one (a) and another (b).

    Args:
        new, other: numbers of shingle sets; a set that is on both sides gives a pair of Jaccard 1.
        threshold: the least Jaccard similarity, above 0.
    Returns: the pairs as numbers of shingle sets; here, a < b need not hold.
    """
    parts = product(range(0, len(new), MAX_SETS), range(0, len(other), MAX_SETS))
    sides = ((new[first : first + MAX_SETS], other[start : start + MAX_SETS]) for first, start in parts)
    found = _concatenate(
        (ones[a], others[b], near)
        for ones, others in sides
        for a, b, near in _join(shingle_sets, ones, others, threshold)
    )
    return ExactPairs(*found, len(new), len(new))


def _concatenate(blocks: Iterable[PairBlock]) -> PairBlock:
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    a, b, similarity = (np.concatenate(column) for column in zip(nothing, *blocks, strict=True))
    return a, b, similarity


def iterate_pairs(shingle_sets: ShingleSets, sets: IntArray, threshold: float) -> Iterator[PairBlock]:
    """Yield all pairs of distinct sets at or above a threshold, however many sets there are, some at a time.

    Args: sets: distinct numbers of shingle sets. threshold: the least Jaccard similarity, above 0.
    Returns: blocks of places in `sets`, each pair once, the smaller place first, with the Jaccard similarity.
    """
    for first in range(0, len(sets), MAX_SETS):
        ones = sets[first : first + MAX_SETS]
        for start in range(first, len(sets), MAX_SETS):
            others = ones if start == first else sets[start : start + MAX_SETS]
            for a, b, near in _join(shingle_sets, ones, others, threshold):
                yield a + first, b + start, near


def _join(shingle_sets: ShingleSets, ones: IntArray, others: IntArray, threshold: float) -> Iterator[PairBlock]:
    """Yield the pairs of a set of `ones` and a set of `others`, as places in these, by blocks of the first.

    Networks share what all of them say: the few columns that many sets have would take most of the products of sparse
    matrices, and are multiplied as dense ones, exactly, since counts below 2**24 are exact in single precision.
    """
    same = ones is others  # then each pair once, and none of a set with itself
    incidence, weights = _incidence(shingle_sets, ones if same else np.concatenate([ones, others]))
    frequency = np.bincount(incidence.indices, minlength=len(weights))
    frequent = np.argsort(-frequency, kind="stable")[:_DENSE_COLUMNS]
    frequent = frequent[frequency[frequent] > _FREQUENT * incidence.shape[0]]
    common = incidence[:, frequent].astype(np.float32).toarray()
    weights_of_rare = weights.copy()
    weights_of_rare[frequent] = 0
    rare = incidence @ sp.diags_array((weights_of_rare > 0).astype(np.float64))
    rare.eliminate_zeros()
    first_other = 0 if same else len(ones)
    weighted, other_rare = rare[: len(ones)] @ sp.diags_array(weights), rare[first_other:]
    weighted_common, other_common = common[: len(ones)] * weights[frequent].astype(np.float32), common[first_other:].T
    sizes, other_sizes = shingle_sets.set_sizes[ones], shingle_sets.set_sizes[others]
    step = max(1, _CELLS // max(1, len(others)))
    for at in range(0, len(ones), step):
        start = at if same else 0
        shared = weighted_common[at : at + step] @ other_common[:, start:]
        of_rare = (other_rare[start:] @ weighted[at : at + step].T.tocsr()).tocoo()
        shared[of_rare.col, of_rare.row] += of_rare.data.astype(np.float32)
        # Without the pairs that are far below the threshold, whatever single precision rounds.
        least = threshold / (1 + threshold) * (1 - 1e-5)
        bound = np.float32(least) * (sizes[at : at + step, None] + other_sizes[start:]).astype(np.float32)
        near = shared >= bound
        if same:
            near &= np.tri(*near.shape) == 0
        a, b = np.nonzero(near)
        common_shingles = shared[a, b].astype(np.float64)
        b += start
        similarity = common_shingles / (sizes[at + a] + other_sizes[b] - common_shingles)
        chosen = similarity >= threshold
        yield at + a[chosen], b[chosen], similarity[chosen]


def _incidence(shingle_sets: ShingleSets, sets: IntArray) -> tuple[sp.csr_array[np.float64], npt.NDArray[np.float64]]:
    """Return the matrix of sets by column groups, and the number of shingles in each group."""
    values = np.concatenate([shingle_sets.shingles(int(item)) for item in sets])
    owners = np.repeat(np.arange(len(sets)), shingle_sets.set_sizes[sets])
    shingles, column = np.unique(values, return_inverse=True)
    marks = np.random.default_rng(0).integers(0, 2**63, len(sets), dtype=np.uint64)
    mark = np.zeros(len(shingles), np.uint64)
    np.add.at(mark, column, marks[owners])  # equal sums mean the same sets, except with a chance of 2**-63
    _, first, group, size = np.unique(mark, return_index=True, return_inverse=True, return_counts=True)
    representative = np.zeros(len(shingles), bool)
    representative[first] = True
    chosen = representative[column]
    entries = (np.ones(int(chosen.sum())), (owners[chosen], group[column[chosen]]))
    return sp.csr_array(entries, shape=(len(sets), len(first))), size.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall of the LSH proposals on the pairs of distinct shingle sets at or above the threshold.

    Of `pairs` pairs, LSH proposes `proposed`. `sets_joined` of `sets` were joined with each other.
    """

    bands: int
    rows: int
    miss_chance: float  # at the threshold, for one pair
    pairs: int
    proposed: int
    sets_joined: int
    sets: int

    @property
    def recall(self) -> float:
        """The proposed share of the pairs; 1.0 if there are no pairs."""
        return self.proposed / self.pairs if self.pairs else 1.0

    def facts(self) -> dict[str, object]:
        """Return the fields and the recall, under their names in the manifest."""
        names = {"proposed": "found", "sets_joined": "sets_asked"}
        return {names.get(name, name): value for name, value in asdict(self).items()} | {"recall": self.recall}


def measure_recall(shingle_sets: ShingleSets, truth: ExactPairs, banding: Banding, threshold: float) -> Recall:
    """Count the true pairs that share a band and pass the estimate filter.

    Args:
        shingle_sets: the sets that the pairs refer to; only their signatures are read.
        truth: all pairs at or above the threshold.
        threshold: the similarity that the estimate filter is for.
    Returns: the counts, with the extent of the join that `truth` is from.
    """
    signatures, proposed = shingle_sets.signatures, 0
    for start in range(0, len(truth.a), _PAIRS):
        a, b = truth.a[start : start + _PAIRS], truth.b[start : start + _PAIRS]
        equal = signatures[a] == signatures[b]
        bands = equal[:, : banding.bands * banding.rows].reshape(len(a), banding.bands, banding.rows)
        likely = np.count_nonzero(equal, axis=1) / PERMUTATIONS >= threshold - ESTIMATE_MARGIN
        proposed += int(np.count_nonzero(bands.all(axis=2).any(axis=1) & likely))
    return Recall(
        bands=banding.bands,
        rows=banding.rows,
        miss_chance=banding.miss_chance(threshold),
        pairs=len(truth.a),
        proposed=proposed,
        sets_joined=truth.joined,
        sets=truth.sets,
    )


def enough_effort(shingle_sets: ShingleSets, truth: ExactPairs, threshold: float) -> Recall:
    """Return LSH's recall on the true pairs, with the least effort that misses none of them.

    Args:
        shingle_sets: the sets that the pairs refer to.
        truth: all pairs at or above this threshold.
        threshold: a Jaccard similarity.
    Returns: the recall of one row per band if even that misses a pair.
    """
    effort = 0
    while True:
        banding = banding_for(threshold, effort=effort)
        measured = measure_recall(shingle_sets, truth, banding, threshold)
        if measured.proposed == measured.pairs or banding.rows == 1:
            return measured
        effort += 1


def link_by_lsh(shingle_sets: ShingleSets, sets: IntArray, threshold: float) -> tuple[IntArray, IntArray]:
    """Return index pairs with Jaccard >= threshold that have the same components as all such pairs.

    LSH proposes (a pair at the threshold is missed at most once in ten million), the exact Jaccard decides; pairs that
    are already connected are not computed, and the likeliest come first.

    Args: sets: distinct numbers of shingle sets.
    Returns: two arrays of equal length, of indices in `sets`: the edges of a forest.
    """
    signatures = shingle_sets.signatures[sets]
    table = buckets(signatures, banding_for(threshold))
    owners, bands = np.nonzero(table >= 0)
    shape = (len(sets), int(table.max(initial=-1)) + 1)
    incidence = sp.csr_array((np.ones(len(owners), np.int32), (owners, table[owners, bands])), shape=shape)
    transposed = incidence.T.tocsr()
    indices = range(len(sets))
    group = DisjointSet(indices)
    left: list[int] = []
    right: list[int] = []
    for start in range(0, len(sets), _LINK_BLOCK):
        shared = (incidence[start : start + _LINK_BLOCK] @ transposed).tocoo()
        a, b = shared.row + start, shared.col
        roots = np.array([group[index] for index in indices], np.int64)
        # Each pair once, and none inside a component, where it would add nothing.
        apart = (a > b) & (roots[a] != roots[b])
        a, b = a[apart], b[apart]
        # In parts: all at once would be a matrix of pairs by 256.
        estimate = np.concatenate(
            [
                np.count_nonzero(signatures[a[i : i + _PAIRS]] == signatures[b[i : i + _PAIRS]], axis=1)
                for i in range(0, len(a), _PAIRS)
            ]
            or [np.empty(0, np.int64)]
        )
        likely = np.flatnonzero(estimate >= (threshold - ESTIMATE_MARGIN) * PERMUTATIONS)
        for index in likely[np.argsort(-estimate[likely], kind="stable")].tolist():
            first, second = int(a[index]), int(b[index])
            if group.connected(first, second):
                continue
            if jaccard(shingle_sets.shingles(int(sets[first])), shingle_sets.shingles(int(sets[second]))) >= threshold:
                group.merge(first, second)
                left.append(first)
                right.append(second)
    return np.array(left, np.int64), np.array(right, np.int64)
