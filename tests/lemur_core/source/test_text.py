"""Whatever a foreign text is, parsing it gives a shallow tree or a SyntaxError."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.source.text import MAX_DEPTH, parse_code, parse_expression

DEEP = {
    "minus signs": "-" * 100_000 + "1",
    "attributes": "x" + ".a" * 900,
    "calls": "x" + ".a()" * 900,
    "brackets": "[" * 5_000 + "]" * 5_000,
    "sum": "+".join(["x"] * 20_000),
    "lambdas": "lambda: " * 3_000 + "1",
    "not": "not " * 100_000 + "x",
    "conditions": "x if x else " * 1_000 + "x",
    "subscripts": "x" + "[0]" * 1_000,
    "f-strings": "f'{" * 200 + "x" + "}'" * 200,
}


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_nested_too_deeply_is_a_syntax_error(kind: str) -> None:
    for parse in (parse_code, parse_expression):
        with pytest.raises(SyntaxError):
            parse(DEEP[kind])


@pytest.mark.parametrize("text", ["x = 1\0", "x = '\ud800'", "", "x; y", "x = 1"])
def test_what_is_not_an_expression(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse_expression(text)


@given(st.sampled_from(["-", "x.", "f(", "[", "not ", "(lambda: ", "{1: "]), st.integers(1, 2 * MAX_DEPTH))
def test_what_parses_can_be_written_again(opening: str, levels: int) -> None:
    closing = {"f(": ")", "[": "]", "(lambda: ": ")", "{1: ": "}"}.get(opening, "")
    try:
        tree = parse_expression(opening * levels + "x" + closing * levels)
    except SyntaxError:
        assert levels > MAX_DEPTH / 3, "code that people write is read"
    else:
        assert parse_expression(ast.unparse(tree)) is not None


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    try:
        parse_code(text)
    except SyntaxError:
        return
    ast.parse(text)
