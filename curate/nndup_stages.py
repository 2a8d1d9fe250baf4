"""The three removing stages of nn-dup 2.2.4: equal code, lexical near-duplicates, structural duplicates.

Each takes the rows that are still kept, in nn-dup's order, and returns the removed ones with the rows that the stage kept
in their place, best first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from datasketch import MinHash, MinHashLSH
from scipy.sparse import csr_matrix, vstack
from scipy.sparse.csgraph import connected_components

from curate.nndup_sets import DistinctSets, Ints

#: Removed row -> the rows kept instead of it, best first; in the order in which nn-dup records removals.
Removed = dict[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Near:
    """Where the lexical stage draws its lines."""

    threshold: float
    fractal_threshold: float
    lsh_threshold: float
    num_perm: int
    keep: int  # rows kept of a group

    def threshold_for(self, family: str) -> float:
        """The Jaccard from which two records of a family are near-duplicates."""
        return self.fractal_threshold if family.startswith("fractal") else self.threshold


def remove_equal_code(rows: Sequence[int], code_of: Callable[[int], str], rank: Callable[[int], tuple[int, int]]) -> Removed:
    """Of rows with the same code, all but the first by rank (among equals, the first row).

    Removals are in the order in which the codes appear, then in row order.
    """
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(code_of(row), []).append(row)
    removed: Removed = {}
    for group in groups.values():
        best = [min(group, key=rank)]
        removed.update((row, best) for row in group if row != best[0])
    return removed


def remove_lexical(
    kept: Sequence[int],
    sets: DistinctSets,
    set_of: Sequence[int],
    families: Sequence[str],
    quality: Sequence[int],
    prefix_of: Callable[[int], str | None],
    near: Near,
) -> Removed:
    """Of each group of near-duplicates (chained, within one family), all but the best few.

    A group also keeps the best row of every included prefix that would otherwise have none in it. Ties in quality go to
    the earlier row. Removals are in the order of `kept` (in nn-dup: in hash order).

    Args:
        set_of: the number of each row's shingle set.
    """
    rows_of: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in kept:
        rows_of[set_of[row], families[row]].append(row)
    stands: Removed = {}
    for nodes in _near_groups(sets, sorted(rows_of), near):
        rank = {row: (quality[row], row) for node in nodes for row in rows_of[node]}
        ranked = sorted(rank, key=rank.__getitem__)
        chosen = ranked[: near.keep]
        covered = {prefix_of(row) for row in chosen}
        for row in ranked[near.keep :]:
            prefix = prefix_of(row)
            if prefix is not None and prefix not in covered:
                covered.add(prefix)
                chosen.append(row)
        stands.update(dict.fromkeys(rank.keys() - set(chosen), sorted(chosen, key=rank.__getitem__)))
    return {row: stands[row] for row in kept if row in stands}


def _near_groups(sets: DistinctSets, nodes: list[tuple[int, str]], near: Near) -> Iterator[list[tuple[int, str]]]:
    """Connected groups of (set number, family) nodes; single nodes too, since several rows may share one."""
    by_candidates: dict[tuple[int, str], list[int]] = defaultdict(list)
    group_of = _candidate_groups(sets, sorted({number for number, _ in nodes}), near)
    for number, family in nodes:
        by_candidates[group_of[number], family].append(number)
    for (_, family), numbers in by_candidates.items():
        threshold = near.threshold_for(family)
        if threshold > 1.0:
            continue  # not even equal sets are near then
        places = np.array(numbers, dtype=np.int64)
        links = vstack([csr_matrix(block >= threshold) for _, block in sets.jaccards(places, places)])
        count, labels = connected_components(links, directed=False)
        groups: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        for number, label in zip(numbers, labels.tolist(), strict=True):
            groups[label].append((number, family))
        yield from groups


def _candidate_groups(sets: DistinctSets, numbers: Sequence[int], near: Near) -> dict[int, int]:
    """Groups of sets chained by shared LSH buckets, as the installed datasketch draws them. Equal sets share buckets."""
    texts = ([str(shingle).encode() for shingle in sets.members(number)] for number in numbers)
    sketch_of = dict(zip(numbers, MinHash.generator(texts, num_perm=near.num_perm), strict=True))
    lsh = MinHashLSH(threshold=near.lsh_threshold, num_perm=near.num_perm)
    for number, sketch in sketch_of.items():
        lsh.insert(number, sketch)
    group_of: dict[int, int] = {}
    for number in numbers:
        reached = {number} - group_of.keys()
        while reached:
            current = reached.pop()
            group_of[current] = number
            reached.update(set(lsh.query(sketch_of[current])) - group_of.keys())
    return group_of


def remove_structural(
    kept: Sequence[int],
    sets: DistinctSets,
    set_of: Sequence[int],
    fingerprint_of: Callable[[int], int],
    quality: Sequence[int],
    threshold: float,
) -> Removed:
    """Rows with the fingerprint of a better row, then rows that are like another in an order-dependent sweep.

    The sweep takes each pair of rows in order while both are there and removes the worse one (the later of equals).

    Args:
        set_of: the number of each row's layer set.
    """
    groups: dict[int, list[int]] = {}
    for row in kept:
        groups.setdefault(fingerprint_of(row), []).append(row)
    removed: Removed = {}
    for group in groups.values():
        best = [min(group, key=quality.__getitem__)]
        removed.update((row, best) for row in group if row != best[0])
    left = [row for row in kept if row not in removed]
    for row, others in _alike(left, sets, set_of, threshold):
        if row in removed:
            continue
        for other in others:
            if other in removed:
                continue
            if quality[row] <= quality[other]:
                removed[other] = [row]
            else:
                removed[row] = [other]
                break
    return removed


def _alike(
    rows: Sequence[int], sets: DistinctSets, set_of: Sequence[int], threshold: float
) -> Iterator[tuple[int, Sequence[int]]]:
    """Each row with the later rows whose layer sets have at least the Jaccard, in order."""
    numbers: Ints = np.array([set_of[row] for row in rows], dtype=np.int64)
    for start, block in sets.jaccards(numbers, numbers):
        for place, near in enumerate(block >= threshold, start):
            yield rows[place], [rows[other] for other in (np.flatnonzero(near[place + 1 :]) + place + 1).tolist()]
