"""Blocks compute what the original computes, whatever names, bindings, conditions and orders their files have."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest

Behaves = Callable[..., str]


class Case(NamedTuple):
    """Files, an expression, its value in original and block, and text that the block must and must not contain."""

    files: str
    expression: str
    expected: object
    has: tuple[str, ...]
    lacks: tuple[str, ...]


def read_cases(text: str) -> dict[str, Case]:
    """The cases of a text: `=== name`, files, `>>> expression == value`, then `+` what the block has, `-` what not.

    p/a.py begins with the import of nn; a line `return X` at its margin is a class A whose forward returns X.
    """
    found = {}
    for part in text.split("=== ")[1:]:
        files, _, check = part.partition("\n>>> ")
        name, _, files = files.partition("\n")
        files = files.replace("--- p/a.py\n", "--- p/a.py\nfrom torch import nn\n")
        files = re.sub(r"^return ", "class A(nn.Module):\n    def forward(self, x): return ", files, flags=re.M)
        equation, *parts = check.splitlines()
        expression, _, value = equation.partition(" == ")
        has, lacks = (tuple(p[2:] for p in parts if p.startswith(sign)) for sign in "+-")
        found[name] = Case(f"{files}\n", expression, eval(value), has, lacks)
    return found


NAMES = r"""
=== names bound by loops, with, unpacking, walrus
--- p/a.py
import contextlib
(P, Q), *R = (1, 2), 3, 4
for I in range(3):
    LAST = I
with contextlib.nullcontext(5) as W:
    V = W
SIZE = 6 + (BIG := 1)
TOTAL = sum(K := [1, 2])
return P, Q, R, I, LAST, W, V, SIZE, BIG, TOTAL, K
>>> A()(0) == (1, 2, [3, 4], 2, 2, 5, 5, 7, 1, 3, [1, 2])
=== a constant that is bound again
--- p/a.py
SIZE = 1
SIZE = SIZE + 1
SIZE *= 3
return SIZE
>>> A()(0) == 6
=== a name read between two bindings
--- p/a.py
size = 2
class Small(nn.Module):
    width = size
    def forward(self, x): return x
size = 3
return size, Small.width
>>> A()(0) == (3, 2)
=== a name deleted in the end
--- p/a.py
_base = 4
class Wide(nn.Module):
    width = _base * 2
    def forward(self, x): return x
del _base
return Wide.width
>>> A()(0) == 8
=== a parameter would capture the name
--- p/layers.py
def drop_path(x, p): return (x, p)
--- p/a.py
from . import layers
class A(nn.Module):
    def forward(self, x, drop_path=0.5): return layers.drop_path(x, drop_path)
>>> A()(1) == (1, 0.5)
=== an alias: a local of its own name would capture it
--- p/b.py
def f(x): return ("f", x)
--- p/a.py
from .b import f as h
class A(nn.Module):
    def forward(self, f): return h(f), [h(f) for f in (1,)]
>>> A()(2) == (("f", 2), [("f", 1)])
=== a class attribute would capture the name
--- p/layers.py
class Norm: pass
--- p/a.py
from . import layers
class A(nn.Module):
    Norm = layers.Norm
    made = Norm()
    def forward(self, x): return type(self.made).__name__ , self.Norm is type(self.made)
>>> A()(0)[1] == True
=== one module shadows a builtin
--- p/b.py
def max(a, b): return ("mine", a, b)
def use(x): return max(x, 1)
--- p/a.py
from .b import use
return use(x), max(x, 5)
>>> A()(2) == (("mine", 2, 1), 5)
+ def max_2(a, b)
=== a builtin shadowed in the class's own file
--- p/b.py
def use(x): return sum(x)
--- p/a.py
from .b import use
def sum(x): return "mine"
return use(x), sum(x)
>>> A()([1, 2]) == (3, "mine")
=== a plain import and a function of one name
--- p/b.py
import copy
def twice(x): return copy.copy(x), copy.deepcopy(x)
--- p/a.py
from .b import twice
def copy(x): return ("mine", x)
return copy(x), twice(x)
>>> A()([1]) == (("mine", [1]), ([1], [1]))
=== helpers of two files
--- p/b.py
def scale(x, scale=2): return x * scale
def both(x): return scale(x, scale=3), [scale(i) for i in (1,)], (lambda scale: scale)(x)
--- p/a.py
from .b import both
def scale(x): return -x
return scale(x), both(x)
>>> A()(2) == (-2, (6, [2], 2))
+ def scale_2(x, scale=2)
+ scale_2(x, scale=3)
+ lambda scale: scale
+ def scale(x): return -x
=== under global
--- p/b.py
count = 0
limit = 9
def step():
    global count, limit
    count += 1
    def inner():
        global count
        count, limit_ = count + 10, limit
        return count
    return inner()
