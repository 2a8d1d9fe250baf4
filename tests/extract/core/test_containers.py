"""Containers that are filled outside of their definition: the block's file has the same contents as after an import."""

from collections.abc import Callable

import pytest

from extract.emit.emit import Emitted
from tests.extract.core.test_behaves import read_cases

Behaves = Callable[..., str]


CASES = read_cases(
    """
=== a decorator that takes a name
--- p/a.py
LAYERS = {}
def register(name):
    def wrap(cls):
        LAYERS[name] = cls
        return cls
    return wrap
@register("own")
class Own(nn.Module):
    def forward(self, x): return "own"
return LAYERS["own"]()(1)
>>> A()(1) == "own"
=== a decorator without a call fills a list
--- p/a.py
KINDS = []
def kind(f):
    KINDS.append(f)
    return f
@kind
def one(x): return x + 1
@kind
def two(x): return x + 2
return [f(x) for f in KINDS]
>>> A()(1) == [2, 3]
=== a decorator that hands on what another makes
--- p/a.py
LAYERS = {}
def _put(table, name):
    def wrap(f):
        table.setdefault(name, f)
        return f
    return wrap
def register(name):
    return _put(LAYERS, name)
@register("own")
def own(x): return x * 2
return LAYERS["own"](x)
>>> A()(3) == 6
=== the container is an argument of the decorator
--- p/a.py
LAYERS = {}
def put(table, name):
    def wrap(f):
        table[name] = f
        return f
    return wrap
@put(LAYERS, "own")
def own(x): return x * 2
return LAYERS["own"](x)
>>> A()(3) == 6
=== a function is called
--- p/a.py
LAYERS = {}
def add(name, f):
    LAYERS[name] = f
def own(x): return x * 5
add("own", own)
return LAYERS["own"](x)
>>> A()(3) == 15
=== in a loop
--- p/a.py
LAYERS = {}
def add(f):
    LAYERS[f.__name__] = f
def own(x): return x * 5
def other(x): return x * 7
for item in (own, other):
    add(item)
return sorted(LAYERS), LAYERS["other"](x)
>>> A()(3) == (["other", "own"], 21)
=== in a loop over tables
--- p/a.py
PLAIN = {"hard_one": 1}
FAST = {"hard_one": 2}
TABLES = (FAST, PLAIN)
for t in TABLES:
    t.setdefault("one", t["hard_one"])
return PLAIN
>>> A()(1) == {"hard_one": 1, "one": 1}
=== in a loop over a display of tables, in another file
--- p/a.py
from . import b
from .t import PLAIN
return PLAIN
--- p/b.py
from .t import PLAIN, FAST
for t in (FAST, PLAIN):
    t["one"] = 1
--- p/t.py
PLAIN, FAST = {}, {}
>>> A()(1) == {"one": 1}
=== in a function's loop over the values of a table
--- p/a.py
PLAIN = {}
KINDS = {"plain": PLAIN}
def fill(k, v):
    for name, table in KINDS.items():
        table[k] = name, v
fill("one", 1)
return PLAIN
>>> A()(1) == {"one": ("plain", 1)}
=== an item of a table of tables
--- p/a.py
PLAIN = []
KINDS = {"plain": PLAIN}
KINDS["plain"].append(1)
return PLAIN
>>> A()(1) == [1]
=== a local name for the container
--- p/a.py
LAYERS = {"a": {}, "b": {}}
def register(kind):
    table = LAYERS[kind]
    def wrap(f):
        table[f.__name__] = f
        return f
    return wrap
@register("b")
def own(x): return x * 2
return LAYERS["b"]["own"](x), len(LAYERS["a"])
>>> A()(3) == (6, 0)
=== a class attribute filled by a class method
--- p/a.py
class Base:
    kinds = {}
    @classmethod
    def register(cls, name):
        def wrap(item):
            cls.kinds[name] = item
            return item
        return wrap
@Base.register("own")
class Own(Base):
    def run(self, x): return x - 1
return Base.kinds["own"]().run(x)
>>> A()(3) == 2
=== a class attribute filled as classes are derived
--- p/a.py
class Base:
    kinds = {}
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Base.kinds[cls.__name__] = cls
class Middle(Base):
    def run(self, x): return x - 1
class Own(Middle):
    def run(self, x): return x - 2
return sorted(Base.kinds), Base.kinds["Own"]().run(x)
>>> A()(3) == (["Middle", "Own"], 1)
=== classes that are derived before there is a table
--- p/a.py
class Base:
    key = None
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.key is not None:
            KINDS[cls.key] = cls
class Middle(Base): pass
class Low(Middle): pass
KINDS = {"low": Low}
class Own(Middle):
    key = "own"
return sorted(KINDS)
>>> A()(3) == ["low", "own"]
=== an object of a class of its own
--- p/a.py
class Table:
    def __init__(self): self.items = {}
    def __call__(self, f):
        self.items[f.__name__] = f
        return f
    def add(self, name):
        def wrap(f):
            self.items[name] = f
            return f
        return wrap
TABLE = Table()
@TABLE.add("own")
def own(x): return x + 1
return TABLE.items["own"](x)
>>> A()(3) == 4
=== a function for each type
--- p/a.py
from functools import singledispatch
@singledispatch
def show(x): return "any"
@show.register
def _show_int(x: int): return "int"
@show.register(float)
def _(x): return "float"
return show(x)
>>> A()(3), A()(3.0), A()("") == ("int", "float", "any")
=== a bound method under a name of its own
--- p/a.py
LAYERS = []
register = LAYERS.append
def own(x): return x + 9
register(own)
return LAYERS[0](x)
>>> A()(3) == 12
=== read as the file runs
--- p/a.py
LAYERS = {}
def register(f):
    LAYERS[f.__name__] = f
    return f
@register
def first(x): return x
@register
def second(x): return x
NAMES = tuple(LAYERS)
@register
def third(x): return x
return NAMES, tuple(LAYERS)
>>> A()(3) == (("first", "second"), ("first", "second", "third"))
=== the block itself is an entry
--- p/a.py
LAYERS = {}
def register(cls):
    LAYERS[cls.__name__] = cls
    return cls
@register
class A(nn.Module):
    def forward(self, x): return LAYERS["A"] is type(self), sorted(LAYERS)
@register
class B(nn.Module):
    def forward(self, x): return x
>>> A()(3) == (True, ["A", "B"])
=== objects that enter themselves
--- p/a.py
class Kind:
    all = []
    def __init__(self, name):
        self.name = name
        Kind.all.append(self)
SMALL = Kind("small")
LARGE = Kind("large")
return [kind.name for kind in Kind.all]
>>> A()(3) == ["small", "large"]
=== in another file
--- p/a.py
from . import more
from .table import LAYERS
return sorted(LAYERS), LAYERS["own"](x)
--- p/table.py
LAYERS = {}
def register(name):
    def wrap(f):
        LAYERS[name] = f
        return f
    return wrap
--- p/more.py
from .table import register as entry
@entry("own")
def own(x): return x * 4
@entry("other")
def other(x): return x
>>> A()(3) == (["other", "own"], 12)
=== stores from another file
--- p/a.py
from . import more
from .table import LAYERS, KINDS
return sorted(LAYERS), KINDS
--- p/table.py
LAYERS = {}
KINDS = []
--- p/more.py
from . import table
from .table import LAYERS
def own(x): return x
LAYERS["own"] = own
LAYERS.update(dict(other=own))
table.KINDS.append("here")
table.KINDS += ["there"]
>>> A()(3) == (["other", "own"], ["here", "there"])
=== only from files that are imported
--- p/a.py
from .table import LAYERS
return sorted(LAYERS)
--- p/table.py
LAYERS = {}
def register(f):
    LAYERS[f.__name__] = f
    return f
@register
def here(x): return x
--- p/never.py
from .table import register
@register
def never(x): return x
>>> A()(3) == ["here"]
=== from what the package itself imports
--- p/a.py
from .table import LAYERS
return sorted(LAYERS)
--- p/__init__.py
from .sub import late
--- p/table.py
LAYERS = {}
--- p/sub/__init__.py
--- p/sub/late.py
from ..table import LAYERS
def own(x): return x
LAYERS["own"] = own
>>> A()(3) == ["own"]
=== an entry keeps the name by which it is entered
--- p/a.py
from . import more
from .table import LAYERS
def own(x): return x
return own(x), sorted(LAYERS), LAYERS["own"](x)
--- p/table.py
LAYERS = {}
def register(f):
    LAYERS[f.__name__] = f
    return f
--- p/more.py
from .table import register
@register
def own(x): return -x
>>> A()(3) == (3, ["own"], -3)
=== entries of one name in two files keep their order
--- p/a.py
from .table import LAYERS
return [f(x) for f in LAYERS]
--- p/__init__.py
from . import one, two
--- p/table.py
LAYERS = []
def register(f):
    LAYERS.append(f)
    return f
--- p/one.py
from .two import register
@register
def make(x): return x + 10
--- p/two.py
from .table import register
@register
def make(x): return x + 20
>>> A()(3) == [23, 13]
"""
)


