"""Splits without leakage: groups of near records, which share a split, and their names.

Records that are lexically close, structurally equal or equal computations up to widths share a split, group by group.
Groups are the connected components of the kept records under "Jaccard >= 0.70, or the same fingerprint, or the same
G1". They fill test, then validation, until each has its share of every prefix and family: groups of the rarest first,
otherwise in an order drawn from the seed and the group itself, so that adding or removing a record moves few others.
A group larger than half a held-out split goes to train, whatever its draw.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD, SPLIT_RATIOS
from lemur_core.similarity.join import exact_pairs, link_by_lsh, pairs_between
from lemur_core.similarity.minhash import IntArray


def split_groups(kept: Sequence[int], features: FeatureTable, graphs: Sequence[str | None] | None = None) -> list[int]:
    """Return the group number of each kept code; codes of one group must share a split.

    Args: graphs: what each kept code computes up to widths; None if unknown.
    """
    count = len(kept)
    codes = np.array(kept, np.int64)
    sets, set_place = np.unique(features.shingle_set[codes], return_inverse=True)
    structures, structure_place = np.unique(features.fingerprint[codes], return_inverse=True)
    set_group = _components(sets, features)
    # nodes: groups of shingle sets, then fingerprints, then graphs; each record connects its own
    nodes = int(set_group.max(initial=-1)) + 1
    # A code without a graph counts as a separate computation.
    known = [text or str(code) for code, text in zip(kept, graphs or [None] * count, strict=True)]
    computed, computed_place = np.unique(np.array(known, str), return_inverse=True)
    first = set_group[set_place]
    others = (nodes + structure_place, nodes + len(structures) + computed_place)
    ties = (np.concatenate([first, first]), np.concatenate(others))
    size = nodes + len(structures) + len(computed)
    tied = coo_array((np.ones(2 * count, np.int8), ties), shape=(size, size))
    _, labels = connected_components(tied, directed=False)
    groups: list[int] = labels[first].tolist()
    return groups


def _components(sets: IntArray, features: FeatureTable) -> IntArray:
    """Return the component of each shingle set under Jaccard >= LEAK_THRESHOLD, numbered from 0."""
    pairs = exact_pairs(features, sets, LEAK_THRESHOLD)
    if pairs.complete:
        ends = (np.searchsorted(sets, pairs.a), np.searchsorted(sets, pairs.b))
    else:
        ends = link_by_lsh(features, sets, LEAK_THRESHOLD)
    graph = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(len(sets), len(sets)))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def group_names(groups: Sequence[int], ids: Sequence[str]) -> list[str]:
    """Return each record's group name: the smallest id in its group, cut to 16 digits."""
    names: dict[int, str] = {}
    for group, id_ in zip(groups, ids, strict=True):
        names[group] = min(names.get(group, id_), id_)
    return [names[group][:16] for group in groups]


def assign_splits(groups: Sequence[int], ids: Sequence[str], kinds: Sequence[tuple[str, str]], seed: int) -> list[str]:
    """Assign a split to each record: about 80 / 10 / 10 of all, of each prefix and of each family, whole groups only.

    Args:
        groups: group number of each record. ids: its SHA-256. kinds: its prefix and its family.
        seed: another seed draws another order.
    """
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    # a group is drawn by its smallest id, so that adding or removing another member does not change its draw
    smallest = {group: min(ids[index] for index in rows) for group, rows in members.items()}
    draws = {group: hashlib.sha256(f"{seed}:{id_}".encode()).digest() for group, id_ in smallest.items()}
    holdings = _count_kinds(members, kinds)
    total: Counter[_Kind] = Counter()
    for holding in holdings.values():
        total.update(holding)
    # The rarest kinds first, while there is room for their groups.
    order = sorted(members, key=lambda group: (min(total[kind] for kind in holdings[group]), draws[group]))
    split_of = dict.fromkeys(members, "train")
    for split in ("test", "validation"):
        for group in _fill([group for group in order if split_of[group] == "train"], holdings, total, split):
            split_of[group] = split
    return [split_of[group] for group in groups]


#: What a split has a share of: a column and a value of it, or all records.
_Kind = tuple[str, str]
_ALL = ("", "")

#: Prefixes and families of fewer records are balanced together: a tenth of each is less than one record.
RARE = 10

#: How many times its share of a prefix or family a held-out split may take: more than once only if it cannot be filled
#: otherwise, since one group may hold most records of a prefix.
_TIMES = (1.0, 1.1, 1.3, 2.0, 1e9)


