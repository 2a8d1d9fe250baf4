"""A new module is named in `__init__.py` as its neighbors are, and every other byte of it stays."""

import ast
import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.migrate.project.layout import choose_place, read_project
from extract.migrate.project.writing import register
from tests.builders import projects

MODULE = "from torch import nn\n\n\nclass {}(nn.Module):\n    def forward(self, x):\n        return x\n"
NEIGHBOURS = {"p/apple.py": MODULE.format("Apple"), "p/cherry.py": MODULE.format("Cherry")}


def registered(folder: Path, init: str) -> tuple[str | None, str]:
    root = projects.make(folder, {**NEIGHBOURS, "p/__init__.py": ""})
    (root / "p/__init__.py").write_bytes(init.encode())
    project = read_project(root)
    found = register(project, choose_place(project, "Banana", "Other"), "Banana")
    return None if found.text is None else found.text.decode(), found.why


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from .apple import Apple\nfrom .cherry import Cherry\n",
            "from .apple import Apple\nfrom .banana import Banana\nfrom .cherry import Cherry\n",
        ),
        (
            "from p.cherry import Cherry\r\nfrom p.apple import Apple\r\n\r\nx = 1\r\n",
            "from p.cherry import Cherry\r\nfrom p.apple import Apple\r\nfrom .banana import Banana\r\n\r\nx = 1\r\n",
        ),
        (
            "from .apple import *\nfrom .cherry import *",
            "from .apple import *\nfrom .banana import Banana\nfrom .cherry import *",
        ),
        (
            "from .apple import Apple\n__all__ = ['Apple', 'x']\n",
            "from .apple import Apple\nfrom .banana import Banana\n__all__ = ['Apple', 'Banana', 'x']\n",
        ),
        (
            'from .cherry import Cherry\n__all__ = (\n    "x",  # first\n    "Cherry",\n)\n',
            'from .cherry import Cherry\nfrom .banana import Banana\n__all__ = (\n    "x",  # first\n    "Cherry",\n'
            '    "Banana",\n)\n',
        ),
        (
            'from .apple import Apple\n__all__ = [\n    "Apple"\n]\n',
            'from .apple import Apple\nfrom .banana import Banana\n__all__ = [\n    "Apple",\n    "Banana"\n]\n',
        ),
    ],
    ids=["ordered", "absolute, unordered, other line ends", "star", "__all__", "tuple", "one name"],
)
def test_as_its_neighbours(tmp_path: Path, before: str, after: str) -> None:
    assert registered(tmp_path, before)[0] == after


@pytest.mark.parametrize(
    ("init", "why"),
    [
        ("", "names 0 of 2 modules of its folder"),
        ("from .apple import Apple\nBanana = 1\n", "has another Banana"),
        ("from os import path\n", "names 0 of 2"),
        ("try:\n    from .apple import Apple\nexcept ImportError:\n    pass\n", "names 0 of 2"),
    ],
)
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
