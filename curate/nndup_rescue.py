"""The two stages of nn-dup 2.2.4 that bring removed rows back: a minimum for each prefix, and a diverse few on top."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from curate.nndup_sets import DistinctSets, Floats, Ints

_OTHER = re.compile("[^a-z0-9]")


def normalised(name: str) -> str:
    """A name or prefix as nn-dup compares it: lower case, letters and digits only."""
    return _OTHER.sub("", name.lower())


def first_prefix(name: str, prefixes: Sequence[str]) -> int | None:
    """The place of the first prefix with which a normalised name begins (both normalised); None without one."""
    return next((place for place, prefix in enumerate(prefixes) if name.startswith(prefix)), None)


@dataclass(frozen=True, slots=True)
class Pool:
    """What both rescues look at. All sequences are indexed by row.

    `removed` lists the removed rows in the order of the stages and, within one, of its removals; rows of equal quality
    come back in this order (in nn-dup the lexical ones, and all of them in the rescue by prefix, in hash order).
    """

    removed: Sequence[int]
    names: Sequence[str]  # normalised
    code: Sequence[str]
    quality: Sequence[int]
    shingles: DistinctSets
    shingles_of: Sequence[int]
    layers: DistinctSets
    layers_of: Sequence[int]

    def candidates(self, prefix: str, kept: Sequence[int]) -> list[int]:
        """Removed rows of a normalised prefix whose code is not kept, best first."""
        present = {self.code[row] for row in kept}
        rows = (row for row in self.removed if self.names[row].startswith(prefix) and self.code[row] not in present)
        return sorted(rows, key=self.quality.__getitem__)

    def has_tokens(self, row: int) -> bool:
        """Whether nn-dup gets tokens for the row's code."""
        return bool(self.shingles.sizes[self.shingles_of[row]])

    def of_prefix(self, prefix: str, kept: Sequence[int]) -> list[int]:
        """The kept rows of a normalised prefix."""
        return [row for row in kept if self.names[row].startswith(prefix)]


class _Screen:
    """Which candidate sets are too near to a kept one. A set once barred stays barred: the kept only grow."""

    def __init__(self, sets: DistinctSets, candidates: Sequence[int]) -> None:
        self.sets = sets
        self.numbers: Ints = np.unique(np.array(candidates, dtype=np.int64))
        self.barred: set[int] = set()

    def bar(self, kept: Sequence[int], limits: Sequence[float] | Floats) -> None:
        """Bar the candidates that have at least the limit of a kept set as their Jaccard to it."""
        rest = self.numbers[[number not in self.barred for number in self.numbers.tolist()]]
        for start, block in self.sets.jaccards(rest, np.array(kept, dtype=np.int64)):
            near = (block >= np.asarray(limits, dtype=np.float64)).any(axis=1)
            self.barred.update(rest[start : start + len(block)][near].tolist())


def rescue_for_prefixes(
    pool: Pool, kept: Sequence[int], prefixes: Sequence[str], minimum: int, threshold_of: Callable[[int], float]
) -> list[int]:
    """Rows to bring back so that each prefix has its minimum: the best that are near no kept row of the prefix.

    Rows without tokens are near nothing. A kept row counts for the first prefix as written that it begins with.

    Args:
        threshold_of: the Jaccard from which something is near a kept row.
    """
    rescued: list[int] = []
    beginnings = [normalised(prefix) for prefix in prefixes]
    have = [first_prefix(pool.names[row], beginnings) for row in kept]
    for prefix, beginning in zip(prefixes, beginnings, strict=True):
        need = minimum - have.count(prefixes.index(prefix))
        if need <= 0:
            continue
        candidates = pool.candidates(beginning, [*kept, *rescued])
        screen = _Screen(pool.shingles, [pool.shingles_of[row] for row in candidates])
        present = [row for row in pool.of_prefix(beginning, [*kept, *rescued]) if pool.has_tokens(row)]
        screen.bar([pool.shingles_of[row] for row in present], [threshold_of(row) for row in present])
        for row in candidates:
            if not pool.has_tokens(row):
                rescued.append(row)
            elif pool.shingles_of[row] not in screen.barred:
                rescued.append(row)
                screen.bar([pool.shingles_of[row]], [threshold_of(row)])
            else:
                continue
            need -= 1
            if need == 0:
                break
    return rescued


def top_up(
    pool: Pool, kept: Sequence[int], prefixes: Sequence[str], most: int, lexical_max: float, structural_max: float
) -> list[int]:
    """Rows to add for diversity: per prefix the best few that exceed neither Jaccard to any kept row of the prefix.

    Rows without tokens count as lexically unlike everything.

    Args:
        most: rows added per prefix.
    """
    added: list[int] = []
    if most <= 0 or lexical_max < 0.0 or structural_max < 0.0:
        return added
    for beginning in map(normalised, prefixes):
        candidates = pool.candidates(beginning, [*kept, *added])
        lexical = _Screen(pool.shingles, [pool.shingles_of[row] for row in candidates])
        structural = _Screen(pool.layers, [pool.layers_of[row] for row in candidates])
        fresh = pool.of_prefix(beginning, [*kept, *added])
        count = 0
        for row in candidates:
            if fresh:
                filled = [pool.shingles_of[other] for other in fresh if pool.has_tokens(other)]
                lexical.bar(filled, [np.nextafter(lexical_max, np.inf)] * len(filled))
                structural.bar([pool.layers_of[other] for other in fresh], [np.nextafter(structural_max, np.inf)])
                fresh = []
            if pool.shingles_of[row] in lexical.barred or pool.layers_of[row] in structural.barred:
                continue
            added.append(row)
            fresh = [row]
            count += 1
            if count == most:
                break
    return added
