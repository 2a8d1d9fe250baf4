"""A new module is named in `__init__.py` as its neighbors are, and every other byte of it stays."""

import ast
import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.migrate.project.layout import choose_place, read_project
from extract.migrate.project.writing import register
from tests.builders import projects
from tests.builders.suites import table

MODULE = "from torch import nn\n\n\nclass {}(nn.Module):\n    def forward(self, x):\n        return x\n"
NEIGHBOURS = {"p/apple.py": MODULE.format("Apple"), "p/cherry.py": MODULE.format("Cherry")}


def registered(folder: Path, init: str) -> tuple[str | None, str]:
    root = projects.make(folder, {**NEIGHBOURS, "p/__init__.py": ""})
    (root / "p/__init__.py").write_bytes(init.encode())
    project = read_project(root)
    found = register(project, choose_place(project, "Banana", "Other"), "Banana")
    return None if found.text is None else found.text.decode(), found.why


@table(__file__, "register.md", "As its neighbours", globals())
def test_as_its_neighbours(tmp_path: Path, before: str, after: str) -> None:
    assert registered(tmp_path, before)[0] == after


@table(__file__, "register.md", "Not where its neighbours are not", globals())
def test_not_where_its_neighbours_are_not(tmp_path: Path, init: str, why: str) -> None:
    text, said = registered(tmp_path, init)
    assert text is None
    assert why in said


LINES = st.sampled_from(
    [
        "x = 1",
        "# a comment",
        "",
        "\t",
        'name = """a\n  long\nstring"""',
        "from os import path",
        "from .apple import Apple",
        "from .cherry import (\n    Cherry,  # red\n)",
        "if True:\n    from . import apple",
        "__all__ = ['Apple',   'Cherry' ]",
        "__all__ = [\n\n  # fruit\n  'Apple', 'Cherry',\n  ]",
        "__all__ = ['Apple']; y = 2",
        "def f():\n\treturn 1",
    ]
)


@settings(max_examples=16)  # each reads a project
@given(lines=st.lists(LINES, max_size=9), end=st.sampled_from(["\n", ""]), line_end=st.sampled_from(["\n", "\r\n"]))
def test_every_other_line_stays(
    lines: list[str], end: str, line_end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = ("\n".join(lines) + end).replace("\n", line_end)
    after, _ = registered(tmp_path_factory.mktemp("p"), before)
    if after is None:
        return
    assert "Banana" in {alias.name for node in ast.walk(ast.parse(after)) for alias in getattr(node, "names", ())}
    exported = [
        node
        for node in ast.parse(before).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    old = before.split(line_end)
    of_all = {number for node in exported for number in range(node.lineno - 1, node.end_lineno or 0)}
    matcher = difflib.SequenceMatcher(a=old, b=after.split(line_end), autojunk=False)
    for kind, start, stop, *_ in matcher.get_opcodes():
        assert kind in ("equal", "insert") or set(range(start, stop)) <= of_all, (before, after)
