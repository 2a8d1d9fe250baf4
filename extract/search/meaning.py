"""Meaning vectors of stems, so that a description also matches blocks that use other words.

The vectors were fitted by `benchmarks/search_meaning.py` to pairs of a class's docstring and its names (docs/specs.md
lists the packages): the vector sum of a docstring should be close to that of its own class and far from those of
others. Only stems that occur in at least two packages have a vector.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: Version of the vectors; an index built with other vectors is rebuilt.
VERSION = 3

#: Groups of fields whose stems share a weight.
KINDS = (
    ("name",),
    ("place",),
    ("bases",),
    ("arguments",),
    ("parts",),
    ("layers", "needs"),
    ("operations",),
    ("sentences", "shape", "category"),
    ("text",),
)
FILE = Path(__file__).with_name("meaning.npz")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StemVectors:
    """Vectors of each stem for queries and for blocks.

    Args:
        query_vectors, block_vectors: vectors for queries and for blocks, times the weight of the stem there,
            shape (stems, size).
        kinds: weight of each of `KINDS`, shape (kinds,).
    """

    places: Mapping[str, int]
    query_vectors: Floats
    block_vectors: Floats
    kinds: Floats


@lru_cache(maxsize=1)
def table() -> StemVectors:
    """Load the fitted vectors."""
    with np.load(FILE) as stored:
        names = bytes(stored["stems"]).decode().split("\n")
        query_vectors, block_vectors = (stored[name] * stored[f"{name}_by"][:, None] for name in ("asked", "told"))
        return StemVectors(
            {name: index for index, name in enumerate(names)}, query_vectors, block_vectors, stored["kinds"]
        )


def query_vector(stems: Iterable[str]) -> Floats:
    """Return the vector of a query, shape (size,), of unit length; zeros if none of its stems has a vector."""
    fitted = table()
    indices = [fitted.places[stem] for stem in dict.fromkeys(stems) if stem in fitted.places]
    return _unit(fitted.query_vectors[indices].sum(axis=0))


def block_vectors(blocks: Sequence[Mapping[str, Sequence[str]]]) -> Floats:
    """Return the vectors of blocks from the stems of their fields, shape (blocks, size), rows of unit length."""
    fitted = table()
    vectors = np.zeros((len(blocks), fitted.block_vectors.shape[1]), np.float32)
    for number, fields in enumerate(blocks):
        indices, weights = weigh_stems(fields, fitted.places, fitted.kinds)
        vectors[number] = _unit(weights @ fitted.block_vectors[indices])
    return vectors


def weigh_stems(
    fields: Mapping[str, Sequence[str]], places: Mapping[str, int], kinds: Sequence[float] | Floats
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the indices of a block's stems and their weights, normalized by the square root of a field's length."""
    entries: list[tuple[int, float]] = []
    for kind, names in zip(kinds, KINDS, strict=True):
        counted = Counter(stem for name in names for stem in fields[name])
        # The square root: a long field has more evidence, but not in proportion to its length.
        long = max(1, sum(counted.values())) ** 0.5
        entries += [
            (places[stem], float(kind) * (1 + log(count)) / long) for stem, count in counted.items() if stem in places
        ]
    return np.array([index for index, _ in entries], np.int64), np.array([weight for _, weight in entries], np.float32)


def _unit(vector: Any) -> Floats:
    length = float(np.linalg.norm(vector))
    unit: Floats = (vector / length if length else vector).astype(np.float32)
    return unit
