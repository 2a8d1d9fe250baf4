"""Distinct sets as rows of one sparse matrix, so that exact Jaccards are matrix products."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from curate.nndup.features import NnDupFeatures

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHINGLE = 10  # tokens
_BLOCK_CELLS = 4_000_000  # cells of a dense block of Jaccards: 32 MB


@dataclass(frozen=True, slots=True)
class DistinctSets:
    """The distinct ones among many sets.

    `number[i]` is the number of the i-th given set, equal for equal sets; `elements[j]` is what column j stands for.
    """

    number: Ints
    matrix: csr_matrix
    sizes: Ints
    elements: list[Hashable]
    both_empty: float  # the Jaccard of two empty sets

    def members(self, number: int) -> list[Hashable]:
        """The elements of one set, in no particular but a fixed order."""
        start, stop = self.matrix.indptr[number : number + 2]
        return [self.elements[column] for column in self.matrix.indices[start:stop]]

    def jaccards(self, rows: Ints, columns: Ints) -> Iterator[tuple[int, Floats]]:
        """Exact Jaccards of sets against sets as dense blocks, each with the place in `rows` of its first row."""
        height = max(1, _BLOCK_CELLS // max(1, len(columns)))
        other = self.matrix[columns].T.tocsr()
        for start in range(0, len(rows), height):
            block = rows[start : start + height]
            common = np.asarray((self.matrix[block] @ other).todense())
            yield start, self._ratio(common, self.sizes[block][:, None] + self.sizes[columns] - common)

    def jaccards_of_pairs(self, left: Ints, right: Ints) -> Floats:
        """The exact Jaccard of each set on the left with the one at the same place on the right."""
        found = np.empty(len(left))
        for start in range(0, len(left), 1_000):
            a, b = left[start : start + 1_000], right[start : start + 1_000]
            common = np.asarray(self.matrix[a].multiply(self.matrix[b]).sum(axis=1)).ravel()
            found[start : start + 1_000] = self._ratio(common, self.sizes[a] + self.sizes[b] - common)
        return found

    def _ratio(self, common: NDArray[np.int64], union: NDArray[np.int64]) -> Floats:
        return np.where(union > 0, common / np.maximum(union, 1), self.both_empty)


def distinct_sets(items: Iterable[Iterable[Hashable]], both_empty: float) -> DistinctSets:
    """Number the distinct sets among the items (iterables of elements, which may repeat) by first appearance."""
    column_of: dict[Hashable, int] = {}
    number_of: dict[bytes, int] = {}
    number: list[int] = []
    columns: list[NDArray[np.int32]] = []
    for item in items:
        ids = np.array(sorted({column_of.setdefault(element, len(column_of)) for element in item}), dtype=np.int32)
        found = number_of.setdefault(ids.tobytes(), len(number_of))
        if found == len(columns):
            columns.append(ids)
        number.append(found)
    sizes = np.array([len(ids) for ids in columns], dtype=np.int64)
    indices = np.concatenate(columns) if columns else np.empty(0, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csr_matrix(
        (np.ones(len(indices), dtype=np.int32), indices, starts), shape=(len(sizes), max(1, len(column_of)))
    )
    return DistinctSets(np.array(number, dtype=np.int64), matrix, sizes, list(column_of), both_empty)


def shingle_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """The shingle set of each code: all runs of ten tokens; one shorter run where there are fewer; none without tokens.

    Two empty sets count as equal.
    """
    stream_of: dict[str, int] = {}
    stream = np.array([stream_of.setdefault(code.tokens, len(stream_of)) for code in features], dtype=np.int64)
    sets = distinct_sets(map(_shingles, stream_of), both_empty=1.0)
    return DistinctSets(sets.number[stream], sets.matrix, sets.sizes, sets.elements, sets.both_empty)


def layer_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """The set of (layer, count) and (hyperparameter, value) pairs of each code. Two empty sets count as unlike."""
    return distinct_sets(((*code.layer_bag, *code.hyperparameters) for code in features), both_empty=0.0)


def _shingles(stream: str) -> Iterator[str]:
    tokens = stream.split()
    if tokens:
        for start in range(max(1, len(tokens) - _SHINGLE + 1)):
            yield " ".join(tokens[start : start + _SHINGLE])
