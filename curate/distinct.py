"""How many of some codes are structurally distinct, by the fingerprints and the threshold that curation uses."""

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from curate.feature_pool import map_codes
from curate.feature_table import FeatureTable
from curate.fingerprint import fingerprint
from curate.outline import outline_tree
from curate.structural import StructuralIndex

#: The structural threshold of profile `strict`.
THRESHOLD = 0.95


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


def count_distinct(codes: Iterable[str], *, threshold: float = THRESHOLD, jobs: int | None = None) -> Distinct:
    """Count the structures among codes, in their order: the first of several near ones stays.

    Args: threshold: Jaccard of fingerprints' elements from which two codes are near.
    """
    digests: dict[bytes, int] = {}
    features = FeatureTable(0)
    whole = 0
    pairs = ((hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest(), code) for code in codes)
    for chunk in map_codes(_structure, pairs, jobs):
        for _, found in chunk:
            if isinstance(found, str) or not found[1]:
                continue
            whole += 1
            if digests.setdefault(found[0], len(digests)) == len(features.elements):
                features.elements.append(np.frombuffer(found[1], np.uint64))
    index = StructuralIndex(features, threshold)
    kept = 0
    for item in range(len(features.elements)):
        if index.nearest(item) is None:
            index.keep(item, kept)
            kept += 1
    return Distinct(whole, len(digests), kept)


def _structure(code: str) -> tuple[bytes, bytes] | str:
    """The digest of a code's fingerprint and its elements; or why it has none."""
    try:
        found = fingerprint(outline_tree(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return found.digest, found.elements.tobytes()