def _count_kinds(members: Mapping[int, Sequence[int]], kinds: Sequence[tuple[str, str]]) -> dict[int, Counter[_Kind]]:
    """Return how many records of each prefix and family, and of all, each group holds."""
    indices = [index for rows in members.values() for index in rows]
    labels: dict[int, tuple[_Kind, ...]] = dict.fromkeys(indices, (_ALL,))
    for column, name in enumerate(("prefix", "family")):
        counts = Counter(kinds[index][column] for index in indices)
        for index in indices:
            value = kinds[index][column]
            labels[index] += ((name, value) if counts[value] >= RARE else (f"rare {name}", ""),)
    return {group: Counter(kind for index in rows for kind in labels[index]) for group, rows in members.items()}


def _fill(
    order: Sequence[int], holdings: Mapping[int, Counter[_Kind]], total: Mapping[_Kind, int], split: str
) -> list[int]:
    """Choose the groups of a held-out split: the first, in order, for which it is short of all their kinds.

    Args: holdings: the records of each group by kind. total: of all groups.
    """
    shares = {kind: count * SPLIT_RATIOS[split] for kind, count in total.items()}
    quota = round(shares.get(_ALL, 0.0))
    largest = max(1, quota // 2)
    chosen: dict[int, None] = {}
    taken: Counter[_Kind] = Counter()
    for times in _TIMES:
        limits = {kind: max(1, round(share * times)) for kind, share in shares.items()} | {_ALL: quota}
        for group in order:
            holding = holdings[group]
            fits = all(taken[kind] + count <= limits[kind] for kind, count in holding.items())
            if fits and holding[_ALL] <= largest and group not in chosen:
                chosen[group] = None
                taken.update(holding)
        if taken[_ALL] == quota:
            break
    return list(chosen)


# Splits without leakage for all codes of a corpus, kept or not.
# The kept records have their splits already, from groups among themselves. A removed code belongs to the split of its
# canonical, a code that an option left out to that of the codes near it, and no group may cross splits: groups are
# those of `curate.model.splits`, now of all codes. A removed code may be near to kept records of two splits, which its
# own presence would make one group. It then belongs to no split, and ties nothing: training on it would show what is
# tested. Worked example: a (kept, train) and c (kept, test) are far apart; b, removed for a, is near to both. So a and
# c keep their splits, and b has none.


@dataclass(frozen=True, slots=True)
class CorpusSplits:
    """Group and split by code; a code that is near to codes of two splits is missing."""

    groups: Mapping[int, str]
    splits: Mapping[int, str]


class _Groups:
    """Groups of codes that must share a split, extended by one code at a time."""

    def __init__(
        self, features: FeatureTable, split_of: Mapping[int, str | None], computed: Sequence[Mapping[int, str]]
    ) -> None:
        self._features, self._computed = features, computed
        self._near, self.exact = _find_near_sets(features, split_of)
        self._groups = DisjointSet()
        self._first: dict[tuple[object, ...], int] = {}  # what codes share -> the first code that has it
        self._splits: dict[int, str] = {}  # root of a group -> split

    def add(self, code: int, split: str | None = None, tied: Collection[int] = ()) -> bool:
        """Add a code to the groups that it is near to, unless these are of several splits.

        Args: split: that it must be in, if known. tied: further codes that it must be with.
        """
        shared = list(self._list_shared(code))
        near = [self._first[key] for key in (*shared, *self._list_near(code)) if key in self._first]
        roots = {self._groups[other] for other in (*near, *tied) if other in self._groups}
        possible = {self._splits[root] for root in roots if root in self._splits} | ({split} if split else set())
        if len(possible) > 1:
            return False
        self._groups.add(code)
        for root in roots:
            self._groups.merge(code, root)
        if possible:
            self._splits[self._groups[code]] = min(possible)
        for key in shared:
            self._first.setdefault(key, code)
        return True

    def split(self, code: int) -> str | None:
        """Return the split of a code's group; None if nothing decides it."""
        return self._splits.get(self._groups[code])

    def root(self, code: int) -> int:
        """Return the code that stands for a code's group."""
        return int(self._groups[code])

    def _list_shared(self, code: int) -> Iterator[tuple[object, ...]]:
        """Yield what a code shares with all codes that it must be with."""
        yield "set", int(self._features.shingle_set[code])
        yield "fingerprint", int(self._features.fingerprint[code])
        for number, names in enumerate(self._computed):
            if code in names:
                yield number, names[code]

    def _list_near(self, code: int) -> Iterator[tuple[object, ...]]:
        """Yield the sets near to that of a code; none if a code with the same set has joined them already."""
        own = int(self._features.shingle_set[code])
        if ("set", own) not in self._first:
            yield from (("set", other) for other in self._near.get(own, ()))


def _find_near_sets(
    features: FeatureTable, split_of: Mapping[int, str | None]
) -> tuple[Mapping[int, Sequence[int]], bool]:
    """Return for each shingle set the others at LEAK_THRESHOLD or more, and whether these are all.

    Of a corpus that is too large for an exact join they are all those between codes of different splits, and otherwise
    enough to give the same groups.

    Args: split_of: the split of each code that its canonical or its record has; None if it has none.
    """
    sets = np.unique(features.shingle_set[np.array([*split_of], np.int64)])
    pairs = exact_pairs(features, sets, LEAK_THRESHOLD)
    ends = [(pairs.a, pairs.b)]
    if not pairs.complete:
        a, b = link_by_lsh(features, sets, LEAK_THRESHOLD)
        ends = [(sets[a], sets[b])]
        graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(len(sets), len(sets)))
        _, component = connected_components(graph, directed=False)
        for rare, others in _list_mixed(features, split_of, dict(zip(sets.tolist(), component.tolist(), strict=True))):
            mixed = pairs_between(features, rare, others, LEAK_THRESHOLD)
            ends.append((mixed.a, mixed.b))
    near = defaultdict[int, list[int]](list)
    for left, right in ends:
        for one, other in zip(left.tolist(), right.tolist(), strict=True):
            if one != other:
                near[one].append(other)
                near[other].append(one)
    return near, pairs.complete


