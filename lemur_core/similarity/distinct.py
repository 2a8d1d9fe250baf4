"""How many of some codes are structurally distinct, by the fingerprints that curation compares."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.fingerprint import fingerprint
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.outline import outline_tree
from lemur_core.similarity.pool import map_codes

#: The structural threshold of profile `strict`.
THRESHOLD = 0.95
_FEW = 32  # are done at once, without worker processes


@dataclass(frozen=True, slots=True)
class Distinct:
    """Counts over codes; each one includes those after it.

    Attributes:
        codes: that parse and call something.
        fingerprints: different ones.
        structures: that stay when each code goes that is near to one before it: no two have a Jaccard at the threshold.
    """

    codes: int
    fingerprints: int
    structures: int


def count_distinct(codes: Sequence[str], *, threshold: float = THRESHOLD, jobs: int | None = None) -> Distinct:
    """Count the structures among codes, in their order: the first of several near ones stays.

    Args: threshold: Jaccard of fingerprints' elements from which two codes are near.
    """
    digests: dict[bytes, int] = {}
    elements: list[npt.NDArray[np.uint64]] = []
    parsed = 0
    for found in _structures(codes, jobs):
        if isinstance(found, str) or not found[1]:
            continue
        parsed += 1
        if digests.setdefault(found[0], len(digests)) == len(elements):
            elements.append(np.frombuffer(found[1], np.uint64))
    index = StructuralIndex(elements, threshold)
    kept = 0
    for item in range(len(elements)):
        if index.nearest(item) is None:
            index.keep(item, kept)
            kept += 1
    return Distinct(parsed, len(digests), kept)


def _structures(codes: Sequence[str], jobs: int | None) -> Iterator[tuple[bytes, bytes] | str]:
    if len(codes) <= _FEW:
        yield from map(_structure, codes)
        return
    for chunk in map_codes(_structure, ((str(place).encode(), code) for place, code in enumerate(codes)), jobs):
        yield from (found for _, found in chunk)


def _structure(code: str) -> tuple[bytes, bytes] | str:
    """The digest of a code's fingerprint and its elements; or why it has none."""
    try:
        found = fingerprint(outline_tree(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return found.digest, found.elements.tobytes()
