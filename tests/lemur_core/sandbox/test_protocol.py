"""Messages come out as they went in, in whatever pieces they travel."""

import json
import socket
import subprocess
import sys
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.sandbox import Outcome, Status
from lemur_core.sandbox.server.jobs import Channel, read_report
from lemur_core.sandbox.server.received import MAX_DEPTH, clean_text, inflate, receive
from tests.builders.suites import read_files, table

texts = st.text(st.characters(codec=None, categories=("Cs", "Cc", "L")) | st.just("\\"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(messages=st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=5), cut=st.integers(1, 40))
def test_round_trip_in_pieces(messages: list[dict[str, object]], cut: int) -> None:
    ours, theirs = socket.socketpair()
    middle, far = socket.socketpair()
    sender, receiver = Channel(ours), Channel(far)
    with theirs, middle:
        for message in messages:
            sender.send(message)
        sender.close()
        received = []
        while piece := theirs.recv(cut):
            middle.send(piece)
            received += receiver.receive()
        assert received == messages
        assert not receiver.closed
        middle.close()
        assert receiver.receive() == []
        assert receiver.closed
        receiver.close()


def test_what_cannot_be_sent() -> None:
    ours, theirs = socket.socketpair()
    sender = Channel(ours)
    with theirs:
        with pytest.raises(ValueError, match="over the limit of 67108864"):
            sender.send({"text": "x" * (64 * 2**20)})
        with pytest.raises(TypeError):
            sender.send({"text": {1, 2}})
        assert not sender.pending
        sender.close()
    ours, theirs = socket.socketpair()
    sender = Channel(ours)
    theirs.close()
    sender.send({"text": "into the void"})
    assert sender.closed
    sender.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ("[]", "TypeError"),
        ("{}", "KeyError"),
        ('{"status": "fine", "value": 1, "error": ""}', "ValueError"),
    ],
)
def test_unreadable_reports_have_crashed(text: str, kind: str) -> None:
    assert read_report(text) == (Status.CRASHED, None, f"invalid answer: the report cannot be read ({kind})")


# What comes out of a job: cleaned texts, values within bounds, packed data of a bounded size.


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@table(__file__, "received.md", "A text is cleaned", globals())
def test_a_text_is_cleaned(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert receive({text: [text, 1]}) == {cleaned: [cleaned, 1]}


@given(value=values, error=texts)
def test_an_outcome_is_clean(value: Any, error: str) -> None:
    """Whatever JSON holds; and what was cleaned once does not change again, so recall is the same as receipt."""
    outcome = Outcome("a", Status.OK, json.loads(json.dumps(value)), error, stdout_tail=error)
    for text in (json.dumps(outcome.value, ensure_ascii=False), outcome.error, outcome.stdout_tail):
        assert "\0" not in text.encode().decode()
    assert Outcome("a", Status.OK, outcome.value, outcome.error, stdout_tail=outcome.stdout_tail) == outcome


@table(__file__, "received.md", "A value out of bounds is a crash of the job", globals())
def test_a_value_out_of_bounds_is_a_crash_of_the_job(value: Any, why: str) -> None:
    outcome = Outcome("a", Status.OK, value)
    assert (outcome.status, outcome.value, outcome.error) == (Status.CRASHED, None, f"invalid answer: {why}")


def test_bounds_are_inclusive() -> None:
    for value in (nested(MAX_DEPTH), [2**63 - 1, -(2**63), 1e308, True, None]):
        assert Outcome("a", Status.OK, value).value == value
    assert len(Outcome("a", Status.ERROR, None, "x" * 2**24).error) == 8_000


def test_a_bomb_is_not_inflated() -> None:
    for size in (0, 1, 99, 100):
        assert inflate(zlib.compress(b"x" * size), 100) == b"x" * size
    bomb = zlib.compress(b" " * 2**26)
    tracemalloc.start()
    with pytest.raises(ValueError, match="holds more than 1,000,000 bytes"):
        inflate(bomb, 1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"not packed", zlib.compress(b"abc")[:-1], zlib.compress(b"abc") + b"more"])
def test_damaged_data(data: bytes) -> None:
    with pytest.raises(ValueError, match="not packed data"):
        inflate(data)


# torch's compiler stays away until something is compiled, and is then what it always is.

TEXTS = read_files(__file__, "compiler.md")


@pytest.mark.slow
def test_the_compiler_comes_when_it_is_asked_for() -> None:
    """In a process that is forked for each way to ask."""
    code = f"thens = {TEXTS['_THEN'].splitlines()}\n{TEXTS['_START']}{TEXTS['_END']}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
