"""The three removing stages of nn-dup 2.2.4: equal code, lexical near-duplicates, structural duplicates.

Each takes the rows that are still kept, in nn-dup's order, and returns the removed ones, each with the rows that the
stage kept instead, best first. Removals are in the order in which nn-dup records them, lexical ones in the order of the
rows (in nn-dup: hash order).

Two more stages restore removed rows: a minimum per prefix, and a few diverse rows. Both take candidates by quality, and
tied rows in the order of their removal (in nn-dup: hash order).
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from datasketch import MinHash, MinHashLSH
from datasketch.hashfunc import sha1_hash32
from scipy.sparse import csr_matrix, vstack
from scipy.sparse.csgraph import connected_components

from curate.compat.code import DistinctSets, RowSets, first_prefix, normalise_name
from curate.model.options import CurateOptions
from lemur_core.files import Json

#: Removed row -> the rows that its stage kept instead, best first.
Removed = dict[int, Sequence[int]]


#: Module constants of nn-dup: the Jaccard for which its LSH is tuned, and the permutations of a sketch.
LSH_THRESHOLD = 0.85
PERMUTATIONS = 256

#: The default sketch of the installed datasketch, which nn-dup uses: datasketch 2.0 changed its permutations, and with
#: them the pairs that it proposes. https://github.com/ekzhu/datasketch/pull/323
SKETCH_SCHEME = "affine32" if "scheme" in inspect.signature(MinHash.__init__).parameters else "legacy"


#: All options of a sketch, so that a later default cannot change it.
SKETCH_OPTIONS: Json = {"num_perm": PERMUTATIONS, "seed": 1, "hashfunc": sha1_hash32} | (
    {} if SKETCH_SCHEME == "legacy" else {"scheme": SKETCH_SCHEME}
)


def _near_threshold(options: CurateOptions, family: str) -> float:
    """Return the Jaccard from which two records of a family are near-duplicates."""
    return options.fractal_threshold if family.startswith("fractal") else options.lexical_threshold


def remove_equal_code(rows: RowSets, candidates: Sequence[int], prefer: Sequence[str]) -> tuple[list[int], Removed]:
    """Keep, of the rows with the same code, the best of the most preferred prefix (among equals, the first row).

    Returns: the kept rows, in the order in which their codes first appear, and the removed ones.
    """
    groups: dict[str, list[int]] = {}
    for row in candidates:
        groups.setdefault(rows.code[row], []).append(row)

    def rank(row: int) -> tuple[int, int]:
        index = first_prefix(rows.names[row], prefer)
        return len(prefer) if index is None else index, rows.quality[row]

    return _best_of_each(list(groups.values()), rank)


def remove_lexical(rows: RowSets, kept: Sequence[int], include: Sequence[str], options: CurateOptions) -> Removed:
    """Remove all but the best few of each group of near-duplicates (chained, within one family).

    A group also keeps the best row of each included prefix that has none among these. Of rows that tie in quality, the
    earlier one is better (in nn-dup: the first in hash order).
    """
    rows_of: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in kept:
        rows_of[rows.shingles_of[row], rows.families[row]].append(row)
    kept_for: Removed = {}
    for nodes in _near_groups(rows.shingles, sorted(rows_of), options):
        members = [row for node in nodes for row in rows_of[node]]
        members.sort(key=lambda row: (rows.quality[row], row))
        chosen, rest = members[: options.keep_per_family], members[options.keep_per_family :]
        covered = {first_prefix(rows.names[row], include) for row in chosen} | {None}
        for row in rest:
            prefix = first_prefix(rows.names[row], include)
            if prefix not in covered:
                covered.add(prefix)
                chosen.append(row)
        kept_for.update(dict.fromkeys(set(rest).difference(chosen), chosen))
    return {row: kept_for[row] for row in kept if row in kept_for}


def remove_structural(rows: RowSets, kept: Sequence[int], threshold: float) -> Removed:
    """Remove rows with the fingerprint of a better one, then rows similar to another, in an order-dependent sweep.

    The sweep takes the pairs of rows in order, while both are kept, and removes the worse one (the later of equals).
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
    """Return the best row of each group (the first of equals), and all others, removed in its favor."""
    best = [min(group, key=rank) for group in groups]
    removed: Removed = {}
    for row, group in zip(best, groups, strict=True):
        instead = [row]
        removed.update((other, instead) for other in group if other != row)
    return best, removed


def _near_groups(
    sets: DistinctSets, nodes: Sequence[tuple[int, str]], options: CurateOptions
) -> Iterator[list[tuple[int, str]]]:
    """Yield connected groups of (set number, family) nodes; also single nodes, since several rows may share one."""
    group_of = _candidate_groups(sets, sorted({number for number, _ in nodes}))
    candidates: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, family in nodes:
        candidates[group_of[number], family].append(number)
    for (_, family), numbers in candidates.items():
        threshold = _near_threshold(options, family)
        own = np.array(numbers, dtype=np.int64)
        links = vstack([csr_matrix((block >= threshold).astype(np.int8)) for _, block in sets.jaccards(own, own)])
        count, labels = connected_components(links, directed=False)
        groups: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        for number, label in zip(numbers, labels.tolist(), strict=True):
            groups[label].append((number, family))
        yield from groups


