"""Which ways to write a network are the same computation, which differ, and which differ in widths alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)

from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import identities, label, similarity, subtrees, text
from lemur_core.graphs.tracing.trace import trace

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
    """What a way to compute becomes."""
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
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Clipped(Straight):
    """The sign, with the gradient of the identity, clipped."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-1, 1)


def _without_gradient(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = net.a(x)
    return y + net.b(x)


def _unused(net: Net, x: Tensor) -> Tensor:
    net.b(net.a(x)).mean()
    return net.a(x)


SAME: dict[str, tuple[Forward, Forward]] = {
    "sum": (lambda n, x: n.a(x) + x, lambda n, x: torch.add(x, n.a(x))),
    "method": (lambda n, x: n.a(x).add(x), lambda n, x: x + n.a(x)),
    "in place": (lambda n, x: n.a(x).add_(x), lambda n, x: x + n.a(x)),
    "activation": (lambda n, x: n.act(n.a(x)), lambda n, x: F.relu(n.a(x), inplace=True)),
    "activation method": (lambda n, x: n.a(x).relu(), lambda n, x: torch.relu_(n.a(x))),
    "flatten": (lambda n, x: x.flatten(1), lambda n, x: x.view(x.size(0), -1)),
    "reshape in steps": (lambda n, x: x.reshape(2, -1), lambda n, x: x.reshape(-1).unsqueeze(0).view(2, -1)),
    "mean": (lambda n, x: F.adaptive_avg_pool2d(x, 1), lambda n, x: x.mean((2, 3), keepdim=True)),
    "negative dimensions": (lambda n, x: x.mean((-1, -2)), lambda n, x: x.mean((2, 3))),
    "whole numbers": (lambda n, x: x.clamp(0, 1) * 2 + 1, lambda n, x: x.clamp(0.0, 1.0) * 2.0 + 1.0),
    "nothing to join": (
        lambda n, x: (x, torch.cat([torch.empty(0), torch.empty(0)])),
        lambda n, x: (x, torch.empty(0)),
    ),
    "mean of all": (lambda n, x: x.mean(), lambda n, x: x.mean((0, 1, 2, 3))),
    "a range": (lambda n, x: x + torch.arange(8), lambda n, x: x + torch.arange(0, 8, 1)),
    "transposed twice": (lambda n, x: n.a(x.transpose(2, 3).transpose(3, 2)), lambda n, x: n.a(x)),
    "permuted in steps": (lambda n, x: x.permute(0, 2, 3, 1), lambda n, x: x.transpose(1, 2).transpose(2, 3)),
    "channels last": (lambda n, x: n.a(x.contiguous(memory_format=torch.channels_last)), lambda n, x: n.a(x)),
    "split": (lambda n, x: torch.cat(x.chunk(2, 1)[::-1], 1), lambda n, x: torch.cat([x[:, 2:], x[:, :2]], 1)),
    "select": (lambda n, x: x[:, 1], lambda n, x: x.unbind(1)[1]),
    "stack": (lambda n, x: torch.stack([x, n.a(x)], 1), lambda n, x: torch.cat([x[:, None], n.a(x)[:, None]], 1)),
    "dead code": (_unused, lambda n, x: n.a(x)),
    "computed twice": (lambda n, x: n.a(x) * n.a(x), lambda n, x: (y := n.a(x)) * y),
    "branches": (lambda n, x: n.a(x) + n.b(x), lambda n, x: n.b(x) + n.a(x)),
    "other names": (lambda n, x: n.b(n.a(x)), lambda n, x: n.a(n.b(x))),
    "slices of memory": (_in_place, _functional),
    "a number or a tensor of it": (_written(ALL, 0), _written(ALL, 0, to=lambda: torch.zeros(8))),
    "all is written": (_written(ALL, to=2), lambda n, x: torch.full_like(n.a(x), 2)),
    "a whole dimension is written": (
        lambda n, x: torch.slice_scatter(n.a(x), x, 1, 0, CHANNELS),
        lambda n, x: x,
    ),
    "written where a mask is true": (
        _written(lambda x: x > 0.5, to=-1),
        lambda n, x: n.a(x).masked_fill(x > 0.5, -1.0),
    ),
    "written where a mask of channels is true": (
        _written(ALL, lambda x: x[0, :, 0, 0] > 0.5, to=1),
        lambda n, x: n.a(x).masked_fill((x[0, :, 0, 0] > 0.5)[:, None, None], 1),
    ),
    "written to chosen places": (
        _written(ALL, lambda _: torch.tensor([0, 2]), to=3),
        lambda n, x: n.a(x).index_fill(1, torch.tensor([0, 2]), 3),
    ),
    "a tensor of one number": (lambda n, x: x + torch.zeros(1, 8).expand(8, 8).t(), lambda n, x: x + torch.zeros(8, 8)),
    "a whole number in a tensor of them": (
        lambda n, x: torch.full((3,), 2.5, dtype=torch.int64),
        lambda n, x: torch.full((3,), 2),
    ),
    "written through a view": (_through_a_view, lambda n, x: (n.a(x).view(-1) * 2.0).view(x.shape)),
    "matrix product": (lambda n, x: n.c.weight @ n.c.weight.t(), lambda n, x: torch.mm(n.c.weight, n.c.weight.T)),
    "subtracted": (lambda n, x: 1 - n.a(x), lambda n, x: torch.rsub(n.a(x), 1)),
    "squared": (lambda n, x: n.a(x) ** 2, lambda n, x: torch.square(n.a(x))),
    "attention": (
        lambda n, x: F.scaled_dot_product_attention(x, x, x),
        lambda n, x: F.scaled_dot_product_attention(x, x, x, scale=8**-0.5),
    ),
    "detached and used": (lambda n, x: n.a(x.detach()), lambda n, x: n.a(x)),
    "scaled sum": (lambda n, x: torch.add(x, n.a(x), alpha=2), lambda n, x: x + n.a(x) * 2),
}

DIFFERENT: dict[str, tuple[Forward, Forward]] = {
    "operand order": (lambda n, x: x - n.a(x), lambda n, x: n.a(x) - x),
    "quotient order": (lambda n, x: x / n.a(x), lambda n, x: n.a(x) / x),
    "activation": (lambda n, x: n.a(x).relu(), lambda n, x: F.gelu(n.a(x))),
    "slope": (lambda n, x: F.leaky_relu(n.a(x), 0.1), lambda n, x: F.leaky_relu(n.a(x), 0.2)),
    "sharing": (lambda n, x: n.a(n.a(x)), lambda n, x: n.b(n.a(x))),
    "sharing of a norm": (lambda n, x: n.norm(n.norm(x)), lambda n, x: n.norm2(n.norm(x))),
    "residual": (lambda n, x: n.a(x) + x, lambda n, x: n.a(x) + n.a(x)),
    "cut gradient": (lambda n, x: n.a(x) + n.b(x), lambda n, x: n.a(x).detach() + n.b(x)),
    "data": (lambda n, x: n.a(x) + n.b(x), lambda n, x: n.a(x).data + n.b(x)),
    "no gradient": (lambda n, x: n.a(x) + n.b(x), _without_gradient),
    "custom gradient": (lambda n, x: Straight.apply(n.a(x)), lambda n, x: n.a(x).sign()),
    "another custom gradient": (lambda n, x: Straight.apply(n.a(x)), lambda n, x: Clipped.apply(n.a(x))),
    "reduced over": (lambda n, x: x.mean(2), lambda n, x: x.mean(3)),
    "concatenation order": (lambda n, x: torch.cat([x, n.a(x)], 1), lambda n, x: torch.cat([n.a(x), x], 1)),
    "constant": (lambda n, x: n.a(x) * 2, lambda n, x: n.a(x) * 3),
    "tensor constant": (
        lambda n, x: x * torch.tensor([1.0, 2.0]).repeat(4),
        lambda n, x: x * torch.tensor([1.0, 3.0]).repeat(4),
    ),
    "outputs in order": (lambda n, x: (n.a(x), x), lambda n, x: (x, n.a(x))),
    "pooling": (lambda n, x: F.max_pool2d(x, 2), lambda n, x: F.avg_pool2d(x, 2)),
    "part": (lambda n, x: x[:, :2], lambda n, x: x[:, 2:]),
    "number that is written": (_written(ALL, 0), _written(ALL, 0, to=1)),
    "place that is written": (_written(ALL, 0), _written(ALL, 1)),
    "most of a dimension is written": (_written(ALL, slice(0, 4)), _written(ALL, slice(0, 3))),
    "dimension that is written": (
        _written(ALL, lambda _: torch.tensor([0, 1])),
        _written(lambda _: torch.tensor([0, 1])),
    ),
    "places that are written": (
        _written(ALL, lambda _: torch.tensor([0, 2])),
        _written(ALL, lambda _: torch.tensor([0, 3])),
    ),
    "places one by one": (
        _written(lambda _: torch.tensor([0, 1]), lambda _: torch.tensor([0, 1])),
        _written(lambda _: torch.tensor([0, 1])),
    ),
    "written, or added": (
        lambda n, x: n.a(x).index_put((torch.tensor([0]),), torch.ones(())),
        lambda n, x: n.a(x).index_put((torch.tensor([0]),), torch.ones(()), accumulate=True),
    ),
    "mask": (_written(lambda x: x > 0.5), _written(lambda x: x < 0.5)),
    "number in another type": (
        lambda n, x: torch.full((4,), 0.1).double(),
        lambda n, x: torch.full((4,), 0.1, dtype=torch.float64),
    ),
    "truth of a number": (
        lambda n, x: torch.full((3,), 2.0, dtype=torch.bool),
        lambda n, x: torch.full((3,), 0.0, dtype=torch.bool),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_ways_to_write_the_same(name: str, train: bool) -> None:
    one, other = (graph(forward, train=train) for forward in SAME[name])
    assert text(one, label) == text(other, label)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_stays_apart(name: str) -> None:
    one, other = (graph(forward) for forward in DIFFERENT[name])
    assert identities(one).exact != identities(other).exact
    assert similarity(subtrees(one), subtrees(one)) == 1.0


def _block(net: Net, x: Tensor) -> Any:
    return net.act(net.norm(net.b(net.act(net.a(x)))) + x)


def test_the_order_of_definitions_does_not_count() -> None:
    assert identities(graph(_block)) == identities(graph(_block, backwards=True))
    assert identities(graph(_block, train=True)) == identities(graph(_block, train=True, backwards=True))


def test_widths_alone_keep_the_identity_up_to_widths() -> None:
    one, wide, kernel = (identities(graph(_block, **options)) for options in ({}, {"width": 7}, {"kernel": 1}))
    assert one.exact != wide.exact
    assert (one.widths, one.repeats) == (wide.widths, wide.repeats)
    assert one.widths != kernel.widths


def test_frozen_parameters_and_training_differ() -> None:
    def frozen(net: Net, x: Tensor) -> Tensor:
        return net.a(x)

    def build() -> nn.Module:
        net = Net(frozen)
        net.a.requires_grad_(False)
        return net

    one = trace(build, lambda: [torch.rand(2, CHANNELS, 8, 8)])
    assert identities(one).exact != identities(graph(frozen)).exact
    assert identities(graph(_block)).exact != identities(graph(_block, train=True)).exact


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
    assert text(again, label) == text(one, label)
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


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(_LAYERS) - 1), min_size=1, max_size=6), st.data())
def test_networks_at_random(layers: list[int], data: st.DataObject) -> None:
    one = identities(graph(_chain(layers)))
    assert one == identities(graph(_chain(layers, swapped=True), backwards=True))
    place = data.draw(st.integers(0, len(layers) - 1))
    other = [*layers[:place], (layers[place] + 1) % len(_LAYERS), *layers[place + 1 :]]
    assert one.exact != identities(graph(_chain(other))).exact
