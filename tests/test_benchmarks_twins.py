"""Functional twins: networks that compute the same have equal numbers under any names; others do not."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent))  # the benchmarks are no part of what is installed

from benchmarks.twins import Request
from benchmarks.twins_entry import measure_behavior
from benchmarks.twins_order import count_weights, list_state, order_parameters
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.networks.trace import trace_network

CASE = {
    "in_shape": [2, 3, 8, 8],
    "out_shape": [10],
    "dtype": "float32",
    "values": [0.0, 1.0],
    "output": [2, 10],
    "words": 0,
}
NET = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.{stem} = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.{norm} = nn.BatchNorm2d(8)
        self.side = nn.Conv2d(3, 8, 1, bias=False)
        self.head = nn.Linear(8, out_shape[0])
        self.drop = nn.Dropout(0.3)
        {more}

    def forward(self, x):
        {body}
        return self.head(self.drop({pool}))
"""
PLAIN = {
    "stem": "stem",
    "norm": "norm",
    "more": "pass",
    "body": "x = self.norm(self.stem(x)).relu() + self.side(x)",
    "pool": "x.mean((2, 3))",
}
SAME = {
    "names and operands": {
        "stem": "z",
        "norm": "a",
        "body": "x = self.side(x) + F.relu(self.a(self.z(x)))",
    },
    "a formula": {"body": "x = self.norm(self.stem(x)).clamp(min=0) * 1.0 + self.side(x)"},
    "a pooling": {"pool": "F.adaptive_avg_pool2d(x, 1).flatten(1)"},
    "a convolution by hand": {
        "body": "y = (self.stem.weight.view(8, -1) @ F.unfold(x, 3, padding=1)).view(len(x), 8, *x.shape[2:]);"
        " x = self.norm(y).relu() + self.side(x)"
    },
    "a constant, kept": {
        "more": "self.register_buffer('two', torch.tensor(2.0))",
        "body": "x = (self.norm(self.stem(x)).relu() * self.two + self.side(x) * self.two) / 2",
    },
}
DIFFERENT = {
    "the side is not added": {"body": "x = self.norm(self.stem(x)).relu() + 0 * self.side(x)"},
    "another bound": {"body": "x = F.relu6(self.norm(self.stem(x))) + self.side(x)"},
    "the value of a buffer": {
        "more": "self.register_buffer('two', torch.tensor(2.5))",
        "body": "x = (self.norm(self.stem(x)).relu() * self.two + self.side(x) * self.two) / 2",
    },
    "a gradient that stops": {"body": "x = self.norm(self.stem(x)).relu().detach() + self.side(x)"},
    "train mode alone": {"body": "x = (self.norm(self.stem(x)) if self.training else self.norm(self.stem(x)).relu()) + self.side(x)"},
    "the rate of dropout": {"pool": "F.dropout(x.mean((2, 3)), 0.5, self.training)"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for the file that the network is loaded from."""
    monkeypatch.chdir(tmp_path)


def behavior(changes: dict[str, str]) -> dict[str, Any]:
    code = NET.format(**PLAIN | changes)
    traced = trace_network({"code": code, "prm": {}, "cases": [CASE]})
    forms = {mode: Graph.from_json(unpack(traced[mode])) for mode in ("eval", "train")}
    assert count_weights(forms) == [8, 8, 10, 24, 80, 216]
    order, state = order_parameters(forms), list_state(forms)
    assert len(order) == 6
    assert len(state) == 3  # of the normalization
    answer = measure_behavior(asdict(Request(code, {}, [CASE], order, state, (0, 1))))
    assert (answer["runs"], answer["precision"], answer["informative"]) == (True, "float64", True)
    return answer


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_one_computation_has_one_behavior(changes: dict[str, str]) -> None:
    assert behavior(changes)["behavior"] == behavior({})["behavior"]


@pytest.mark.parametrize("changes", DIFFERENT.values(), ids=DIFFERENT)
def test_another_computation_has_another(changes: dict[str, str]) -> None:
    assert behavior(changes)["behavior"] != behavior({})["behavior"]


def test_what_does_not_run_is_said() -> None:
    request = Request("class Net: pass", {}, [CASE], [], [], (0,))
    assert measure_behavior(asdict(request))["runs"] is False
