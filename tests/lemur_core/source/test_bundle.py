"""Bundling: texts before and after, and what is refused."""

import pickle
import re
import sys
import textwrap
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from tests.builders.suites import Case, suite, table


def part(key: str, code: str, name: str = "Main", *header: str) -> Part:
    return Part(key, name, textwrap.dedent(code).lstrip("\n"), header)


def second(code: str, *, first: str = "", name: str = "Main") -> str:
    """The text of a part that follows another one, whose globals are `x`, `Foo`, `np` and what `first` has."""
    clash = "import numpy as np\nx = 'first'\nmax = 1\ndef Foo(): pass\nclass First: pass\n" + textwrap.dedent(first)
    text = bundle([part("1", clash, "First"), part("2", code, name, "second")]).text
    return text.split("# second\n\n")[1]


@suite(__file__, "bundle.md", verbs=("becomes",))
def test_what_is_renamed(case: Case) -> None:
    becomes = case.one("becomes")
    assert second(case.files.get("", re.sub(r"_2\b", "", becomes))) == becomes + "\n"


def test_the_class_and_who_reads_it() -> None:
    code = "class First:\n    def __init__(self):\n        super(First, self).__init__()\n        First.n = 1\n"
    assert second(code, name="First") == code.replace("First", "First_2")


def test_import_clashes() -> None:
    one = "import torch.nn as nn\nfrom a import x\nimport xml.dom\nclass One: pass\n"
    two = "from torch import nn\nfrom b import x\nfrom c import (\n    y as nn2,\n)\nclass Two(nn.Module): y = x, nn2\n"
    three = "def nn(): pass\ndef xml(): pass\nclass Three: y = nn\n"
    found = bundle([part("1", one, "One"), part("2", two, "Two"), part("3", three, "Three")])
    heads = "import xml.dom\n\nimport torch.nn as nn\nfrom a import x\nfrom b import x as x_2\nfrom c import y as nn2"
    bodies = ("class One: pass", "class Two(nn.Module): y = x_2, nn2", "def nn_2(): pass", "def xml_2(): pass")
    assert found.text == "\n\n\n".join((heads, *bodies, "class Three: y = nn_2\n"))
    turned = bundle([part("3", three, "Three"), part("1", one, "One")]).text
    assert "import xml as xml_2; import xml.dom as xml_2_dom\n" in turned
    assert "import torch.nn as nn_2" in turned


def test_imports_do_not_depend_on_the_order_of_the_parts() -> None:
    parts = [
        part("1", "import torch\nimport math\nfrom os import path\nclass A: pass\n", "A"),
        part("2", "from os import sep, path\nimport torch.nn as nn\nclass B: pass\n", "B"),
        part("3", "from torch import nn\nimport torch.nn.functional as F\nclass C: pass\n", "C"),
    ]
    heads = {bundle([parts[i] for i in order]).text.split("\n\n\n")[0] for order in [(0, 1, 2), (2, 1, 0), (1, 0, 2)]}
    assert heads == {
        "import math\nfrom os import path, sep\n\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F"
    }


def test_one_copy_of_what_is_the_same() -> None:
    code = "import torch\nK = 3\ndef f(): return K, g()\ndef g(): return f\nclass {}:\n    y = f\n"
    found = bundle([part("1", code.format("A"), "A", "one"), part("2", code.format("B"), "B", "two")])
    assert found.text.count("def f()") == found.text.count("def g()") == found.text.count("K = 3") == 1
    assert found.text.endswith("# two\n\nclass B:\n    y = f\n")
    assert found.names == {"1": "A", "2": "B"}
    code = "def make(n): return lambda x: n\n{}pair = make(2)\nclass {}:\n    def run(self): return pair(self)\n"
    text = bundle([part("1", code.format("", "A"), "A"), part("2", code.format("# Two.\n", "B"), "B")]).text
    assert text.count("pair = make(2)") == text.count("def make(") == 1, "only called, comments above"


def test_the_same_text_over_something_else_is_not_the_same() -> None:
    code = "K = {}\ndef f(): return K, g()\ndef g(): return f\nclass {}:\n    y = f\n"
    text = bundle([part("1", code.format(3, "A"), "A"), part("2", code.format(4, "B"), "B")]).text
    assert "K_2 = 4\n\n\ndef f_2(): return K_2, g_2()\n\n\ndef g_2(): return f_2\n\n\nclass B:\n    y = f_2" in text


