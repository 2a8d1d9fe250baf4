"""Which ways to write a network are the same computation, which differ, and which differ in widths alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: F401, N812 (the name everybody uses, on the page)

from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import identities, similarity, subtrees
from tests.builders.graphs import trace
from tests.builders.suites import Case, suite

CHANNELS = 4
ALL = slice(None)
Forward = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """Some parameters, made in the order of their names or in the opposite one, and one way to use them."""

    def __init__(self, forward: Forward, *, backwards: bool = False, kernel: int = 3, width: int = CHANNELS) -> None:
        super().__init__()
        parts: dict[str, Callable[[], nn.Module]] = {
            "a": lambda: nn.Conv2d(CHANNELS, width, kernel, padding=kernel // 2),
            "b": lambda: nn.Conv2d(width, CHANNELS, kernel, padding=kernel // 2),
            "c": lambda: nn.Linear(CHANNELS, width),
            "norm": lambda: nn.BatchNorm2d(CHANNELS),
            "norm2": lambda: nn.BatchNorm2d(CHANNELS),
            "act": nn.ReLU,
        }
        for name in sorted(parts, reverse=backwards):
            setattr(self, name, parts[name]())
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def graph(forward: Forward, *, train: bool = False, **options: Any) -> Graph:
    return trace(lambda: Net(forward, **options), lambda: [torch.rand(2, CHANNELS, 8, 8)], train=train)


def _in_place(net: Net, x: Tensor) -> Tensor:
    y = net.a(x).clone()
    y[:, 0] = 0
    y += x
    return y.relu_()


def _functional(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    y = torch.select_scatter(y, torch.zeros_like(y[:, 0]), 1, 0)
    return torch.relu(x + y)


def _through_a_view(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    flat = y.view(-1)
    flat.mul_(2.0)
    return y


def _written(*places: Any, to: Any = 0) -> Forward:
    """A number, or a tensor that is made then, written to these places of what a convolution gives."""

    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.a(x).clone()
        chosen = tuple(place(x) if callable(place) else place for place in places)
        y[chosen] = to() if callable(to) else to
        return y

    return forward


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Clipped(Straight):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-1, 1)


def _without_gradient(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = net.a(x)
    return y + net.b(x)


def pair(case: Case, **options: Any) -> tuple[Graph, Graph]:
    one, other = (eval(f"lambda n, x: {line}", globals()) for line in (case.files["one"], case.files["other"]))
    return graph(one, **options), graph(other, **options)


@suite(__file__, "same.md", verbs=("graphs",))
def test_ways_to_write_a_computation(case: Case) -> None:
    one, other = pair(case)
    same = {"same": True, "differ": False}[case.one("graphs")]
    assert (identities(one).exact == identities(other).exact) == same
    assert similarity(subtrees(one), subtrees(one)) == 1.0
    if same:
        trained, otherwise = pair(case, train=True)
        assert identities(trained).exact == identities(otherwise).exact


def _block(net: Net, x: Tensor) -> Any:
    return net.act(net.norm(net.b(net.act(net.a(x)))) + x)


def test_widths_alone_keep_the_identity_up_to_widths() -> None:
    one, wide, kernel = (identities(graph(_block, **options)) for options in ({}, {"width": 7}, {"kernel": 1}))
    assert one.exact != wide.exact
    assert (one.widths, one.repeats) == (wide.widths, wide.repeats)
    assert one.widths != kernel.widths


def test_repeats_collapse() -> None:
    def deep(times: int) -> Forward:
        def forward(net: Net, x: Tensor) -> Tensor:
            x = net.norm(x)
            for _ in range(times):
                x = net.act(net.b(net.a(x))) + x
            return x.mean((2, 3))

        return forward

    two, five, none = (identities(graph(deep(times))) for times in (2, 5, 0))
    assert two.repeats == five.repeats
    assert two.repeats != none.repeats
    assert two.widths != five.widths


def test_statistics_that_a_run_writes_are_results() -> None:
    written = graph(lambda net, x: net.norm(x), train=True).writes
    assert len(written) == 3  # mean, variance, and the number of batches
    assert not graph(lambda net, x: net.norm(x)).writes


def test_a_graph_is_stored_and_read_again() -> None:
    one = graph(_block, train=True)
    again = Graph.from_json(one.to_json())
    assert identities(again).exact == identities(one).exact
    with pytest.raises(ValueError, match="form 0 of torch"):
        Graph.from_json(one.to_json() | {"form": 0})


_LAYERS: list[Forward] = [
    lambda n, x: n.act(x),
    lambda n, x: n.b(n.a(x)),
    lambda n, x: n.norm(x),
    lambda n, x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    lambda n, x: x + n.norm2(x),
    lambda n, x: torch.cat([x[:, 2:], x[:, :2]], 1),
    lambda n, x: x.flip(3),
]


def _chain(layers: list[int], swapped: bool = False) -> Forward:
    def forward(net: Net, x: Tensor) -> Tensor:
        before = x
        for number in layers:
            after = _LAYERS[number](net, before)
            before = after + before if swapped else torch.add(before, after)
        return before

    return forward


@settings(max_examples=10)
@given(st.lists(st.integers(0, len(_LAYERS) - 1), min_size=1, max_size=6), st.data())
def test_networks_at_random(layers: list[int], data: st.DataObject) -> None:
    one = identities(graph(_chain(layers)))
    assert one == identities(graph(_chain(layers, swapped=True), backwards=True))
    place = data.draw(st.integers(0, len(layers) - 1))
    other = [*layers[:place], (layers[place] + 1) % len(_LAYERS), *layers[place + 1 :]]
    assert one.exact != identities(graph(_chain(other))).exact
