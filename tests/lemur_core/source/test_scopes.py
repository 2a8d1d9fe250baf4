"""Which global names a statement reads, when it reads them, and which it binds."""

import pytest

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, IN_ANNOTATION, FileFacts, Use
from lemur_core.source.parse import parse_file
from tests.builders.suites import Case, read_table, suite, table


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


CLASS_READS = read_table(__file__, "scopes.md", "Class reads", globals())


@pytest.mark.parametrize("text", CLASS_READS)
def test_a_class_body_reads_the_outer_name_until_it_has_its_own(text: str) -> None:
    assert read(text, AT_DEFINITION) == CLASS_READS[text]


@suite(__file__, "binds.md", verbs=("binds", "late", "touches"))
def test_binds(case: Case) -> None:
    (statement,) = facts_of(case.code).statements
    names = (statement.binds, statement.late, statement.touches)
    assert [" ".join(sorted(part)) for part in names] == ["".join(case.all(v)) for v in ("binds", "late", "touches")]


CALLED: dict[str, str] = read_table(__file__, "scopes.md", "Called", globals())


@pytest.mark.parametrize("text", CALLED)
def test_called(text: str) -> None:
    assert " ".join(use.name for use in uses_of(text) if use.called) == CALLED[text]


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
