"""How alike prompts of one kind are: pairs of different records whose user messages share most of their shingles."""

import zlib
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from curate.chat.conversation import words
from curate.chat.result import Conversation
from manifests.records import CHAT_KINDS

#: Tokens a shingle; user messages with this Jaccard or more are near.
SHINGLE = 5
THRESHOLD = 0.90

_BLOCK = 256


def near_prompts(conversations: Sequence[Conversation]) -> dict[str, dict[str, int]]:
    """By kind: how many prompts there are, how many have a near one, and how many a near one in another split.

    All pairs are compared, by the exact Jaccard of the sets of hashed shingles.
    """
    found: dict[str, dict[str, int]] = {}
    for kind in CHAT_KINDS:
        of_kind = [item for item in conversations if item.kind == kind]
        splits = np.array([item.split for item in of_kind])
        near, across = _near([item.user for item in of_kind], splits)
        found[kind] = {"prompts": len(of_kind), "near": near, "across_splits": across}
    return found


def _near(prompts: Sequence[str], splits: np.ndarray[tuple[int], np.dtype[np.str_]]) -> tuple[int, int]:
    sets = [_shingles(prompt) for prompt in prompts]
    if len(sets) < 2:
        return 0, 0
    sizes = np.array([len(item) for item in sets], np.float64)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    columns = np.unique(np.concatenate(sets), return_inverse=True)[1]
    data = np.ones(len(columns), np.float32)
    matrix = sp.csr_array((data, columns, ends), shape=(len(sets), int(columns.max()) + 1))
    near, across = np.zeros(len(sets), bool), np.zeros(len(sets), bool)
    for start in range(0, len(sets), _BLOCK):
        stop = min(start + _BLOCK, len(sets))
        shared = (matrix[start:stop] @ matrix.T).toarray()
        shared[np.arange(stop - start), np.arange(start, stop)] = 0  # with itself
        union = sizes[start:stop, None] + sizes[None, :] - shared
        pairs = shared >= THRESHOLD * union
        near[start:stop] = pairs.any(axis=1)
        across[start:stop] = (pairs & (splits[start:stop, None] != splits[None, :])).any(axis=1)
    return int(near.sum()), int(across.sum())


def _shingles(text: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    tokens = words(text)
    grams = (" ".join(tokens[at : at + SHINGLE]) for at in range(max(1, len(tokens) - SHINGLE + 1)))
    return np.array(sorted({zlib.crc32(gram.encode()) for gram in grams}), np.int64)
