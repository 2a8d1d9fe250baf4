"""What a recorder notes of a run, beside its graph."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.identity import identities
from lemur_core.graphs.memory import describe_strides, find_storage
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run
from tests.builders.graphs import trace
from tests.builders.suites import read_table, table

RUNS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = read_table(__file__, "recorder.md", "Runs", globals())


class Body(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


@pytest.mark.parametrize("name", RUNS)
def test_it_notes_whether_values_were_seen(name: str) -> None:
    compute, seen = RUNS[name]
    recorder = Recorder("cpu")
    with recorder.recording():
        with recorder.pause():
            given = torch.tensor([[0.5, -1.0], [2.0, 0.25]])
        run(recorder, Body(compute), [given], train=False)
    assert recorder.reads_values is seen


def test_memory_that_no_operation_showed_is_found_by_its_strides() -> None:
    whole = torch.arange(6.0)
    assert [describe_strides(part) for part in (whole, whole[2:], whole.view(2, 3).T)] == [None, (1, 2), (1, 3, 0)]
    recorder = Recorder("cpu")
    with recorder.recording():
        given = whole + 1
        with recorder.pause():
            part = given.detach()[3:]
        graph = canonical(run(recorder, Body(lambda _: part * 2), [given], train=False))
    (node,) = (node for node in graph.nodes if node.op == "as_strided")
    assert dict(node.arguments)["storage_offset"] == 3


class Repeated(nn.Module):
    """A block that is checkpointed in a given way, or not at all."""

    def __init__(self, bare: bool, options: dict[str, bool]) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.bare, self.options = bare, options

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.bare else self.first(x)
        if not self.options:
            return x * self.block(x)
        return x * cast(Tensor, checkpoint.checkpoint(self.block, x, **self.options))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_checkpoint_computes_what_it_keeps_from_memory(device: str) -> None:
    def graph(bare: bool, **options: bool) -> str:
        found = trace(lambda: Repeated(bare, options), lambda: [torch.ones(2, 4)], device=device, train=True)
        return identities(found).exact

    assert graph(False, use_reentrant=True) == graph(False, use_reentrant=False) == graph(False)
    bare = graph(True)  # nothing before it has a gradient
    assert graph(True, use_reentrant=False) == bare
    assert graph(True, use_reentrant=True) != bare  # its parameters get no gradient


class OnItsOwn(nn.Module):
    """Looks at sizes on the CPU before it runs anywhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        with torch.no_grad():
            seen = self.body.to("cpu")(torch.zeros(2, 3, 8, 8, device="cpu"))
        self.head = nn.Linear(seen.flatten(1).shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.body(x.to("cpu")).flatten(1)))


class Noting(nn.Module):
    """Puts another tensor in the place of a buffer that it never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.mean(0)
        return x * 2


def test_buffers_never_read_and_networks_that_go_to_the_cpu() -> None:
    form = trace(Noting, lambda: [torch.ones(3, 4)])
    assert [(form.nodes[target.node].op, form.nodes[value.node].op) for target, value in form.writes] == [
        ("buffer", "mean")
    ]
    found = [trace(OnItsOwn, lambda: [torch.ones(2, 3, 8, 8)], device=device) for device in ("meta", "cpu")]
    assert identities(found[0]).exact == identities(found[1]).exact


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_constant_that_is_recorded_is_no_read_of_the_network(device: str) -> None:
    """Made from a number, as the counter of a normalization, or from a list, as it is built and as it runs."""
    recorder = Recorder(device)
    with recorder.recording():
        norm = nn.BatchNorm2d(4)
        body = Body(lambda x: norm(x) * torch.tensor([1.0, 2.0]) + torch.tensor(range(40)).sum())
        weights = torch.tensor([float(number) for number in range(100)])
        with recorder.pause():
            images = torch.randn(2, 4, 3, 2, device=device)
        run(recorder, body, [images], train=True)
    assert (recorder.reads_values, recorder.reads) == (False, [])
    assert len(weights) == 100


def test_memory_of_tensors_and_lists_of_them() -> None:
    """A list of numbers that are tensors becomes one tensor, as before."""
    with Recorder("meta").recording():
        picked = torch.ones(2, 3)[:, [2, 0]]
    assert picked.shape == (2, 2)
    assert torch.equal(torch.tensor([torch.tensor(1.0), torch.tensor(2.0)]), torch.tensor([1.0, 2.0]))
    with Recorder("meta").recording():
        for taken in (torch.empty(3), torch.empty(3)):
            given = torch.empty(3)
            given.set_(given)
            given.set_(taken)
            assert find_storage(given) == find_storage(taken)
        counted = torch.zeros(3, device="cpu")
        assert [counted.add_(1).tolist() for _ in range(2)] == [[1.0] * 3, [2.0] * 3]


def test_a_run_frees_its_tensors() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(20)))
    recorder = Recorder("cpu")
    graphs = []
    with recorder.recording():
        with recorder.pause():
            inputs = torch.randn(3, 4)
        for _ in range(3):
            graphs.append(run(recorder, net, [inputs], train=False))
            # Parameters and input; a few tensors of the last call are freed by the next one.
            assert 41 <= len(recorder._memory._holdings) <= 46
    assert len({identities(canonical(graph)).exact for graph in graphs}) == 1


@table(__file__, "recorder.md", "A result that is built again is as torch makes it", globals())
def test_a_result_that_is_built_again_is_as_torch_makes_it(
    compute: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
) -> None:
    def describe(results: Tensor | tuple[Tensor, ...]) -> list[object]:
        kind, several = type(results), [results] if isinstance(results, Tensor) else results
        return [(kind, one.shape, one.stride(), one.dtype, one.storage_offset(), one.is_conj()) for one in several]

    expected = describe(compute(torch.empty(2, 3, 4, device="meta")))
    recorder = Recorder("meta")
    with recorder.recording():
        given = torch.empty(2, 3, 4)
        results = [compute(given) for _ in range(3)]
    assert [describe(each) for each in results] == [expected] * 3
    memories = {find_storage(one) for each in results for one in ([each] if isinstance(each, Tensor) else each)}
    assert len(memories) == 3 * len(expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: nn.functional.hardswish(x, inplace=True),
        lambda x: x.clamp_(0, 1).add_(x),
        lambda x: x[1:].add_(x[:-1].clone()),
        lambda x: x.t_(),
    ],
)
def test_operations_in_place_that_repeat_have_the_graph_of_those_with_values(change: Callable[..., Tensor]) -> None:
    def repeat(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x.clone() + 1
            kept = change(x)
            x = x * 2 + kept.sum()
        return x

    graphs = [trace(lambda: Body(repeat), lambda: [torch.ones(3, 3)], device=device) for device in ("meta", "cpu")]
    assert identities(graphs[0]) == identities(graphs[1])
