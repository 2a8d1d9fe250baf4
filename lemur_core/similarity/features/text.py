"""Texts of any kind, prose or code: their tokens, their shingles, and which of many are nearly the same."""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

#: Tokens a shingle.
SHINGLE = 5

_BLOCK = 256
_TOKEN = re.compile(r"\w+|[^\w\s]")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def tokens_of(text: str) -> list[str]:
    r"""The matches of `\w+|[^\w\s]`: words, numbers and single signs, in order, without white space.

    It needs no tokenizer of any model. A byte-pair tokenizer gives other numbers: it splits long names, and counts
    indentation and line breaks.
    """
    return _TOKEN.findall(text)


def shingles(text: str) -> Numbers:
    """The hashed shingles of a text, each once; of a text that is shorter than one, the whole of it."""
    tokens = tokens_of(text)
    grams = (" ".join(tokens[at : at + SHINGLE]) for at in range(max(1, len(tokens) - SHINGLE + 1)))
    return np.array(sorted({zlib.crc32(gram.encode()) for gram in grams}), np.int64)


def near_pairs(sets: Sequence[Numbers], threshold: float) -> Iterator[tuple[Numbers, Numbers]]:
    """All pairs of places whose sets have this Jaccard or more, both ways round, some at a time; none with itself."""
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
        one, other = np.nonzero(shared >= threshold * union)
        yield one + start, other
