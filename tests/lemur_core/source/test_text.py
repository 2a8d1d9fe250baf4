"""Whatever a foreign text is, parsing it gives a shallow tree or a SyntaxError."""

import ast
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from lemur_core.source.quality import code_quality
from lemur_core.source.text import MAX_DEPTH, parse_code, parse_expression

DEEP = {
    "minus signs": "-" * 100_000 + "1",
    "attributes": "x" + ".a" * 900,
    "brackets": "[" * 5_000 + "]" * 5_000,
    "sum": "+".join(["x"] * 20_000),
    "lambdas": "lambda: " * 3_000 + "1",
    "not": "not " * 100_000 + "x",
    "conditions": "x if x else " * 1_000 + "x",
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


# LEMUR's score of a file's code: what counts, and what its messages cost.


def test_quality_by_pyflakes() -> None:
    untidy = f"import os\nimport torch\n\ndef f(x):\n    y = torch.ones(1)\n    return x + undefined\n# {'x' * 120}\n"
    found = code_quality(untidy, "net", python=None)
    assert found.by == "pyflakes"
    assert found.owner == "pyflakes; LEMUR's is by Pylint, which is not installed here, and usually lower"
    assert found.findings == {"error": 1, "warning": 2, "convention": 1}
    assert found.score == 0.90


def test_quality_counts_complexity() -> None:
    body = "".join(f"    if x == {i}:\n        return {i}\n" for i in range(10))
    simple, complicated = f"def f(x):\n{body}", f"def f(x):\n    assert x\n{body}    return x and 1 or 2\n"
    assert code_quality(simple, "net", python=None).score == 0.99  # 11 ways through it
    assert code_quality(simple.replace("    if x == 9:\n        return 9\n", ""), "n", python=None).score == 1.0
    assert code_quality(complicated, "net", python=None).findings == {"complexity": 1}
    whole = "class A:\n" + "".join(f"    {line}\n" for line in complicated.splitlines())
    assert code_quality(whole, "net", python=None).findings == {"complexity": 2}  # the class and its method


def test_quality_by_pylint_where_it_is(tmp_path: Path) -> None:
    """An interpreter whose Pylint is a script of ours: what counts is what its messages cost."""
    kinds = ["error", "warning", "convention", "refactor", "refactor", "fatal"]
    python = tmp_path / "python"
    report = io.StringIO()
    print("[" + ", ".join(f'{{"type": "{kind}"}}' for kind in kinds) + "]", file=report)
    python.write_text(
        f"#!/bin/sh\ncase \"$2\" in -c) echo 3.3.9;; *) cat <<'END'\n{report.getvalue()}END\nexit 30;; esac\n"
    )
    python.chmod(0o755)
    found = code_quality("x = 1\n", "net", python=str(python))
    assert (found.by, found.score) == ("pylint 3.3.9", 0.90)
    assert found.owner == "pylint 3.3.9, as LEMUR computes it"
    python.write_text("#!/bin/sh\ncase \"$2\" in -c) echo 3.3.9;; *) echo broken >&2; echo '{';; esac\n")
    with pytest.raises(UserError, match=r"-m pylint: returned no JSON: broken; repair or remove Pylint"):
        code_quality("x = 1\n", "net", python=str(python))
