"""Bundling of modules made up at random: each behaves as it does alone."""

import re
import textwrap

from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from tests.builders.suites import read_files

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
TEXTS = read_files(__file__, "bundle_random.md")
_RUN = TEXTS["_RUN"]


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
