"""The file of a block: its header, imports, annotations, and the author's text kept byte for byte."""

import re
import sys
import typing
from collections.abc import Callable

import libcst
import pytest

from extract.emit.emit import Emitted, Unresolved
from tests.builders.suites import Case, read_files, suite

TEXTS = read_files(__file__, "emission.md")

Behaves = Callable[..., str]


def class_text(code: str, name: str) -> str:
    """Return the text of a class according to LibCST, without the lines above it."""
    tree = libcst.parse_module(code)
    (node,) = [n for n in tree.body if isinstance(n, libcst.ClassDef) and n.name.value == name]
    return tree.code_for_node(node.with_changes(leading_lines=()))


def test_text_is_kept_byte_for_byte_below_a_header(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    made = corpus(TEXTS["STYLED"])
    outcome = made.emit("A")
    code = closed(outcome)
    original = (made.folder / "p/a.py").read_text()
    assert class_text(code, "A") == class_text(original, "A")
    assert "# Above the class,\n# two lines.\n@torch.no_grad if False else (lambda c: c)\nclass A( nn.Module ):" in code
    helper = '# About helper.\n# Two lines.\ndef helper (x,y = SCALE,) :   # odd spacing\n\t"""Doc  string."""\n\treturn  x*y   # tail\n'
    assert helper in code
    assert "SCALE = 2  # of everything\n" in code
    assert "not about helper" not in code
    assert "after the class" not in code
    lines = code.splitlines()
    (file,) = [f for f in made.sources[0].files if f.path == "p/a.py"]
    assert lines[0] == "# A, from src"
    assert {
        "# Block:   src::p.a.A",
        "# File:    p/a.py, lines 6-25",
        f"# SWHID:   swh:1:cnt:{file.blob}",
        "# Licence: NOASSERTION",
        "# With:    definitions from 1 file of src (NOASSERTION); see required_repos.json",
    } <= set(lines)
    assert outcome.files == (("src", "p/a.py"), ("src", "p/b.py"))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_matter(corpus, closed, end: str) -> None:  # type: ignore[no-untyped-def]
    plain = "from torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n        return '''é\n  b'''\n"
    one, other = (closed(corpus({"p/a.py": text}).emit("A")) for text in (plain, plain.replace("\n", end)))
    assert one.partition("\n\n")[2] == other.partition("\n\n")[2] != ""


def test_imports_are_in_order(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    code = closed(
        corpus(
            """
            --- p/b.py
            from torch.nn import functional as F, init
            import torch.utils.checkpoint
            import math, torch.nn as nn
            from collections import OrderedDict as OD
            def f(x): return torch.utils.checkpoint.checkpoint, F, init, math, OD, nn
            --- p/a.py
            from torch import nn, Tensor
            import numpy as np, os.path
            from typing import Optional
            from .b import f
            import torch
            class A(nn.Module):
                def forward(self, x: Optional[Tensor]): return f(x), np, os.path, torch
            """
        ).emit("A")
    )
    lines = [line for line in code.splitlines() if re.match(r"(import|from) ", line)]
    assert [line for line in lines if "__future__" not in line] == [
        "import math",
        "import os.path",
        "from collections import OrderedDict as OD",
        "from typing import Optional",
        "import numpy as np",
        "import torch",
        "import torch.utils.checkpoint",
        "from torch import Tensor, nn",
        "from torch.nn import functional as F, init",
    ]


def test_annotations_are_no_dependencies(behaves: Behaves, corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(TEXTS["ANNOTATED"]).emit("A")
    assert isinstance(outcome, Emitted)
    code = closed(outcome)
    assert outcome.requires == ()
    assert "never copied" not in code
    assert "no_such_package_" not in code
    assert "class Used" in code
    assert "TypeVar(" not in code
    names = run(code)
    assert names["A"]()(1) == (3, names["Used"])


def test_an_annotation_whose_name_another_thing_has_later(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(
        """
        --- p/c.py
        Index = (int, str)
        def check(x): return isinstance(x, Index)
        --- p/b.py
        from typing import Union
        Index = Union[int, str]
        class Boxes:
            def at(self, index: Index): return index
        --- p/a.py
        from torch import nn
        from .b import Boxes
        from .c import check
        class A(nn.Module):
            def forward(self, x): return check(Boxes().at(x))
        """
    ).emit("A")
    names = run(closed(outcome))
    assert names["A"]()(1) is True
    assert (int, str) in names.values(), "each name keeps what it is where it is read"
    assert typing.get_type_hints(names["Boxes"].at)["index"] == int | str


def test_a_quoted_annotation_by_a_name_that_the_block_calls_otherwise(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    """Python does not look the name up, so it needs no definition; undefined names that are looked up are reported."""
    outcome = corpus(
        """
        --- p/b.py
        class Real: pass
        --- p/a.py
        from torch import nn
        from .b import Real as Image
        class A(nn.Module):
            def draw(self) -> "Image.Image": return Image
            def forward(self, x): return x
        """
    ).emit("A")
    names = run(closed(outcome))
    assert names["A"]().draw() is names["Real"]
    assert names["Image"] is object


def test_a_name_that_nothing_defines_fails_once_it_is_used(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(
        """
        --- p/a.py
        from torch import nn
        class A(nn.Module):
            def __init__(self, drop=0.0):
                super().__init__()
                self.drop = DropPath(drop) if drop else nn.Identity()
            def forward(self, x): return x if SCALE is None else self.drop(x)
        """
    ).emit("A")
    made = run(closed(outcome))["A"]
    with pytest.raises(NameError, match="'DropPath' is not defined"):
        made(0.1)
    with pytest.raises(NameError, match="'SCALE' is not defined"):
        made()(1)


@suite(__file__, "unresolved.md", verbs=("reason", "detail"))
def test_unresolved(corpus, case: Case) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(case.files).emit("A")
    assert isinstance(outcome, Unresolved)
    assert outcome.reason == case.one("reason")
    assert re.search(case.one("detail"), outcome.detail)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the running Python knows the syntax")
def test_what_needs_a_newer_python_says_so(corpus, run) -> None:  # type: ignore[no-untyped-def]
    """Also a class that only uses such a definition; another class of the file is a block."""
    made = corpus(
        "--- a.py\n"
        "from torch import nn\n"
        "class Box[T](nn.Module):\n    def forward(self, x: T): return x\n"
        "class User(nn.Module):\n    def forward(self, x): return Box()(x)\n"
        "class Plain(nn.Module):\n    def forward(self, x): return globals()['add'](x)\ndef add(x): return x + 1\n"
    )
    for name in ("Box", "User"):
        outcome = made.emit(name)
        assert outcome.reason == "newer_python"
        assert outcome.detail.endswith(":2: needs Python 3.12 (type parameters)")
    assert run(made.emit("Plain").code)["Plain"]()(1) == 2
