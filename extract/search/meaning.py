"""What words mean: vectors for each stem, so that a description finds blocks that say it in other words.

The vectors are fitted to pairs of a class's docstring and its names (by `benchmarks/search_meaning.py`; docs/specs.md
tells of which packages): the sum of a docstring's vectors is to be near to the sum of its own class's, and far from
others'. Only stems that occur in at least two packages have one.
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

#: Of the vectors; an index made with others is made anew.
VERSION = 2

#: Fields whose stems count as of one kind.
KINDS = (
    ("name",),
    ("place",),
    ("bases",),
    ("arguments",),
    ("parts",),
    ("layers", "needs"),
    ("operations",),
    ("sentences", "shape", "category"),
)
FILE = Path(__file__).with_name("meaning.npz")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Table:
    """Vectors by stem: what it means in a query, and in a block.

    Args:
        asked, told: of queries and of blocks, times how much the stem counts there, shape (stems, size).
        kinds: how much each of `KINDS` counts, shape (kinds,).
    """

    places: Mapping[str, int]
    asked: Floats
    told: Floats
    kinds: Floats


@lru_cache(maxsize=1)
def table() -> Table:
    """The fitted vectors."""
    with np.load(FILE) as stored:
        names = bytes(stored["stems"]).decode().split("\n")
        asked, told = (stored[name] * stored[f"{name}_by"][:, None] for name in ("asked", "told"))
        return Table({name: place for place, name in enumerate(names)}, asked, told, stored["kinds"])


def of_query(stems: Iterable[str]) -> Floats:
    """What a query means, shape (size,), of length 1; zeros where none of its stems has a vector."""
    known = table()
    places = [known.places[stem] for stem in dict.fromkeys(stems) if stem in known.places]
    return _unit(known.asked[places].sum(axis=0))


def of_blocks(blocks: Sequence[Mapping[str, Sequence[str]]]) -> Floats:
    """What blocks mean by the stems of their fields, shape (blocks, size), rows of length 1."""
    known = table()
    found = np.zeros((len(blocks), known.told.shape[1]), np.float32)
    for number, fields in enumerate(blocks):
        places, weights = weighted(fields, known.places, known.kinds)
        found[number] = _unit(weights @ known.told[places])
    return found


def weighted(
    fields: Mapping[str, Sequence[str]], places: Mapping[str, int], kinds: Sequence[float] | Floats
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The places of a block's stems and how much each occurrence counts; a long field counts as its square root."""
    found: list[tuple[int, float]] = []
    for kind, names in zip(kinds, KINDS, strict=True):
        counted = Counter(stem for name in names for stem in fields[name])
        long = max(1, sum(counted.values())) ** 0.5
        found += [
            (places[stem], float(kind) * (1 + log(count)) / long) for stem, count in counted.items() if stem in places
        ]
    return np.array([place for place, _ in found], np.int64), np.array([weight for _, weight in found], np.float32)


def _unit(vector: Any) -> Floats:
    length = float(np.linalg.norm(vector))
    made: Floats = (vector / length if length else vector).astype(np.float32)
    return made