--- p/a.py
from .b import step
from . import b
count = limit = 100
return step(), b.count, count, limit
>>> A()(0) == (11, 11, 100, 100)
+ global count_2, limit_2
=== in defaults, decorators, bases and nested functions
--- p/b.py
SIZE = 4
def mark(f):
    f.marked = SIZE
    return f
class Base:
    SIZE = SIZE + 1
    def get(self, n=SIZE):
        def deeper(m=n + SIZE): return m, self.SIZE, SIZE
        return deeper()
@mark
def make(): return Base()
--- p/a.py
from .b import make
SIZE, mark = 1, 2
class Base: pass
return make().get(), make.marked, SIZE, mark, Base.__name__
>>> A()(0) == ((9, 5, 4), 4, 1, 2, "Base")
+ self.SIZE, SIZE_2
+ @mark_2
+ class Base_2:
=== strings, attributes and keywords stay
--- p/b.py
def size(x, size=0): return x.size if hasattr(x, "size") else f"{'size'}={size}"
def call(x):
    '''Of size.'''  # size
    return size(x, size=1), dict(size=2)["size"], call.__doc__
--- p/a.py
from .b import call
size = None
return call(x), size
>>> A()(0) == (("size=1", 2, "Of size."), None)
+ size_2(x, size=1)
+ '''Of size.'''  # size

=== inside f-strings
--- p/b.py
def f(x): return x * 2
def text(x):
    a = f"{f(x)} f {f(x)!r:>{f(2)}}" f"{ f(x) }"
    b = f'''
{f(x)} and
    {f(f(x))}'''
    c = ("f" f"{f(x)}"
         f"f{f(x)}")
    return a, b, c
--- p/a.py
from .b import text
def f(x): return -x
return f(x), text(x)
>>> A()(1) == (-1, ("2 f    22", "\n2 and\n    4", "f2f2"))
=== two imports of one name
--- p/b.py
from math import floor as F
def low(x): return F(x)
--- p/a.py
import torch.nn.functional as F
from .b import low
return low(x), F.__name__
>>> A()(1.5) == (1, "torch.nn.functional")
+ import torch.nn.functional as F

=== names of the runtime
--- p/b.py
import torch.nn as tnn
from torch.nn import functional
def width(): return tnn.Linear(2, 3).weight.shape[0], functional.__name__
--- p/a.py
from torch import nn as N
from .b import width
import torch.nn.functional as functional_
class A(N.Module):
    def forward(self, x): return width(), nn is N
>>> A()(0) == ((3, "torch.nn.functional"), True)
=== same name, three files
--- p/b.py
from .c import f as g
def f(x): return ("b", g(x))
--- p/c.py
def f(x): return ("c", x)
--- p/a.py
from .b import f as fb
from .c import f as fc
def f_2(x): return "taken"
def f(x): return ("a", fb(x), fc(x), f_2(x))
return f(x)
>>> A()(1) == ("a", ("b", ("c", 1)), ("c", 1), "taken")
=== a name that a handler or a match binds
--- p/b.py
error = "mine"
def get(x):
    try:
        return [][x]
    except IndexError as error:
        kept = str(error)[:4]
    match x:
        case {"k": error, **rest}: pass
        case [error, *rest]: pass
        case _: error = 0
    return kept, error
def other(): return error
--- p/a.py
from .b import get, other
error = 7
return get(x), other(), error
>>> A()(3) == (("list", 0), "mine", 7)
+ except IndexError as error:
+ error_2 = "mine"
=== classes that inherit one name
--- p/b.py
from torch import nn
class Block(nn.Module):
    def forward(self, x): return super().forward(x) if x is None else ("b", x)
--- p/a.py
from . import b
class Block(b.Block):
    def forward(self, x): return ("a", super(Block, self).forward(x), super().forward(x))
