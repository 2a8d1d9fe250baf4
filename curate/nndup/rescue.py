"""The two stages of nn-dup 2.2.4 that bring removed rows back: a minimum for each prefix, and a diverse few on top.

Both take candidates by quality. Of rows that tie in it, the one that was removed first comes first (in nn-dup hash
order decides in the rescue by prefix, and among lexical removals in the top-up).
"""

from collections.abc import Callable, Sequence

import numpy as np

from curate.nndup.rows import Rows, first_prefix, normalised
from curate.nndup.sets import DistinctSets, Ints


class _Screen:
    """Which candidate sets are too near to a kept one. A set once barred stays barred: the kept only grow."""

    def __init__(self, sets: DistinctSets, candidates: Sequence[int]) -> None:
        self.sets = sets
        self.numbers: Ints = np.unique(np.array(candidates, dtype=np.int64))
        self.barred: set[int] = set()

    def bar(self, kept: Sequence[int], limits: Sequence[float]) -> None:
        """Bar the candidates that have at least the limit of a kept set as their Jaccard to it."""
        if not kept:
            return
        rest = self.numbers[[number not in self.barred for number in self.numbers.tolist()]]
        for start, block in self.sets.jaccards(rest, np.array(kept, dtype=np.int64)):
            near = (block >= np.array(limits)).any(axis=1)
            self.barred.update(rest[start : start + len(block)][near].tolist())


def rescue_for_prefixes(
    rows: Rows,
    kept: Sequence[int],
    removed: Sequence[int],
    prefixes: Sequence[str],
    minimum: int,
    threshold_for: Callable[[str], float],
) -> list[int]:
    """Rows to bring back so that each prefix has its minimum: the best that are near no kept row of the prefix.

    Rows without tokens are near nothing. A kept row counts for the first prefix that it begins with.

    Args:
        removed: in the order of removal.
        threshold_for: the Jaccard from which something is near a kept row of a family.
    """
    rescued: list[int] = []
    beginnings = [normalised(prefix) for prefix in prefixes]
    have = [first_prefix(rows.names[row], beginnings) for row in kept]
    for prefix, beginning in zip(prefixes, beginnings, strict=True):
        need = minimum - have.count(prefixes.index(prefix))
        if need <= 0:
            continue
        candidates = _candidates(rows, removed, beginning, [*kept, *rescued])
        screen = _Screen(rows.shingles, [rows.shingles_of[row] for row in candidates])
        fresh = _of_prefix(rows, [*kept, *rescued], beginning)
        for row in candidates:
            filled = [other for other in fresh if rows.has_tokens(other)]
            screen.bar(
                [rows.shingles_of[other] for other in filled], [threshold_for(rows.families[other]) for other in filled]
            )
            fresh = []
            if rows.has_tokens(row) and rows.shingles_of[row] in screen.barred:
                continue
            rescued.append(row)
            fresh = [row]
            need -= 1
            if need == 0:
                break
    return rescued


def top_up(
    rows: Rows,
    kept: Sequence[int],
    removed: Sequence[int],
    prefixes: Sequence[str],
    most: int,
    lexical_max: float,
    structural_max: float,
) -> list[int]:
    """Rows to add for diversity: per prefix the best few that exceed neither Jaccard to any kept row of the prefix.

    Rows without tokens count as lexically unlike everything.

    Args:
        removed: in the order of removal.
        most: rows added per prefix.
    """
    added: list[int] = []
    if most <= 0 or lexical_max < 0.0 or structural_max < 0.0:
        return added
    above_lexical, above_structural = (float(np.nextafter(limit, np.inf)) for limit in (lexical_max, structural_max))
    for beginning in map(normalised, prefixes):
        candidates = _candidates(rows, removed, beginning, [*kept, *added])
        lexical = _Screen(rows.shingles, [rows.shingles_of[row] for row in candidates])
        structural = _Screen(rows.layers, [rows.layers_of[row] for row in candidates])
        fresh = _of_prefix(rows, [*kept, *added], beginning)
        count = 0
        for row in candidates:
            filled = [rows.shingles_of[other] for other in fresh if rows.has_tokens(other)]
            lexical.bar(filled, [above_lexical] * len(filled))
            structural.bar([rows.layers_of[other] for other in fresh], [above_structural] * len(fresh))
            fresh = []
            if rows.shingles_of[row] in lexical.barred or rows.layers_of[row] in structural.barred:
                continue
            added.append(row)
            fresh = [row]
            count += 1
            if count == most:
                break
    return added


def _candidates(rows: Rows, removed: Sequence[int], beginning: str, kept: Sequence[int]) -> list[int]:
    """Removed rows whose name begins so and whose code is not kept, best first."""
    present = {rows.code[row] for row in kept}
    fitting = [row for row in _of_prefix(rows, removed, beginning) if rows.code[row] not in present]
    return sorted(fitting, key=rows.quality.__getitem__)


def _of_prefix(rows: Rows, some: Sequence[int], beginning: str) -> list[int]:
    return [row for row in some if rows.names[row].startswith(beginning)]
