"""Facts of graphs: their operations in lines, and the motifs that structure proves."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)

from lemur_core.describe.facts import Facts, count_tensors
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.sizes import Symbols, merge_runs
from lemur_core.graphs.trace import used_parameters
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


def attend(n: Net, x: Tensor) -> Tensor:
    q, k, v = n.qkv(x).reshape(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return ((q * 8**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


def attend_others(n: Net, x: Tensor) -> Tensor:
    scores = (x @ x.transpose(-2, -1)) * n.scale.weight.exp()
    return scores.masked_fill(torch.eye(6, dtype=torch.bool), -1e4).softmax(-1) @ x


def talk(n: Net, x: Tensor) -> Tensor:
    scores = n.before((x @ x.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return n.after(scores.softmax(-1)) @ x


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(4).flip(0), persistent=False)
        self.scale = torch.tensor(100.0)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.order] * torch.tensor(3.0) / self.scale.log()


class Cubed(torch.autograd.Function):
    """The cube of one value times another; the gradients are each of one value alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * x * x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return gradient * x * x * 3 * y, gradient * x * x * x


def partition(n: Net, x: Tensor) -> Tensor:
    return x.view(2, 2, 4, 3, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4, 6)


def merge(n: Net, x: Tensor) -> Tensor:
    return x.view(2, 2, 3, 4, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(2, 8, 12, 6)


FACTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str], list[tuple[Any, ...]]]] = read_table(
    __file__, "motifs.md", "Facts", globals()
)


@pytest.mark.parametrize("name", FACTS)
def test_facts(name: str) -> None:
    build, shape, operations, motifs = FACTS[name]
    found = graph(build, shape)
    facts = Facts(found)
    assert facts.list_operations() == operations
    assert Graph.from_json(found.to_json()) == found
    assert [(m.kind, m.operations, *m.facts.items()) for m in facts.find_motifs()] == motifs


def test_every_number_of_a_motif_is_a_line() -> None:
    class Stage(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(F.relu(self.a(x)))

    facts = Facts(graph(lambda: nn.Sequential(*[Stage(4) for _ in range(20)]), (1, 4, 4, 4)))
    assert [m.kind for m in facts.find_motifs()] == ["residual"] * 20
    assert len(facts.list_operations()) == 20 * 4 + 2
    for motif in facts.find_motifs():
        line = facts.list_operations()[motif.operations[-1]]
        assert line.startswith(f"({motif.operations[-1]}) add of ")


def test_what_is_returned_and_why_sizes_are_fixed() -> None:
    found = graph(lambda: Net(lambda n, x: (x.relu(), {"norm": x.norm(), "sizes": x.shape})), (2, 4))
    structure = ["tensor", {"items": [["norm", "tensor"], ["sizes", [None, None]]]}]
    lines = Facts(found, structure, ("sizes", "branches")).list_operations()
    assert lines[0] == "inputs *0 2×4; of this run alone: sizes, branches"
    assert lines[-1] == "returns (1), norm: (2), sizes: [no tensor, no tensor]"
    assert Facts(found, None).list_operations()[-1] == "returns an object with (1), (2)"
    for wrong in (5, ["tensor", "text"], {"items": 5, "more": 1}):
        with pytest.raises(ValueError, match="is not what forward returns"):
            count_tensors(wrong)


def test_a_setting_that_varies_has_no_formula() -> None:
    runs = [graph(lambda: Net(lambda n, x: F.pad(x, (0, x.shape[1] // 3)) / x.shape[1]), (2, size)) for size in (6, 9)]
    joined = merge_runs(runs)
    assert joined is not None
    lines = Facts(Symbols({"B": (6, 9)}).replace_numbers(joined)).list_operations()
    assert lines == [
        "inputs *0 2×L",
        "(1) constant_pad_nd of *0; pad 0×varies, value 0.0 -> 2×L2",
        "(2) div of (1), L -> 2×L2",
        "returns (2)",
    ]


@table(__file__, "motifs.md", "Channels", globals())
def test_channels_are_where_layers_read_them(forward: Callable[..., Any], axis: int | None) -> None:
    found = graph(
        lambda: Net(forward, norm=nn.LayerNorm(16), fc=nn.Linear(16, 16), conv=nn.Conv2d(16, 4, 1)), (2, 16, 16, 16)
    )
    assert Facts(found).find_channel_axis() == axis


def test_a_norm_of_which_only_the_statistics_are_used_has_idle_parameters() -> None:
    for forward, idle in ((lambda n, x: (n.bn(n.a(x)), n.a(x))[1], True), (lambda n, x: n.bn(n.a(x)), False)):
        form = graph(partial(Net, forward, a=nn.Conv2d(4, 4, 1), bn=nn.BatchNorm2d(4)), (2, 4, 8, 8), train=True)
        assert {node.op for node in form.nodes} >= {"batch_norm"}
        own = set() if idle else {"bn.weight", "bn.bias"}
        assert used_parameters({"train": form}) == {"a.weight", "a.bias"} | own
