"""The input rows in the form that nn-dup's stages use, with the distinct sets of their codes in sparse matrices."""

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from curate.compat.code import NnDupFeatures, get_family

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHINGLE = 10  # tokens
_BLOCK_CELLS = 4_000_000  # cells of a dense block of Jaccards: 32 MB


@dataclass(frozen=True, slots=True)
class DistinctSets:
    """The distinct sets of an input.

    Attributes:
        number: number of the distinct set that the i-th input set equals.
        matrix: one row per distinct set, one column per element.
        elements: element of column j.
    """

    number: Ints
    matrix: csr_matrix
    sizes: Ints
    elements: list[Hashable]
    both_empty: float  # the Jaccard of two empty sets

    def members(self, number: int) -> list[Hashable]:
        """Return the elements of one set, in an arbitrary but fixed order."""
        start, stop = self.matrix.indptr[number : number + 2]
        return [self.elements[column] for column in self.matrix.indices[start:stop]]

    def jaccards(self, rows: Ints, columns: Ints) -> Iterator[tuple[int, Floats]]:
        """Yield exact Jaccards of sets against sets as dense blocks, each with the index in `rows` of its first row."""
        # The blocks have a bounded size, because the whole matrix of a corpus takes gigabytes.
        height = max(1, _BLOCK_CELLS // max(1, len(columns)))
        other = self.matrix[columns].T.tocsr()
        for start in range(0, len(rows), height):
            block = rows[start : start + height]
            common = np.asarray((self.matrix[block] @ other).todense())
            yield start, self._ratio(common, self.sizes[block][:, None] + self.sizes[columns] - common)

    def jaccards_of_pairs(self, left: Ints, right: Ints) -> Floats:
        """Return the exact Jaccard of each set on the left with the one at the same index on the right."""
        jaccards = np.empty(len(left))
        for start in range(0, len(left), 1_000):
            a, b = left[start : start + 1_000], right[start : start + 1_000]
            common = np.asarray(self.matrix[a].multiply(self.matrix[b]).sum(axis=1)).ravel()
            jaccards[start : start + 1_000] = self._ratio(common, self.sizes[a] + self.sizes[b] - common)
        return jaccards

    def _ratio(self, common: NDArray[np.int64], union: NDArray[np.int64]) -> Floats:
        return np.where(union > 0, common / np.maximum(union, 1), self.both_empty)


def distinct_sets(items: Iterable[Iterable[Hashable]], both_empty: float) -> DistinctSets:
    """Number the distinct sets among the items by first appearance; the elements of an item may repeat."""
    column_of: dict[Hashable, int] = {}
    number_of: dict[bytes, int] = {}
    number: list[int] = []
    columns: list[NDArray[np.int32]] = []
    for item in items:
        ids = np.array(sorted({column_of.setdefault(element, len(column_of)) for element in item}), dtype=np.int32)
        set_number = number_of.setdefault(ids.tobytes(), len(number_of))
        if set_number == len(columns):
            columns.append(ids)
        number.append(set_number)
    sizes = np.array([len(ids) for ids in columns], dtype=np.int64)
    indices = np.concatenate(columns) if columns else np.empty(0, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csr_matrix(
        (np.ones(len(indices), dtype=np.int32), indices, starts), shape=(len(sizes), max(1, len(column_of)))
    )
    return DistinctSets(np.array(number, dtype=np.int64), matrix, sizes, list(column_of), both_empty)


def shingle_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """Return each code's shingle set: all runs of ten tokens, or a single shorter run if there are fewer tokens.

    Two empty sets count as equal.
    """
    stream_of: dict[str, int] = {}
    stream = np.array([stream_of.setdefault(code.tokens, len(stream_of)) for code in features], dtype=np.int64)
    sets = distinct_sets(map(_shingles, stream_of), both_empty=1.0)
    return DistinctSets(sets.number[stream], sets.matrix, sets.sizes, sets.elements, sets.both_empty)


def layer_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """Return each code's set of (layer, count) and (hyperparameter, value) pairs. Two empty sets count as different."""
    return distinct_sets(((*code.layer_bag, *code.hyperparameters) for code in features), both_empty=0.0)


def _shingles(stream: str) -> Iterator[str]:
    tokens = stream.split()
    if tokens:
        for start in range(max(1, len(tokens) - _SHINGLE + 1)):
            yield " ".join(tokens[start : start + _SHINGLE])


_OTHER = re.compile("[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class RowSets:
    """One entry per row in every list; rows without usable code have meaningless entries."""

    names: list[str]  # normalized
    code: list[str]  # digest
    families: list[str]
    quality: list[int]  # smaller is better; equal for ties
    fingerprint: list[int]  # number of the structural fingerprint
    shingles: DistinctSets
    shingles_of: list[int]  # number of the shingle set
    layers: DistinctSets
    layers_of: list[int]  # number of the layer set


def prepare_rows(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
) -> RowSets:
    """Compute everything once per code, then assign it to the rows; those without code get what the last one has."""
    plain = {name: normalise_name(name) for name in set(names)}
    shingles, layers = shingle_sets(features), layer_sets(features)
    fingerprints: dict[Hashable, int] = {}
    fingerprint_of = [fingerprints.setdefault(code.fingerprint, len(fingerprints)) for code in features]
    pairs = list(zip(names, code_index, strict=True))
    keys = [
        (math.inf if accuracy is None or math.isnan(accuracy) else -accuracy, -features[code].length, name)
        for (name, code), accuracy in zip(pairs, accuracies, strict=True)
    ]
    rank_of = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    family_of = {(name, code): get_family(name, features[code]) for name, code in set(pairs)}
    return RowSets(
        names=[plain[name] for name in names],
        code=[code_sha[code] for code in code_index],
        families=[family_of[pair] for pair in pairs],
        quality=[rank_of[key] for key in keys],
        fingerprint=[fingerprint_of[code] for code in code_index],
        shingles=shingles,
        shingles_of=shingles.number[list(code_index)].tolist(),
        layers=layers,
        layers_of=layers.number[list(code_index)].tolist(),
    )


def normalise_name(name: str) -> str:
    """Normalize a name or prefix as nn-dup does: lower case, only letters and digits."""
    return _OTHER.sub("", name.lower())


def first_prefix(name: str, prefixes: Sequence[str]) -> int | None:
    """Return the index of the first prefix that a name begins with (all normalized); None if there is none."""
    return next((index for index, prefix in enumerate(prefixes) if name.startswith(prefix)), None)
