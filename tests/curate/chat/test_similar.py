"""Requests that are nearly the same: counted, and not left on both sides of a split."""

from curate.chat.result import Conversation
from curate.chat.similar import held_by_another, near_prompts
from manifests.records import ChatKind

WORDS = " ".join(f"word{number}" for number in range(200))


def said(name: str, split: str, user: str, kind: ChatKind = "design") -> Conversation:
    return Conversation(name, kind, "file", name, f"record {name}", split, "system", user, "answer", 9)


TRAIN = said("b", "train", WORDS)
LIKE_TRAIN = said("a", "train", f"{WORDS} more")
TEST = said("c", "test", f"{WORDS} else")
OTHER_KIND = said("d", "test", WORDS, "explain")
FAR = said("e", "validation", WORDS[::-1])
ALL = [TRAIN, LIKE_TRAIN, TEST, OTHER_KIND, FAR]


def test_the_later_split_loses_a_near_request() -> None:
    assert held_by_another(ALL) == {"c": LIKE_TRAIN}
    assert held_by_another([said("x", "validation", WORDS), TEST]) == {"c": said("x", "validation", WORDS)}


def test_near_requests_are_counted() -> None:
    assert near_prompts(ALL)["design"] == {"prompts": 4, "near": 3, "across_splits": 3}
    assert near_prompts(ALL)["explain"] == {"prompts": 1, "near": 0, "across_splits": 0}
