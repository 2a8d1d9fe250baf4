"""Splits without leakage: groups of near records, which share a split, their names and their keys over deltas.

Records that are lexically close, structurally equal or equal computations up to widths share a split, group by group.
Groups are the connected components of the kept records under "Jaccard >= 0.70, or the same fingerprint, or the same
G1". They fill test, then validation, until each has its share of every prefix and family: groups of the rarest first,
otherwise in an order drawn from the seed and the group itself, so that adding or removing a record moves few others.
A group larger than half a held-out split goes to train, whatever its draw.

A new record may be near to two groups that were published under different keys. Their rows stay as they are; the delta
states in `clusters.parquet` which key each of them has now, together with what its parents have stated.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD, SPLIT_RATIOS
from lemur_core.similarity.join import exact_pairs, link_by_lsh
from lemur_core.similarity.minhash import IntArray
from manifests.folders.formats import SNAPSHOT
from manifests.records import JoinedCluster


def split_groups(kept: Sequence[int], features: FeatureTable, graphs: Sequence[str | None] | None = None) -> list[int]:
    """Return the group number of each kept code; codes of one group must share a split.

    Args:
        graphs: what each kept code computes up to widths; None if unknown.
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


def group_names(groups: Sequence[int], ids: Sequence[str], assigned: Mapping[int, str] = {}) -> list[str]:
    """Return each record's group name: the smallest id in its group, cut to 16 digits, unless `assigned` names it."""
    names: dict[int, str] = {}
    for group, id_ in zip(groups, ids, strict=True):
        names[group] = min(names.get(group, id_), id_)
    return [assigned.get(group, names[group][:16]) for group in groups]


def assign_splits(
    groups: Sequence[int],
    ids: Sequence[str],
    kinds: Sequence[tuple[str, str]],
    seed: int,
    assigned: Mapping[int, str] = {},
) -> list[str]:
    """Assign a split to each record: about 80 / 10 / 10 of all, of each prefix and of each family, whole groups only.

    Args:
        groups: group number of each record. ids: its SHA-256. kinds: its prefix and its family.
        seed: another seed draws another order.
        assigned: splits of groups that join published records; the others fill the splits among themselves.
    """
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        if group not in assigned:
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
    split_of |= assigned
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

    Args:
        holdings: the records of each group by kind. total: of all groups.
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


def read_joined(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each key that a delta, or one that it extends, has replaced, and the key that it has now."""
    for row in SNAPSHOT.rows(folder, JoinedCluster):
        yield row.cluster, row.joined


def join_clusters(groups: Iterable[Collection[str]]) -> dict[str, str]:
    """Return the new key of each cluster that has one: the smallest of all that these groups connect.

    Args: groups: keys that belong together; groups that share a key are one.
    """
    ties = DisjointSet()
    for group in groups:
        first = min(group)
        for key in group:
            ties.add(key)
        for key in group:
            ties.merge(first, key)
    joined = {key: min(keys) for keys in ties.subsets() for key in keys}
    return {key: smallest for key, smallest in sorted(joined.items()) if key != smallest}
