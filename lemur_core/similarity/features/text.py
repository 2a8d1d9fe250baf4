"""Texts of any kind, prose or code: tokens, shingles, and near-duplicate pairs."""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

#: Tokens per shingle.
SHINGLE = 5

_BLOCK = 256
_TOKEN = re.compile(r"\w+|[^\w\s]")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def tokens_of(text: str) -> list[str]:
    r"""Return the matches of `\w+|[^\w\s]`: words, numbers and single signs, in order, without white space.

    It depends on no model's tokenizer. A byte-pair tokenizer gives other counts: it splits long names, and counts
    indentation and line breaks.
    """
    return _TOKEN.findall(text)


def shingles(text: str) -> Numbers:
    """Return the sorted distinct hashed shingles of a text; a text shorter than one shingle is one shingle."""
    tokens = tokens_of(text)
    grams = (" ".join(tokens[at : at + SHINGLE]) for at in range(max(1, len(tokens) - SHINGLE + 1)))
    return np.array(sorted({zlib.crc32(gram.encode()) for gram in grams}), np.int64)


def near_pairs(sets: Sequence[Numbers], threshold: float) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield all ordered pairs of indices whose sets have at least this Jaccard, in blocks; no index with itself."""
    if len(sets) < 2:
        return
    sizes = np.array([len(item) for item in sets], np.float64)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    columns = np.unique(np.concatenate(list(sets)), return_inverse=True)[1]
    data = np.ones(len(columns), np.float32)
    matrix = sp.csr_array((data, columns, ends), shape=(len(sets), int(columns.max()) + 1))
    for start in range(0, len(sets), _BLOCK):
        stop = min(start + _BLOCK, len(sets))
        shared = (matrix[start:stop] @ matrix.T).toarray()
        shared[np.arange(stop - start), np.arange(start, stop)] = 0  # with itself
        union = sizes[start:stop, None] + sizes[None, :] - shared
        first, second = np.nonzero(shared >= threshold * union)
        yield first + start, second
