"""Imports inside functions and classes: of the corpus they go, of the runtime they stay, of what is absent they fail."""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

_B = """
--- p/b.py
SIZE = 3
def f(x): return ("f", x)
def g(x): return ("g", x)
class K: pass
--- p/sub/__init__.py
from ..b import f as renamed
--- p/passed.py
from math import floor as down
--- p/sub/deep.py
def f(x): return ("deep", x)
--- p/a.py
from torch import nn
"""


def method(body: str, signature: str = "self, x") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{_B}class A(nn.Module):\n    def forward({signature}):\n{lines}"


CASES: dict[str, tuple[str, str, object]] = {
    "relative": (method("from .b import f\nreturn f(x)"), "A()(1)", ("f", 1)),
    "absolute": (method("from p.b import f\nreturn f(x)"), "A()(1)", ("f", 1)),
    "absolute, what the runtime has": (method("from p.passed import down\nreturn down(x)"), "A()(1.5)", 1),
    "relative, what the runtime has": (method("from .passed import down as d\nreturn d(x)"), "A()(1.5)", 1),
    "aliased": (method("from .b import f as h\nreturn h(x)"), "A()(1)", ("f", 1)),
    "several, some of the runtime": (
        method("import math, copy\nfrom .b import f as h, g, K as Q\nreturn h(g(x)), Q.__name__, math.floor(1.5)"),
        "A()(1)",
        (("f", ("g", 1)), "K", 1),
    ),
    "a module": (method("from . import b\nreturn b.f(b.SIZE)"), "A()(1)", ("f", 3)),
    "a module under another name": (method("import p.sub.deep as d\nreturn d.f(x)"), "A()(1)", ("deep", 1)),
    "a dotted module": (method("import p.b\nreturn p.b.g(x)"), "A()(1)", ("g", 1)),
    "through a re-export": (method("from .sub import renamed\nreturn renamed(x)"), "A()(1)", ("f", 1)),
    "inside try": (
        method("try:\n    from .b import f\nexcept ImportError:\n    f = None\nreturn f(x)"),
        "A()(1)",
        ("f", 1),
    ),
    "inside try, missing": (
        method("try:\n    from .b import nothing as f\nexcept ImportError:\n    f = str\nreturn f(x)"),
        "A()(1)",
        "1",
    ),
    "inside try, an absent package": (
        method("try:\n    import no_such_package_ as n\nexcept ImportError:\n    n = None\nreturn n"),
        "A()(1)",
        None,
    ),
    "on the line of an if": (method("if x: from .b import f\nreturn f(x)"), "A()(1)", ("f", 1)),
    "between semicolons": (method("y = 1; from .b import f; z = 2\nreturn f(y + z)"), "A()(1)", ("f", 3)),
    "in parentheses over lines": (
        method("from .b import (  # both\n    f,\n    g as h,\n)\nreturn f(h(x))"),
        "A()(1)",
        ("f", ("g", 1)),
    ),
    "in a nested function": (
        method("def inner():\n    from .b import f\n    return f(x)\nreturn inner()"),
        "A()(1)",
        ("f", 1),
    ),
    "read by a nested function": (
        method("from .b import f\ndef inner(): return [f(i) for i in range(1)]\nreturn inner()"),
        "A()(1)",
        [("f", 0)],
    ),
    "a branch of two": (
        method("if x:\n    from .b import f as h\nelse:\n    from .b import g as h\nreturn h(x)"),
        "A()(1), A()(0)",
        (("f", 1), ("g", 0)),
    ),
    "bound again after it": (method("from .b import f\nf = (f(x), 2)\nreturn f"), "A()(1)", (("f", 1), 2)),
    "the name is a parameter of the function around": (
        method("def inner(y):\n    from .b import f\n    return f(y)\nreturn inner(f)", "self, f"),
        "A()(1)",
        ("f", 1),
    ),
    "the same name in two files": (
        method("from .b import f\nfrom .sub.deep import f as d\nreturn f(x), d(x)"),
        "A()(1)",
        (("f", 1), ("deep", 1)),
    ),
    "in a class body": (
        f"{_B}class A(nn.Module):\n    from .b import SIZE, K as Kind\n    width = SIZE + 1\n    def forward(self, x): return self.SIZE, self.width, self.Kind.__name__\n",
        "A()(1)",
        (3, 4, "K"),
    ),
    "under global": (
        f"{_B}def load():\n    global f\n    from .b import f\nclass A(nn.Module):\n    def forward(self, x):\n        load()\n        return f(x)\n",
        "A()(1)",
        ("f", 1),
    ),
    "a default that the import hides": (
        method("def inner(f=str):\n    return f(x)\nfrom .b import f\nreturn inner(), f(x)"),
        "A()(1)",
        ("1", ("f", 1)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_behaves_as_the_original(behaves: Behaves, case: str) -> None:
    behaves(*CASES[case])


def test_an_import_that_fails_fails_in_the_block_too(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    made = corpus(method("if x:\n    from .b import nothing\n    return nothing\nreturn 0"))
    names = run(closed(made.emit("A")))
    assert names["A"]()(0) == 0
    with pytest.raises(ImportError):
        names["A"]()(1)


def test_runtime_imports_stay_as_they_are(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    body = "import math  # cheap\nfrom torch.nn import functional as F\nreturn F.relu(x) + math.pi"
    code = closed(corpus(method(body)).emit("A"))
    assert "        import math  # cheap\n        from torch.nn import functional as F\n" in code
