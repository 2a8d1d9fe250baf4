"""Two things of one name: one is renamed everywhere it is meant, and nowhere else."""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

CASES: dict[str, tuple[str, str, object, tuple[str, ...]]] = {
    "helpers of two files": (
        """
        --- p/b.py
        def scale(x, scale=2): return x * scale
        def both(x): return scale(x, scale=3), [scale(i) for i in (1,)], (lambda scale: scale)(x)
        --- p/a.py
        from torch import nn
        from .b import both
        def scale(x): return -x
        class A(nn.Module):
            def forward(self, x): return scale(x), both(x)
        """,
        "A()(2)",
        (-2, (6, [2], 2)),
        ("def scale_2(x, scale=2)", "scale_2(x, scale=3)", "lambda scale: scale", "def scale(x): return -x"),
    ),
    "under global": (
        """
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
        from torch import nn
        from .b import step
        from . import b
        count = limit = 100
        class A(nn.Module):
            def forward(self, x): return step(), b.count, count, limit
        """,
        "A()(0)",
        (11, 11, 100, 100),
        ("global count_2, limit_2",),
    ),
    "in defaults, decorators, bases and nested functions": (
        """
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
        from torch import nn
        from .b import make
        SIZE, mark = 1, 2
        class Base: pass
        class A(nn.Module):
            def forward(self, x): return make().get(), make.marked, SIZE, mark, Base.__name__
        """,
        "A()(0)",
        ((9, 5, 4), 4, 1, 2, "Base"),
        ("self.SIZE, SIZE_2", "@mark_2", "class Base_2:"),
    ),
    "strings, attributes and keywords stay": (
        """
        --- p/b.py
        def size(x, size=0): return x.size if hasattr(x, "size") else f"{'size'}={size}"
        def call(x):
            '''Of size.'''  # size
            return size(x, size=1), dict(size=2)["size"], call.__doc__
        --- p/a.py
        from torch import nn
        from .b import call
        size = None
        class A(nn.Module):
            def forward(self, x): return call(x), size
        """,
        "A()(0)",
        (("size=1", 2, "Of size."), None),
        ("size_2(x, size=1)", "'''Of size.'''  # size\n"),
    ),
    "inside f-strings": (
        """
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
        from torch import nn
        from .b import text
        def f(x): return -x
        class A(nn.Module):
            def forward(self, x): return f(x), text(x)
        """,
        "A()(1)",
        (-1, ("2 f    22", "\n2 and\n    4", "f2f2")),
        (),
    ),
    "two imports of one name": (
        """
        --- p/b.py
        from math import floor as F
        def low(x): return F(x)
        --- p/a.py
        from torch import nn
        import torch.nn.functional as F
        from .b import low
        class A(nn.Module):
            def forward(self, x): return low(x), F.__name__
        """,
        "A()(1.5)",
        (1, "torch.nn.functional"),
        ("import torch.nn.functional as F\n",),
    ),
    "names of the runtime": (
        """
        --- p/b.py
        import torch.nn as tnn
        from torch.nn import functional
        def width(): return tnn.Linear(2, 3).weight.shape[0], functional.__name__
        --- p/a.py
        from torch import nn as N
        from torch import nn
        from .b import width
        import torch.nn.functional as functional_
        class A(N.Module):
            def forward(self, x): return width(), nn is N
        """,
        "A()(0)",
        ((3, "torch.nn.functional"), True),
        (),
    ),
    "same name, three files": (
        """
        --- p/b.py
        from .c import f as g
        def f(x): return ("b", g(x))
        --- p/c.py
        def f(x): return ("c", x)
        --- p/a.py
        from torch import nn
        from .b import f as fb
        from .c import f as fc
        def f_2(x): return "taken"
        def f(x): return ("a", fb(x), fc(x), f_2(x))
        class A(nn.Module):
            def forward(self, x): return f(x)
        """,
        "A()(1)",
        ("a", ("b", ("c", 1)), ("c", 1), "taken"),
        (),
    ),
    "a name that a handler or a match binds": (
        """
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
        from torch import nn
        from .b import get, other
        error = 7
        class A(nn.Module):
            def forward(self, x): return get(x), other(), error
        """,
        "A()(3)",
        (("list", 0), "mine", 7),
        ("except IndexError as error:", 'error_2 = "mine"'),
    ),
    "classes that inherit one name": (
        """
        --- p/b.py
        from torch import nn
        class Block(nn.Module):
            def forward(self, x): return super().forward(x) if x is None else ("b", x)
        --- p/a.py
        from . import b
        class Block(b.Block):
            def forward(self, x): return ("a", super(Block, self).forward(x), super().forward(x))
        """,
        "Block()(1)",
        ("a", ("b", 1), ("b", 1)),
        ("super(Block, self)",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_behaves_as_the_original(behaves: Behaves, case: str) -> None:
    files, expression, expected, parts = CASES[case]
    name = "p.a.Block" if expression.startswith("Block") else "A"
    code = behaves(files, expression, expected, name=name)
    for part in parts:
        assert part in code


def test_the_class_keeps_its_name(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    """Also where a file that it needs has another class of that name."""
    made = corpus(CASES["classes that inherit one name"][0])
    code = closed(made.emit("p.a.Block"))
    assert "class Block(Block_2):" in code
    assert "#   renamed Block -> Block_2" in code


def test_nothing_is_renamed_without_need(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    files = "--- p/b.py\ndef f(x): return x\nTABLE = {'f': f}\n--- p/a.py\nfrom torch import nn\nfrom . import b\nclass A(nn.Module):\n    def forward(self, x): return b.TABLE['f'](x)\n"
    code = closed(corpus(files).emit("A"))
    assert "renamed" not in code
    assert "TABLE = {'f': f}\n" in code
    assert "return TABLE['f'](x)\n" in code
