"""The three removing stages of nn-dup 2.2.4: equal code, lexical near-duplicates, structural duplicates.

Each takes the rows that are still kept, in nn-dup's order, and returns the removed ones, each with the rows that the
stage kept instead, best first. Removals are in the order in which nn-dup records them (lexical ones: in the order of
the rows that were kept, where nn-dup has hash order).

Two further stages bring removed rows back: a minimum for each prefix, and a diverse few on top. Both take candidates by
quality; of rows that tie in it, the one that was removed first comes first (nn-dup: hash order).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from datasketch import MinHash, MinHashLSH
from scipy.sparse import csr_matrix, vstack
from scipy.sparse.csgraph import connected_components

from curate.nndup.rows import DistinctSets, Ints, Rows, first_prefix, normalised

#: Removed row -> the rows that its stage kept instead, best first.
Removed = dict[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class LexicalLimits:
    """Where the lexical stage draws its lines."""

    threshold: float
    fractal_threshold: float
    lsh_threshold: float
    num_perm: int
    keep: int  # rows kept of a group

    def threshold_for(self, family: str) -> float:
        """The Jaccard from which two records of a family are near-duplicates."""
        return self.fractal_threshold if family.startswith("fractal") else self.threshold


def remove_equal_code(rows: Rows, given: Sequence[int], prefer: Sequence[str]) -> tuple[list[int], Removed]:
    """Of rows with the same code, keep the best of the most preferred prefix (among equals, the first row).

    Returns: the kept rows, in the order in which their codes appear first, and the removed ones.
    """
    groups: dict[str, list[int]] = {}
    for row in given:
        groups.setdefault(rows.code[row], []).append(row)

    def rank(row: int) -> tuple[int, int]:
        place = first_prefix(rows.names[row], prefer)
        return len(prefer) if place is None else place, rows.quality[row]

    return _best_of_each(list(groups.values()), rank)


def remove_lexical(rows: Rows, kept: Sequence[int], include: Sequence[str], limits: LexicalLimits) -> Removed:
    """Of each group of near-duplicates (chained, within one family), remove all but the best few.

    A group also keeps the best row of every included prefix that has none among these. Of rows that tie in quality, the
    earlier is better (in nn-dup: the one that hash order puts first).
    """
    rows_of: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in kept:
        rows_of[rows.shingles_of[row], rows.families[row]].append(row)
    stands: Removed = {}
    for nodes in _near_groups(rows.shingles, sorted(rows_of), limits):
        members = [row for node in nodes for row in rows_of[node]]
        members.sort(key=lambda row: (rows.quality[row], row))
        chosen, rest = members[: limits.keep], members[limits.keep :]
        covered = {first_prefix(rows.names[row], include) for row in chosen} | {None}
        for row in rest:
            prefix = first_prefix(rows.names[row], include)
            if prefix not in covered:
                covered.add(prefix)
                chosen.append(row)
        stands.update(dict.fromkeys(set(rest).difference(chosen), chosen))
    return {row: stands[row] for row in kept if row in stands}


def remove_structural(rows: Rows, kept: Sequence[int], threshold: float) -> Removed:
    """Remove rows with the fingerprint of a better one, then rows like another one, in a sweep that depends on order.

    The sweep takes the pairs of rows in order, each while both are there, and removes the worse one (the later of
    equals).
    """
    quality = rows.quality
    groups: dict[int, list[int]] = {}
    for row in kept:
        groups.setdefault(rows.fingerprint[row], []).append(row)
    _, removed = _best_of_each(list(groups.values()), quality.__getitem__)
    for row, others in _similar_rows(rows, [row for row in kept if row not in removed], threshold):
        for other in others if row not in removed else ():
            if other in removed:
                continue
            if quality[row] > quality[other]:
                removed[row] = [other]
                break
            removed[other] = [row]
    return removed


def _best_of_each(
    groups: Sequence[Sequence[int]], rank: Callable[[int], int | tuple[int, int]]
) -> tuple[list[int], Removed]:
    """The best row of each group (the first of equals), and all others, removed in its favour."""
    best = [min(group, key=rank) for group in groups]
    removed: Removed = {}
    for row, group in zip(best, groups, strict=True):
        instead = [row]
        removed.update((other, instead) for other in group if other != row)
    return best, removed


def _near_groups(
    sets: DistinctSets, nodes: Sequence[tuple[int, str]], limits: LexicalLimits
) -> Iterator[list[tuple[int, str]]]:
    """Connected groups of (set number, family) nodes; single nodes too, since several rows may share one."""
    group_of = _candidate_groups(sets, sorted({number for number, _ in nodes}), limits)
    candidates: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, family in nodes:
        candidates[group_of[number], family].append(number)
    for (_, family), numbers in candidates.items():
        threshold = limits.threshold_for(family)
        if threshold > 1.0:
            continue  # then not even equal sets are near
        places = np.array(numbers, dtype=np.int64)
        links = vstack([csr_matrix((block >= threshold).astype(np.int8)) for _, block in sets.jaccards(places, places)])
        count, labels = connected_components(links, directed=False)
        groups: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        for number, label in zip(numbers, labels.tolist(), strict=True):
            groups[label].append((number, family))
        yield from groups


def _candidate_groups(sets: DistinctSets, numbers: Sequence[int], limits: LexicalLimits) -> dict[int, int]:
    """Groups of sets chained by shared LSH buckets, as the installed datasketch draws them."""
    if not numbers:
        return {}
    texts = ([str(shingle).encode() for shingle in sets.members(number)] for number in numbers)
    sketch_of = dict(zip(numbers, MinHash.generator(texts, num_perm=limits.num_perm), strict=True))
    lsh = MinHashLSH(threshold=limits.lsh_threshold, num_perm=limits.num_perm)
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


def _similar_rows(rows: Rows, kept: Sequence[int], threshold: float) -> Iterator[tuple[int, list[int]]]:
    """Each row with the later rows whose layer sets have at least this Jaccard, in order."""
    numbers = np.array([rows.layers_of[row] for row in kept], dtype=np.int64)
    for start, block in rows.layers.jaccards(numbers, numbers):
        for place, is_near in enumerate(block >= threshold, start):
            yield kept[place], [kept[other] for other in np.flatnonzero(is_near).tolist() if other > place]


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
