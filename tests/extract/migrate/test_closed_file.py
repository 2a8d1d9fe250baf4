"""A closed file without what the project's definitions stand for; the rest is the author's text."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.migrate.project.closed_file import ClosedFile, list_used_names
from extract.migrate.project.layout import read_project
from lemur_core.source.quality import find_undefined_names
from tests.builders import projects

NAMES = ["drop_path", "DropPath", "make_divisible", "Swish"]


def test_definitions_that_something_else_could_stand_for() -> None:
    assert list(ClosedFile(projects.BLOCK, "Residual").definitions()) == [
        ("drop_path", False),
        ("DropPath", True),
        ("make_divisible", False),
        ("Swish", True),
    ]


@pytest.mark.parametrize(
    "more",
    [
        "class More(Swish):\n    pass\n",
        "Swish.kind = 1\n",
        "def Swish(x):\n    return x\n",
        "TABLE = {}\nSwish.register(1)\n",
    ],
    ids=["base", "changed", "bound twice", "changed by a call"],
)
def test_not_what_others_derive_from_or_change(more: str) -> None:
    text = projects.BLOCK.replace("class Residual", f"{more}\n\nclass Residual")
    assert "Swish" not in dict(ClosedFile(text, "Residual").definitions())


def test_nothing_replaced_is_the_same_text() -> None:
    body = ClosedFile(projects.BLOCK, "Residual").body()
    assert body.text in projects.BLOCK
    assert body.text.startswith("def drop_path")
    assert body.gone == ()


@given(st.sets(st.sampled_from(NAMES)))
def test_what_is_left_is_closed_and_the_author_s(replaced: set[str]) -> None:
    file = ClosedFile(projects.BLOCK, "Residual")
    body = file.body(replaced)
    assert find_undefined_names(ast.parse(body.text)).keys() <= replaced | {one.bound for one in body.imports}
    own = {node.name for node in ast.parse(body.text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert own.isdisjoint(replaced)
    assert own | set(body.gone) == {"Residual", *NAMES}
    lines = iter(projects.BLOCK.split("\n"))
    assert all(line in lines for line in body.text.split("\n")), "every line is of the block's file, in its order"
    assert ("drop_path" in own) == ("DropPath" not in replaced and "drop_path" not in replaced)
    assert ("math" in {one.bound for one in body.imports}) == ("make_divisible" in own)


def test_candidates_are_of_the_same_name_and_kind_and_the_nearest_first(tmp_path: Path) -> None:
    again = projects.UNSCALED + "\n\ndef DropPath():\n    pass\n"
    project = read_project(
        projects.make(tmp_path, projects.SRC, src__proj__drop=projects.SCALED, src__proj__twice=again)
    )

    def candidates(name: str, is_class: bool) -> list[str]:
        return [one.full_name for one in project.same_named(name, is_class=is_class, near="src/proj/layers")]

    assert candidates("DropPath", True) == ["proj.layers.drop.DropPath", "proj.drop.DropPath"]
    assert candidates("DropPath", False) == ["proj.twice.DropPath"]
    assert candidates("Swish", True) == []


def test_names_that_expressions_use() -> None:
    assert list_used_names(["[f(c, size) for c in widths]", "lambda x: x + y", "nn.ReLU"]) == [
        "f",
        "nn",
        "size",
        "widths",
        "y",
    ]


def test_names_that_stand_for_nothing() -> None:
    text = projects.BLOCK.replace("WIDTH = 2", "WIDTH = 2\nLayerType = object")
    found = ClosedFile(text, "Residual").globals
    assert found == {"math", "torch", "nn", "WIDTH", "Residual", *NAMES}
