"""What a recorder notes of a run, beside its graph."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run

RUNS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "no value": (lambda x: x[:, torch.tensor([1, 0])] + x.shape[0], False),
    "an element": (lambda x: x * x.sum().item(), True),
    "a branch": (lambda x: x if x.max() > 0 else -x, True),
    "those that are positive": (lambda x: x[x > 0], True),
    "places": (lambda x: x.flatten()[torch.nonzero(x.flatten() > 0).squeeze(1)], True),
    "different ones": (lambda x: torch.unique(x.round()), True),
}


class Body(nn.Module):
    """A function as a module."""

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
