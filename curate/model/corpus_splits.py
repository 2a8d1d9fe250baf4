"""Splits without leakage for all codes of a corpus, kept or not.

The kept records have their splits already, from groups among themselves. A removed code belongs to the split of its
canonical, a code that an option left out to that of the codes near it, and no group may cross splits: groups are those
of `curate.model.splits`, now of all codes. A removed code may be near to kept records of two splits, which its own
presence would make one group. It then belongs to no split, and ties nothing: training on it would show what is tested.

Worked example: a (kept, train) and c (kept, test) are far apart; b, removed for a, is near to both. So a and c keep
their splits, and b has none.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD
from curate.model.splits import assign_splits, group_names
from lemur_core.similarity.join import exact_pairs, link_by_lsh, pairs_between
from lemur_core.similarity.minhash import IntArray


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

    def add(self, code: int, splits: Collection[str], tied: Collection[int] = ()) -> bool:
        """Add a code to the groups that it is near to, unless these are of several splits.

        Args: splits: that it must be in, as far as known. tied: further codes that it must be with.
        """
        shared = list(self._list_shared(code))
        near = [self._first[key] for key in (*shared, *self._list_near(code)) if key in self._first]
        roots = {self._groups[other] for other in (*near, *tied) if other in self._groups}
        possible = {*splits, *(self._splits[root] for root in roots if root in self._splits)}
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
    removed: Mapping[int, tuple[int | None, Collection[str]]],
    others: Mapping[int, tuple[str, str]],
    computed: Sequence[Mapping[int, str]],
) -> tuple[_Groups, list[int]]:
    """Return the groups of the codes, and those that are in one; see `split_corpus`."""
    of_canonical = {code: None if canonical is None else kept[canonical] for code, (canonical, _) in removed.items()}
    groups = _Groups(features, {**dict.fromkeys(others), **of_canonical, **kept}, computed)
    for code, split in kept.items():
        alone = groups.add(code, [split])
        assert alone, "kept records of two splits are near each other"
    placed = list(kept)
    for code, (canonical, splits) in removed.items():
        own = [] if canonical is None else [kept[canonical]]
        if groups.add(code, {*own, *splits}, [] if canonical is None else [canonical]):
            placed.append(code)
    placed += [code for code in others if groups.add(code, ())]
    return groups, placed


def split_corpus(
    features: FeatureTable,
    ids: Sequence[str],
    kept: Mapping[int, str],
    removed: Mapping[int, tuple[int | None, Collection[str]]],
    others: Mapping[int, tuple[str, str]],
    computed: Sequence[Mapping[int, str]],
    seed: int,
) -> CorpusSplits:
    """Assign a group and a split to each code of a corpus.

    Args:
        ids: SHA-256 of each code.
        kept: splits of the kept codes, without leakage among themselves.
        removed: code -> its canonical among the kept codes, if it is one, and the splits that it must be in for other
            reasons; those that come first are the first to be placed.
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
        removed = {code: ties for code, ties in removed.items() if code in left}
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