@table(__file__, "bundle_cases.md", "What one part changes is not shared", globals())
def test_what_one_part_changes_is_not_shared(change: str, copies: int) -> None:
    one = "T = dict(a=1)\nclass A:\n    y = T\n"
    two = f"T = dict(a=1)\n{change}\nclass B:\n    y = len(T)\n"
    three = one.replace("y = T", "y = T['a']")
    text = bundle([part("1", three, "A"), part("2", two, "B")]).text
    assert text.count("= dict(a=1)") == copies
    again = bundle([part("1", two, "B"), part("2", two.replace("y =", "z ="), "B")]).text
    assert again.count("= dict(a=1)") == 2
    assert bundle([part("1", three, "A"), part("2", three, "A")]).text.count("= dict(a=1)") == 1


def test_a_part_that_is_given_twice_stands_once() -> None:
    code = "print('x')\nprint('x')\nclass A: pass\n"
    found = bundle([part("1", code, "A"), part("2", code, "A", "again")])
    assert found.text == "print('x')\nprint('x')\n\n\nclass A: pass\n\n\n# again\n"
    assert found.names == {"1": "A", "2": "A"}
    fewer = Part("0", "A", code.replace("print('x')\n", "", 1))
    assert bundle([fewer, part("1", code, "A")]).text.count("print") == 2


def test_what_another_part_takes_from_the_built_in_names_is_left_to_it() -> None:
    one = "from math import pow\ndef max(a): return 'mine'\nclass A:\n    def run(self): return max(1)\n"
    two = "class B:\n    def run(self): return max(1, 2), pow(2, 3)\n"
    text = bundle([part("1", one, "A"), part("2", two, "B")]).text
    assert "from math import pow as pow_2" in text
    assert "def max_2(a)" in text
    assert "return max(1, 2), pow(2, 3)" in text
    assert "def max(a)" in bundle([part("1", one, "A")]).text


def test_new_names_are_new_everywhere_and_imports_stay_where_their_names_are_bound_again() -> None:
    text = second("x = 2\ndef Main(x_2, x_3):\n    return x, x_2\n")
    assert text == "x_4 = 2\n\n\ndef Main(x_2, x_3):\n    return x_4, x_2\n"
    text = second("import math, json\nimport re\nre = re or None\nclass Main: pass\n")
    assert text == "import re\nre = re or None\n\n\nclass Main: pass\n"


def test_future() -> None:
    one = "from __future__ import annotations, division\nclass A:\n    y: Missing\n"
    two = "'''Doc.'''\nfrom __future__ import print_function\nimport math\nclass B: pass\n"
    text = bundle([part("2", two, "B"), part("1", one, "A")]).text
    assert text == (
        "from __future__ import annotations\n\nimport math\n\n\nclass B: pass\n\n\nclass A:\n    y: Missing\n"
    )
    three = part("3", "class C:\n    y: int\nprint(C.__annotations__)\n", "C")
    with pytest.raises(UserError, match="3: line 3: reads annotations, and another part has"):
        bundle([three, part("1", one, "A")])
    assert "__annotations__" in bundle([three, part("2", two, "B")]).text


def test_a_renamed_class_keeps_the_name_that_its_part_reads() -> None:
    code = "class First:\n    def run(self): return type(self).__name__\n"
    text = second(code, name="First")
    assert text == code.replace("First", "First_2") + '\n\nFirst_2.__name__ = "First"\n'
    with pytest.raises(UserError, match="line 4: First would be renamed, and its decorator may read its name"):
        second("def add(cls):\n    cls.__name__\n    return cls\n@add\nclass First: pass\n", name="First")


@table(__file__, "bundle_cases.md", "Refused", globals())
def test_what_is_refused(code: str, told: str) -> None:
    with pytest.raises(UserError, match=rf"^2: .*{re.escape(told)}"):
        second(code)
    like = (
        "def Main(eval, vars, self):\n    globals = locals()\n    return eval(vars()), globals, dir(self), vars(self)\n"
        "import logging\nlogger = logging.getLogger(__name__)\nif __name__ == '__main__': print(Main)\n"
    )
    assert "return eval(vars())" in second(like)


def test_keys_and_names() -> None:
    with pytest.raises(UserError, match="1: appears twice"):
        bundle([part("1", "Main = 1\n"), part("1", "Main = 1\n")])
    with pytest.raises(UserError, match="1: no Main in its code"):
        bundle([part("1", "Other = 1\n")])


