"""Splits without leakage for all codes of a corpus, kept or not.

The kept records have their splits already, from groups among themselves. A removed code belongs to the split of its
canonical, a code that an option left out to that of the codes near it, and no group may cross splits: groups are those
of `curate.model.splits`, now of all codes. A removed code may be near to kept records of two splits, which its own
presence would make one group. It then belongs to no split, and ties nothing: training on it would show what is tested.

Worked example: a (kept, train) and c (kept, test) are far apart; b, removed for a, is near to both. So a and c keep
their splits, and b has none.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD
from curate.model.splits import assign_splits, group_names
from lemur_core.similarity.join import exact_pairs, pairs_between


@dataclass(frozen=True, slots=True)
class CorpusSplits:
    """Group and split by code; a code that is near to codes of two splits is missing."""

    groups: Mapping[int, str]
    splits: Mapping[int, str]


class _Groups:
    """Groups of codes that must share a split, extended by one code at a time."""

    def __init__(self, features: FeatureTable, codes: Sequence[int], computed: Sequence[Mapping[int, str]]) -> None:
        self._features, self._computed = features, computed
        self._near = _find_near_sets(features, codes)
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


def _find_near_sets(features: FeatureTable, codes: Sequence[int]) -> dict[int, list[int]]:
    """Return for each shingle set the others at LEAK_THRESHOLD or more."""
    sets = np.unique(features.shingle_set[np.array(codes, np.int64)])
    pairs = exact_pairs(features, sets, LEAK_THRESHOLD)
    if not pairs.complete:
        pairs = pairs_between(features, sets, sets, LEAK_THRESHOLD)
    near = defaultdict[int, list[int]](list)
    for a, b in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True):
        if a != b:
            near[a].append(b)
            near[b].append(a)
    return near


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
    groups = _Groups(features, [*kept, *removed, *others], computed)
    placed = list(kept)
    for code, split in kept.items():
        alone = groups.add(code, [split])
        assert alone, "kept records of two splits are near each other"
    for code, (canonical, splits) in removed.items():
        own = [] if canonical is None else [kept[canonical]]
        if groups.add(code, {*own, *splits}, [] if canonical is None else [canonical]):
            placed.append(code)
    placed += [code for code in others if groups.add(code, ())]
    free = [code for code in placed if groups.split(code) is None]
    kinds = [others.get(code, ("", "")) for code in free]
    drawn = assign_splits([groups.root(code) for code in free], [ids[code] for code in free], kinds, seed)
    splits_of = {code: groups.split(code) for code in placed} | dict(zip(free, drawn, strict=True))
    names = group_names([groups.root(code) for code in placed], [ids[code] for code in placed])
    return CorpusSplits(
        dict(zip(placed, names, strict=True)), {code: split for code, split in splits_of.items() if split is not None}
    )
