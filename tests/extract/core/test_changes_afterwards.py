"""Statements that change an object after it was bound belong to it."""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

CASES: dict[str, tuple[str, object]] = {
    "subscript": ("TABLE = {}\nTABLE['x'] = 1\nTABLE['y'] = len(TABLE)", {"x": 1, "y": 1}),
    "augmented subscript": ("TABLE = {'x': 1}\nTABLE['x'] += 4", {"x": 5}),
    "method": ("TABLE = []\nTABLE.append(1)\nTABLE.extend([2, 3])", [1, 2, 3]),
    "nested": ("TABLE = {'a': {}}\nTABLE['a']['b'] = 2", {"a": {"b": 2}}),
    "deleted entry": ("TABLE = {'a': 1, 'b': 2}\ndel TABLE['a']", {"b": 2}),
    "augmented name": ("TABLE = [1]\nTABLE += [2]", [1, 2]),
    "several targets": ("TABLE = {}\nTABLE['a'] = TABLE['b'] = 3", {"a": 3, "b": 3}),
    "under a condition": ("import sys\nTABLE = {}\nif sys.version_info >= (3, 8):\n    TABLE['new'] = 1", {"new": 1}),
    "in a with": ("import contextlib\nTABLE = {}\nwith contextlib.nullcontext():\n    TABLE['a'] = 1", {"a": 1}),
    "in a loop": ("TABLE = {}\nfor key in 'ab':\n    TABLE[key] = key * 2", {"a": "aa", "b": "bb"}),
    "beside a binding": ("TABLE = {}\nOTHER = TABLE['a'] = 1", {"a": 1}),
    "a method whose result is bound": ("TABLE = {}\nGOT = TABLE.setdefault('a', 1)", {"a": 1}),
    "an update by a function": ("TABLE = {}\ndef fill(t): t['a'] = 1\nfill(TABLE)", {"a": 1}),
    "a while loop": ("TABLE = []\nwhile len(TABLE) < 3:\n    TABLE.append(0)", [0, 0, 0]),
}
BROKEN = {
    "a method whose result is bound": "only a call that stands alone is taken as a change",
    "an update by a function": "a call that is given the object is not taken as a change of it",
}
_CLASS = "\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x): return TABLE\n"


@pytest.mark.parametrize(
    "case",
    [pytest.param(n, marks=pytest.mark.xfail(strict=True, reason=BROKEN[n])) if n in BROKEN else n for n in CASES],
)
@pytest.mark.parametrize("here", [True, False], ids=["same file", "imported"])
def test_changes_of_a_constant(behaves: Behaves, case: str, here: bool) -> None:
    text, expected = CASES[case]
    apart = {"p/b.py": text + "\n", "p/a.py": "from .b import TABLE" + _CLASS}
    behaves({"p/a.py": text + _CLASS} if here else apart, "A()(0)", expected)


CLASSES: dict[str, tuple[str, str, object]] = {
    "a method set from outside": ("def f(self): return 5\nA.f = f\n", "A()(0).f()", 5),
    "a constant set from outside": ("A.size = 5\n", "A()(0).size", 5),
    "setattr": ("def f(self): return 5\nsetattr(A, 'f', f)\n", "A()(0).f()", 5),
    "a wrapper put around a method": (
        "def twice(f): return lambda self, x: (f(self, x), 2)\nA.forward = twice(A.forward)\n",
        "A()(0)[1]",
        2,
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_changes_of_the_class(behaves: Behaves, case: str) -> None:
    text, expression, expected = CLASSES[case]
    head = "from torch import nn\nclass A(nn.Module):\n    def forward(self, x): return self\n"
    behaves({"p/a.py": head + text}, expression, expected)


def test_changes_made_by_another_file_are_not_followed(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    """Who else changes a table cannot be known from the class; only its own file counts."""
    code = closed(
        corpus(
            """
            --- p/b.py
            TABLE = {}
            --- p/c.py
            from .b import TABLE
            TABLE["late"] = 1
            --- p/a.py
            from torch import nn
            from .b import TABLE
            class A(nn.Module):
                def forward(self, x): return TABLE
            """
        ).emit("A")
    )
    assert "late" not in code
