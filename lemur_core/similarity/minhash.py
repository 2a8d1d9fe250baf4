"""MinHash signatures of shingle sets, and the bands with which LSH proposes pairs.

The shingles are 64-bit hashes already, so a permutation is one multiply and add modulo 2**64, of which the upper half
is kept (multiply-shift hashing); this takes a fraction of the time of hashing texts again.

Source: Broder 1997, "On the resemblance and containment of documents"; Dietzfelbinger et al. 1997, "A reliable
randomized algorithm for the closest-pair problem" (multiply-shift); Leskovec, Rajaraman, Ullman, "Mining of Massive
Datasets", section 3.4 (bands).
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

#: Permutations per signature, as published.
PERMUTATIONS = 256

#: The name of the signature scheme. Signatures of different schemes are never compared; this scheme is our own,
#: independent of the installed release of datasketch.
SCHEME = "multiply-shift64"

#: The maximum chance that LSH misses a pair whose Jaccard is exactly at the threshold.
MISS_CHANCE = 1e-7

#: The exact Jaccard is computed if the MinHash estimate is at most this far below the threshold.
ESTIMATE_MARGIN = 0.15

_BLOCK = 32


def signature(shingles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the MinHash signature of a non-empty set of 64-bit hashes, shape (256,)."""
    result = np.empty(PERMUTATIONS, np.uint32)
    for start in range(0, PERMUTATIONS, _BLOCK):
        part = slice(start, start + _BLOCK)
        permuted = shingles[None, :] * _FACTORS[part, None]
        permuted += _TERMS[part, None]
        result[part] = permuted.min(axis=1) >> np.uint64(32)
    return result


class ShingleSets(Protocol):
    """Shingle sets 0..n-1 with their signatures."""

    signatures: npt.NDArray[np.uint32]  # shape (n, 256)
    set_sizes: IntArray

    def shingles(self, shingle_set: int) -> npt.NDArray[np.uint64]:
        """Return the sorted distinct shingle hashes of one set."""
        ...


@dataclass(frozen=True, slots=True)
class Banding:
    """The division of a signature into `bands` keys of `rows` values each."""

    bands: int
    rows: int

    def miss_chance(self, jaccard: float) -> float:
        """Return the chance that two sets of this Jaccard share no band: (1 - s**rows)**bands."""
        return float((1 - jaccard**self.rows) ** self.bands)


def banding_for(threshold: float, *, effort: int = 0) -> Banding:
    """Return the coarsest banding that misses a pair at `threshold` at most once in ten million.

    Args:
        threshold: a Jaccard similarity, 0 to 1.
        effort: by how many rows to shorten the bands, for more candidates and fewer misses.
    Returns: a banding with at least one row; not every permutation need be used.
    """
    rows = 32
    while rows > 1 and Banding(PERMUTATIONS // rows, rows).miss_chance(threshold) > MISS_CHANCE:
        rows -= 1
    rows = max(1, rows - effort)
    return Banding(PERMUTATIONS // rows, rows)


def band_keys(signatures: npt.NDArray[np.uint32], banding: Banding) -> npt.NDArray[np.uint64]:
    """Return one key per band of each signature: equal keys mean equal bands.

    Args: signatures: shape (n, 256).
    Returns: 64-bit keys of shape (n, bands); different bands never share keys.
    """
    used = signatures[:, : banding.bands * banding.rows].astype(np.uint64)
    cut = used.reshape(len(signatures), banding.bands, banding.rows)
    keys = np.broadcast_to(np.arange(1, banding.bands + 1, dtype=np.uint64), cut.shape[:2]) * _MIX
    for row in range(banding.rows):
        keys = (keys ^ cut[:, :, row]) * _MIX
        keys ^= keys >> np.uint64(29)
    return keys


def jaccard(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> float:
    """Return the exact Jaccard similarity of two sets.

    Args: a, b: sorted distinct numbers.
    Returns: 0 to 1; 0 if either is empty, even if both are.
    """
    if not len(a) or not len(b):
        return 0.0
    if len(a) > len(b):
        a, b = b, a
    indices = np.searchsorted(b, a)
    # A number above all of `b` is compared with the first of `b`, from which it differs.
    indices[indices == len(b)] = 0
    shared = int(np.count_nonzero(b[indices] == a))
    return shared / (len(a) + len(b) - shared)


def buckets(signatures: npt.NDArray[np.uint32], banding: Banding) -> npt.NDArray[np.int32]:
    """Return the LSH buckets of all sets, shape (sets, bands); -1 where a set shares its band with no other."""
    count = len(signatures)
    table = np.full((count, banding.bands), -1, np.int32)
    step = 100_000
    keys = np.concatenate(
        [band_keys(signatures[i : i + step], banding) for i in range(0, count, step)]
        or [np.empty((0, banding.bands), np.uint64)]
    )
    used = 0
    for band in range(banding.bands):
        _, inverse, sizes = np.unique(keys[:, band], return_inverse=True, return_counts=True)
        shared = sizes > 1
        number = np.where(shared, np.cumsum(shared) - 1 + used, -1)
        table[:, band] = number[inverse]
        used += int(shared.sum())
    return table


_MIX = np.uint64(0x9E3779B97F4A7C15)


def _constants(purpose: str) -> npt.NDArray[np.uint64]:
    """Return 256 fixed 64-bit numbers; from a digest, since library generators may change their streams."""
    texts = [f"{purpose} {index}".encode() for index in range(PERMUTATIONS)]
    return np.array([int.from_bytes(hashlib.blake2b(t, digest_size=8).digest(), "little") for t in texts], np.uint64)


_FACTORS = _constants("factor") | np.uint64(1)
_TERMS = _constants("term")
