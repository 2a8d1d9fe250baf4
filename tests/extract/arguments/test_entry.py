"""The climb of one block, in this process: how far it comes, and what is said where it stops."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extract.arguments import search_guest as entry
from extract.arguments.forwarding import as_call
from extract.arguments.observing import describe, describe_case, same
from extract.arguments.search_guest import further_cases
from extract.arguments.trials import MODULE_NAME, BlockNamespace
from extract.arguments.values import INDEX, Inputs, ListOfValues, Literal, Tensor
from tests.builders.class_text import class_text as text
from tests.builders.suites import table

Climb = Callable[..., dict[str, Any]]


LINEAR = text("return self.a(x)", "self.a = nn.Linear(dim, 2)", signature="dim")
#: Built for a processor when it is imported, from files that are not there.
BUILT = 'from torch.utils.cpp_extension import load\nop = load(name="toy", sources=["toy.cpp"])'
#: Draws 0.4963, 0.7576, 0.6147 under the three seeds.
COIN = text("if torch.rand(1) > 0.7:\n    raise ValueError('heads')\nreturn x * 2")


@table(__file__, "entry.md", "How far a block comes", globals())
def test_how_far_a_block_comes(climb: Climb, code: str, level: str, kind: str | None, said: str | None) -> None:
    found = climb(code)
    assert found["level"] == level
    if kind is not None or said is None:
        assert found.get("kind") == kind
    assert (said in found["error"]) if said is not None else (found.get("error") is None)
    assert "\n" not in (found.get("error") or "")
    assert ("arguments" in found) == (level not in ("compiled", "executed"))
    json.dumps(found)


@pytest.mark.parametrize("goal", ["executed", "constructed", "forward", "backward"])
def test_the_climb_ends_at_the_goal(climb: Climb, goal: str) -> None:
    found = climb(LINEAR, goal=goal)
    assert found["level"] == goal
    assert found.get("kind") is None
    assert found.get("error") is None


def test_arguments_and_what_was_seen(climb: Climb) -> None:
    layers = "self.a = nn.Linear(dim, 8)\nself.b = nn.Dropout(0.5)"
    found = climb(text("return self.b(self.a(x))", layers, signature="dim"))
    assert found["arguments"] == {
        "init": {"args": [], "kwargs": {"dim": "32"}},
        "forward": {"args": [], "kwargs": {"x": "torch.randn((2, 24, 32))"}},
    }
    observed = found["observed"]
    assert shapes(observed.pop("cases")) == [
        ("float32 2x24x32", "float32 2x24x8"),
        ("float32 2x48x32", "float32 2x48x8"),
        ("float32 3x24x32", "float32 3x24x8"),
    ]
    counts = {"parameters": 264, "trainable": 264, "buffers": 0, "gradients": 2, "tensors": 2}
    flags = dict.fromkeys(("identity_in_eval", "zero_gradients", "constant", "has_pole", "mixes_samples"), False)
    empty: dict[str, Any] = {name: [] for name in ("uninitialized", "misfits", "other_ranks", "open_numbers")}
    assert observed == counts | flags | empty | {"layers": {"Dropout": 1, "Linear": 1}, "train_differs": True}


@pytest.mark.parametrize(
    ("forward", "init", "train_differs", "identity"),
    [
        ("return x", "pass", False, True),
        ("return x, x * 2", "pass", False, False),
        ("return x, x", "pass", False, True),
        ("return self.a(x)", "self.a = nn.Dropout(0.3)", True, True),
        ("return self.a(x)", "self.a = nn.Dropout(0.0)", False, True),
        ("return self.a(x)", "self.a = nn.BatchNorm2d(32)", True, False),
        ("return x.mul_(2.0)", "pass", False, False),
        ("return x + torch.rand(1)", "pass", False, False),
    ],
)
def test_train_and_identity(climb: Climb, forward: str, init: str, train_differs: bool, identity: bool) -> None:
    train = "\n    def train(self, mode=True):\n        super().train(mode)\n"  # one of its own may return nothing
    observed = climb(text(forward, init) + train)["observed"]
    assert (observed["train_differs"], observed["identity_in_eval"]) == (train_differs, identity)


def test_an_operator_that_is_not_computed_yet_is_computed(climb: Climb) -> None:
    """What it holds are its inputs, which the class does not return."""
    lazy = """
class Kernel:
    def __init__(self, x, scale):
        self.x, self.scale, self.shape = x, scale, (*x.shape[:-1], x.shape[-2])

    def to_dense(self):
        return self.scale * self.x @ self.x.mT
