"""The frame of conversations: each draft gives a row or a reason, and no request is on both sides of a split."""

import pytest

from manifests.conversations import Chat, Draft, Skipped, Subject, conversation_id, fence, finish, read_fenced_code

WORDS = " ".join(f"word{number}" for number in range(200))
KINDS = ("design", "repair")


def subject(name: str, split: str) -> Subject:
    return Subject(split, {"record": name, "license": "MIT"})


def asked(*requests: tuple[str, str, str]) -> Chat:
    drafts = [(subject(name, split), "design", Draft("s", user, "x")) for name, split, user in requests]
    return finish(drafts, "record", KINDS)


def test_the_later_split_loses_a_near_request() -> None:
    chat = asked(
        ("b", "train", WORDS),
        ("a", "train", f"{WORDS} more"),
        ("c", "test", f"{WORDS} else"),
        ("e", "validation", WORDS[::-1]),
    )
    assert [row["record"] for _, row in chat.rows] == ["b", "a", "e"]
    first = min("ab", key=lambda name: conversation_id(name, "design"))
    (drop,) = chat.drops
    assert (drop["record"], drop["reason"]) == ("c", "near_split")
    assert drop["detail"] == f"its request is nearly that about {first} in train"
    chat = asked(("x", "validation", WORDS), ("c", "test", f"{WORDS} else"))
    assert [row["record"] for _, row in chat.rows] == ["x"]


def test_each_subject_and_kind_gives_a_conversation_or_a_reason() -> None:
    drafts = [
        (subject("a", "train"), "design", Draft("s", WORDS, "x", "file", {"notice": None})),
        (subject("a", "train"), "repair", Draft("s", "y " * 300, "x")),
        (subject("b", "test"), "design", Draft("s", f"{WORDS} else", "x")),
        (subject("b", "test"), "repair", Skipped("does_not_run", "no")),
    ]
    chat = finish(drafts, "record", KINDS, 250)
    ((split, row),) = chat.rows
    assert (split, row.pop("messages")[1]) == ("train", {"role": "user", "content": WORDS})
    assert row == {
        "id": conversation_id("a", "design", "file"),
        "task": "design",
        "variant": "file",
        "record": "a",
        "license": "MIT",
        "notice": None,
        "n_tokens": 202,
    }
    assert [(drop["record"], drop["task"], drop["reason"], drop["detail"]) for drop in chat.drops] == [
        ("a", "repair", "too_long", "302 tokens; the limit is 250"),
        ("b", "design", "near_split", "its request is nearly that about a in train"),
        ("b", "repair", "does_not_run", "no"),
    ]
    assert chat.counts() == {
        "rows": 1,
        "records": 1,
        "tokens": 202,
        "kinds": {"design": 1, "repair": 0},
        "splits": {"train": 1, "validation": 0, "test": 0},
        "dropped": 3,
        "drops": {"design": {"near_split": 1}, "repair": {"does_not_run": 1, "too_long": 1}},
    }


@pytest.mark.parametrize("code", ["x = 1\n", "x = 1", "s = '```python'\n", "````\n```\n", "\n\n"])
def test_a_fence_gives_its_code_back(code: str) -> None:
    assert read_fenced_code(f"before\n\n{fence(code)}\nafter") == [code if code.endswith("\n") else f"{code}\n"]
