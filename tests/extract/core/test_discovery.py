"""Which classes are nn.Modules with a forward, followed across files, aliases, conditions and sources.

Nested classes are blocks if an expression at module level evaluates to them.
"""

from pathlib import Path
from typing import Any

import pytest

from extract.extractor import BlockExtractor
from extract.resolve.discover import Selection
from lemur_core.files.errors import UserError
from tests.builders.suites import Case, suite

HEAD = "import torch\nfrom torch import nn\n"
FORWARD = "    def forward(self, x): return x\n"


@suite(__file__, "discovery.md", verbs=("finds",))
def test_classes_of_a_file(corpus: Any, case: Case) -> None:
    assert " ".join(found.name for found in corpus(case.files).found) == case.one("finds")


WAYS = [
    ("import torch", "torch.nn.Module"),
    ("import torch.nn", "torch.nn.Module"),
    ("import torch\nimport torch.utils.checkpoint", "torch.nn.Module"),
    ("import torch.nn.functional\nimport torch", "torch.nn.Module"),
    ("import torch as th", "th.nn.Module"),
    ("import torch.nn as N", "N.Module"),
    ("from torch.nn import Module as M", "M"),
    ("from torch.nn.modules.module import Module", "Module"),
    ("from torch.nn import *", "Module"),
]


def test_ways_to_import_the_base(corpus: Any) -> None:
    files = {f"p/a{n}.py": f"{way}\nclass A({base}):\n{FORWARD}" for n, (way, base) in enumerate(WAYS)}
    assert corpus(files).names() == [f"p.a{n}.A" for n in range(len(WAYS))]


SOURCES = """
--- base/__init__.py
from .model import *
--- base/model.py
from torch import nn
__all__ = ["BaseModule"]
class BaseModule(nn.Module):
    def __init__(self, init_cfg=None):
        super().__init__()
        self.init_cfg = init_cfg
class BaseDecoder(BaseModule):
    def forward(self, x): return ("decoded", x)
--- tool/__init__.py
from base import BaseModule as Root
import base.model as bm
--- tool/heads.py
import tool
from . import bm
class Head(tool.Root):
    def forward(self, x): return ("head", x)
class Decoder(bm.BaseDecoder): pass
class Nothing(tool.Root): pass
"""


def test_subclasses_across_sources(corpus: Any, closed: Any, run: Any) -> None:
    made = corpus(SOURCES, apart=True)
    names = ["base::base.model.BaseDecoder", "tool::tool.heads.Head", "tool::tool.heads.Decoder"]
    assert [found.block for found in made.found] == names
    assert sorted(found.block for found in corpus(SOURCES, apart=True, reverse=True).found) == sorted(names)
    for name, expected in (("Head", "head"), ("Decoder", "decoded")):
        outcome = made.emit(name)
        assert run(closed(outcome))[name]()(1) == (expected, 1)
        assert ("base", "model.py") in outcome.files


def test_names_and_places(corpus: Any) -> None:
    code = f"{HEAD}class A(nn.Module):\n{FORWARD}"
    made = corpus({"p/s/__init__.py": code, "p/m.py": f"\n{code}"})
    places = [(found.qualname, found.module.file.path) for found in made.found]
    assert places == [("p.m.A", "p/m.py"), ("p.s.A", "p/s/__init__.py")]


def test_why_a_name_is_of_no_block(tmp_path: Path) -> None:
    """A class without a forward exists; so does one that is no module."""
    text = (
        f"{HEAD}class Head(nn.Module):\n    def run(self, x): return x\nclass Plain: pass\nclass Net(Head):\n{FORWARD}"
    )
    text += f"class Base(nn.Module):\n    @abc.abstractmethod\n{FORWARD}"
    text += "def make():\n    class Inner(nn.Module): pass\n    return Inner\n"
    (tmp_path / "a.py").write_text(text)
    with BlockExtractor(sources=[str(tmp_path)], level="discovered") as extractor:
        name = extractor.facts.sources[0].name
        chosen = extractor.select(Selection(("Net", "Head", "a.Base", "Plain", "Gone", "Inner")))
        assert [one.name for one in chosen.classes] == ["Net"]
        assert chosen.missing == {
            "Head": f"{name}::a.Head has no forward of its own, and inherits none",
            "a.Base": f"{name}::a.Base has an abstract forward",
            "Plain": f"{name}::a.Plain is not known to be a torch.nn.Module",
            "Gone": "no class of that name at the top level of a file",
            "Inner": "no class of that name at the top level of a file",
        }
        with pytest.raises(UserError, match=r"^Head: .* has no forward of its own"):
            extractor.select(Selection(("Head",)))
        with pytest.raises(UserError, match=r"^none of 1 class, such as Net in a\.py, matches --path b/\*; change"):
            extractor.select(Selection(paths=("b/*",)))
