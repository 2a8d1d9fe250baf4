"""Splits without leakage: groups of near records, which share a split, and their names.

Groups are the connected components of the kept records under "Jaccard >= 0.70, or the same fingerprint, or the same
graph or numbers in eval mode, or the same graph up to widths (G1)". They fill test, then validation, until each has its
share of every prefix and family: groups of the rarest first, otherwise in an order drawn from the seed and the group
itself, so that adding or removing a record moves few others. A group larger than half a held-out split goes to train,
whatever its draw; one with a published split keeps it.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from curate.model.corpus import FeatureTable
from curate.model.options import LEAK_THRESHOLD, SPLIT_RATIOS
from lemur_core.similarity.join import exact_pairs, link_by_lsh, pairs_between
from lemur_core.similarity.minhash import IntArray

#: Identities of what codes compute, by code index; codes that share one must be in one split.
Computations = Sequence[Mapping[int, str]]

#: Prefixes and families of fewer records are balanced together: a tenth of each is less than one record.
RARE = 10

#: How many times its share of a prefix or family a held-out split may take: more than once only if it cannot be filled
#: otherwise, since one group may hold most records of a prefix.
_TIMES = (1.0, 1.1, 1.3, 2.0, 1e9)

#: What a split has a share of: a column and a value of it, or all records.
_Kind = tuple[str, str]
_ALL = ("", "")


def group_names(groups: Sequence[int], ids: Sequence[str]) -> list[str]:
    """Return each record's group name: the smallest id in its group, cut to 16 digits."""
    names: dict[int, str] = {}
    for group, id_ in zip(groups, ids, strict=True):
        names[group] = min(names.get(group, id_), id_)
    return [names[group][:16] for group in groups]


