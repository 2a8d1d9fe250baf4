"""Which definitions of a project are the same as those of a block, as the block uses them, and why others are not."""

import copy
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from extract.proofs.comparing import NOT_RUN, Watch, refusal, same_source

some = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "migrate" / "projects.py")))
Load = Callable[[str, str], ModuleType]

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"
GATE = HEAD + (
    "class Gate(nn.Module):\n"
    "    def __init__(self, dim, bias=True):\n"
    "        super().__init__()\n"
    "        self.fc = nn.Linear(dim, dim, bias=bias)\n\n"
    "    def forward(self, x, *, scale=1.0):\n"
    "        return x * torch.sigmoid(self.fc(x)) * scale\n"
)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    names: list[str] = []

    def load(text: str, name: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        specification = importlib.util.spec_from_file_location(name, path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[name] = module
        names.append(name)
        specification.loader.exec_module(module)
        return module

    yield load
    for name in names:
        sys.modules.pop(name, None)


def judged(load: Load, ours: str, theirs: str, name: str, use: Callable[[ModuleType], object]) -> str:
    file = load(ours, "ours_of_a_block")
    watch = Watch(file, {name})
    with watch.watching():
        use(file)
    load(theirs, "theirs_of_a_project")
    return refusal(file, name, {"module": "theirs_of_a_project", "name": name}, watch.cases.get(name, {}))


def use_gate(file: ModuleType) -> object:
    return file.Gate(4)(torch.randn(2, 4), scale=2.0)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("x * torch.sigmoid(self.fc(x)) * scale", "torch.mul(F.linear(x, self.fc.weight, self.fc.bias).sigmoid(), x) * scale", ""),
        ("        return", "        # much the same\n        y = x\n        return", ""),
        ("bias=True", "bias: bool = 1 == 1", ""),
        ("bias=True", "bias=False", "__init__ takes (dim, bias=False) where the block's takes (dim, bias=True)"),
        ("dim, bias=True", "dim, bias=True, more=None", "__init__ takes (dim, bias=True, more=None) where"),
        ("x, *, scale=1.0", "x, scale=1.0", "forward takes (x, scale=1.0) where the block's takes (x, scale=1.0 (by name only))"),
        ("self.fc", "self.proj", "its state has other names: fc.bias, fc.weight"),
        ("nn.Linear(dim, dim, bias=bias)", "nn.Linear(dim, 1, bias=bias)", "its fc.weight is another tensor"),
        ("bias=bias)\n", "bias=bias)\n        nn.init.zeros_(self.fc.weight)\n", "its fc.weight starts from other values"),
        ("torch.sigmoid", "torch.tanh", "computes another graph with (4)"),
        ("* scale", "* (scale if self.training else 2.0)", ""),
        ("* scale", "* (1.5 * scale if self.training else scale)", "computes another graph with (4)"),
        ("torch.sigmoid(self.fc(x))", "torch.sigmoid(self.fc(x.detach()))", "computes another graph with (4)"),
        ("class Gate(nn.Module)", "def Gate(dim, bias=True):\n    pass\n\n\nclass Other(nn.Module)", "is another kind of thing"),
        ("return x", "return undefined(x)", "does not run so: NameError"),
    ],
)  # fmt: skip
def test_modules(load: Load, old: str, new: str, why: str) -> None:
    assert old in GATE
    found = judged(load, GATE, GATE.replace(old, new), "Gate", use_gate)
    assert found == why if not why else found.startswith(why)


def test_only_what_was_seen_to_run_can_be_compared(load: Load) -> None:
    assert judged(load, GATE, GATE, "Gate", lambda file: file.Gate(4)) == NOT_RUN


def test_a_clone_is_used_as_what_it_is_a_clone_of(load: Load) -> None:
    def use(file: ModuleType) -> object:
        return copy.deepcopy(file.Gate(4))(torch.randn(2, 4), scale=2.0)

    assert judged(load, GATE, GATE, "Gate", use) == ""
    assert judged(load, GATE, GATE.replace("sigmoid", "tanh"), "Gate", use) == "computes another graph with (4)"


def test_every_use_counts(load: Load) -> None:
    other = some.UNSCALED.replace("if drop_prob", "if drop_prob < 0.15 or drop_prob")

    def use(file: ModuleType) -> None:
        for rate in rates:
            file.DropPath(rate)(torch.randn(2, 3))

    rates = (0.0, 0.1)
    ours = some.SCALED.replace("if drop_prob", "if drop_prob < 0.15 or drop_prob")
    assert judged(load, ours, other, "DropPath", use) == ""
    rates = (0.0, 0.1, 0.2)
    assert judged(load, ours, other, "DropPath", use) == "computes another graph with (0.2)"


SCALE = (
    HEAD + "LIMIT = 3\n\n\ndef helper(x):\n    return x + LIMIT\n\n\ndef scale(x, by=2):\n    return helper(x) * by\n"
)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def scale(x, by=2):", 'def scale(x: float, by: int = 2) -> float:\n    """Told."""\n    # said', ""),
        ("LIMIT = 3", "LIMIT = 4", "the text differs"),
        ("x + LIMIT", "LIMIT + x", "the text differs"),
        ("by=2", "by=3", "its call takes (x, by=3) where the block's takes (x, by=2)"),
    ],
)
def test_functions_by_text(load: Load, old: str, new: str, why: str) -> None:
    found = judged(load, SCALE, SCALE.replace(old, new), "scale", lambda file: file.scale(1))
    assert found == why if not why else found.startswith(why)


def test_functions_by_graph(load: Load) -> None:
    def use(file: ModuleType) -> object:
        return file.scale(torch.randn(3))

    assert judged(load, SCALE, SCALE.replace("x + LIMIT", "LIMIT + x"), "scale", use) == ""
    assert judged(load, SCALE, SCALE.replace("x + LIMIT", "x - LIMIT"), "scale", use).startswith(
        "computes another graph"
    )


def test_classes_that_are_no_modules_by_text(load: Load) -> None:
    text = "class Box:\n    size = 2\n\n    def grow(self):\n        return Box()\n"
    ours, same = load(text, "box_one"), load(f"'''Documented.'''\n{text}", "box_two")
    other = load(text.replace("2", "3"), "box_three")
    assert same_source(ours.Box, same.Box)
    assert not same_source(ours.Box, other.Box)


def test_watching_leaves_no_trace(load: Load) -> None:
    file = load(GATE, "watched")
    before = dict(vars(file.Gate))
    with Watch(file, {"Gate"}).watching():
        assert file.Gate.forward is not before["forward"]
    assert dict(vars(file.Gate)) == before
