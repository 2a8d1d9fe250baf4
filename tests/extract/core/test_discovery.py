"""Which classes are nn.Modules with a forward, followed across files, aliases, conditions and sources.

Nested classes are blocks if an expression at module level evaluates to them.
"""

from pathlib import Path
from typing import Any

import pytest

from extract.emit.emit import Emitted
from extract.extractor import BlockExtractor
from extract.resolve.discover import Selection, select
from lemur_core.files.errors import UserError
from tests.builders.suites import Case, suite

HEAD = "import torch\nfrom torch import nn\n"
FORWARD = "    def forward(self, x): return x\n"


@suite(__file__, "discovery.md", verbs=("finds",))
def test_classes_of_a_file(corpus: Any, case: Case) -> None:
    assert " ".join(found.name for found in corpus(case.files).found) == case.one("finds")


@pytest.mark.parametrize(
    ("imports", "base"),
    [
        ("import torch", "torch.nn.Module"),
        ("import torch.nn", "torch.nn.Module"),
        ("import torch\nimport torch.utils.checkpoint", "torch.nn.Module"),
        ("import torch.nn.functional\nimport torch", "torch.nn.Module"),
        ("import torch as th", "th.nn.Module"),
        ("import torch.nn as N", "N.Module"),
        ("from torch.nn import Module as M", "M"),
        ("from torch.nn.modules.module import Module", "Module"),
        ("from torch.nn import *", "Module"),
    ],
)
def test_ways_to_import_the_base(corpus: Any, imports: str, base: str) -> None:
    assert corpus(f"--- p/a.py\n{imports}\nclass A({base}):\n{FORWARD}").names() == ["p.a.A"]


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
    assert [found.block for found in made.found] == [
        "base::base.model.BaseDecoder",
        "tool::tool.heads.Head",
        "tool::tool.heads.Decoder",
    ]
    for name, expected in (("Head", "head"), ("Decoder", "decoded")):
        outcome = made.emit(name)
        assert run(closed(outcome))[name]()(1) == (expected, 1)
        assert ("base", "model.py") in outcome.files


def test_the_order_of_sources_does_not_matter_to_what_is_found(corpus: Any) -> None:
    forward, backward = corpus(SOURCES, apart=True), corpus(SOURCES, apart=True, reverse=True)
    assert sorted(forward.names()) == sorted(backward.names())


def test_names_and_places(corpus: Any) -> None:
    made = corpus(
        f"--- p/s/__init__.py\n{HEAD}class A(nn.Module):\n{FORWARD}--- p/m.py\n\n{HEAD}class A(nn.Module):\n{FORWARD}"
    )
    assert [(found.qualname, found.module.file.path) for found in made.found] == [
        ("p.m.A", "p/m.py"),
        ("p.s.A", "p/s/__init__.py"),
    ]


@suite(__file__, "nested.md", verbs=("block", "is", "gives"))
def test_it_is_the_class_that_the_original_gives(corpus, closed, run, original, case: Case) -> None:  # type: ignore[no-untyped-def]
    qualname, expression = case.one("block"), case.one("is")
    made = corpus(case.files)
    assert f"p.{qualname}" in made.names()
    outcome = made.emit(f"p.{qualname}")
    code = closed(outcome)
    with original(made, "p.a") as names:
        theirs = eval(expression, names)
        assert theirs.__name__ == "Inner"
        expected = theirs()(1)
    assert run(code)["Inner"]()(1) == expected
    assert expected == case.value("gives")
    (target,) = (found for found in made.found if found.qualname == f"p.{qualname}")
    assert target.block == f"{made.sources[0].name}::p.{qualname}"
    first, last = target.lines
    lines = (made.folder / "p/a.py").read_text().splitlines()
    assert lines[first - 1].strip().startswith("class Inner(")
    assert lines[last - 1].startswith(" " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()) + 1))
    assert f"named at the end: Inner = {expression}" in code


def test_a_bare_name_means_the_class_of_module_level(corpus) -> None:  # type: ignore[no-untyped-def]
    made = corpus(
        {
            "p/a.py": f"{HEAD}class Outer:\n    class Net(nn.Module):\n        def forward(self, x): return x\n",
            "p/b.py": f"{HEAD}class Net(nn.Module):\n    def forward(self, x): return x\n",
        }
    )
    assert [one.qualname for one in select(made.found, Selection(names=("Net",))).classes] == ["p.b.Net"]
    assert isinstance(made.emit("p.a.Outer.Net"), Emitted)


def test_why_a_name_is_of_no_block(tmp_path: Path) -> None:
    """A class without a forward exists; so does one that is no module."""
    text = (
        HEAD
        + "class Head(nn.Module):\n    def run(self, x): return x\nclass Plain: pass\n"
        + "class Net(Head):\n"
        + FORWARD
    )
    text += "class Base(nn.Module):\n    @abc.abstractmethod\n" + FORWARD
    (tmp_path / "a.py").write_text(text)
    with BlockExtractor(sources=[str(tmp_path)], level="discovered") as extractor:
        name = extractor.facts.sources[0].name
        chosen = extractor.select(Selection(("Net", "Head", "a.Base", "Plain", "Gone")))
        assert [one.name for one in chosen.classes] == ["Net"]
        assert chosen.missing == {
            "Head": f"{name}::a.Head has no forward of its own, and inherits none",
            "a.Base": f"{name}::a.Base has an abstract forward",
            "Plain": f"{name}::a.Plain is not known to be a torch.nn.Module",
            "Gone": "no class of that name",
        }
        with pytest.raises(UserError, match=r"^Head: .* has no forward of its own"):
            extractor.select(Selection(("Head",)))
