"""Top-level `if` and `try`: taken apart where they are decided beforehand, kept where only running decides."""

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
    files = {
        "p/b.py": _B.split("--- p/a.py\n")[0].split("--- p/b.py\n")[1],
        "p/a.py": _B.split("p/a.py\n")[1] + head + _A,
    }
    code = behaves(files, "A()(1)", expected)
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
    files = {
        "p/b.py": _B.split("--- p/a.py\n")[0].split("--- p/b.py\n")[1],
        "p/a.py": _B.split("p/a.py\n")[1] + IMPORTS[case] + _A,
    }
    behaves(files, "A()(1)", ("f", 1))
