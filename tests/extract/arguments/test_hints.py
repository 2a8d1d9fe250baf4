"""Hints for classes of small corpora that are written as text: calls, values of names, and what calls name."""

import itertools
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extract.arguments.hints import HintFinder
from extract.emit.emit import Emitter
from extract.resolve.discover import TargetClass, discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import open_source

HintsFor = Callable[..., dict[str, Any]]
FinderFor = Callable[..., tuple[HintFinder, TargetClass]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def hints_for(finder_for: FinderFor) -> HintsFor:
    """The hints for the class of that name in the package `p`, whose files are given by name."""
    return lambda name, **files: HintFinder.hints_for(*finder_for(name, **files))


@pytest.fixture(scope="module")
def finder_for(tmp_path_factory: pytest.TempPathFactory, index: FactsIndex) -> FinderFor:
    numbers = itertools.count()

    def make(name: str, **files: str) -> tuple[HintFinder, TargetClass]:
        folder = tmp_path_factory.mktemp(f"hints{next(numbers)}") / "src"
        (folder / "p").mkdir(parents=True)
        (folder / "p" / "__init__.py").touch()
        for stem, text in files.items():
            (folder / "p" / f"{stem}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        source = open_source(f"{folder}/")
        library = CorpusIndex([source], index.facts)
        modules = [library.by_path[source.name, file.path] for file in source.files]
        (found,) = [item for item in discover(library, modules) if item.name == name]
        emitter = Emitter(library, index)
        return HintFinder(library, index, emitter), found

    return make


def list_args(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [call["args"] for call in found["init"]]


BLOCK = """
from functools import partial
import torch.nn as nn
class Mlp(nn.Module):
    def __init__(self, dim, hidden=None, act=nn.GELU):
        super().__init__()
    def forward(self, x):
        return x
"""

CASES = {
    "literals": ("m = Mlp(64, hidden=128)", ("64",), {"hidden": "128"}),
    "a default is left out": ("m = Mlp(64, None, nn.GELU)", ("64",), {}),
    "a layer that is imported": ("from torch.nn import ReLU\nm = Mlp(8, act=ReLU)", ("8",), {"act": "nn.ReLU"}),
    "partial": ("m = Mlp(8, act=partial(nn.LeakyReLU, 0.1))", ("8",), {"act": "functools.partial(nn.LeakyReLU, 0.1)"}),
    "a constant of the module": ("WIDTH = 32\nm = Mlp(WIDTH * 2)", ("32 * 2",), {}),
    "a default of the function around": (
        "def f(dim=48, ratio=4.0):\n    return Mlp(dim, int(dim * ratio))",
        ("48",),
        {"hidden": "int(48 * 4.0)"},
    ),
    "a local name": ("def f():\n    d = 7\n    e = [d, d + 1]\n    return Mlp(e[1])", ("[7, 7 + 1][1]",), {}),
    "a name that is bound twice stays": ("def f(d=1):\n    d = 2\n    return Mlp(d)", ("d",), {}),
    "a parameter without a default stays": ("def f(d):\n    return Mlp(d)\nx = f(24)", ("d",), {}),
    "an item of a parameter": ("def f(dims):\n    return Mlp(dims[2])", ("dim",), {}),
    "an attribute of a configuration": ("def f(config):\n    return Mlp(config.width)", ("width",), {}),
    "an attribute of self": (
        "class B(nn.Module):\n    def __init__(self, d=5):\n        self.d = d\n        self.m = Mlp(self.d)",
        ("5",),
        {},
    ),
    "a class in a variable": ("def f(block=Mlp):\n    return block(6)", ("6",), {}),
    "a name of a loop stays": ("for d in (20, 40):\n    m = Mlp(d)", ("d",), {}),
    "one unknown argument that has a default": ("m = Mlp(64, act=choose())", ("64",), {}),
}


@pytest.mark.parametrize(("code", "args", "kwargs"), CASES.values(), ids=CASES)
def test_a_call_is_found(hints_for: HintsFor, code: str, args: tuple[str, ...], kwargs: dict[str, str]) -> None:
    first = hints_for("Mlp", a=f"{BLOCK}\n{code}\n")["init"][0]
    assert (first["args"], dict(first["kwargs"])) == (args, kwargs)


def test_small_calls_come_before_large_ones_and_those_with_free_names_last(hints_for: HintsFor) -> None:
    code = "def f(d):\n    Mlp(d, hidden=7)\n    Mlp(900)\n    Mlp(30)\n    Mlp(choose(), hidden=3)\n"
    assert list_args(hints_for("Mlp", a=f"{BLOCK}\n{code}")) == [("30",), ("900",), ("d",)]


def test_a_class_of_the_same_name_is_another(hints_for: HintsFor) -> None:
    other = "from torch import nn\nclass Mlp(nn.Linear):\n    pass\nm = Mlp(1, 1)\n"
    assert hints_for("Only", a=BLOCK.replace("Mlp", "Only"), b=other)["init"] == []
    renamed = hints_for("Mlp2", a=BLOCK.replace("Mlp", "Mlp2"), b="from p.a import Mlp2 as M\nm = M(11)\n")
    assert list_args(renamed) == [("11",)]


def test_what_is_large_to_compute_and_arguments_that_do_not_fit_are_left_out(hints_for: HintsFor) -> None:
    code = "m = Mlp([1] * 100_000_000)\nn = Mlp(9 ** 9 ** 9)\no = Mlp(3)\nd = d + 1\np = Mlp(d)\nq = Mlp(1, 2, 3, 4)"
    assert list_args(hints_for("Mlp", a=f"{BLOCK}\n{code}\n")) == [("3",)]


def test_values_that_the_source_gives_to_names(hints_for: HintsFor) -> None:
    """Those of required parameters, and free in calls: by other classes and calls, and options of a command line."""
    own = """
class Need(nn.Module):
    def __init__(self, dim, hidden, kind, depth=3):
        super().__init__()
    def forward(self, x):
        return x
class Other(nn.Module):
    def __init__(self, hidden=None, dim=96, kind=KIND, depth=5):
        super().__init__()
m = Mlp(8, hidden=24)
"""
    script = """
from argparse import ArgumentParser
from p.a import Need
WIDTH = 12
parser = ArgumentParser()
parser.add_argument("-k", "--which-kind", type=str, default="plain")
parser.add_argument("--dim", default=WIDTH, help="of all")
parser.add_argument("--data", default=None)
args = parser.parse_args()
model = Need(args.dim, args.hidden, args.which_kind)
"""
    found = hints_for("Need", a=BLOCK + own, b=script)
    assert list_args(found) == [("dim", "hidden", "which_kind")]
    assert dict(found["values"]) == {"dim": "96", "hidden": "24", "which_kind": "'plain'"}


PARTS = """
from torch import nn
class Norm(nn.Module):
    def forward(self, x):
        return x
class Block(nn.Module):
    def __init__(self, part):
        super().__init__()
    def forward(self, x):
        return x
"""


def test_classes_that_expressions_name_come_along(hints_for: HintsFor) -> None:
    found = hints_for("Block", a=PARTS, b="from p.a import Block, Norm\nb = Block(Norm())\n")
    assert list_args(found) == [("Norm()",)]
    assert [(item["name"], item["qualname"]) for item in found["companions"]] == [("Norm", "p.a.Norm")]


def test_an_inherited_constructor_is_read_where_it_is_written(hints_for: HintsFor) -> None:
    code = "from p.a import Block, Norm\nclass Child(Block):\n    pass\nb = Child(part=Norm())\n"
    assert list_args(hints_for("Child", a=PARTS, b=code)) == [("Norm()",)]


def test_functions_and_classes_that_recorded_calls_name(finder_for: FinderFor) -> None:
    functions = "RATE = 2\ndef gate(x):\n    return x * RATE\n"
    finder, found = finder_for("Block", a=PARTS, functions=functions)
    module = next(item for item in finder._library.by_path.values() if item.name == "p.functions")
    places = [(module, "gate"), (module, "RATE"), (found.module, "Norm"), (found.module, "Block")]
    gate, norm = finder.list_defined(places, found)
    assert norm["name"] == "Norm"
    names: dict[str, Any] = {"__name__": "companion"}
    exec(compile(gate["code"], "companion.py", "exec", dont_inherit=True), names)
    assert names[gate["name"]](3) == 6


@pytest.mark.parametrize("annotation", ["Config", "Optional[Config] = None", "'Config'", "Config | None"])
def test_a_class_that_a_parameter_is_annotated_with(hints_for: HintsFor, annotation: str) -> None:
    code = PARTS.replace("part)", f"width: int, part: {annotation})")
    code += "from typing import Optional\nclass Config:\n    pass\n"
    found = hints_for("Block", a=code)
    assert found["accepted"] == [("part", "Config")]
    assert [item["name"] for item in found["companions"]] == ["Config"]