SEARCHES = read_cases(
    """
=== a name of the file by a string that the block holds
--- p/a.py
class Swish(nn.Module):
    def forward(self, x): return x + 1
class Mish(nn.Module):
    def forward(self, x): return x + 2
class A(nn.Module):
    def __init__(self, act="Swish"):
        super().__init__()
        self.act = globals()[act]()
    def forward(self, x): return self.act(x)
>>> A()(3) == 4
- class Mish
=== a string with a part that is known
--- p/a.py
def small_block(x): return x + 1
def large_block(x): return x + 2
def other(x): return x
class A(nn.Module):
    def forward(self, x, size=1): return globals().get(f"{['small', 'large'][size]}_block")(x)
>>> A()(3), A()(3, 0) == (5, 4)
- def other
=== getattr of the file's own module
--- p/a.py
import sys
from .b import helper as aid
class Swish(nn.Module):
    def forward(self, x): return x + 1
def make(name): return getattr(sys.modules[__name__], name)
return make("Swish")()(x), make("aid")(x)
--- p/b.py
def helper(x): return -x
>>> A()(3) == (4, -3)
=== a constant name
--- p/a.py
class Swish:
    value = 1
return globals()["Swish"].value, eval("Swish.value + 1")
>>> A()(3) == (1, 2)
=== a name by the default of a parameter and a call
--- p/a.py
def one(x): return x + 1
def two(x): return x + 2
def three(x): return x + 3
def make(kind="o" + "ne"): return globals()[kind]
return make()(x), make(kind="tw" + "o")(x)
>>> A()(3) == (4, 5)
- def three
=== a name out of a table
--- p/a.py
def fast(x): return x + 1
def slow(x): return x + 2
def other(x): return x
NAMES = {"f": "fa" + "st", "s": "sl" + "ow"}
class A(nn.Module):
    def forward(self, x, kind="s"): return globals()[NAMES[kind]](x)
>>> A()(3), A()(3, "f") == (5, 4)
- def other
=== a module by its name
--- p/a.py
from importlib import import_module
class A(nn.Module):
    def forward(self, x, kind="fast"): return getattr(import_module(f".{kind}", __package__), "run")(x)
--- p/fast.py
def run(x): return x + 1
def never(x): return x
--- p/slow.py
def run(x): return x + 2
>>> A()(3), A()(3, "fast") == (4, 4)
- def never
=== modules by the names in a loop
--- p/a.py
import importlib
PLACES = dict_of = {"one": "p.one", "two": "p.sub.two"}
def load(place):
    module = importlib.import_module(place)
    return module.run
return [load(place)(x) for key, place in PLACES.items()]
--- p/one.py
def run(x): return x + 1
def never(x): return x
--- p/sub/__init__.py
--- p/sub/two.py
from ..one import run as other
def run(x): return other(x) * 2
>>> A()(3) == [4, 8]
- def never
=== __import__ with a list
--- p/a.py
return __import__("p.more", fromlist=["one"]).one(x)
--- p/more.py
def one(x): return x + 7
>>> A()(3) == 10
=== modules of the runtime stay imports
--- p/a.py
import importlib
def which(name): return importlib.import_module(name)
return which("ma" + "th").sqrt(x), getattr(which("operator"), "add")(x, 1)
>>> A()(4) == (2.0, 5)
- Modules
=== eval of a name
--- p/a.py
class LongRFOp:
    value = 7
class ShortRFOp:
    value = 5
class A(nn.Module):
    def forward(self, x): return [eval(x + "RFOp").value for x in ("Long", "Short")]
>>> A()(3) == [7, 5]
"""
)

