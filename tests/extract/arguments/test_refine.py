"""Sizes of their own, and small ones: what becomes of a call that works."""

from collections.abc import Callable
from typing import Any

import pytest

from extract.arguments.constructing import Arguments
from extract.arguments.forwarding import ForwardCall
from extract.arguments.refine import Refiner, WorkingCalls, read_sizes, vary
from tests.builders.class_text import class_text
from tests.builders.suites import table

Climb = Callable[..., dict[str, Any]]


def block(signature: str, init: str, forward: str, arguments: str = "x") -> str:
    return class_text(forward, init, arguments, signature)


def find(climb: Climb, text: str, **hints: Any) -> tuple[dict[str, str], dict[str, str]]:
    outcome = climb(text, **hints)
    assert outcome["level"] == "backward", outcome["error"]
    calls = outcome["arguments"]
    return calls["init"]["kwargs"], calls["forward"]["kwargs"]


@table(__file__, "search.md", "Sizes are all different where they can be", globals())
def test_sizes_are_all_different_where_they_can_be(
    climb: Climb, text: str, init: dict[str, str], forward: dict[str, str]
) -> None:
    assert find(climb, text) == (init, forward)


def test_of_calls_of_the_corpus_only_the_image_is_changed(climb: Climb) -> None:
    call = {"args": ["torch.randn(1, 8, 6, 6)"], "kwargs": [], "way": "example"}
    outcome = climb(block("dim", "self.a = nn.Conv2d(dim, dim, 3)", "return self.a(x)"), init=[
        {"args": ["8"], "kwargs": [], "way": "example"}], forward=[call])  # fmt: skip
    assert outcome["arguments"]["init"]["args"] == ["8"]
    assert outcome["arguments"]["forward"]["kwargs"] == {"x": "torch.randn(1, 8, 6, 9)"}


def test_a_large_call_of_the_corpus_becomes_small(climb: Climb) -> None:
    text = block("dim, heads", "self.a = nn.MultiheadAttention(dim, heads)", "return self.a(x, x, x)[0]")
    outcome = climb(text, init=[{"args": ["1024", "16"], "kwargs": [], "way": "call"}])
    assert outcome["arguments"]["init"]["args"] == ["256", "16"]
    assert outcome["observed"]["parameters"] < 300_000


def test_large_defaults_that_no_name_tells_become_small(climb: Climb) -> None:
    text = block("size=4096, kinds=(512, 64)", "self.a = nn.Linear(size, sum(kinds))", "return self.a(x)")
    init, forward = find(climb, text)
    assert (init, forward) == ({"size": "1024", "kinds": "(128, 16)"}, {"x": "torch.randn((2, 24, 1024))"})


@pytest.mark.parametrize(
    ("recorded", "forward"),
    [
        ((2, 8, 1, 1), "(2, 8, 16, 24)"),
        ((2, 8, 14, 14), "(2, 8, 14, 21)"),
        ((2, 8, 14, 7), "(2, 8, 14, 7)"),
        ((2, 1, 1, 8), "(2, 1, 1, 8)"),
    ],
)
def test_the_image_of_a_recorded_call_has_two_sides(recorded: tuple[int, ...], forward: str) -> None:
    called = ForwardCall((f"torch.randn({recorded})",), (), guessed=False)
    refiner = Refiner(lambda _, changed: "8, 8" not in str(changed))
    calls = refiner.separate_space(WorkingCalls(Arguments(("8",)), called))
    assert calls.called.args == (f"torch.randn({forward})",)
    assert calls.arguments == Arguments(("8",))


def test_integers_of_an_expression() -> None:
    sizes = list(read_sizes(0, "torch.randint(0, 9, (2, 16)), [Gate(32, act=nn.ReLU)], torch.randn(1, 3, True)"))
    assert [size.value for size in sizes] == [2, 16, 1, 3, 32]
    assert [size.axis for size in sizes] == [(2, 0), (2, 1), (3, 0), (3, 1), None]
    assert list(read_sizes(0, "'é', 3")) == []


def test_more_pixels_and_more_samples() -> None:
    more = (("t", "torch.rand((2,))"),)
    called = vary(WorkingCalls(Arguments(("16",)), ForwardCall(("torch.randn((2, 16, 8, 12))",), more)))
    wide, many = "torch.randn((2, 16, 16, 24))", "torch.randn((3, 16, 8, 12))"
    assert [(one.args, one.kwargs) for one in called] == [((wide,), more), ((many,), more)]


@pytest.mark.parametrize(
    ("image", "other"), [("27, 28", "13, 14"), ("16, 32", "32, 64"), ("64, 96", "32, 96"), ("4, 600", "8, 600")]
)
def test_a_large_image_gets_a_smaller_one_beside_it(image: str, other: str) -> None:
    calls = WorkingCalls(Arguments(), ForwardCall((f"torch.randn((2, 16, {image}))",), ()))
    others = [called.args[0] for called in vary(calls)]
    assert others == [f"torch.randn((2, 16, {other}))", f"torch.randn((3, 16, {image}))"]


def test_the_tries_are_bounded() -> None:
    tried = []
    calls = WorkingCalls(Arguments(tuple("32" for _ in range(40))), ForwardCall(("torch.randn((2, 32, 32, 32))",), ()))
    Refiner(lambda *call: bool(tried.append(call))).separate(calls, widths=True)
    assert len(tried) == 24
