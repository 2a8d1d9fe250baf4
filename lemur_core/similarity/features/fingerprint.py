"""The structural view of a network: which layers it calls, how often, in which order, and with which sizes.

The definition is the one published with nn-dup (order, bag of call names, bucketed hyperparameters), fixed where it
misreads valid code: the training functions of the LEMUR contract are left out, and a size counts in the same way by
keyword and by position. docs/similarity.md lists the differences.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features.outline import Outline

#: The number of calls that count for the order of layers, as published.
SEQUENCE_CALLS = 256


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A structure: the digest of the whole, and its set of elements as sorted 64-bit hashes for the Jaccard."""

    digest: bytes  # 16 bytes; equal only when order, bag and sizes are equal
    elements: npt.NDArray[np.uint64]  # shape (n,); empty if the network calls nothing: then it matches nothing
    layers: int  # number of calls


def fingerprint(outline: Outline) -> Fingerprint:
    """Return the structural fingerprint of a module's outline."""
    bag = Counter(outline.layers)
    sizes = sorted(outline.sizes)
    elements = {_hash(f"{name}*{count}") for name, count in bag.items()}
    elements |= {_hash(f"{name}={bucket}") for name, bucket in set(sizes)}
    parts = [" ".join(outline.layers[:SEQUENCE_CALLS]), repr(sorted(bag.items())), repr(sizes)]
    return Fingerprint(
        digest=hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        elements=np.array(sorted(elements), np.uint64),
        layers=len(outline.layers),
    )


@lru_cache(maxsize=100_000)
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