ALL = CASES | SEARCHES


@pytest.mark.parametrize("case", ALL)
def test_what_tables_and_strings_name_comes_along(behaves: Behaves, case: str) -> None:
    files, expression, expected, has, lacks = ALL[case]
    code = behaves(files, expression, expected)
    assert all(text in code for text in has)
    assert not any(text in code for text in lacks)


def test_a_container_that_nothing_reads_stays_behind(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    """A decorator that only records is omitted if the block does not read the container that it fills."""
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        LAYERS = {}
        def register(cls):
            LAYERS[cls.__name__] = cls
            return cls
        @register
        class A(nn.Module):
            def forward(self, x): return x
        """
    )
    code = closed(made.emit("A"))
    assert "LAYERS" not in code.split("# Changed")[1]


def test_an_entry_that_cannot_come_along_is_said(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        from .gone import absent
        LAYERS = {}
        def register(f):
            LAYERS[f.__name__] = f
            return f
        @register
        def good(x): return x
        @register
        def bad(x): return absent(x)
        class A(nn.Module):
            def forward(self, x): return sorted(LAYERS)
        """
    )
    outcome = made.emit("A")
    assert run(closed(outcome))["A"]()(1) == ["good"]
    assert isinstance(outcome, Emitted)
    (told,) = outcome.dynamic
    assert told.startswith("LAYERS lacks 1 entry: ")
    assert "absent: " in told