"""
    found = climb(lazy + text("return Kernel(x, self.scale)", "self.scale = nn.Parameter(torch.ones(()))"))
    assert found["level"] == "backward"
    assert found["observed"]["cases"][0] == {"inputs": {"x": "float32 2x32x20x24"}, "outputs": ["float32 2x32x20x20"]}
    assert found["observed"]["identity_in_eval"] is False


def test_a_forward_that_changes_from_call_to_call_or_works_once(climb: Climb) -> None:
    found = climb(text("self.calls += 1\nreturn x * self.calls", "self.calls = 0"))
    assert "train_differs" not in found["observed"]
    found = climb(text("self.calls += 1\nassert self.calls < 2\nreturn x * 2", "self.calls = 0"))
    assert found["level"] in ("forward", "backward")


def test_unset_parameters_get_values(climb: Climb) -> None:
    """Memory as `torch.empty` leaves it would give no finite gradient, or another one in each run."""
    block = text("return x @ self.a", "self.a = nn.Parameter(torch.empty(32, 4))")
    first, second = climb(block), climb(block)
    assert first == second
    assert first["level"] == "backward"
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("body", "init", "rank"),
    [
        ("return x if x.dim() == 4 else self.a(x)", "self.a = nn.Linear(32, 32)", 3),
        ("if self.training and x.dim() == 4:\n    raise ValueError('tokens')\nreturn x * 2", "", 3),
        ("return self.a(x)", "self.a = nn.Conv3d(32, 4, 1)", 5),
    ],
)
def test_a_call_that_works_by_accident_gives_way_to_another(climb: Climb, body: str, init: str, rank: int) -> None:
    """It passes the input on, does not train, or lacks the batch."""
    found = climb(text(body, init) if init else text(body))
    assert found["level"] == "backward"
    assert found["arguments"]["forward"]["kwargs"]["x"].count(",") == rank - 1
    assert "doubtful" not in found


@table(__file__, "entry.md", "What a failure asks for", globals())
def test_what_a_failure_asks_for(climb: Climb, block: str, shown: str) -> None:
    """Positive numbers, a method, a layer or several in the place of a number, an optional argument."""
    found = climb(block)
    assert found["level"] in ("forward", "backward"), found["error"]
    assert shown in json.dumps(found["arguments"])


def test_a_companion_shares_the_classes_of_the_block(names: Callable[..., BlockNamespace]) -> None:
    base = "class Setting:\n    def __init__(self, width=8):\n        self.width = width\n"
    entry.define({"code": f"from torch import nn\n{base}\nclass A(nn.Module):\n    pass\n", "name": "A"})
    known = names([{"name": "Wide", "code": f"{base}\n\nclass Wide(Setting):\n    pass\n"}])
    assert known.value("isinstance(Wide(3), Setting)")
    other = {"name": "Wide", "code": "class Setting:\n    pass\n\n\nclass Wide(Setting):\n    pass\n"}
    assert not names([other]).value("isinstance(Wide(), Setting)")


def test_the_origin_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "home_of_a.py").write_text("X = 1\n")
    code = "import home_of_a\nfrom torch import nn\nclass A(nn.Module): pass\n"
    payload = {"code": code, "name": "A", "goal": "executed", "folders": [str(tmp_path)]}
    assert entry.search_arguments(payload)["level"] == "executed"
    found = entry.search_arguments({**payload, "origin": ["home_of_a"]})
    assert (found["level"], found["kind"]) == ("compiled", "missing_dependency")
    assert "the block's origin" in found["error"]
    assert "home_of_a" not in sys.modules


def test_compiling_is_left_out(climb: Climb) -> None:
    block = "@torch.compile\ndef double(x):\n    return x * 2\n" + text("return double(x)")
    assert climb(block)["level"] == "backward"


NAMES = BlockNamespace({"torch": torch})


def test_sizes_and_layers() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
    module[0].requires_grad_(False)
    found = describe(module)
    layers = {"Conv2d": 2, "BatchNorm2d": 1, "ReLU": 1, "Sequential": 1}
    assert found == {"parameters": 16 + 8 + 20, "trainable": 8 + 20, "buffers": 9, "layers": layers}
    assert list(found["layers"]) == list(layers)  # the most first, then by name
    # Classes of one name are counted apart.
    own = type("Conv2d", (nn.Sequential,), {"__module__": MODULE_NAME})
    found = describe(nn.Sequential(own(nn.Conv2d(3, 4, 1)), own(nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 4, 1)))
    assert found["layers"] == {"torch.nn.modules.conv.Conv2d": 3, "Conv2d": 2}


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ((("x", Tensor((2, 3))),), {"x": "float32 2x3"}),
        ((("x", Tensor((2,), INDEX)), ("n", Literal("4"))), {"x": "int64 2", "n": "4"}),
        ((("*x", Tensor((2,))),), {"*0": "float32 2"}),
        ((("x", ListOfValues((Tensor((2,)), Tensor((3,))))),), {"x.0": "float32 2", "x.1": "float32 3"}),
        ((("x", Literal("{'a': torch.randn((2,)), 'b': None}")),), {"x.a": "float32 2", "x.b": "None"}),
        ((("mode", Literal("'sum'")), ("size", Literal("(4, 4)"))), {"mode": "sum", "size": "(4, 4)"}),
        ((("dtype", Literal("torch.float32")),), {"dtype": "dtype"}),
    ],
)
def test_cases_tell_inputs(inputs: Inputs, told: dict[str, str]) -> None:
    case = describe_case(as_call(inputs), NAMES, {"a": torch.zeros(2, 5), "b": [torch.zeros(())]})
    assert case == {"inputs": told, "outputs": ["float32 2x5", "float32 scalar"]}


def shapes(cases: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(case["inputs"]["x"], case["outputs"][0]) for case in cases]


@table(__file__, "entry.md", "Cases at other sizes", globals())
def test_cases_at_other_sizes(module: nn.Module, shape: tuple[int, ...], expected: list[tuple[str, str]]) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = module(x)
            return found

    called = as_call((("x", Tensor(shape)),))
    assert shapes(further_cases(Named(), called, NAMES)) == expected


NAN = float("nan")


@table(__file__, "entry.md", "Same", globals())
def test_same(one: list[torch.Tensor], other: list[torch.Tensor], equal: bool) -> None:
    assert same(one, other) == equal
