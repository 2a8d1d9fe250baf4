"""Modules written from their graphs alone: each equals its original, in both modes, at sizes that were never traced."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.convnext import CNBlock
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.swin_transformer import SwinTransformerBlock

from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.sizes import Shape, Sized, contradicts, evaluate_graph, propose_new_shapes, trace_sizes
from lemur_core.rebuild.proof import Inputs, Trial, find_difference
from lemur_core.rebuild.rebuild import Rebuilt, rebuild
from tests.builders.graphs import trace


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(torch.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


class ByMode(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x * self.scale - x.detach()
        return x * self.scale - self.seen


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: Tensor) -> Tensor:
        ctx.save_for_backward(x, bound)
        return x.sign() * bound

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, bound = ctx.saved_tensors
        return grad * (x.abs() < bound), None


class Fourier(nn.Module):
    """Transforms of each kind and norm, also to an odd number of real values."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft2(x, norm="ortho") * 2
        complex_values = torch.fft.ifft(torch.fft.fft(x, norm="forward") * 2)
        return torch.fft.irfft2(y, s=x.shape[-2:], norm="ortho") + complex_values.real


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, x.flip(1)) * x.sum(-1, keepdim=True)


class StraightThrough(nn.Module):
    bound: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("bound", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = _Sign.apply(self.linear(x), self.bound)  # type: ignore[no-untyped-call]
        return made + _Sign.apply(x, self.bound)  # type: ignore[no-untyped-call,no-any-return]


Made = tuple[Callable[[], nn.Module], Shape]
CASES: dict[str, Made] = {
    "gate": (Gate, (2, 16, 8, 8)),
    "basic": (lambda: BasicBlock(16, 16), (2, 16, 8, 8)),
    "bottleneck": (lambda: Bottleneck(64, 16), (2, 64, 8, 8)),
    "convnext": (lambda: CNBlock(16, 1.0, 0.3), (2, 16, 8, 8)),
    "swin": (lambda: SwinTransformerBlock(32, 4, [4, 4], [2, 2], stochastic_depth_prob=0.2), (2, 9, 9, 32)),
    "tokens": (Tokens, (2, 3, 32, 32)),
    "by mode": (ByMode, (4, 8)),
    "fourier": (Fourier, (2, 4, 6, 9)),
    "pairs": (Pairs, (2, 6, 10)),
    "norm without weights": (lambda: nn.BatchNorm2d(8, affine=False), (4, 8, 6, 6)),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 7, 32)),
    "lstm": (lambda: nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True, dropout=0.2), (2, 5, 8)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4)), (2, 8)),
}


def traced(build: Callable[[], nn.Module], shape: Shape, *, train: bool = False) -> Graph:
    return trace(build, lambda: [torch.randn(shape).requires_grad_() * 1], train=train)


@cache
def written(build: Callable[[], nn.Module], shape: Shape) -> tuple[Sized, Rebuilt]:
    """A module's graphs at several sizes, as a spec holds them, and what is written from them."""
    own = [traced(build, shape, train=train) for train in (False, True)]
    sized = trace_sizes(lambda shapes, train: traced(build, shapes[0], train=train), [shape], *own)
    again = Sized.from_json(sized.to_json() | {"train_error": None})
    assert (again.evaluated, again.trained, again.sizes) == (sized.evaluated, sized.trained, sized.sizes)
    assert evaluate_graph(again.evaluated) == own[0]
    return again, rebuild(again.evaluated, again.trained)


def constructed(made: Rebuilt, original: nn.Module) -> nn.Module:
    space: dict[str, Any] = {}
    exec(made.source, space)
    module = space["Rebuilt"]()
    assert isinstance(module, nn.Module)
    state = original.state_dict()
    module.load_state_dict(space["renamed"](state) if "renamed" in space else state)
    return module


def difference(original: nn.Module, made: Rebuilt, shape: Shape, *, train: bool) -> str:
    """The first difference between the results of both modules, which have the same state."""

    def inputs() -> Inputs:
        torch.manual_seed(1)
        return [torch.randn(shape)], {}

    trial = Trial(inputs, lambda: torch.manual_seed(2) and None, train)
    # A run changes statistics: both start from the same.
    ours = trial.run(constructed(made, original), made.mapping, made.takes)
    theirs = trial.run(copy.deepcopy(original))
    return find_difference(theirs, ours, made.mapping)


