"""Top-level `if` and `try`: taken apart where they are decided beforehand, kept where only running decides.

Imports inside functions and classes: of the corpus they go, of the runtime they stay, of what is absent they fail.
"""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

_B = """
--- p/b.py
def f(x): return ("f", x)
def g(x): return ("g", x)
--- p/a.py
import sys
import typing
from typing import TYPE_CHECKING
from torch import nn
"""
_A = "class A(nn.Module):\n    def forward(self, x): return get(x)\n"

CASES: dict[str, tuple[str, object, tuple[str, ...], tuple[str, ...]]] = {
    # before the class, the value of A()(1), parts of the block, parts that it must not have
    "if, elif, else with imports": (
        "if sys.version_info >= (3, 99):\n    from .b import g as get\nelif sys.version_info >= (3, 8):\n    from .b import f as get\nelse:\n    def get(x): return 0\n",
        ("f", 1),
        ("elif sys.version_info >= (3, 8):\n", "    get = f\n"),
        (".b",),
    ),
    "only what is needed of a branch": (
        "if sys.version_info >= (3, 8):\n    # why\n    def get(x): return x\n    unused = 1\nelse:\n    other = 2\n",
        1,
        ("    # why\n    def get(x): return x\n",),
        ("unused", "other"),
    ),
    "one branch binds it, the other is empty": (
        "get = str\nif sys.version_info >= (3, 8):\n    get = repr\nelif sys.argv:\n    left = 1\nelse:\n    gone = 2\n",
        "1",
        (),
        ("left", "gone"),
    ),
    "the needed one is in else": (
        "if sys.version_info < (3, 8):\n    gone = 1\nelse:\n    get = str\n",
        "1",
        ("    pass\n", "else:\n    get = str\n"),
        ("gone",),
    ),
    "nested": (
        "if sys.version_info >= (3, 8):\n    if sys.maxsize > 1:\n        get = str\n    else:\n        get = repr\n    left = 3\nelse:\n    get = None\n",
        "1",
        ("    if sys.maxsize > 1:\n        get = str\n",),
        ("left",),
    ),
    "elif within else": (
        "if sys.version_info < (3, 8):\n    get = None\nelse:\n    if sys.maxsize < 0:\n        get = None\n    elif True:\n        get = str\n",
        "1",
        (),
        (),
    ),
    "try without ImportError is kept whole": (
        "try:\n    first = sys.no_such_thing\n    get = first\nexcept AttributeError as error:\n    get = lambda x: ('handled', x)\nelse:\n    never = 1\nfinally:\n    done = True\n",
        ("handled", 1),
        ("first = sys.no_such_thing", "finally:\n    done = True"),
        (),
    ),
    "a try within a try": (
        "get = str\ntry:\n    check = sys.no_such_thing\n    try:\n        get = len\n    except ValueError:\n        pass\nexcept AttributeError:\n    pass\n",
        "1",
        ("    check = sys.no_such_thing\n",),
        (),
    ),
    "the error of a handler": (
        "try:\n    get = sys.no_such_thing\nexcept AttributeError as error:\n    why = type(error).__name__\n    def get(x): return why\n",
        "AttributeError",
        (),
        (),
    ),
    "the error of a missing import": (
        "try:\n    import no_such_package_\nexcept ImportError as error:\n    why = isinstance(error, ImportError)\n    no_such_package_ = None\ndef get(x): return why if no_such_package_ is None else 0\n",
        True,
        (),
        (),
    ),
    "an assignment in the test": (
        "if (limit := 3) > 2:\n    def get(x): return limit\nelse:\n    get = None\n",
        3,
        (),
        (),
    ),
    "type checking only": (
        "if TYPE_CHECKING:\n    from .b import g as get\nelse:\n    from .b import f as get\n",
        ("f", 1),
        (),
        ("TYPE_CHECKING",),
    ),
    "typing.TYPE_CHECKING, negated": (
        "if not typing.TYPE_CHECKING:\n    def get(x): return 5\nelse:\n    get = None\n",
        5,
        ("\ndef get(x): return 5\n",),
        ("TYPE_CHECKING",),
    ),
    "run as a script": (
        "get = str\nif __name__ == '__main__':\n    get = None\n",
        "1",
        (),
        ("__main__",),
    ),
    "not run as a script": (
        "get = None\nif __name__ != '__main__':\n    get = str\n",
        "1",
        (),
        (),
    ),
    "optional import that works": (
        "try:\n    from .b import f as get\nexcept ImportError:\n    get = None\n",
        ("f", 1),
        (),
        ("try", "except"),
    ),
    "optional import of the runtime": (
        "try:\n    from torch.nn.functional import relu as act\nexcept ImportError:\n    act = None\ndef get(x): return act is not None\n",
        True,
        ("from torch.nn.functional import relu as act\n",),
        ("except",),
    ),
    "the runtime lacks the name": (
        "try:\n    from torch.nn.functional import no_such_function as act\nexcept ImportError:\n    def act(x): return 'fallback'\ndef get(x): return act(x)\n",
        "fallback",
        ("\ndef act(x): return 'fallback'\n",),
        ("no_such_function",),
    ),
    "an absent package, with a flag": (
        "try:\n    import no_such_package_\n    HAS = True\nexcept ImportError:\n    HAS = False\ndef get(x): return no_such_package_.go(x) if HAS else 'plain'\n",
        "plain",
        ("\nHAS = False\n",),
        ("HAS = True", "import no_such_package_"),
    ),
    "an absent package, the flag set before": (
        "HAS = True\ntry:\n    import no_such_package_\nexcept ImportError:\n    HAS = False\ndef get(x): return no_such_package_.go(x) if HAS else 'plain'\n",
        "plain",
        (),
        ("import no_such_package_",),
    ),
    "an absent package, in else": (
        "try:\n    import no_such_package_\nexcept (ImportError, OSError):\n    get = str\nelse:\n    get = no_such_package_.go\n",
        "1",
        ("\nget = str\n",),
        ("no_such_package_",),
    ),
    "an absent package, a bare except": (
        "get = str\ntry:\n    from no_such_package_ import get\nexcept:\n    pass\n",
        "1",
        (),
        ("no_such_package_",),
    ),
    "a class in the fallback": (
        "try:\n    from no_such_package_.ops import Fast as Base\nexcept ImportError:\n    class Base:\n        '''Slow.\n    Indented less.'''\n        def go(self, x): return self.__doc__\ndef get(x): return Base().go(x)\n",
        "Slow.\n    Indented less.",
        ("\nclass Base:\n    '''Slow.\n    Indented less.'''\n    def go",),
        (),
    ),
    "two tries of one name": (
        "try:\n    from no_such_package_ import get\nexcept ImportError:\n    try:\n        from .b import g as get\n    except ImportError:\n        get = None\n",
        ("g", 1),
        (),
        ("no_such_package_",),
    ),
    "on one line": (
        "if sys.version_info >= (3, 8): get = str\nelse: get = None\n",
        "1",
        (),
        (),
    ),
    "a form feed inside": (
        "try:\n    import no_such_package_\nexcept ImportError:\n    no_such_package_ = None\n    def text():\n        '''a\x0c\n   b'''\n        return text.__doc__\n    def get(x): return text()\n",
        "a\x0c\n   b",
        (),
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_behaves_as_the_original(behaves: Behaves, case: str) -> None:
    head, expected, parts, absent = CASES[case]
    code = behaves(_B + head + _A, "A()(1)", expected)
    text = code.split("# Changed", 1)[1].split("\n\n", 1)[1]
    for part in parts:
        assert part in text
    for part in absent:
        assert part not in text


IMPORTS: dict[str, str] = {
    "in a with": "import contextlib\nwith contextlib.suppress(ImportError):\n    from .b import f as get\n",
    "in a loop": "for _ in range(1):\n    from .b import f as get\n",
    "on the line of a try": "try: from .b import f as get\nexcept ImportError: get = None\n",
    "before a semicolon": "from .b import f as get; SIZE = 1\n",
    "after a semicolon": "SIZE = 1; from .b import f as get\n",
    "two by semicolon": "from .b import f as get; from .b import g\n",
    "on the line of an if": "if True: from .b import f as get\n",
}


@pytest.mark.parametrize("case", IMPORTS)
def test_imports_in_odd_places(behaves: Behaves, case: str) -> None:
    behaves(_B + IMPORTS[case] + _A, "A()(1)", ("f", 1))


# -- imports inside functions and classes ----------------------------------------------------------------------------

_FILES = """
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
    return f"{_FILES}class A(nn.Module):\n    def forward({signature}):\n{lines}"


LOCAL: dict[str, tuple[str, str, object]] = {
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
        f"{_FILES}class A(nn.Module):\n    from .b import SIZE, K as Kind\n    width = SIZE + 1\n    def forward(self, x): return self.SIZE, self.width, self.Kind.__name__\n",
        "A()(1)",
        (3, 4, "K"),
    ),
    "under global": (
        f"{_FILES}def load():\n    global f\n    from .b import f\nclass A(nn.Module):\n    def forward(self, x):\n        load()\n        return f(x)\n",
        "A()(1)",
        ("f", 1),
    ),
    "a default that the import hides": (
        method("def inner(f=str):\n    return f(x)\nfrom .b import f\nreturn inner(), f(x)"),
        "A()(1)",
        ("1", ("f", 1)),
    ),
}


@pytest.mark.parametrize("case", LOCAL)
def test_imports_inside_functions_and_classes(behaves: Behaves, case: str) -> None:
    behaves(*LOCAL[case])


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