>>> Block()(1) == ("a", ("b", 1), ("b", 1))
+ super(Block, self)
+ class Block(Block_2):
+ #   renamed Block -> Block_2
=== nothing is renamed without need
--- p/b.py
def f(x): return x
TABLE = {'f': f}
--- p/a.py
from . import b
class A(nn.Module):
    def forward(self, x): return b.TABLE['f'](x)
>>> A()(1) == 1
+ TABLE = {'f': f}
+ return TABLE['f'](x)
- renamed
=== only names differ where something is renamed
--- p/b.py
def f ( x ): return  x   # f
def g ( x ): return f ( x )  # calls f
--- p/a.py
from . import b
def f(x): return 0
class A(nn.Module):
    def forward( self, x ):   # f
        return  b . g ( f (x) ) , b.f( x )
>>> A()(1) == (0, 1)
+ def f_2 ( x ): return  x   # f
+ def g ( x ): return f_2 ( x )  # calls f
+     def forward( self, x ):   # f
+         return  g ( f (x) ) , f_2( x )
"""
ORDER = r"""
=== base, default, decorator, class body
--- p/b.py
from torch import nn
def twice(f):
    return lambda *a: 2 * f(*a)
WIDTH = 3
class Base(nn.Module):
    def forward(self, x): return x + 1
--- p/a.py
from .b import WIDTH, Base, twice
class A(Base):
    width = WIDTH + 1
    @twice
    def scaled(self, x, width=WIDTH): return x * width
>>> (A()(1), A().width, A().scaled(5)) == (2, 4, 30)
=== mutual recursion of functions; the class comes last
--- p/a.py
class A(nn.Module):
    def forward(self, n): return even(n)
def even(n): return True if n == 0 else odd(n - 1)
def odd(n): return False if n == 0 else even(n - 1)
>>> (A()(6), A()(7)) == (True, False)
=== mutual recursion of classes across files
--- p/a.py
class A(nn.Module):
    def forward(self, n):
        from .b import B
        return ["A"] + (B()(n - 1) if n else [])
--- p/b.py
from torch import nn
from .a import A
class B(nn.Module):
    def forward(self, n): return ["B"] + (A()(n - 1) if n else [])
>>> A()(3) == ["A", "B", "A", "B"]
=== circular imports of modules
--- p/a.py
from . import b
FACTOR = 3
return b.scale(x)
--- p/b.py
from . import a
def scale(x): return x * a.FACTOR
>>> A()(2) == 6
=== decorator from a later file
--- p/a.py
from .z import mark, MARKS
@mark("x")
return x + MARKS["x"]
--- p/z.py
MARKS = {}
def mark(name):
    def wrap(cls):
        MARKS[name] = helper()
        cls.marked = True
        return cls
    return wrap
def helper(): return 40
>>> (A()(2), A.marked) == (42, True)
=== a call at module level needs what its functions read
--- p/a.py
LIMIT = 5
def inner(): return LIMIT * OFFSET
def make(): return inner() + 1
OFFSET = 2
X = make()
return x + X
>>> A()(0) == 11
=== a call at module level within a cycle
--- p/a.py
def first(n): return second(n) if n else X
def second(n): return n + BASE
BASE = 10
X = first(1)
return first(x)
>>> (A()(0), A()(3)) == (11, 13)
=== functions handed to a call
--- p/a.py
class A(nn.Module):
    def forward(self, x): return TABLE[x]
def shift(n): return n + STEP
STEP = 4
TABLE = list(map(shift, range(3)))
>>> A()(2) == 6
=== a method called at module level
--- p/a.py
class Maker:
    def make(self): return part() * 2
def part(): return 21
X = Maker().make()
return X
>>> A()(0) == 42
=== an operator at module level
--- p/a.py
class Size:
    def __init__(self, n): self.n = n
    def __add__(self, other): return combine(self, other)
def combine(a, b): return Size(a.n + b.n)
ONE = Size(1)
TWO = ONE + ONE
return TWO.n
>>> A()(0) == 2
=== metaclass with keywords
--- p/a.py
class Meta(type):
    def __new__(cls, name, bases, body, tag=None):
        made = super().__new__(cls, name, bases, body)
        made.tag = label(tag)
        return made
