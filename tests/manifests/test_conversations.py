"""The frame of conversations: what is near another one is counted, and not left on both sides of a split."""

import pytest

from manifests.conversations.conversation import (
    Chat,
    Comparison,
    Conversation,
    Draft,
    Sampler,
    Skipped,
    Subject,
    count_near,
    fence,
    find_earlier_duplicates,
    finish,
    read_fenced_code,
)
from manifests.conversations.verify import quantile

WORDS = " ".join(f"word{number}" for number in range(200))
KINDS = ("design", "explain")
COMPARISON = Comparison(lambda draft: draft.user, "prompts", "as {label} in {split}")


def subject(name: str, split: str) -> Subject:
    return Subject(name, f"the {name}", split, {"license": "MIT"}, {"record": name})


def said(name: str, split: str, user: str, kind: str = "design") -> Conversation:
    return Conversation(subject(name, split), kind, Draft("system", user, "answer"), 9)


TRAIN = said("b", "train", WORDS)
LIKE_TRAIN = said("a", "train", f"{WORDS} more")
TEST = said("c", "test", f"{WORDS} else")
OTHER_KIND = said("d", "test", WORDS, "explain")
FAR = said("e", "validation", WORDS[::-1])
ALL = [TRAIN, LIKE_TRAIN, TEST, OTHER_KIND, FAR]


def test_the_later_split_loses_a_near_conversation() -> None:
    earliest = min(TRAIN, LIKE_TRAIN, key=lambda item: item.id)
    assert find_earlier_duplicates(ALL, KINDS, COMPARISON) == {TEST.id: earliest}
    middle = said("x", "validation", WORDS)
    assert find_earlier_duplicates([middle, TEST], KINDS, COMPARISON) == {TEST.id: middle}


def test_near_conversations_are_counted() -> None:
    near = count_near(ALL, KINDS, COMPARISON)
    assert near["design"] == {"prompts": 4, "near": 3, "across_splits": 3}
    assert near["explain"] == {"prompts": 1, "near": 0, "across_splits": 0}


def test_each_subject_and_kind_gives_a_conversation_or_a_reason() -> None:
    drafts = [
        (subject("a", "train"), "design", Draft("s", WORDS, "x", "file", {"notice": None})),
        (subject("a", "train"), "explain", Draft("s", "y " * 300, "x")),
        (subject("b", "test"), "design", Draft("s", f"{WORDS} else", "x")),
        (subject("b", "test"), "explain", Skipped("does_not_run", "no")),
    ]
    chat: Chat = finish(drafts, KINDS, COMPARISON, 250)
    (kept,) = chat.conversations
    assert kept.row()["messages"][1] == {"role": "user", "content": WORDS}
    assert {name: kept.row()[name] for name in ("task", "variant", "license", "notice", "n_tokens")} == {
        "task": "design",
        "variant": "file",
        "license": "MIT",
        "notice": None,
        "n_tokens": 202,
    }
    assert [drop.row() for drop in chat.drops] == [
        {"record": "a", "task": "explain", "reason": "too_long", "detail": "302 tokens; the limit is 250"},
        {"record": "b", "task": "design", "reason": "near_split", "detail": "as the a in train"},
        {"record": "b", "task": "explain", "reason": "does_not_run", "detail": "no"},
    ]
    assert chat.counts("records") == {
        "rows": 1,
        "records": 1,
        "tokens": 202,
        "kinds": {"design": 1, "explain": 0},
        "splits": {"train": 1, "validation": 0, "test": 0},
        "dropped": 3,
        "drops": {"design": {"near_split": 1}, "explain": {"does_not_run": 1, "too_long": 1}},
    }


def test_choices_follow_from_the_seed_and_what_is_chosen() -> None:
    one, other = Sampler(1, "a", "design"), Sampler(2, "a", "design")
    items = list(range(50))
    assert one.shuffle(items, "x") == Sampler(1, "a", "design").shuffle(items, "x") != other.shuffle(items, "x")
    assert sorted(one.shuffle(items, "x")) == items
    assert one.sample(items, 3, "x") == sorted(one.shuffle(items, "x")[:3])
    assert len({one.choice(items, purpose) for purpose in "abcdefgh"}) > 4


@pytest.mark.parametrize(("share", "expected"), [(10, 1), (50, 5), (90, 9), (91, 10), (100, 10)])
def test_quantiles(share: int, expected: int) -> None:
    assert quantile(list(range(10, 0, -1)), share) == expected


@pytest.mark.parametrize("code", ["x = 1\n", "x = 1", "s = '```python'\n", "````\n```\n", "\n\n"])
def test_a_fence_gives_its_code_back(code: str) -> None:
    assert read_fenced_code(f"before\n\n{fence(code)}\nafter") == [code if code.endswith("\n") else f"{code}\n"]
