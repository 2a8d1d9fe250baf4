"""Keys of groups over a chain of deltas: what a later record has joined gets one key, without changing old tables.

A new record may be near to two groups that were published under different keys. Their rows stay as they are; the delta
states in `clusters.parquet` which key each of them has now, together with what its parents have stated.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from scipy.cluster.hierarchy import DisjointSet

from manifests.folders.formats import SNAPSHOT
from manifests.records import JoinedCluster


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