def test_sizes_are_changed_at_once_where_the_module_takes_that() -> None:
    """A fixed width costs a run that fails for each dimension in front of it; nothing is run for one size alone."""
    torch.manual_seed(0)
    module, shape, ran = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Dropout()), (2, 4, 6, 6), []

    def go(shapes: Sequence[Shape], train: bool) -> Graph:
        ran.append(shapes[0])
        return traced(lambda: module, shapes[0], train=train)

    sized = trace_sizes(go, [shape], *(traced(lambda: module, shape, train=train) for train in (False, True)))
    assert sized.sizes.keys() == {"B", "H", "W"}
    assert all(len(values) >= 4 for values in sized.sizes.values())
    taken = [shapes for shapes in ran if shapes[1] == 4]
    assert len(taken) <= 11, "one of them far away"
    assert not any(sum(one != own for one, own in zip(shapes, shape, strict=True)) == 1 for shapes in taken)


def test_strides_that_near_sizes_hide_refute_a_formula() -> None:
    """Of 3 to 12 numbers a quarter is a third, and a sixteenth one; of a hundred neither."""
    torch.manual_seed(0)
    strided = (nn.Conv1d(4, 4, 41, 4, 20) for _ in range(2))
    module, shape = nn.Sequential(*strided), (2, 4, 3)
    evaluated = traced(lambda: module, shape)
    sized = trace_sizes(lambda shapes, train: traced(lambda: module, shapes[0], train=train), [shape], evaluated, None)
    assert sized.sizes.keys() <= {"B", "C"}
    assert sized.sizes.keys() == {"B"} or not contradicts(
        sized.evaluated, traced(lambda: module, (2, 4, 100)), {"B": 2, "C": 100}
    )
    assert (sized.fixed is None) == ("C" in sized.sizes)


@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_equal_in_both_modes_at_sizes_that_were_not_traced(name: str) -> None:
    build, shape = CASES[name]
    sized, made = written(build, shape)
    torch.manual_seed(0)
    original = build()
    others = propose_new_shapes(sized, [shape])
    assert others
    for train in (False, True):
        for given in (shape, others[0][0]):
            assert difference(original, made, given, train=train) == ""
    space: dict[str, Any] = {}
    exec(made.source, space)
    again = {mode: traced(space["Rebuilt"], shape, train=mode == "train") for mode in ("eval", "train")}
    assert sized.trained is not None
    graphs = {"eval": evaluate_graph(sized.evaluated), "train": evaluate_graph(sized.trained)}
    one, other = compute_identities(again), compute_identities(graphs)
    assert (one["graph"], one["graph_widths"]) == (other["graph"], other["graph_widths"])


def test_a_gradient_of_its_own_is_not_rebuilt_and_told() -> None:
    made = written(StraightThrough, (4, 8))[1]
    torch.manual_seed(0)
    assert difference(StraightThrough(), made, (4, 8), train=False).startswith("gradient of ")


def test_another_computation_is_told() -> None:
    """The comparison sees one changed number: what passes it is not passed by chance."""
    build, shape = CASES["gate"]
    _, made = written(build, shape)
    torch.manual_seed(0)
    original = build()
    for before, after, told in (
        ("sigmoid()", "tanh()", "output 0: "),
        ("(2, 3)", "(2,)", "output 0: "),
        ("x0 * ", "x0.detach() * ", "gradient of input 0: "),
    ):
        wrong = Rebuilt(made.source.replace(before, after), made.mapping, made.takes)
        assert wrong.source != made.source
        assert difference(original, wrong, shape, train=False).startswith(told)


def test_each_operation_is_a_line() -> None:
    build, shape = CASES["basic"]
    _, made = written(build, shape)
    assert made.source == (
        "from torch import nn\n"
        "from torch.nn import functional as F\n\n\n"
        "class Rebuilt(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)\n"
        "        self.bn1 = nn.BatchNorm2d(16)\n"
        "        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)\n"
        "        self.bn2 = nn.BatchNorm2d(16)\n\n"
        "    def forward(self, x0):\n"
        "        h1 = self.conv1(x0)\n"
        "        h2 = self.bn1(h1)\n"
        "        h3 = F.relu(h2)\n"
        "        h4 = self.conv2(h3)\n"
        "        h5 = self.bn2(h4)\n"
        "        h6 = h5 + x0\n"
        "        h7 = F.relu(h6)\n"
        "        return h7\n"
    )
