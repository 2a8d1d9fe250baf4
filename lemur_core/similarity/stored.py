"""An index on disk of many items, queried with a few others: the work grows with the few, not with the many.

One sorted array holds all keys of the items: the bands of the signature, the tree, the fingerprint, and the rarest
elements of the fingerprint. It is memory-mapped, so that a query reads only the pages of its own keys. Candidates are
verified by the caller (shingles), or here (elements, digests).

The bands miss a pair at the threshold of the index at most once in ten million; elements use prefix filtering, which
misses none: see `lemur_core.similarity.index` for the rules.
"""

from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.index import Elements, count_elements, rarest_first
from lemur_core.similarity.minhash import (
    ESTIMATE_MARGIN,
    PERMUTATIONS,
    Banding,
    IntArray,
    ShingleSets,
    band_keys,
    banding_for,
    jaccard,
)

View = Literal["tree", "fingerprint"]

#: The digests that define equal items.
VIEWS: tuple[View, ...] = get_args(View)

_STEP = 20_000


class StoredItems(ShingleSets, Protocol):
    """Items 0..n-1 by their class numbers, shape (n,), like `curate.model.features.FeatureTable`."""

    tree: IntArray
    shingle_set: IntArray
    fingerprint: IntArray
    elements: list[Elements]

    def digests(self, view: View) -> list[bytes]:
        """Return the digest of each class, 16 bytes."""
        ...


def write_index(folder: Path, items: StoredItems, lowest: float, structural: float) -> None:
    """Write the index of all items into an empty folder.

    Args: lowest: the lowest Jaccard of shingles that queries will use. structural: that of elements.
    """
    count = len(items.tree)
    digests = [np.frombuffer(b"".join(items.digests(view)), np.uint8).reshape(-1, 16) for view in VIEWS]
    views = [every[getattr(items, view)] for view, every in zip(VIEWS, digests, strict=True)]
    signatures, banding = items.signatures[items.shingle_set], banding_for(lowest)
    known, frequency = count_elements(items.elements)
    rarest = [rarest_first(elements, known, frequency, structural) for elements in items.elements]
    prefixes = [rarest[number] for number in items.fingerprint.tolist()]
    indices = np.arange(count, dtype=np.int32)
    bands = [band_keys(signatures[at : at + _STEP], banding).ravel() for at in range(0, count, _STEP)]
    # Keys of all kinds share one sorted array: queries verify the items that a key leads to.
    keys = np.concatenate(
        [*bands, *(view[:, :8].copy().view(np.uint64).ravel() for view in views), *prefixes, _NOTHING]
    )
    sizes = [len(prefix) for prefix in prefixes]
    rows = np.concatenate([np.repeat(indices, banding.bands), indices, indices, np.repeat(indices, sizes)])
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


class StoredIndex:
    """An index that `write_index` wrote. It identifies items by number."""

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
        # Mapped: a query reads only the pages that it needs.
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        return array

    def same(self, view: View, digest: bytes) -> IntArray:
        """Return the items with this tree or fingerprint."""
        items = self._sharing(np.frombuffer(digest[:8], np.uint64))
        chosen: IntArray = items[(self._views[view][items] == np.frombuffer(digest, np.uint8)).all(axis=1)]
        return chosen

    def alike(
        self, signature: npt.NDArray[np.uint32], size: int, threshold: float
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Return items whose shingles may reach this Jaccard with a set, and the estimates, both of shape (n,)."""
        items = self._sharing(band_keys(signature[None, :], self.banding)[0])
        sizes = self._sizes[items]
        items = items[np.minimum(sizes, size) >= threshold * np.maximum(sizes, size)]
        estimates = np.count_nonzero(self._signatures[items] == signature, axis=1) / PERMUTATIONS
        likely = estimates >= threshold - ESTIMATE_MARGIN
        return items[likely], estimates[likely]

    def structural(self, elements: Elements, threshold: float) -> list[tuple[int, float]]:
        """Return items whose elements reach this Jaccard, at least the index's, with these, and the Jaccard."""
        near: dict[int, float] = {}
        matches = []
        for item in self._sharing(rarest_first(elements, self._known, self._frequency, threshold)).tolist():
            number = int(self._structure[item])
            if number not in near:
                other = self._elements[self._ends[number] : self._ends[number + 1]]
                near[number] = jaccard(elements, other)
            if near[number] >= threshold:
                matches.append((item, near[number]))
        return matches

    def _sharing(self, keys: Elements) -> IntArray:
        """Return the distinct items that have one of these keys, sorted."""
        low, high = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        ranges = [self._rows[start:end] for start, end in zip(low.tolist(), high.tolist(), strict=True) if end > start]
        return np.unique(np.concatenate(ranges)).astype(np.int64) if ranges else np.empty(0, np.int64)
