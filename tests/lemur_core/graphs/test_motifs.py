"""Sentences on graphs: what they say of known figures, that names play no part, and that they stay short."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)

from lemur_core.describe.cost import parts
from lemur_core.describe.folding import MAX_SENTENCES
from lemur_core.describe.layouts import derive_layout
from lemur_core.describe.patterns import describe_graph
from lemur_core.describe.roles import OTHER_TEXTS, TEXTS, list_fields
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import identities
from lemur_core.graphs.serialization import deserialize, serialize
from tests.builders.graphs import trace
from tests.builders.suites import read_table, table


class Net(nn.Module):
    """Layers by name, and a forward that uses them."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._forward = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self._forward(self, *inputs)


def graph(build: Callable[[], nn.Module], *shapes: tuple[int, ...], train: bool = False) -> Graph:
    return trace(build, lambda: [torch.rand(shape) for shape in shapes], train=train)


def squeeze(n: Net, x: Tensor) -> Tensor:
    return x * torch.sigmoid(n.up(F.relu(n.down(x.mean((2, 3), keepdim=True)))))


def pyramid(n: Net, x: Tensor) -> Tensor:
    parts = [x]
    for _ in range(3):
        parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
    return torch.cat(parts, 1)


def attend(n: Net, x: Tensor) -> Tensor:
    q, k, v = n.qkv(x).reshape(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return ((q * 8**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


def attend_others(n: Net, x: Tensor) -> Tensor:
    scores = (x @ x.transpose(-2, -1)) * n.scale.weight.exp()
    return scores.masked_fill(torch.eye(6, dtype=torch.bool), -1e4).softmax(-1) @ x


def halves(n: Net, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([b, a], 1)


TOLD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = read_table(
    __file__, "motifs.md", "Told", globals()
)


@pytest.mark.parametrize("name", TOLD)
def test_known_figures(name: str) -> None:
    build, shape, expected = TOLD[name]
    assert list(describe_graph(graph(build, shape)).sentences) == expected


@pytest.mark.parametrize("name", [*TEXTS])
def test_each_form_of_an_operation_has_a_text(name: str) -> None:
    """`scatter` takes a tensor or a number, `where` a condition alone: no form may end a run."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        parameters = getattr(packet, overload)._schema.arguments
        if any(item.is_out for item in parameters) or parameters[0].type.kind() != "TensorType":
            continue
        given = {"input" if item.name == "self" else item.name for item in parameters if not item.has_default_value()}
        given -= {item.name for item in parameters if item.type.kind() == "OptionalType"}
        texts = (TEXTS[name], *OTHER_TEXTS.get(name, ()))
        assert any(list_fields(text) <= given | {"along"} for text in texts), (overload, given)


def test_weights_that_two_values_pass_are_named() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Conv2d(4, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.mean((2, 3), keepdim=True)) + self.fc(x.amax((2, 3), keepdim=True))

    assert describe_graph(graph(Twice, (1, 4, 4, 4))).sentences == (
        "(1) from the input: mean over H and W; 1×1 filter 4 to 6.",
        "(2) from the input: maximum over H and W; 1×1 filter 4 to 6, with the weights of (1); adds (1).",
    )


def test_repeats_are_folded_and_sentences_are_bounded() -> None:
    class Stage(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(F.relu(self.a(x)))

    told = describe_graph(graph(lambda: nn.Sequential(*[Stage(4) for _ in range(20)]), (1, 4, 4, 4)))
    assert told.patterns == ("a residual, 20 times",)
    assert told.sentences == (
        "(1) from the input: 3×3 filter 4 to 4; ReLU; 1×1 filter 4 to 4; adds the input: a residual.",
        "(2) from (1): 3×3 filter 4 to 4; ReLU; 1×1 filter 4 to 4; adds (1): a residual.",
        "(3) to (20): as (2), with numbers 1 further each time.",
    )

    def tangle(_n: Net, x: Tensor) -> Tensor:
        values = [x]
        for number in range(60):
            values.append(torch.sin(values[-1]) + torch.cos(values[number // 3]) * (number + 2))
        return torch.stack(values).sum(0)

    assert len(describe_graph(graph(lambda: Net(tangle), (2, 3))).sentences) == MAX_SENTENCES


def test_stochastic_depth_is_told_of_train_mode() -> None:
    class Drop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            branch = x.sin()
            return x + (branch * x.new_empty(2, 1, 1).bernoulli_(0.8).div_(0.8) if self.training else branch)

    both = describe_graph(graph(Drop, (2, 4, 6)), graph(Drop, (2, 4, 6), train=True))
    assert both.sentences == (
        "from the input: sine; adds the input: a residual.",
        "In train mode also whole samples dropped with probability 0.2.",
    )
    assert "stochastic depth" in both.patterns


def test_train_mode_tells_what_it_draws() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25))

    both = describe_graph(graph(build, (2, 4)), graph(build, (2, 4), train=True))
    assert both.sentences == (
        "from the input: linear 4 to 4.",
        "In train mode also dropout of 0.25.",
    )


def test_dropout_inside_an_attention_is_told() -> None:
    class Attend(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.25 if self.training else 0.0)

    both = describe_graph(graph(Attend, (2, 3, 4, 8)), graph(Attend, (2, 3, 4, 8), train=True))
    assert both.sentences[1:] == ("In train mode also dropout of 0.25 inside an attention.",)


@table(__file__, "motifs.md", "Layout follows from the graph", globals())
def test_layout_follows_from_the_graph(forward: Callable[..., Any], shape: tuple[int, ...], layout: str | None) -> None:
    found = graph(lambda: Net(forward, norm=nn.LayerNorm(16), fc=nn.Linear(16, 16), conv=nn.Conv2d(16, 4, 1)), shape)
    place = next(place for place, node in enumerate(found.nodes) if node.op == "input")
    assert derive_layout(found, place) == layout


@pytest.mark.parametrize("name", TOLD)
def test_notation_gives_the_same_graph_back(name: str) -> None:
    build, shape, _ = TOLD[name]
    found = graph(build, shape)
    assert deserialize(serialize(found)) == found


def test_another_form_or_torch_is_refused() -> None:
    stored = serialize(graph(lambda: nn.ReLU(), (2, 3)))
    for change in ({"torch": "0.4"}, {"form": 0}):
        with pytest.raises(ValueError, match="cannot be compared"):
            deserialize(stored | change)
    with pytest.raises(ValueError, match="not a graph"):
        deserialize({name: stored[name] for name in ("form", "torch")})


# Modules of a network: the part of a graph that is theirs is what they compute by themselves.


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
