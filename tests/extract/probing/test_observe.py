"""What is told of a block that runs."""

from typing import Any

import pytest
import torch
from torch import nn

from extract.probing.forwarding import Called, as_call
from extract.probing.observe import case_of, describe, further_cases, same
from extract.probing.running import Namespace
from extract.probing.tensors import INDEX, Fields, Inputs, Items, Literal, Tensor

NAMES = Namespace({"torch": torch})


def test_sizes_and_layers() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
    module[0].requires_grad_(False)
    found = describe(module)
    assert found == {
        "parameters": 16 + 8 + 20,
        "trainable": 8 + 20,
        "buffers": 9,
        "layers": {"Conv2d": 2, "BatchNorm2d": 1, "ReLU": 1, "Sequential": 1},
    }
    assert list(found["layers"]) == ["Conv2d", "BatchNorm2d", "ReLU", "Sequential"]  # the most first, then by name


def test_lazy_layers_have_no_size_yet() -> None:
    assert describe(nn.Sequential(nn.LazyBatchNorm1d()))["parameters"] == 0


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ((("x", Tensor((2, 3))),), {"x": "float32 2x3"}),
        ((("x", Tensor((2,), INDEX)), ("n", Literal("4"))), {"x": "int64 2", "n": "4"}),
        ((("*x", Items((Tensor((2,)), Tensor((3,))))),), {"*0": "float32 2", "*1": "float32 3"}),
        ((("x", Items((Tensor((2,)), Tensor((3,))))),), {"x.0": "float32 2", "x.1": "float32 3"}),
        ((("x", Fields((("a", Tensor((2,))), ("b", Literal("None"))))),), {"x.a": "float32 2", "x.b": "None"}),
        ((("mode", Literal("'sum'")), ("size", Literal("(4, 4)"))), {"mode": "sum", "size": "(4, 4)"}),
        ((("dtype", Literal("torch.float32")),), {"dtype": "dtype"}),
    ],
)
def test_cases_tell_inputs(inputs: Inputs, told: dict[str, str]) -> None:
    case = case_of(as_call(inputs), NAMES, {"a": torch.zeros(2, 5), "b": [torch.zeros(())]})
    assert case == {"inputs": told, "outputs": ["float32 2x5", "float32 scalar"]}


def test_outputs_are_told_up_to_a_number() -> None:
    assert len(case_of(Called((), (), ()), NAMES, [torch.zeros(1)] * 99)["outputs"]) == 32


def shapes(cases: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(case["inputs"]["x"], case["outputs"][0]) for case in cases]


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (
            nn.MaxPool2d(2),
            (2, 3, 16, 16),
            [("float32 2x3x32x32", "float32 2x3x16x16"), ("float32 3x3x16x16", "float32 3x3x8x8")],
        ),
        (
            nn.Linear(8, 4),
            (2, 16, 8),
            [("float32 2x32x8", "float32 2x32x4"), ("float32 3x16x8", "float32 3x16x4")],
        ),
        (nn.Linear(8, 4), (2, 8), []),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2)),
            (2, 3, 8, 8),
            [("float32 3x3x8x8", "float32 3x2")],
        ),
        (nn.Identity(), (2, 3, 128, 128), [("float32 3x3x128x128", "float32 3x3x128x128")]),
    ],
)  # fmt: skip
def test_cases_at_other_sizes(module: nn.Module, shape: tuple[int, ...], expected: list[tuple[str, str]]) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = module(x)
            return found

    called = as_call((("x", Tensor(shape)),))
    assert shapes(further_cases(Named(), called, NAMES)) == expected


def test_an_example_has_no_other_sizes() -> None:
    assert further_cases(nn.Identity(), Called(("torch.ones(2, 3, 4)",), (), None), NAMES) == []


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([], [], True),
        ([torch.ones(2)], [torch.ones(2)], True),
        ([torch.ones(2)], [torch.zeros(2)], False),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)], False),
        ([torch.ones(2)], [torch.ones(2, 1)], False),
        ([torch.ones(2)], [torch.ones(2, dtype=torch.float64)], False),
        ([torch.tensor([NAN, 1.0])], [torch.tensor([NAN, 1.0])], True),
        ([torch.tensor([NAN, 1.0])], [torch.tensor([1.0, NAN])], False),
        ([torch.tensor([1, 2])], [torch.tensor([1, 2])], True),
        ([torch.eye(2).to_sparse()], [torch.eye(2).to_sparse()], True),
        ([torch.eye(2).to_sparse()], [torch.eye(2)], False),
        ([torch.tensor([1j])], [torch.tensor([1j])], True),
    ],
)
def test_same(one: list[torch.Tensor], other: list[torch.Tensor], equal: bool) -> None:
    assert same(one, other) == equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.tensor([NAN]), torch.tensor([0.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([torch.finfo(torch.float32).max]), False),
        (torch.tensor([complex(NAN, 0)]), torch.tensor([complex(NAN, 0)]), True),
    ],
)
def test_same_of_what_is_not_finite(one: torch.Tensor, other: torch.Tensor, equal: bool) -> None:
    assert same([one], [other]) == equal
