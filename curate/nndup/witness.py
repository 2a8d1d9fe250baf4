"""For each removed row a kept one that stands for it, and how similar the two are.

nn-dup itself names a row that its stage kept, often one that a later stage removed, and hash order decides which.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from curate.nndup.rows import Rows
from curate.nndup.stages import Removed


class Witness(NamedTuple):
    """The kept row that stands for a removed one."""

    canonical: int
    similarity: float


def name_witnesses(rows: Rows, kept: Sequence[int], stages: Mapping[str, Removed]) -> dict[int, Witness]:
    """The witness of every row that a stage removed and that was not brought back.

    It is the best kept row with the same code if there is one (a twin that was brought back), else the best kept row of
    those that the row's stage kept; when none of these is left, the witness of the best of them. The similarity is 1
    for rows removed as exact, else the Jaccard of the stage; 1 also for rows with one structural fingerprint.
    """
    present = set(kept)
    twin: dict[str, int] = {}
    for row in sorted(kept, key=lambda row: (rows.quality[row], row)):
        twin.setdefault(rows.code[row], row)
    stands = {row: kept_instead for removed in stages.values() for row, kept_instead in removed.items()}

    def follow(row: int) -> int:
        while (found := twin.get(rows.code[row])) is None:
            row = next((other for other in stands[row] if other in present), stands[row][0])
        return found

    witnesses: dict[int, Witness] = {}
    for stage, removed in stages.items():
        pairs = [(row, follow(row)) for row in removed if row not in present]
        similarity = _similarities(rows, stage, pairs)
        witnesses.update((row, Witness(other, near)) for (row, other), near in zip(pairs, similarity, strict=True))
    return witnesses


def _similarities(rows: Rows, stage: str, pairs: Sequence[tuple[int, int]]) -> list[float]:
    if stage == "exact":
        return [1.0] * len(pairs)
    sets, number_of = (rows.shingles, rows.shingles_of) if stage == "lexical" else (rows.layers, rows.layers_of)
    left, right = (np.array([number_of[pair[side]] for pair in pairs], dtype=np.int64) for side in (0, 1))
    found: list[float] = sets.jaccards_of_pairs(left, right).tolist()
    return [
        1.0 if stage == "structural" and rows.fingerprint[row] == rows.fingerprint[other] else near
        for (row, other), near in zip(pairs, found, strict=True)
    ]
