"""Splits without leakage: what is lexically close or structurally equal goes to one split, group by group.

Groups are the connected components of the kept records under "Jaccard >= 0.70 or the same fingerprint". They fill test,
then validation, in an order drawn from the seed and the group itself, so that adding or removing a record moves hardly
any other; a group larger than half a held-out split goes to train, whatever its draw.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from curate.feature_store import FeatureTable
from curate.options import LEAK_THRESHOLD, SPLIT_RATIOS
from lemur_core.similarity.join import exact_pairs, linked_by_lsh
from lemur_core.similarity.minhash import IntArray


def leak_groups(kept: Sequence[int], features: FeatureTable) -> list[int]:
    """The group number of each kept code; equal numbers must share a split."""
    count = len(kept)
    codes = np.array(kept, np.int64)
    sets, set_place = np.unique(features.shingle_set[codes], return_inverse=True)
    structures, structure_place = np.unique(features.fingerprint[codes], return_inverse=True)
    set_group = _components(sets, features)
    # nodes: groups of shingle sets, then fingerprints; each record ties its two together
    nodes = int(set_group.max(initial=-1)) + 1
    ties = (set_group[set_place], nodes + structure_place)
    graph = coo_array((np.ones(count, np.int8), ties), shape=(nodes + len(structures),) * 2)
    _, labels = connected_components(graph, directed=False)
    found: list[int] = labels[ties[0]].tolist()
    return found


def _components(sets: IntArray, features: FeatureTable) -> IntArray:
    """The component of each shingle set under Jaccard >= LEAK_THRESHOLD, numbered from 0."""
    pairs = exact_pairs(features, sets, LEAK_THRESHOLD)
    if pairs.complete:
        ends = (np.searchsorted(sets, pairs.a), np.searchsorted(sets, pairs.b))
    else:
        ends = linked_by_lsh(features, sets, LEAK_THRESHOLD)
    graph = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(len(sets), len(sets)))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def group_names(groups: Sequence[int], ids: Sequence[str]) -> list[str]:
    """For each record the name of its group: the smallest id of its members, cut to 16 digits."""
    names: dict[int, str] = {}
    for group, id_ in zip(groups, ids, strict=True):
        names[group] = min(names.get(group, id_), id_)
    return [names[group][:16] for group in groups]


def assign_splits(groups: Sequence[int], ids: Sequence[str], seed: int) -> list[str]:
    """A split for each record: about 80 / 10 / 10 by records, whole groups only.

    Args:
        groups: group number of each record. ids: its SHA-256. seed: another seed draws another order.
    """
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    # the smallest id stands for a group: another member coming or going leaves its draw alone
    order = sorted(members, key=lambda group: _draw(seed, min(ids[place] for place in members[group])))
    split_of = dict.fromkeys(members, "train")
    for split in ("test", "validation"):
        quota = round(len(groups) * SPLIT_RATIOS[split])
        largest = max(1, quota // 2)
        for group in order:
            size = len(members[group])
            if split_of[group] == "train" and size <= min(quota, largest):
                split_of[group] = split
                quota -= size
    return [split_of[group] for group in groups]


def _draw(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}:{text}".encode()).digest()
