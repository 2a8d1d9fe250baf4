"""How alike prompts of one kind are; and those that may not stay, because another split holds a near one."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from curate.chat.result import Conversation
from manifests.near import near_pairs, shingles
from manifests.records import CHAT_KINDS, SPLITS

#: Jaccard of the shingles of two user messages from which they are near.
THRESHOLD = 0.90


def near_prompts(conversations: Sequence[Conversation]) -> dict[str, dict[str, int]]:
    """By kind: how many prompts there are, how many have a near one, and how many a near one in another split.

    All pairs are compared, by the exact Jaccard of the sets of hashed shingles.
    """
    near: dict[str, set[str]] = defaultdict(set)
    across: dict[str, set[str]] = defaultdict(set)
    for one, other in _near(conversations):
        near[one.kind].add(one.id)
        if one.split != other.split:
            across[one.kind].add(one.id)
    prompts = Counter(item.kind for item in conversations)
    return {
        kind: {"prompts": prompts[kind], "near": len(near[kind]), "across_splits": len(across[kind])}
        for kind in CHAT_KINDS
    }


def held_by_another(conversations: Sequence[Conversation]) -> dict[str, Conversation]:
    """Those whose prompt is near one of an earlier split (train, validation, test), by id, each with that one."""
    found: dict[str, Conversation] = {}
    for one, other in _near(conversations):
        if SPLITS.index(other.split) < SPLITS.index(one.split):
            found[one.id] = min(found.get(one.id, other), other, key=lambda item: item.id)
    return found


def _near(conversations: Sequence[Conversation]) -> Iterator[tuple[Conversation, Conversation]]:
    for kind in CHAT_KINDS:
        of_kind = [item for item in conversations if item.kind == kind]
        for ends in near_pairs([shingles(item.user) for item in of_kind], THRESHOLD):
            for one, other in zip(*(part.tolist() for part in ends), strict=True):
                yield of_kind[one], of_kind[other]
