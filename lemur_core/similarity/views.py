"""The views of a code for comparisons: tree, shingles and structure, computed from that code alone.

The structure is which layers a network calls, how often, in which order, and with which sizes. The definition is the
one published with nn-dup (order, bag of call names, bucketed hyperparameters), fixed where it misreads valid code: the
training functions of the LEMUR contract are left out, and a size counts in the same way by keyword and by position.
docs/similarity.md lists the differences.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lemur_core.files.workers import map_chunks
from lemur_core.similarity.minhash import signature
from lemur_core.similarity.outline import Outline
from lemur_core.similarity.tokens import literal_digest, region_tokens, shingle_hashes


@dataclass(frozen=True, slots=True)
class Views:
    """The views of one valid code. Digests have 16 bytes."""

    tree: bytes  # equal for codes that differ only in comments, docstrings and layout
    literal: bytes  # equal for model regions with the same tokens, names and numbers included
    shingle_set: bytes  # equal for equal shingle sets
    shingles: npt.NDArray[np.uint64]  # sorted distinct hashes, never empty
    signature: npt.NDArray[np.uint32]  # MinHash, shape (256,)
    fingerprint: bytes
    elements: npt.NDArray[np.uint64]  # of the fingerprint, sorted distinct hashes, may be empty


def compute_views(code: str, outline: Outline) -> Views | str:
    """Return the views of a code, or a short reason why it has none.

    Args: outline: the outline of `code`.
    Returns: a reason only if the code has no tokens.
    """
    tokens, declared = region_tokens(code, outline)
    shingles = shingle_hashes(tokens, declared)
    if not len(shingles):
        return "no code: only comments or docstrings"
    shingle_set = hashlib.blake2b(shingles.tobytes(), digest_size=16).digest()
    digest, elements = fingerprint(outline)
    return Views(
        tree=outline.tree_digest,
        literal=literal_digest(tokens),
        shingle_set=shingle_set,
        shingles=shingles,
        signature=signature(shingles),
        fingerprint=digest,
        elements=elements,
    )


#: The number of calls that count for the order of layers, as published.
SEQUENCE_CALLS = 256


def fingerprint(outline: Outline) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """Return the structure of a module: the digest of order, bag and sizes, and its elements as sorted 64-bit hashes.

    A network that calls nothing has no elements, and matches nothing.
    """
    bag = Counter(outline.layers)
    sizes = sorted(outline.sizes)
    elements = {_hash(f"{name}*{count}") for name, count in bag.items()}
    elements |= {_hash(f"{name}={bucket}") for name, bucket in set(sizes)}
    parts = [" ".join(outline.layers[:SEQUENCE_CALLS]), repr(sorted(bag.items())), repr(sizes)]
    digest = hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return digest, np.array(sorted(elements), np.uint64)


@lru_cache(maxsize=100_000)
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


# -- many codes, in worker processes --------------------------------------------

_CHUNK_CODES = 48  # in one message to a worker

T = TypeVar("T")


def map_codes(
    work: Callable[[str], T], codes: Iterable[tuple[bytes, str]], jobs: int | None
) -> Iterator[list[tuple[bytes, T | str]]]:
    """Yield `work` of every (digest, code) pair, in order, in chunks; reads ahead only a little.

    Args:
        work: run in other processes, so it must be picklable.
        jobs: the number of processes; None for one per available core.
    Returns: (digest, result) pairs; if a worker dies on a code, the result is a text that reports it.
    """
    rest = iter(codes)
    chunks = iter(lambda: list(islice(rest, _CHUNK_CODES)), [])
    return map_chunks(partial(_with_digest, work), chunks, _report_crash, jobs)


def _with_digest(work: Callable[[str], T], item: tuple[bytes, str]) -> tuple[bytes, T | str]:
    return item[0], work(item[1])


def _report_crash(item: tuple[bytes, str]) -> tuple[bytes, str]:
    return item[0], "Python's parser crashed on it"
