"""Behavior: networks that compute the same have equal numbers under any names; others do not."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.twins import NetNumbers, find_twins
from benchmarks.twins_entry import judge
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.identity import count_weights, order_parameters
from lemur_core.graphs.networks import trace
from lemur_core.graphs.networks.behavior import measure_behavior
from lemur_core.graphs.networks.trace import trace_network

#: One network in several spellings, and others that are nearly the same.
CASE = {"in_shape": [2, 3, 8, 8], "out_shape": [10], "output": [2, 10]}
CASE |= {"dtype": "float32", "values": [0.0, 1.0], "words": 0}
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
PLAIN = {"stem": "stem", "norm": "norm", "more": "pass", "pool": "x.mean((2, 3))"}
PLAIN["body"] = "x = self.norm(self.stem(x)).relu() + self.side(x)"
SAME = {
    "names and operands": {"stem": "z", "norm": "a", "body": "x = self.side(x) + F.relu(self.a(self.z(x)))"},
    "a formula": {"body": "x = self.norm(self.stem(x)).clamp(min=0) * 1.0 + self.side(x)"},
    "a conversion to the type that it has": {"pool": "x.float().mean((2, 3), dtype=torch.float32)"},
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
    "what is added to a variance": {"more": "self.norm.eps = 1e-6"},
    "the side is not added": {"body": "x = self.norm(self.stem(x)).relu() + 0 * self.side(x)"},
    "another bound": {"body": "x = F.relu6(self.norm(self.stem(x))) + self.side(x)"},
    "the value of a buffer": {
        "more": "self.register_buffer('two', torch.tensor(2.5))",
        "body": "x = (self.norm(self.stem(x)).relu() * self.two + self.side(x) * self.two) / 2",
    },
    "a gradient that stops": {"body": "x = self.norm(self.stem(x)).relu().detach() + self.side(x)"},
    "train mode alone": {"body": "x = (self.norm(self.stem(x)) if self.training else self.norm(self.stem(x)).relu()) + self.side(x)"},
    "noise that is added": {"pool": "x.mean((2, 3)) + torch.randn(len(x), 1) - torch.randn(len(x), 1)"},
    "the rate of dropout": {"pool": "F.dropout(x.mean((2, 3)), 0.5, self.training)"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def behavior(changes: dict[str, str]) -> str:
    code = NET.format(**PLAIN | changes)
    traced = trace_network({"code": code, "prm": {}, "cases": [CASE]})
    forms = {mode: Graph.from_json(unpack(traced[mode])) for mode in ("eval", "train")}
    assert count_weights(forms) == [8, 8, 10, 24, 80, 216]
    parameters, state = order_parameters(forms)
    assert (len(parameters), len(state)) == (6, 3)  # of the normalization
    answer = measure_behavior({**traced, "code": code, "prm": {}, "cases": [CASE]})
    assert answer["runs"] is True
    found: str = answer["behavior"]
    return found


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_one_computation_has_one_behavior(changes: dict[str, str]) -> None:
    assert behavior(changes) == behavior({})


@pytest.mark.parametrize("changes", DIFFERENT.values(), ids=DIFFERENT)
def test_another_computation_has_another(changes: dict[str, str]) -> None:
    assert behavior(changes) != behavior({})


def test_what_does_not_run_is_said() -> None:
    traced: dict[str, Any] = trace_network({"code": NET.format(**PLAIN), "prm": {}, "cases": [CASE]})
    answer = measure_behavior({**traced, "code": "class Net: pass", "prm": {}, "cases": [CASE]})
    assert answer["runs"] is False
    code = NET.format(**PLAIN | {"pool": "x.mean((2, 3)).detach().new_zeros(len(x), 8)"})
    fixed = code.replace("return self.head(", "return 0 * (")
    traced = trace_network({"code": fixed, "prm": {}, "cases": [CASE]})
    unknown = {"runs": True, "behavior": None, "behavior_eval": None}
    assert measure_behavior({**traced, "code": fixed, "prm": {}, "cases": [CASE]}) == unknown


def test_draws_count() -> None:
    """What is dropped may grow during a training: a first run shows nothing of it."""
    dropped = behavior({"pool": "x.mean((2, 3)) * (torch.ones(len(x), 8).bernoulli() if self.training else 1)"})
    assert dropped != behavior({})
    noise = "(torch.randn(len(x), 1) - torch.randn(len(x), 1))"
    plain, doubled = (behavior({"pool": f"x.mean((2, 3)) + {factor} * {noise}"}) for factor in (1, 2))
    assert plain != doubled


def test_a_network_of_its_own_size_is_measured_at_that_of_the_trace() -> None:
    """One that takes any size is built once, for small images; strips tell what large ones do."""
    large = {**CASE, "in_shape": [3, 3, 16, 16]}
    fixed = {"more": "self.head = nn.Linear(8 * in_shape[2] * in_shape[3], 10)", "pool": "x.flatten(1)"}
    for changes, sizes in ({}, "2x3x8x8,2x3x16x8,2x3x8x16"), (fixed, "2x3x8x8,3x3x16x16"):
        code = NET.format(**PLAIN | changes)
        traced = trace_network({"code": code, "prm": {}, "cases": [large]})
        answer = measure_behavior({**traced, "code": code, "prm": {}, "cases": [CASE, large]})
        assert answer["behavior"].partition("@")[2] == sizes


def test_a_long_run_is_not_recorded_and_construction_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_OPERATIONS", 60)
    built = NET.format(**PLAIN | {"more": "[torch.zeros(2) + 1 for _ in range(100)]"})
    long = NET.format(**PLAIN | {"pool": "sum(x.mean((2, 3)) for _ in range(60))"})
    assert trace_network({"code": built, "prm": {}, "cases": [CASE]})["graph"]
    answer = trace_network({"code": long, "prm": {}, "cases": [CASE]})
    assert answer == {"runs": True, "category": "not_recorded", "error": "it runs more than 60 operations"}


# The judge of the benchmarks, which runs both.


def measure(changes: dict[str, str]) -> NetNumbers:
    answer: dict[str, Any] = judge({"code": NET.format(**PLAIN | changes), "prm": {}, "cases": [CASE]})
    return TypeAdapter(NetNumbers).validate_python(answer)


def test_the_judge_tells_one_computation_from_another() -> None:
    plain, stopped = measure({}), measure(DIFFERENT["a gradient that stops"])
    assert plain.sizes == [8, 8, 10, 24, 80, 216]
    assert stopped.sizes == [10, 24, 80], "no gradient reaches the parameters before"
    numbers = {"a": plain, "b": measure(DIFFERENT["another bound"]), "c": measure(SAME["a formula"]), "d": plain}
    numbers |= {"f": stopped, "g": measure(DIFFERENT["train mode alone"]), "h": measure(SAME["names and operands"])}
    assert find_twins([[*"abcdefgh"]], numbers) == [["a", "c", "d", "h"]], "twins of twins are one group"
