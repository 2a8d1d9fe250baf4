"""Which global names a statement reads, when it reads them, and which it binds."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyflakes import messages
from pyflakes.checker import Checker

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, IN_ANNOTATION, FileFacts, NewerSyntax, Use
from lemur_core.source.parse import parse_file, remove_newer_syntax
from tests.builders.suites import Case, suite, table


def facts_of(text: str) -> FileFacts:
    return parse_file(text.encode())


def uses_of(text: str, local: bool = False) -> list[Use]:
    facts = facts_of(text)
    found = [use for part in (*facts.statements, *facts.blocks) for use in part.uses]
    return [use for use in found if (use.local >= 0) == local]


def read(text: str, when: int) -> str:
    return " ".join(sorted({use.name for use in uses_of(text) if use.when == when}))


@table(__file__, "reads.md", "Of one line or two", {})
def test_reads(text: str, runs: str, called: str, annotations: str) -> None:
    assert [read(text, when) for when in (AT_DEFINITION, AT_CALL, IN_ANNOTATION)] == [runs, called, annotations]


@suite(__file__, "reads.md", verbs=("runs", "called", "annotations"))
def test_reads_of_more_lines(case: Case) -> None:
    test_reads(case.code, *("".join(case.all(verb)) for verb in ("runs", "called", "annotations")))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="not its syntax")
@pytest.mark.parametrize(
    ("text", "runs", "called"),
    [
        ("T = S = 1\nclass A[T: S](B[T]):\n    def f(self, x: T): return T", "B", "S"),
        ("T = 1\ndef f[T](x: T) -> T: return T", "", ""),
        ("T = L = 1\ntype A[T] = L[T]", "", "L"),
    ],
)
def test_type_parameters_are_no_global_names(text: str, runs: str, called: str) -> None:
    assert [read(text, when) for when in (AT_DEFINITION, AT_CALL, IN_ANNOTATION)] == [runs, called, ""]
    assert not parse_file(text.encode()).newer


@table(__file__, "binds.md", "Of one line or two", {})
def test_binds(text: str, binds: str, late: str, touches: str) -> None:
    (statement,) = facts_of(text).statements
    names = (statement.binds, statement.late, statement.touches)
    assert [" ".join(sorted(part)) for part in names] == [binds, late, touches]


@suite(__file__, "binds.md", verbs=("binds", "late", "touches"))
def test_binds_of_more_lines(case: Case) -> None:
    test_binds(case.code, *("".join(case.all(verb)) for verb in ("binds", "late", "touches")))


@table(__file__, "scopes.md", "Called", globals())
def test_called(text: str, called: str) -> None:
    assert " ".join(use.name for use in uses_of(text) if use.called) == called


@table(__file__, "scopes.md", "Offsets are those of the text", globals())
def test_offsets_are_those_of_the_text(text: str) -> None:
    """Where a use has an offset, the name and its attributes stand there."""
    data = (text + "\n").encode()
    for use in uses_of(text):
        assert data[use.start : use.ends[0]].decode() == use.name
        for attribute, end in zip(use.attributes, use.ends[1:], strict=True):
            assert data[:end].decode().endswith(attribute)


def test_reads_of_local_imports_name_their_import() -> None:
    text = "def f():\n    from a import b, c as d\n    def g(): return d\n    return b.x, g\n"
    (statement,) = facts_of(text).statements
    found = [(entry.alias.bound, entry.stand_alone, entry.guarded) for entry in statement.locals]
    assert found == [("b", True, False), ("d", True, False)]
    own = {(use.name, statement.locals[use.local].alias.name) for use in uses_of(text, local=True)}
    assert own == {("b", "b"), ("d", "c")}


def test_shadows_are_the_names_of_inner_scopes() -> None:
    (statement,) = facts_of("def f(a):\n    b = [c for c in a]\n    global d\n    d = lambda e: e\n").statements
    assert statement.shadows == ("a", "b", "c", "e")


@table(__file__, "scopes.md", "Exports", globals())
def test_exports(text: str, expected: tuple[str, ...] | None) -> None:
    assert facts_of(text).exports == expected


@table(__file__, "scopes.md", "What is no python", globals())
def test_what_is_no_python(raw: bytes, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        parse_file(raw)


@table(__file__, "scopes.md", "What is python", globals())
def test_what_is_python(raw: bytes) -> None:
    assert len(parse_file(raw).statements) == raw.count(b"= ")


# Generated modules: the global names that are read are those that CPython's compiler and pyflakes see.

NAMES = st.sampled_from("abcde")
STARRED, KEYWORDS = NAMES.map("{}_".format), NAMES.map("k{}".format)


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def expressions() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("({} + {})".format, inner, inner),
            st.builds("{}.{}".format, NAMES, NAMES),
            st.builds("{}({}, {}={})".format, NAMES, inner, NAMES, inner),
            st.builds("[{} for {} in {} if {}]".format, inner, NAMES, inner, inner),
            st.builds("{{{}: 0 for {}, *{} in {} for {} in {}}}".format, inner, NAMES, NAMES, inner, NAMES, inner),
            st.builds("(lambda {}, *{}, {}={}: {})".format, NAMES, STARRED, KEYWORDS, inner, inner),
            st.builds("({} := {})".format, NAMES, inner),
            st.builds("({} if {} else {})".format, inner, inner, inner),
            st.builds("f'{{{}}} {{{}!r:>{{{}}}}}'".format, NAMES, NAMES, NAMES),
        )

    return st.recursive(st.one_of(NAMES, st.just("0")), extend, max_leaves=4)


EXPRESSIONS = expressions()


def simple() -> st.SearchStrategy[list[str]]:
    lines = st.one_of(
        st.builds("{} = {}".format, NAMES, EXPRESSIONS),
        st.builds("{}, *{} = {}".format, NAMES, NAMES, EXPRESSIONS),
        st.builds("{}: {} = {}".format, NAMES, NAMES, EXPRESSIONS),
        st.builds("{}.x = {}".format, NAMES, EXPRESSIONS),
        st.builds("{}[{}] = {}".format, NAMES, EXPRESSIONS, EXPRESSIONS),
        EXPRESSIONS,
        st.builds("import {}.x, m as {}".format, NAMES, NAMES),
        st.builds("from m import {} as {}, {}".format, NAMES, NAMES, NAMES),
        st.builds("global {}".format, NAMES),
        st.builds("nonlocal {}".format, NAMES),
        st.builds("assert {}".format, EXPRESSIONS),
    )
    return lines.map(lambda line: [line])


def blocks(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    body = st.lists(inner, min_size=1, max_size=4).map(
        lambda parts: indented([line for part in parts for line in part])
    )

    def block(head: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
        return st.builds(lambda first, rest: [first, *rest], head, body)

    return st.one_of(
        block(st.builds("def {}({}, *{}, {}: {} = {}) -> {}:".format, NAMES, NAMES, STARRED, KEYWORDS, NAMES, EXPRESSIONS, NAMES)),
        block(st.builds("class {}({}):".format, NAMES, EXPRESSIONS)),
        st.builds(lambda deco, rest: [f"@{deco}", *rest], NAMES, block(st.builds("def {}():".format, NAMES))),
        block(st.builds("for {} in {}:".format, NAMES, EXPRESSIONS)),
        block(st.builds("with {} as ({}, {}):".format, EXPRESSIONS, NAMES, NAMES)),
        block(st.builds("if {}:".format, NAMES)),
        st.builds(lambda a, b, e: ["try:", *a, f"except {e} as error:", *b], body, body, NAMES),
        st.builds(
            lambda subject, x, y, z, rest: [f"match {subject}:", f"    case [{x}, {{'k': {y}, **{z}}}]:", *indented(rest)],
            EXPRESSIONS, st.just("a"), st.just("b"), st.just("c"), body,
        ),
    )  # fmt: skip


MODULES = st.lists(st.recursive(simple(), blocks, max_leaves=8), min_size=1, max_size=4).map(
    lambda parts: "".join(f"{line}\n" for part in parts for line in part)
)


def tables(names: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield names
    for child in names.get_children():
        yield from tables(child)


def compiles(text: str) -> bool:
    try:
        compile(text, "module", "exec")
    except SyntaxError:
        return False
    return True


@given(MODULES)
def test_names_are_those_of_python_and_pyflakes(text: str) -> None:
    assume(compiles(text))
    statements = facts_of(text).statements
    read_here = {use.name for use in uses_of(text)}
    bound_here = {name for statement in statements for name in (*statement.binds, *statement.late)}
    surely: set[str] = set()
    perhaps: set[str] = set()  # by a class body, before it binds them
    bound: set[str] = set()
    for names in tables(symtable.symtable(text, "module", "exec")):
        for symbol in names.get_symbols():
            at_top, name = names.get_type() == "module", symbol.get_name()
            if symbol.is_referenced() and (at_top or symbol.is_global()):
                surely.add(name)
            elif symbol.is_referenced() and names.get_type() == "class" and symbol.is_local():
                perhaps.add(name)
            if (symbol.is_assigned() or symbol.is_imported()) and (at_top or symbol.is_declared_global()):
                bound.add(name)
    given_names = set(dir(builtins))
    assert surely - given_names <= read_here <= surely | perhaps
    assert bound - {"error"} <= bound_here
    declared = {name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Global) for name in node.names}
    assert bound_here - bound <= declared, "a name that is declared global, and never bound"
    if "nonlocal" not in text:  # which pyflakes takes for `global`
        # It also minds the order: it may find more, but only names that are bound somewhere.
        found = {m.message_args[0] for m in Checker(ast.parse(text)).messages if isinstance(m, messages.UndefinedName)}
        undefined = read_here - bound_here - given_names
        assert undefined <= found | perhaps
        assert found <= undefined | bound_here | {name for statement in statements for name in statement.shadows}
    data = text.encode()
    for statement in statements:
        for use in statement.uses:
            assert use.start < 0 or data[use.start : use.ends[0]].decode() == use.name
        for store in statement.stores:
            assert data[store.start : store.end].decode() == store.name


# Files for a newer Python than the running one: their other statements are read as ever.

older_python = pytest.mark.skipif(sys.version_info >= (3, 12), reason="the running Python knows the syntax")
NEWER = {
    "class A[T: int, *Ts](B[T]):\n    x: T\n": "class A             (B[T]):\n    x: T\n",
    "def f[\n    T = int\n](x: T): pass\n": "def f\\\n          \\\n (x: T): pass\n",
    "type Act[T] = list[T]\n": "Act         = list[T]\n",
    'x = f"{a["b"]}"\n': 'x =  "        "\n',
    "x = f'{\n    a  # first\n}'\n": "x =  '\\\n             \\\n '\n",
    "x = f'''{a['''b''']}\n\nend'''\n": "x =  '''            \n\n   '''\n",
    "x = t'{a}'\n": "x =  '   '\n",
    "try: pass\nexcept A, b.B: pass\nexcept (C, D): pass\n": "try: pass\nexcept A     : pass\nexcept (C, D): pass\n",
    "try: pass\nexcept* A, B: pass\n": "try: pass\nexcept* A   : pass\n",
}


@older_python
@pytest.mark.parametrize("text", NEWER)
def test_offsets_and_lines_stay(text: str) -> None:
    older, newer = remove_newer_syntax(text.encode())
    assert older.decode() == NEWER[text]
    assert len(older) == len(text)
    compile(older, "", "exec")
    assert parse_file(text.encode()).newer == newer


@older_python
def test_what_is_newer_says_where_and_since_when() -> None:
    facts = parse_file(b"class Old(nn.Module): pass\nclass New[T = int](Old): pass\ntype A = New\n")
    assert facts.newer == (
        NewerSyntax(36, "Python 3.13 (type parameters)"),
        NewerSyntax(57, "Python 3.12 (type statement)"),
    )
    assert [(item.name, item.bases) for item in facts.classes] == [("Old", (("nn", "Module"),)), ("New", (("Old",),))]


@pytest.mark.parametrize("text", ["print 'a'\n", "x = = 1\n", "class A[T]: pass\nx = = 1\n"])
def test_what_no_version_knows_stays_an_error(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse_file(text.encode())