def test_classes_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bundle([part("1", "class Main: n = 1\n"), part("2", "class Main: n = 2\n")])
    module = types.ModuleType("bundled_module")
    monkeypatch.setitem(sys.modules, "bundled_module", module)
    exec(found.text, vars(module))
    for key, n in (("1", 1), ("2", 2)):
        thing = getattr(module, found.names[key])()
        assert type(pickle.loads(pickle.dumps(thing))) is type(thing)
        assert thing.n == n


# Bundling of modules made up at random: each behaves as it does alone.

NAMES = ("a", "b", "f", "max", "x")
_NAME = st.sampled_from(NAMES)


def _expressions(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(st.integers(0, 3).map(str), _NAME)
    if depth == 0:
        return leaf
    inner = _expressions(depth - 1)
    return st.one_of(
        leaf,
        st.builds("{}({})".format, _NAME, inner),
        st.builds("{}().m({})".format, _NAME, inner),
        st.builds("[{} for {} in ({}, 1)]".format, inner, _NAME, inner),
        st.builds("(lambda {}: {})({})".format, _NAME, inner, inner),
        st.builds("f'{{{}}} {{{{{}}}}} {{1:{{{}}}}}'".format, _NAME, _NAME, _NAME),
        st.builds("{}.get({})".format, _NAME, inner),
    )


_VALUE = _expressions(2)
_STATEMENTS = st.one_of(
    st.builds("{} = {}".format, _NAME, _VALUE),
    st.builds("{} = {{0: {}}}".format, _NAME, _VALUE),
    st.builds("{}[{}] = {}".format, _NAME, _VALUE, _VALUE),
    st.builds("{} += {}".format, _NAME, _VALUE),
    st.builds("from operator import {} as {}".format, st.sampled_from(["add", "neg", "sub"]), _NAME),
    st.builds("def {}({}, x={}):\n    return {}".format, _NAME, st.sampled_from(["a", "b", "f"]), _VALUE, _VALUE),
    st.builds("def {}(y):\n    {} = y\n    return {}".format, _NAME, _NAME, _VALUE),
    st.builds("def {}(y):\n    global {n}\n    {n} = {}\n    return y".format, _NAME, _VALUE, n=_NAME),
    st.builds("class {}:\n    {} = {}\n    def m(self, x):\n        return {}".format, _NAME, _NAME, _VALUE, _VALUE),
    st.builds("for {} in (1, 2):\n    {} = {}".format, _NAME, _NAME, _VALUE),
)
_GUARD = "try:\n{}\nexcept Exception:\n    pass"
_RUN = """
class Main:
    def run(self):
        told = []
        for _ in range(2):
            for read in [{}]:
                try:
                    told.append(str(read()))
                except Exception as error:
                    told.append(type(error).__name__)
        return told
"""


@st.composite
def _modules(draw: st.DrawFn) -> str:
    body: list[str] = []
    names: dict[str, object] = {}
    for text in draw(st.lists(_STATEMENTS, min_size=2, max_size=7)):
        try:
            exec(text, names)
            body.append(text)
        except SyntaxError:
            continue
        except Exception:  # noqa: BLE001 (it fails the same way wherever it stands)
            body.append(_GUARD.format(textwrap.indent(text, "    ")))
    reads = draw(st.lists(_VALUE, min_size=1, max_size=3))
    return "\n".join(body) + "\n" + _RUN.format(", ".join(f"lambda: {read}" for read in [*reads, *NAMES]))


def _told(code: str, name: str) -> list[str]:
    names: dict[str, object] = {"__name__": "made_up"}
    exec(code, names)
    cls = names[name]
    assert isinstance(cls, type)
    told = cls().run()
    # Reprs of functions and classes have addresses and new names in them.
    return [re.sub(r"<.*>", "<thing>", text) for text in told]


@given(st.lists(_modules(), min_size=2, max_size=3))
def test_modules_behave_as_they_do_alone(codes: list[str]) -> None:
    alone = [_told(code, "Main") for code in codes]
    try:
        found = bundle([Part(str(number), "Main", code) for number, code in enumerate(codes)])
    except UserError as error:
        assert re.search("the name of a class body may be meant|its own or the built-in one", str(error))  # noqa: PT017
        return
    for number, expected in enumerate(alone):
        assert _told(found.text, found.names[str(number)]) == expected
    again = bundle([Part("all", found.names["0"], found.text)])
    assert _told(again.text, found.names["0"]) == alone[0]