def _candidate_groups(sets: DistinctSets, numbers: Sequence[int]) -> dict[int, int]:
    """Group sets chained by shared LSH buckets, as the installed datasketch does."""
    texts = ([str(shingle).encode() for shingle in sets.members(number)] for number in numbers)
    sketch_of = dict(zip(numbers, MinHash.generator(texts, **SKETCH_OPTIONS), strict=True))
    lsh = MinHashLSH(threshold=LSH_THRESHOLD, num_perm=PERMUTATIONS)
    for number, sketch in sketch_of.items():
        lsh.insert(number, sketch)
    group_of: dict[int, int] = {}
    for number in numbers:
        # Chained: a set brings along all sets in its buckets, even if their Jaccard similarity is low.
        reached = {number} - group_of.keys()
        while reached:
            current = reached.pop()
            group_of[current] = number
            reached.update(set(lsh.query(sketch_of[current])) - group_of.keys())
    return group_of


def _similar_rows(rows: RowSets, kept: Sequence[int], threshold: float) -> Iterator[tuple[int, list[int]]]:
    """Yield each row with the later rows whose layer sets have at least this Jaccard, in order."""
    numbers = np.array([rows.layers_of[row] for row in kept], dtype=np.int64)
    for start, block in rows.layers.jaccards(numbers, numbers):
        for index, is_near in enumerate(block >= threshold, start):
            yield kept[index], [kept[other] for other in np.flatnonzero(is_near).tolist() if other > index]


class _Screen:
    """Rejects rows whose set is too similar to a kept one; rejection is final, since the kept set only grows."""

    def __init__(
        self, sets: DistinctSets, number_of: Sequence[int], limit_for: Callable[[int], float], empty_counts: bool
    ) -> None:
        self._sets, self._number_of, self._limit_for, self._empty_counts = sets, number_of, limit_for, empty_counts
        self._rejected: set[int] = set()

    def admits(self, row: int, fresh: Sequence[int], candidates: Sequence[int]) -> bool:
        """Return whether a row is unlike all kept ones.

        Args: fresh: rows kept since the last call. candidates: all rows that will be checked.
        """
        kept = [other for other in fresh if self._counts(other)]
        if kept:
            rest = np.array(sorted({self._number_of[other] for other in candidates} - self._rejected), dtype=np.int64)
            limits = np.array([self._limit_for(other) for other in kept])
            numbers = np.array([self._number_of[other] for other in kept], dtype=np.int64)
            for start, block in self._sets.jaccards(rest, numbers):
                near = (block >= limits).any(axis=1)
                self._rejected.update(rest[start : start + len(block)][near].tolist())
        return not self._counts(row) or self._number_of[row] not in self._rejected

    def _counts(self, row: int) -> bool:
        return self._empty_counts or bool(self._sets.sizes[self._number_of[row]])


def rescue_for_prefixes(
    rows: RowSets, kept: Sequence[int], removed: Sequence[int], options: CurateOptions
) -> list[int]:
    """Return the best rows to restore so that each included prefix has its minimum of rows unlike each other.

    Rows without tokens are similar to none. A kept row counts for the first prefix that it begins with.

    Args: removed: in the order of removal.
    """
    rescued: list[int] = []
    limits = [_near_threshold(options, family) for family in rows.families]
    beginnings = [normalise_name(prefix) for prefix in options.include]
    kept_prefixes = [first_prefix(rows.names[row], beginnings) for row in kept]
    for prefix, beginning in zip(options.include, beginnings, strict=True):
        need = options.min_prefix - kept_prefixes.count(options.include.index(prefix))
        screen = _Screen(rows.shingles, rows.shingles_of, limits.__getitem__, empty_counts=False)
        rescued += _best_admitted(rows, removed, [*kept, *rescued], beginning, need, [screen])
    return rescued


def top_up(rows: RowSets, kept: Sequence[int], removed: Sequence[int], options: CurateOptions) -> list[int]:
    """Return rows to add for diversity: per prefix, the best few that exceed neither limit to any of its kept rows.

    Rows without tokens count as lexically unlike all others.

    Args: removed: in the order of removal.
    """
    limits = (options.topup_lexical_max, options.topup_structural_max)
    # nn-dup rejects rows that exceed a limit, a screen those that reach it: the next larger number makes them agree.
    lexical, structural = (float(np.nextafter(limit, np.inf)) for limit in limits)
    added: list[int] = []
    fractal_prefixes = [name for name in options.include if normalise_name(name).startswith("fractalnet")]
    for beginning in map(normalise_name, options.topup_prefix or fractal_prefixes):
        screens = [
            _Screen(rows.shingles, rows.shingles_of, lambda _: lexical, empty_counts=False),
            _Screen(rows.layers, rows.layers_of, lambda _: structural, empty_counts=True),
        ]
        added += _best_admitted(rows, removed, [*kept, *added], beginning, options.topup_per_prefix, screens)
    return added


def _best_admitted(
    rows: RowSets, removed: Sequence[int], kept: Sequence[int], beginning: str, limit: int, screens: Sequence[_Screen]
) -> list[int]:
    """Return the best removed rows with this beginning whose code is not kept and that all screens admit."""
    present = {rows.code[row] for row in kept}
    candidates = [row for row in removed if rows.names[row].startswith(beginning) and rows.code[row] not in present]
    candidates.sort(key=rows.quality.__getitem__)
    fresh = [row for row in kept if rows.names[row].startswith(beginning)]
    admitted: list[int] = []
    for row in candidates:
        if len(admitted) >= limit:
            break
        verdicts = [screen.admits(row, fresh, candidates) for screen in screens]  # every screen must see `fresh`
        fresh = [row] if all(verdicts) else []
        admitted += fresh
    return admitted
