"""Which stand-ins there are: each names a definition that can go into a block, and the shape of what it replaces."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extract.resolve import standins

FOLDER = Path(standins.__file__).parents[1] / "standins"
OPERATORS, FUNCTIONS = standins._list_compiled()
TABLES = {**standins.DEFINITIONS, **OPERATORS, **FUNCTIONS}


def tree_of(file: str) -> ast.Module:
    return ast.parse((FOLDER / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("theirs", TABLES)
def test_every_stand_in_is_defined_and_documented(theirs: str) -> None:
    found = TABLES[theirs]
    named = [node for node in tree_of(found.file).body if getattr(node, "name", "") == found.name]
    aliases = [
        node
        for node in tree_of(found.file).body
        if isinstance(node, ast.Assign) and found.name in {target.id for target in node.targets}
    ]
    assert len(named) + len(aliases) == 1
    assert aliases or ast.get_docstring(named[0])


@pytest.mark.parametrize("path", sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py"), ids=str)
def test_a_file_needs_nothing_but_the_runtime(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def test_the_index_does_not_import_torch() -> None:
    code = "import sys; sys.path.insert(0, '.'); import extract.resolve.standins; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[1], check=True)
