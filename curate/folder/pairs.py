"""Write the near pairs of a corpus as a table: distinct token sets by their Jaccard similarity, in bands.

The pairs are exact. Of each set the most similar others of every band are listed, so that a table of ten thousand
networks stays at a few megabytes; a pair is there if either of its sets lists the other.

Worked example: of four sets at 0.97, 0.96 and 0.95 to a fifth, one pair for each set and band lists 0.97, and also the
other two, since the fifth is the nearest of each of them, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curate.compute.graphs import GraphTrace
from curate.model.features import FeatureTable
from lemur_core.files import Json
from lemur_core.similarity.minhash import IntArray, ShingleSets, jaccard
from lemur_core.similarity.nearest import iterate_nearest
from manifests.records import BANDS

#: The lower ends of the bands, most similar first.
LOWER_ENDS = tuple(float(band.partition("-")[0]) for band in BANDS)


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


def find_pairs(features: ShingleSets, sets: IntArray, per_band: int) -> NearPairs:
    """Return of all pairs of sets those that are among the nearest of one of their ends, in their band.

    Args:
        sets: distinct numbers of token sets.
        per_band: how many pairs of each set and band; of equal similarities the set at the smaller place is nearer.
    """
    blocks = [(np.empty(0, np.int64), np.empty(0)), *_key_blocks(features, sets, per_band)]
    keys, near = (np.concatenate(column) for column in zip(*blocks, strict=True))
    keys, first = np.unique(keys, return_index=True)  # a pair is found from both of its ends
    near = near[first]
    order = np.argsort(-near, kind="stable")
    return NearPairs(*np.divmod(keys[order], max(1, len(sets))), near[order])


def _key_blocks(
    features: ShingleSets, sets: IntArray, per_band: int
) -> Iterator[tuple[IntArray, npt.NDArray[np.float64]]]:
    for a, b, near in iterate_nearest(features, sets, LOWER_ENDS, per_band):
        yield np.minimum(a, b) * len(sets) + np.maximum(a, b), near


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
