"""Modules of a network: the part of a graph that is theirs is what they compute by themselves."""

import torch
from torch import Tensor, nn

from lemur_core.describe.cost import parts
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import identities
from tests.builders.graphs import trace


class Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(self.down(x.mean((2, 3), keepdim=True)).relu()))


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(x) - y, torch.tanh(x)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.gates = nn.Sequential(Gate(8), Gate(8))
        self.joined = Joined()
        self.unused = Gate(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        one, other = self.joined(y.exp(), self.gates(y))
        return one + other


def alone(module: type[nn.Module], *given: int, inputs: int = 1, train: bool = False) -> Graph:
    return trace(lambda: module(*given), lambda: [torch.randn(2, 8, 16, 16) for _ in range(inputs)], train=train)


def test_a_part_is_what_its_module_computes_by_itself() -> None:
    for train in (False, True):
        whole = trace(Network, lambda: [torch.randn(2, 3, 16, 16)], train=train)
        found = parts(whole)
        assert list(found)[:3] == ["gates", "joined", "stem"]
        assert not any(path.startswith("unused") for path in found)
        gate = identities(alone(Gate, 8, train=train))
        assert identities(found["gates.0"]) == identities(found["gates.1"]) == gate
        assert identities(found["gates"]) != gate
        assert identities(found["joined"]) == identities(alone(Joined, inputs=2, train=train))
        assert len(found["joined"].writes) == (3 if train else 0)  # mean, variance, batches
        wider = identities(_gate(12, train=train))
        assert (wider.exact != gate.exact, wider.widths == gate.widths) == (True, True)


def _gate(width: int, *, train: bool) -> Graph:
    return trace(lambda: Gate(width), lambda: [torch.randn(2, width, 9, 9)], train=train)


def test_small_modules_are_left_out() -> None:
    whole = trace(Network, lambda: [torch.randn(2, 3, 16, 16)])
    assert {"stem.0", "joined.norm"} <= parts(whole, least=1).keys()
    assert not parts(whole, least=100)
    assert parts(canonical(Graph((), ()))) == {}
