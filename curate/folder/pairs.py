"""Write the near pairs of a corpus as a table: distinct token sets by their Jaccard similarity, in bands.

The pairs are exact: all sets are joined with all. Of each set the most similar others of every band are listed, so that
a table of ten thousand networks stays at a few megabytes; a pair is there if either of its sets lists the other.

Worked example: of four sets at 0.97, 0.96 and 0.95 to a fifth, one pair for each set and band lists 0.97, and also the
other two, since the fifth is the nearest of each of them, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curate.compute.graphs import GraphTrace
from curate.model.features import FeatureTable
from lemur_core.files import Json
from lemur_core.similarity.join import PairBlock, iterate_pairs
from lemur_core.similarity.minhash import IntArray, jaccard
from manifests.records import BANDS

#: The lower ends of the bands, most similar first.
LOWER_ENDS = tuple(float(band.partition("-")[0]) for band in BANDS)

_BUFFER = 1_000_000  # pairs that wait to be compared with the nearest ones so far


@dataclass(frozen=True, slots=True)
class NearPairs:
    """Pairs of places in a list of sets, most similar first."""

    a: IntArray
    b: IntArray
    jaccard: npt.NDArray[np.float64]

    @property
    def band(self) -> IntArray:
        """The number of each pair's band in `BANDS`."""
        return np.searchsorted(-np.array(LOWER_ENDS), -self.jaccard)


def find_nearest(blocks: Iterable[PairBlock], per_band: int) -> NearPairs:
    """Return of all pairs those that are among the nearest of one of their ends, in their band.

    Args:
        blocks: pairs of places, each once; of equal similarities the smaller place is nearer.
        per_band: how many pairs of each place and band.
    """
    kept = NearPairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    waiting: list[PairBlock] = []
    least = np.empty(0)
    count = 0
    for a, b, near in blocks:
        pairs = NearPairs(a, b, near)
        if len(least):  # most are further than what both ends have already
            own, other = (places * len(BANDS) + pairs.band for places in (a, b))
            reach = np.minimum(least.take(own, mode="clip"), least.take(other, mode="clip"))
            chosen = near >= np.where(np.maximum(own, other) < len(least), reach, 0.0)
            a, b, near = a[chosen], b[chosen], near[chosen]
        waiting.append((a, b, near))
        count += len(a)
        if count > max(_BUFFER, len(kept.a)):
            kept, waiting, count = _select(kept, waiting, per_band), [], 0
            least = _find_least(kept, per_band)
    return _select(kept, waiting, per_band)


def _find_least(kept: NearPairs, per_band: int) -> npt.NDArray[np.float64]:
    """Return, of each place and band, the similarity below which no pair is listed any more; 0 while it is not full."""
    group = np.concatenate([kept.a, kept.b]) * len(BANDS) + np.tile(kept.band, 2)
    near = np.tile(kept.jaccard, 2)
    order = np.lexsort((-near, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    least = np.zeros(int(group.max(initial=-1)) + 1)
    last = starts + per_band - 1
    full = last < np.append(starts[1:], len(order))
    least[group[order[starts[full]]]] = near[order[last[full]]]
    return least


def _select(kept: NearPairs, waiting: Sequence[PairBlock], per_band: int) -> NearPairs:
    columns = zip((kept.a, kept.b, kept.jaccard), *waiting, strict=True)
    pairs = NearPairs(*(np.concatenate(column) for column in columns))
    # Each pair twice, once for each of its ends.
    own, other = np.concatenate([pairs.a, pairs.b]), np.concatenate([pairs.b, pairs.a])
    group = own * len(BANDS) + np.tile(pairs.band, 2)
    order = np.lexsort((other, -np.tile(pairs.jaccard, 2), group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    chosen = np.zeros(len(pairs.a), bool)
    chosen[order[rank < per_band] % max(1, len(chosen))] = True
    order = np.flatnonzero(chosen)
    order = order[np.lexsort((pairs.b[order], pairs.a[order], -pairs.jaccard[order]))]
    return NearPairs(pairs.a[order], pairs.b[order], pairs.jaccard[order])


def find_pairs(features: FeatureTable, codes: Sequence[int], per_band: int) -> NearPairs:
    """Return the near pairs of these codes, of which no two have the same token set, as places in them."""
    sets = features.shingle_set[np.array(codes, np.int64)]
    return find_nearest(iterate_pairs(features, sets, LOWER_ENDS[-1]), per_band)


def pair_rows(
    features: FeatureTable,
    codes: Sequence[int],
    labels: Sequence[tuple[str, str]],
    traces: Sequence[GraphTrace | None],
    pairs: NearPairs,
) -> Iterator[Json]:
    """Yield the rows of `Pair`.

    Args: labels: id and name of each of the codes. traces: what they compute, if known.
    """
    near = zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), pairs.band.tolist(), strict=True)
    for a, b, similarity, band in near:
        one, other = traces[a], traces[b]
        yield {
            "a": labels[a][0],
            "b": labels[b][0],
            "nn_a": labels[a][1],
            "nn_b": labels[b][1],
            "jaccard": similarity,
            "band": BANDS[band],
            "structural": compare_structures(features, codes[a], codes[b]),
            "agreement": None if one is None or other is None else one.agrees(other),
        }


def compare_structures(features: FeatureTable, one: int, other: int) -> float:
    """Return the Jaccard similarity of two codes' fingerprints; 1.0 for equal ones."""
    structures = int(features.fingerprint[one]), int(features.fingerprint[other])
    if structures[0] == structures[1]:
        return 1.0
    return jaccard(*(features.elements[number] for number in structures))
