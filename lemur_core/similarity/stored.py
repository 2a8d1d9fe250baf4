"""An index of many items on disk, asked for those near a few others: work grows with the few, not with the many.

One sorted array holds all keys by which an item can be found: the bands of its signature, its tree, its fingerprint,
and the rarest elements of that. It is mapped into memory, so that a question reads the pages of its own keys alone.
What is proposed is verified by its caller (shingles), or here (elements, digests).

The bands miss a pair at the threshold of the index at most once in ten million; elements are found by prefix
filtering, which misses none: see `lemur_core.similarity.index`, whose rules these are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features.minhash import (
    ESTIMATE_MARGIN,
    PERMUTATIONS,
    Banding,
    IntArray,
    ShingleSets,
    band_keys,
    banding_for,
)
from lemur_core.similarity.index import prefix, set_jaccard

View = Literal["tree", "fingerprint"]

#: The digests by which items are equal.
VIEWS: tuple[View, ...] = get_args(View)
Elements = npt.NDArray[np.uint64]

_STEP = 20_000


class Items(ShingleSets, Protocol):
    """Items 0..n-1 by the classes that they fall into, shape (n,), as `curate.model.features.FeatureTable` has them."""

    tree: IntArray
    shingle_set: IntArray
    fingerprint: IntArray
    elements: list[Elements]

    def digests(self, view: View) -> list[bytes]:
        """The digest of each class, 16 bytes."""
        ...


def write_index(folder: Path, items: Items, lowest: float, structural: float) -> None:
    """Write the index of all items into an empty folder.

    Args:
        lowest: the least Jaccard of shingles that will be asked for. structural: that of elements.
    """
    count = len(items.tree)
    views = [_digests(items.digests(view))[getattr(items, view)] for view in VIEWS]
    signatures, banding = items.signatures[items.shingle_set], banding_for(lowest)
    known, place = np.unique(np.concatenate([_NOTHING, *items.elements]), return_inverse=True)
    frequency = np.bincount(place, minlength=len(known)).astype(np.int64)
    rarest = [rarest_first(elements, known, frequency, structural) for elements in items.elements]
    prefixes = [rarest[number] for number in items.fingerprint.tolist()]
    every = np.arange(count, dtype=np.int32)
    bands = [band_keys(signatures[at : at + _STEP], banding).ravel() for at in range(0, count, _STEP)]
    keys = np.concatenate(
        [*bands, *(view[:, :8].copy().view(np.uint64).ravel() for view in views), *prefixes, _NOTHING]
    )
    sizes = [len(prefix) for prefix in prefixes]
    rows = np.concatenate([np.repeat(every, banding.bands), every, every, np.repeat(every, sizes)])
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum([0, *(len(elements) for elements in items.elements)])
    arrays = {
        "keys": keys[order],
        "rows": rows[order],
        "tree": views[0],
        "fingerprint": views[1],
        "signatures": signatures,
        "sizes": items.set_sizes[items.shingle_set],
        "structure": items.fingerprint,
        "elements": np.concatenate([_NOTHING, *items.elements]),
        "ends": ends,
        "known": known,
        "frequency": frequency,
        "banding": np.array([banding.bands, banding.rows]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


_NOTHING: Elements = np.empty(0, np.uint64)


def _digests(digests: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def rarest_first(elements: Elements, known: Elements, frequency: IntArray, threshold: float) -> Elements:
    """Those elements of a set of which any set with this Jaccard to it has one: the rarest, unknown ones before all."""
    size = len(elements)
    if not size:
        return elements
    place = np.minimum(np.searchsorted(known, elements), max(0, len(known) - 1))
    often = np.where(known[place] == elements, frequency[place], 0) if len(known) else np.zeros(size, np.int64)
    order = np.lexsort((elements, often))
    return prefix(elements[order], threshold)


class StoredIndex:
    """An index that `write_index` wrote. Items are told by their number there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys, self._rows = self._read("keys"), self._read("rows")
        self._signatures, self._sizes = self._read("signatures"), self._read("sizes")
        self._views: dict[View, Any] = {view: self._read(view) for view in VIEWS}
        self._structure, self._elements, self._ends = map(self._read, ("structure", "elements", "ends"))
        self._known, self._frequency = np.asarray(self._read("known")), np.asarray(self._read("frequency"))
        bands, rows = self._read("banding").tolist()
        self.banding = Banding(bands, rows)

    def _read(self, name: str) -> npt.NDArray[Any]:
        path = self._folder / f"{name}.npy"
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        return array

    def same(self, view: View, digest: bytes) -> IntArray:
        """The items of this tree or fingerprint."""
        found = self._sharing(np.frombuffer(digest[:8], np.uint64))
        chosen: IntArray = found[(self._views[view][found] == np.frombuffer(digest, np.uint8)).all(axis=1)]
        return chosen

    def alike(
        self, signature: npt.NDArray[np.uint32], size: int, threshold: float
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Items whose shingles may have this Jaccard or more with a set, and the estimates of it, shape (found,)."""
        found = self._sharing(band_keys(signature[None, :], self.banding)[0])
        sizes = self._sizes[found]
        found = found[np.minimum(sizes, size) >= threshold * np.maximum(sizes, size)]
        estimates = np.count_nonzero(self._signatures[found] == signature, axis=1) / PERMUTATIONS
        likely = estimates >= threshold - ESTIMATE_MARGIN
        return found[likely], estimates[likely]

    def structural(self, elements: Elements, threshold: float) -> list[tuple[int, float]]:
        """Items whose elements have this Jaccard or more with these, with it; the threshold is the index's or more."""
        own = frozenset(elements.tolist())
        near: dict[int, float] = {}
        found = []
        for item in self._sharing(rarest_first(elements, self._known, self._frequency, threshold)).tolist():
            number = int(self._structure[item])
            if number not in near:
                other = self._elements[self._ends[number] : self._ends[number + 1]]
                near[number] = set_jaccard(own, frozenset(other.tolist()))
            if near[number] >= threshold:
                found.append((item, near[number]))
        return found

    def _sharing(self, keys: Elements) -> IntArray:
        """The items that have one of these keys, each once, in their order."""
        low, high = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        ranges = [self._rows[start:end] for start, end in zip(low.tolist(), high.tolist(), strict=True) if end > start]
        return np.unique(np.concatenate(ranges)).astype(np.int64) if ranges else np.empty(0, np.int64)