def assign_splits(
    groups: Sequence[int],
    ids: Sequence[str],
    kinds: Sequence[tuple[str, str]],
    seed: int,
    published: Mapping[int, str] = {},
) -> list[str]:
    """Assign a split to each record: about 80 / 10 / 10 of all, of each prefix and of each family, whole groups only.

    Args:
        groups: group number of each record. ids: its SHA-256. kinds: its prefix and its family.
        seed: another seed draws another order.
        published: the splits of groups that have one already.
    """
    frequencies = [Counter(values) for values in zip(*kinds, strict=True)]
    holdings: dict[int, Counter[_Kind]] = defaultdict(Counter)  # records of each group, by kind
    smallest: dict[int, str] = {}  # id in each group, by which it is drawn: other members may come and go
    for group, id_, values in zip(groups, ids, kinds, strict=True):
        smallest[group] = min(smallest.get(group, id_), id_)
        holdings[group][_ALL] += 1
        for name, value, frequency in zip(("prefix", "family"), values, frequencies, strict=True):
            holdings[group][(name, value) if frequency[value] >= RARE else (f"rare {name}", "")] += 1
    draws = {group: hashlib.sha256(f"{seed}:{id_}".encode()).digest() for group, id_ in smallest.items()}
    total = sum(holdings.values(), Counter[_Kind]())
    # The rarest kinds first, while there is room for their groups.
    order = sorted(holdings, key=lambda group: (min(total[kind] for kind in holdings[group]), draws[group]))
    split_of = dict.fromkeys(holdings, "train") | dict(published)
    for split in ("test", "validation"):
        shares = {kind: count * SPLIT_RATIOS[split] for kind, count in total.items()}
        quota = round(shares.get(_ALL, 0.0))
        free = [
            group
            for group in order
            if split_of[group] == "train" and group not in published and holdings[group][_ALL] <= max(1, quota // 2)
        ]
        taken = sum((holdings[group] for group in holdings if split_of[group] == split), Counter[_Kind]())
        for times in _TIMES:
            limits = {kind: max(1, round(share * times)) for kind, share in shares.items()} | {_ALL: quota}
            for group in free:
                fits = all(taken[kind] + count <= limits[kind] for kind, count in holdings[group].items())
                if fits and split_of[group] == "train":
                    split_of[group] = split
                    taken.update(holdings[group])
    return [split_of[group] for group in groups]


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


class SplitGroups:
    """Groups of codes that must share a split, extended by one code at a time.

    Args:
        near: the shingle sets near to one at LEAK_THRESHOLD; sets of codes that are not added do not matter.
    """

    def __init__(
        self,
        features: FeatureTable,
        near: Callable[[int], Iterable[int]],
        computations: Computations,
    ) -> None:
        self._features, self._near, self._computations = features, near, computations
        self._groups = DisjointSet()
        self._holders = defaultdict[tuple[object, ...], list[int]](list)  # a code of each group that has a key
        self._splits: dict[int, str] = {}  # root of a group -> split
        self._forced = False  # whether a code was added in spite of groups of another split

    def add(
        self, code_index: int, split: str | None = None, tied: Collection[int] = (), *, force: bool = False
    ) -> bool:
        """Add a code to the groups that it must be with, unless these are of several splits.

        Args:
            split: that it must be in, if known. tied: further codes that it must be with.
            force: add it to the groups of its split alone.
        """
        own = self._list_shared(code_index)
        near = {self._groups[other] for other, _ in self.list_tied(code_index)}
        roots = near | {self._groups[other] for other in tied if other in self._groups}
        if force:
            fitting = {root for root in roots if self._splits.get(root, split) == split}
            self._forced |= fitting != roots
            roots = fitting
        possible = {self._splits[root] for root in roots if root in self._splits} | ({split} if split else set())
        if len(possible) > 1:
            return False
        self._groups.add(code_index)
        for root in roots:
            self._groups.merge(code_index, root)
        if possible:
            self._splits[self._groups[code_index]] = min(possible)
        for key in own:
            if self._groups[code_index] not in {self._groups[other] for other in self._holders[key]}:
                self._holders[key].append(code_index)
        return True

    def list_tied(self, code_index: int) -> list[tuple[int, bool]]:
        """Return codes that one must be with, one of each of their groups, and whether it is only near them by text."""
        keys = self._list_shared(code_index)
        tied = [(other, False) for key in keys for other in self._holders.get(key, ())]
        own = int(self._features.shingle_set[code_index])
        if self._forced or ("set", own) not in self._holders:  # else a code with the same set has joined the near ones
            for near in self._near(own):
                tied += ((other, True) for other in self._holders.get(("set", near), ()))
        return tied

    def split(self, code_index: int) -> str | None:
        """Return the split of a code's group; None if nothing decides it."""
        return self._splits.get(self._groups[code_index])

    def root(self, code_index: int) -> int:
        """Return the code that stands for a code's group."""
        return int(self._groups[code_index])

    def _list_shared(self, code_index: int) -> list[tuple[object, ...]]:
        """Return what a code shares with all codes that it must be with."""
        features = self._features
        keys: list[tuple[object, ...]] = [("set", int(features.shingle_set[code_index]))]
        keys.append(("fingerprint", int(features.fingerprint[code_index])))
        keys += ((number, of[code_index]) for number, of in enumerate(self._computations) if code_index in of)
        return keys


def group_kept(
    kept: Sequence[int],
    features: FeatureTable,
    computations: Computations = (),
    published: Mapping[int, str] = {},
) -> SplitGroups:
    """Return the groups of kept codes. Args: published: the splits of codes that have one already, which come first."""
    near, _ = _find_near_sets(features, dict.fromkeys(kept))
    groups = SplitGroups(features, near.__getitem__, computations)
    for code_index in kept:
        alone = groups.add(code_index, published.get(code_index), force=code_index in published)
        assert alone, "a kept record is near to two splits"
    return groups


def _find_near_sets(
    features: FeatureTable, split_of: Mapping[int, str | None]
) -> tuple[defaultdict[int, list[int]], bool]:
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
    for code_index, split in split_of.items():
        splits[int(features.shingle_set[code_index])].add(split)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, component in component_of.items():
        members[component].append(number)
    for numbers in members.values():
        counts = Counter(split for number in numbers for split in splits[number])
        if len(counts) > 1:
            most = max(counts, key=lambda split: (counts[split], split or ""))
            rare = [number for number in numbers if splits[number] != {most}]
            yield np.array(rare, np.int64), np.array(numbers, np.int64)


def split_corpus(
    features: FeatureTable,
    ids: Sequence[str],
    kept: Mapping[int, str],
    removed: Mapping[int, int],
    others: Mapping[int, tuple[str, str]],
    computations: Computations,
    seed: int,
) -> CorpusSplits:
    """Assign a group and a split to each code of a corpus, except to those that are near to several splits.

    Args:
        ids: SHA-256 of each code.
        kept: splits of the kept codes, without leakage among themselves.
        removed: code index -> its canonical among the kept codes; the first are placed first.
        others: prefix and family of codes that were compared with none; they follow what is near to them, and those
            that are near to nothing else fill splits of their own.
        seed: of the splits of groups that hold no kept code.
    """
    while True:
        count = len(removed) + len(others)
        of_canonical = {code_index: kept[canonical] for code_index, canonical in removed.items()}
        near, exact = _find_near_sets(features, {**dict.fromkeys(others), **of_canonical, **kept})
        groups = SplitGroups(features, near.__getitem__, computations)
        for code_index, split in kept.items():
            groups.add(code_index, split, force=True)
        removed = {
            code_index: canonical
            for code_index, canonical in removed.items()
            if groups.add(code_index, kept[canonical], [canonical])
        }
        others = {code_index: kind for code_index, kind in others.items() if groups.add(code_index)}
        if exact or len(removed) + len(others) == count:
            break
        # What connects others through a code that is in no group was not compared: once more without such codes.
    placed = [*kept, *removed, *others]
    roots = {code_index: groups.root(code_index) for code_index in placed}
    split_of = {code_index: groups.split(code_index) for code_index in placed}
    free = [code_index for code_index, split in split_of.items() if split is None]
    kinds = [others.get(code_index, ("", "")) for code_index in free]
    own_ids = [ids[code_index] for code_index in free]
    drawn = assign_splits([roots[code_index] for code_index in free], own_ids, kinds, seed)
    names = group_names([*roots.values()], [ids[code_index] for code_index in placed])
    splits = {code_index: split for code_index, split in split_of.items() if split is not None}
    return CorpusSplits(dict(zip(placed, names, strict=True)), splits | dict(zip(free, drawn, strict=True)))
