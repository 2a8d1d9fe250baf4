"""The classes of a code as separate sets of shingles, to find the origin of a class.

A class is the lexical view of its own lines, with one placeholder for all names except attributes (`nn.Conv2d`):
renaming the class, or the classes that it uses, changes nothing, and it does not matter whether those are imported or
defined in the same file. The training functions of LEMUR's contract are left out.
"""

from collections.abc import Sequence
from itertools import pairwise
from keyword import iskeyword
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features.minhash import (
    ESTIMATE_MARGIN,
    PERMUTATIONS,
    band_keys,
    banding_for,
    jaccard,
    signature,
)
from lemur_core.similarity.features.outline import CONTRACT_FUNCTIONS, ClassOutline, Outline
from lemur_core.similarity.features.parts import outline_code
from lemur_core.similarity.features.tokens import is_model_class, shingle_hashes, span_tokens

#: Placeholder of the names that the lexical view abstracts.
_ANY = "_"


class ClassText(NamedTuple):
    """A class of a code, and its shingles: sorted distinct hashes."""

    name: str
    shingles: npt.NDArray[np.uint64]


def class_texts(code: str, name: str | None = None) -> list[ClassText]:
    """Return the network classes of a code in order.

    Args: name: return only the class of this name, the largest of several, whether it is a network or not.
    Returns: one item per class; none if the code is not valid Python.
    """
    outline = outline_code(code)
    if isinstance(outline, str):
        return []
    if name is None:
        chosen = [item for item, model in zip(outline.classes, is_model_class(outline), strict=True) if model]
    else:
        named = (item for item in outline.classes if item.name == name)
        chosen = sorted(named, key=lambda item: item.first - item.last)[:1]
    return [ClassText(item.name, _shingles(code, outline, item)) for item in chosen]


def _shingles(code: str, outline: Outline, item: ClassOutline) -> npt.NDArray[np.uint64]:
    glue = sorted(
        (first, last)
        for name, first, last in outline.functions
        if name in CONTRACT_FUNCTIONS and item.first < first and last <= item.last
    )
    spans, start = [], item.first
    for first, last in glue:
        if first > start:
            spans.append((start, first - 1))
        start = max(start, last + 1)
    if start <= item.last:
        spans.append((start, item.last))
    tokens = span_tokens(code, outline, spans)
    alike = [
        _ANY if before != "." and token.isidentifier() and not iskeyword(token) else token
        for before, token in pairwise(["", *tokens])
    ]
    return shingle_hashes(alike, frozenset(), "abstract")


class ClassIndex:
    """Nearest-neighbor index of classes by their shingles: MinHash-LSH proposes, the exact Jaccard decides.

    See `lemur_core.similarity.index` for the chance of missing a pair.
    """

    def __init__(self, classes: Sequence[npt.NDArray[np.uint64]], threshold: float) -> None:
        """Index these classes, numbered in order; none is empty."""
        self.threshold, self._classes, self._banding = threshold, classes, banding_for(threshold)
        self._signatures = np.array([signature(shingles) for shingles in classes], np.uint32).reshape(-1, PERMUTATIONS)
        keys = band_keys(self._signatures, self._banding).ravel()
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def nearest(self, shingles: npt.NDArray[np.uint64]) -> tuple[int, float] | None:
        """Return the number of the most similar class and its similarity, if it reaches the threshold.

        The first of several equally similar ones.
        """
        own = signature(shingles)
        keys = band_keys(own[None, :], self._banding)[0]
        low, high = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        matches = [self._order[start:end] for start, end in zip(low.tolist(), high.tolist(), strict=True)]
        numbers = np.unique(np.concatenate([_NONE, *matches]) // self._banding.bands)
        estimates = np.count_nonzero(self._signatures[numbers] == own, axis=1) / PERMUTATIONS
        likely = numbers[estimates >= self.threshold - ESTIMATE_MARGIN].tolist()
        similarities = [(jaccard(shingles, self._classes[number]), -number) for number in likely]
        similarity, number = max(similarities, default=(0.0, 0))
        return (-number, similarity) if similarity >= self.threshold else None


_NONE = np.empty(0, np.int64)