def _list_mixed(
    features: FeatureTable, split_of: Mapping[int, str | None], component_of: Mapping[int, int]
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield of each component with several splits the sets that have another than the most frequent one, and all."""
    splits: defaultdict[int, set[str | None]] = defaultdict(set)
    for code, split in split_of.items():
        splits[int(features.shingle_set[code])].add(split)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, component in component_of.items():
        members[component].append(number)
    for numbers in members.values():
        counts = Counter(split for number in numbers for split in splits[number])
        if len(counts) > 1:
            most = max(counts, key=lambda split: (counts[split], split or ""))
            rare = [number for number in numbers if splits[number] != {most}]
            yield np.array(rare, np.int64), np.array(numbers, np.int64)


def _place(
    features: FeatureTable,
    kept: Mapping[int, str],
    removed: Mapping[int, int],
    others: Mapping[int, tuple[str, str]],
    computed: Sequence[Mapping[int, str]],
) -> tuple[_Groups, list[int]]:
    """Return the groups of the codes, and those that are in one; see `split_corpus`."""
    of_canonical = {code: kept[canonical] for code, canonical in removed.items()}
    groups = _Groups(features, {**dict.fromkeys(others), **of_canonical, **kept}, computed)
    for code, split in kept.items():
        alone = groups.add(code, split)
        assert alone, "kept records of two splits are near each other"
    placed = list(kept)
    placed += [code for code, canonical in removed.items() if groups.add(code, kept[canonical], [canonical])]
    placed += [code for code in others if groups.add(code)]
    return groups, placed


def split_corpus(
    features: FeatureTable,
    ids: Sequence[str],
    kept: Mapping[int, str],
    removed: Mapping[int, int],
    others: Mapping[int, tuple[str, str]],
    computed: Sequence[Mapping[int, str]],
    seed: int,
) -> CorpusSplits:
    """Assign a group and a split to each code of a corpus.

    Args:
        ids: SHA-256 of each code.
        kept: splits of the kept codes, without leakage among themselves.
        removed: code -> its canonical among the kept codes; those that come first are the first to be placed.
        others: prefix and family of codes that were compared with none; they follow what is near to them, and those
            that are near to nothing else fill splits of their own.
        computed: identities of computations by code; codes that share one must be in one split.
        seed: of the splits of groups that hold no kept code.
    Returns: groups and splits, without the codes that are near to several splits.
    """
    groups, placed = _place(features, kept, removed, others, computed)
    while not groups.exact and len(placed) < len(kept) + len(removed) + len(others):
        # What connects others through a code that is in no group was not compared: once more without such codes.
        left = set(placed)
        removed = {code: canonical for code, canonical in removed.items() if code in left}
        others = {code: kind for code, kind in others.items() if code in left}
        groups, placed = _place(features, kept, removed, others, computed)
    free = [code for code in placed if groups.split(code) is None]
    kinds = [others.get(code, ("", "")) for code in free]
    drawn = assign_splits([groups.root(code) for code in free], [ids[code] for code in free], kinds, seed)
    splits_of = {code: groups.split(code) for code in placed} | dict(zip(free, drawn, strict=True))
    names = group_names([groups.root(code) for code in placed], [ids[code] for code in placed])
    return CorpusSplits(
        dict(zip(placed, names, strict=True)), {code: split for code, split in splits_of.items() if split is not None}
    )
