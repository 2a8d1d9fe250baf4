"""Which definitions of a project are the same as those of a block, and why others are not."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from extract.migrate.project.equivalent_definition_guest import explain_difference

Load = Callable[[str, str], ModuleType]

CODE = """import torch
from torch import nn

LIMIT = 3
TABLE = [1]


def helper(x):
    return x + LIMIT


def scale(x, by=2):
    return helper(x) * by


def look_up(x):
    return TABLE[x]


class Gate(nn.Module):
    def __init__(self, dim, bias=True):
        super(Gate, self).__init__()
        self.fc = nn.Linear(dim, dim, bias=bias)

    def forward(self, x):
        return scale(x) * torch.sigmoid(self.fc(x))


class Box:
    size = 2

    def grow(self):
        return Box()
"""


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


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("Gate", "", "", ""),
        ("Gate", "        return scale", "        # much the same\n\n        return scale", ""),
        ("Gate", "bias=True):", 'bias: bool = True) -> None:\n        """Make it."""', ""),
        ("Gate", "torch.sigmoid", "torch.tanh", "the text differs"),
        ("Gate", "bias=True", "bias=False", "the text differs"),
        ("Gate", "from torch import nn", "import torch.nn as nn", ""),
        ("Gate", "from torch import nn", "from torch import nn\n\ntorch = nn", "torch in it is not the same"),
        ("Gate", "LIMIT = 3", "LIMIT = 4", "scale in it is not the same"),
        ("Gate", "class Gate(nn.Module)", "def Gate():\n    pass\n\n\nclass Other(nn.Module)", "is another kind of thing"),
        ("scale", "def scale(x, by=2):", 'def scale(x: float, by: int = 2) -> float:\n    """Told."""\n    # said', ""),
        ("scale", "LIMIT = 3", "LIMIT = 4", "helper in it is not the same"),
        ("scale", "LIMIT = 3", "LIMIT = 3.0", "helper in it is not the same"),
        ("scale", "x + LIMIT", "LIMIT + x", "helper in it is not the same"),
        ("helper", "LIMIT = 3", "LIMIT = True", "LIMIT in it is not the same"),
        ("helper", "def helper", "def other", "is another kind of thing"),
        ("scale", "import torch", "import nowhere_to_be_found", "cannot be imported: ModuleNotFoundError"),
        ("look_up", "", "", "TABLE in it is not the same"),
        ("Box", "import torch", '"""Documented."""\nimport torch', ""),
        ("Box", "size = 2", "size = 3", "the text differs"),
    ],
)  # fmt: skip
def test_the_same_text_of_which_every_name_means_the_same(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, why: str
) -> None:
    assert old in CODE
    changed = CODE.replace(old, new) if name != "helper" or "def" not in old else CODE.replace("helper", "other")
    (tmp_path / "theirs_of_a_project.py").write_text(changed, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs_of_a_project", raising=False)
    file = load(CODE, "ours_of_a_block")
    reason = explain_difference(file, name, "theirs_of_a_project")
    sys.modules.pop("theirs_of_a_project", None)
    assert reason == why if not why else reason.startswith(why)
