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


def split_tokens(text: str) -> list[str]:
    r"""Return the matches of `\w+|[^\w\s]`: words, numbers and single signs, without white space.

    They do not depend on the tokenizer of a model. Those of a byte-pair tokenizer differ: it splits long names, and
    counts indentation and line breaks.

    Args: text: code or prose.
    Returns: the tokens, in order.
    """
    return _TOKEN.findall(text)


def shingles(text: str) -> Numbers:
    """Return the hashed shingles of a text; a text shorter than one shingle is one shingle.

    Args: text: any text, split by `split_tokens`.
    Returns: sorted distinct 32-bit hashes, as int64; never empty.
    """
    tokens = split_tokens(text)
    grams = (" ".join(tokens[start : start + SHINGLE]) for start in range(max(1, len(tokens) - SHINGLE + 1)))
    return np.array(sorted({zlib.crc32(gram.encode()) for gram in grams}), np.int64)


def near_pairs(sets: Sequence[Numbers], threshold: float) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield all ordered pairs of different indices whose sets are near each other, in blocks.

    Args:
        sets: as from `shingles`.
        threshold: the least Jaccard similarity, above 0.
    Returns: two arrays of equal length per block; each pair occurs in both orders.
    """
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
