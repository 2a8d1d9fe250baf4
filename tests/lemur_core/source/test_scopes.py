"""Which global names a statement reads, when it reads them, and which it binds."""

import pytest

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, IN_ANNOTATION, FileFacts, Use
from lemur_core.source.parse import parse_file
from tests.builders.suites import Case, suite


def facts_of(text: str) -> FileFacts:
    return parse_file(text.encode())


def uses_of(text: str, local: bool = False) -> list[Use]:
    facts = facts_of(text)
    found = [use for part in (*facts.statements, *facts.blocks) for use in part.uses]
    return [use for use in found if (use.local >= 0) == local]


def read(text: str, when: int) -> str:
    return " ".join(sorted({use.name for use in uses_of(text) if use.when == when}))


@suite(__file__, "reads.md", verbs=("runs", "called", "annotations"))
def test_reads(case: Case) -> None:
    expected = ["".join(case.all(verb)) for verb in ("runs", "called", "annotations")]
    assert [read(case.code, when) for when in (AT_DEFINITION, AT_CALL, IN_ANNOTATION)] == expected


CLASS_READS = {
    "class A:\n    x = x": "x",
    "class A:\n    for x in x: pass": "x",
    "class A:\n    x = [x]\n    y = x": "x",
    "class A:\n    x += 1": "x",
    "class A:\n    with x as x: pass": "x",
    "class A:\n    x, y = y, x": "x y",
    "class A:\n    x: B = x": "x",
    "class A:\n    def x(self, y=x): pass": "x",
    "class A:\n    @x\n    def x(self): pass": "x",
    "class A:\n    class x(x): pass": "x",
    "class A:\n    x = 1\n    x = x + 1": "",
}


@pytest.mark.parametrize("text", CLASS_READS)
def test_a_class_body_reads_the_outer_name_until_it_has_its_own(text: str) -> None:
    assert read(text, AT_DEFINITION) == CLASS_READS[text]


@suite(__file__, "binds.md", verbs=("binds", "late", "touches"))
def test_binds(case: Case) -> None:
    (statement,) = facts_of(case.code).statements
    names = (statement.binds, statement.late, statement.touches)
    assert [" ".join(sorted(part)) for part in names] == ["".join(case.all(v)) for v in ("binds", "late", "touches")]


CALLED: dict[str, str] = {
    "x = f()": "f",
    "x = a.b(c)": "a",
    "x = f": "",
    "x = a.b().c": "a",
    "@d\ndef f(): pass": "d",
    "@d.e\nclass C: pass": "d",
    "@d(x)\nclass C: pass": "d",
    "class C(B): pass": "",
    "def f(): return g(h)": "g",
    "x = [f(i) for i in g]": "f",
    "x = f(g)(h)": "f",
}


@pytest.mark.parametrize("text", CALLED)
def test_called(text: str) -> None:
    assert " ".join(use.name for use in uses_of(text) if use.called) == CALLED[text]


@pytest.mark.parametrize(
    "text",
    [
        "x = α + αβ.γ  # α",
        "y = f'{a}{b.c!r:>{d}}' f'{ e }'",
        "def f(x): return ( x , g . h . i , k )",
        "é = 'é'; z = w . v",
        "class A(a.b[c], k = d): e = [f for f in g]",
    ],
)
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
    assert [(entry.alias.bound, entry.stand_alone, entry.guarded) for entry in statement.locals] == [
        ("b", True, False),
        ("d", True, False),
    ]
    assert {(use.name, statement.locals[use.local].alias.name) for use in uses_of(text, local=True)} == {
        ("b", "b"),
        ("d", "c"),
    }


def test_shadows_are_the_names_of_inner_scopes() -> None:
    (statement,) = facts_of("def f(a):\n    b = [c for c in a]\n    global d\n    d = lambda e: e\n").statements
    assert statement.shadows == ("a", "b", "c", "e")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__all__ = ['a', 'b']", ("a", "b")),
        ("__all__ = ('a',)", ("a",)),
        ("__all__: list = ['a']\n__all__ += ['b']", ("a", "b")),
        ("__all__ = sorted(x)", None),
        ("x = 1", None),
    ],
)
def test_exports(text: str, expected: tuple[str, ...] | None) -> None:
    assert facts_of(text).exports == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"def f(:\n", "invalid syntax"),
        (b"x = '\xff'\n", "encoding"),
        (b"# coding: nothing\n", "unknown encoding"),
        (b"x = 1\0\n", "null bytes"),
    ],
)
def test_what_is_no_python(raw: bytes, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        parse_file(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"# only\n",
        b"\xef\xbb\xbfx = 1\n",
        b"x = 1\r\ny = 2\r\n",
        "# coding: latin-1\nx = 'é'\n".encode("latin-1"),
    ],
)
def test_what_is_python(raw: bytes) -> None:
    assert len(parse_file(raw).statements) == raw.count(b"= ")
