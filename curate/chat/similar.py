"""How alike prompts of one kind are: pairs of different records whose user messages share most of their shingles."""

from collections.abc import Sequence

import numpy as np

from curate.chat.result import Conversation
from manifests.near import near_pairs, shingles
from manifests.records import CHAT_KINDS

#: Jaccard of the shingles of two user messages from which they are near.
THRESHOLD = 0.90


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
    near, across = np.zeros(len(prompts), bool), np.zeros(len(prompts), bool)
    for one, other in near_pairs([shingles(prompt) for prompt in prompts], THRESHOLD):
        near[one] = True
        across[one[splits[one] != splits[other]]] = True
    return int(near.sum()), int(across.sum())