def label(tag): return f"<{tag}>"
class Tagged(metaclass=Meta, tag="t"):
    pass
return Tagged.tag
>>> A()(0) == "<t>"
=== a module that is imported only as it is called
--- p/a.py
class A(nn.Module):
    def forward(self, x):
        from .b import TABLE
        return TABLE[x]
--- p/b.py
from .c import fill
TABLE = fill({})
--- p/c.py
def fill(table): return {**table, 1: VALUE}
VALUE = 9
>>> A()(1) == 9
=== only what is needed is copied
--- p/b.py
import json
from torch import nn
def used(x): return x
def unused(x): return json.dumps(x)
BIG = [json.loads("1")]
--- p/a.py
from .b import *
from .b import used
class Other(nn.Module):
    def forward(self, x): return unused(x)
class A(nn.Module):
    def forward(self, x): return used(x)
>>> A()(1) == 1
+ def used
- unused
- json
- BIG
- Other
=== a module used as a value becomes a namespace
--- p/norms.py
from torch import nn
class N1(nn.Identity): pass
class N2(nn.Identity): pass
_hidden = 1
--- p/a.py
from . import norms
class A(nn.Module):
    def forward(self, x, name='N1'): return getattr(norms, name)()(x), hasattr(norms, "N2")
>>> A()(5) == (5, True)
+ norms = types.SimpleNamespace(
+     N1=N1,
+     N2=N2,
- _hidden
=== decorators that do not register stay
--- p/a.py
import functools
def twice(cls):
    cls.count = 2
    return cls
@functools.singledispatch
def kind(x): return "any"
@kind.register
def _(x: int): return "int"
@twice
class A(nn.Module):
    def forward(self, x): return self.count, kind("")
>>> A()(1) == (2, "any")
+ @twice
=== changes made by another file are not followed
--- p/b.py
TABLE = {}
--- p/c.py
from .b import TABLE
TABLE["late"] = 1
--- p/a.py
from .b import TABLE
return TABLE
>>> A()(1) == {}
- late
"""

CASES = {**read_cases(NAMES), **read_cases(ORDER)}


@pytest.mark.parametrize("case", CASES)
def test_behaves_as_the_original(behaves: Behaves, case: str) -> None:
    files, expression, expected, has, lacks = CASES[case]
    code = behaves(files, expression, expected, name="p.a.Block" if expression.startswith("Block") else "A")
    for part in has:
        assert part in code
    for part in lacks:
        assert part not in code


@pytest.mark.xfail(strict=True, reason="reads of builtins are left out before star imports are known")
def test_a_star_import_shadows_a_builtin(behaves: Behaves) -> None:
    behaves(
        """
        --- p/b.py
        def max(x): return "mine"
        --- p/a.py
        from torch import nn
        from .b import *
        class A(nn.Module):
            def forward(self, x): return max(x)
        """,
        "A()([1])",
        "mine",
    )


def test_chain_of_bases_over_files(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    files = "--- p/m0.py\nfrom torch import nn\nclass C0(nn.Module):\n    def forward(self, x): return x\n"
    for i in range(1, 12):
        files += f"--- p/m{i}.py\nfrom .m{i - 1} import C{i - 1}\nclass C{i}(C{i - 1}):\n    pass\n"
    code = closed(corpus(files).emit("C11"))
    places = [code.index(f"class C{i}(") for i in range(12)]
    assert all(a < b for a, b in pairwise(places))


def test_a_hook_that_the_original_calls_too_early_is_mended(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    """The original fails on import (`note` is defined below); in the block, the hook's dependencies come first."""
    files = """
        --- p/a.py
        from torch import nn
        SEEN = []
        class Base(nn.Module):
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                note(cls)
        class A(Base):
            def forward(self, x): return list(SEEN)
        def note(cls): SEEN.append(cls.__name__)
        """
    assert run(closed(corpus(files).emit("A")))["A"]()(0) == ["A"]


# -- statements that change an object after it was bound belong to it --------------------------------------------------

CHANGES: dict[str, tuple[str, object]] = {
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


_CLASS = "\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x): return TABLE\n"


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("here", [True, False], ids=["same file", "imported"])
def test_changes_of_a_constant(behaves: Behaves, case: str, here: bool) -> None:
    text, expected = CHANGES[case]
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