def test_a_search_that_cannot_be_known_is_said(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    made = corpus(
        """
        --- p/a.py
        import importlib
        from torch import nn
        def one(x): return x
        class A(nn.Module):
            def forward(self, x, name="one"): return globals()[name](x), importlib.import_module(name)
        """
    )
    outcome = made.emit("A")
    assert "def one(x)" in closed(outcome)
    source = made.sources[0].name
    assert outcome.dynamic == (
        f"{source} p/a.py:5 imports a module by a computed name",
        f"{source} p/a.py:5 looks a name of its file up by a computed string; it has one",
    )


KNOWN = {
    "a runtime module": ("", 'importlib.import_module("ma" + "th")', None),
    "a module that is not there": ("", 'importlib.import_module("p.absent")', "it lacks p.absent: no module p.absent"),
    "a module that cannot come along": ("", 'importlib.import_module("p.bad").run', "it lacks p.bad: "),
    "a whole module": ("", 'vars(importlib.import_module("p.good"))', "it lacks p.good: the whole module is asked for"),
    "as the file is imported": ('M = importlib.import_module("p.good")', "M", "the file runs it as it is imported"),
    "a local name": ("", 'eval("name")', None),
    "one value of two": ("", 'importlib.import_module(name or "p.good").run', "it has p.good"),
    "a parameter that others give": (
        "def load(kind): return globals()[kind]\nclass B:\n    loader = load\n    first = load('good')",
        "B.first",
        "looks a name of its file up by a computed string",
    ),
    "a constant that is changed": (
        "KIND = 'good'\ndef change():\n    global KIND\n    KIND = 'other'",
        "change(), globals()[KIND]",
        "looks a name of its file up by a computed string; it has good",
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_is_known_of_a_string_decides_what_is_said(corpus, closed, case: str) -> None:  # type: ignore[no-untyped-def]
    above, expression, expected = KNOWN[case]
    made = corpus(
        {
            "p/a.py": f"import importlib\nfrom torch import nn\n{above}\ndef good(x): return x\n"
            f"class A(nn.Module):\n    def forward(self, name): return {expression}\n",
            "p/good.py": "def run(x): return x\n",
            "p/bad.py": "from .gone import absent\ndef run(x): return absent(x)\n",
        }
    )
    outcome = made.emit("A")
    closed(outcome)
    if expected is None:
        assert outcome.dynamic == ()
    else:
        (told,) = outcome.dynamic
        assert expected in told
