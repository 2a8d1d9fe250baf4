"""Which stand-ins there are: each names a definition that can go into a block, and the shape of what it replaces."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from extract.resolve import standins

FOLDER = Path(standins.__file__).parents[1] / "standins"
OPERATORS, FUNCTIONS = standins._list_compiled()


def test_every_stand_in_is_defined_and_documented_and_needs_nothing_but_the_runtime() -> None:
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.py")}
    for theirs, found in {**standins.DEFINITIONS, **OPERATORS, **FUNCTIONS}.items():
        body = trees[found.file].body
        named = [node for node in body if getattr(node, "name", "") == found.name]
        targets = [target.id for node in body if isinstance(node, ast.Assign) for target in node.targets]
        assert len(named) + targets.count(found.name) == 1, theirs
        assert not named or ast.get_docstring(named[0]), theirs
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.partition(".")[0] in {*sys.stdlib_module_names, "torch", "torchvision"}


def test_what_stands_in_for_a_function_of_autograd_has_its_parameters() -> None:
    assert FUNCTIONS["_DeformConv"].has > {"input", "offset", "weight", "deformable_groups"}
    assert FUNCTIONS["CARAFENaiveFunction"].has == FUNCTIONS["CARAFEFunction"].has
    assert all(found.has for found in FUNCTIONS.values())


@pytest.mark.parametrize(
    ("name", "bases", "file"),
    [
        ("PreTrainedModel", ["Module"], "pretrained.py"),
        ("AutoModelForCausalLM", ["_BaseAutoModelClass"], "frameworks.py"),
        ("AutoEncoder", ["Module"], None),
        ("RoIAlignFunction", ["Function"], "operators.py"),
        ("RoIAlignFunction", ["Module"], None),
        ("PreTrainedModel", ["Function"], None),
        ("SEModule", ["Module"], None),
    ],
)
def test_known_by_name_and_bases(name: str, bases: list[str], file: str | None) -> None:
    found = standins.find_definition(name, bases)
    assert (found.file if found else None) == file


def test_operators_are_known_by_name() -> None:
    found: Any = standins.find_operator("nms")
    assert (found.file, found.name) == ("operators.py", "nms")
    assert standins.find_operator("_deformable_convolution") is None
    assert standins.find_operator("RoIAlignFunction") is None
