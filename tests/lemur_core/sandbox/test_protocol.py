"""Messages come out as they went in, in whatever pieces they travel."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.sandbox import Status
from lemur_core.sandbox.server.jobs import Channel, read_report
from tests.builders.suites import table

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(messages=st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=5), cut=st.integers(1, 40))
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


def test_a_full_socket_does_not_block() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours), Channel(theirs)
    sender.send({"text": "x" * 5_000_000})
    assert sender.pending
    received: list[dict[str, object]] = []
    while not received:
        received = receiver.receive()
        sender.flush()
    assert received == [{"text": "x" * 5_000_000}]
    assert not sender.pending
    sender.close()
    receiver.close()


def test_too_large_or_not_json() -> None:
    ours, theirs = socket.socketpair()
    sender = Channel(ours)
    with theirs:
        with pytest.raises(ValueError, match="over the limit of 67108864"):
            sender.send({"text": "x" * (64 * 2**20)})
        with pytest.raises(TypeError):
            sender.send({"text": {1, 2}})
        assert not sender.pending
        sender.close()


def test_the_other_end_is_gone() -> None:
    ours, theirs = socket.socketpair()
    sender = Channel(ours)
    theirs.close()
    sender.send({"text": "into the void"})
    assert sender.closed
    sender.close()


@table(__file__, "protocol.md", "Unreadable reports have crashed", globals())
def test_unreadable_reports_have_crashed(text: str, kind: str) -> None:
    assert read_report(text) == (Status.CRASHED, None, f"invalid answer: the report cannot be read ({kind})")
