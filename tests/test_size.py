"""The size of the project, which only falls: lines of code, tests and benchmarks, words of documents, commands, options.

A line of code holds a token that is neither a comment nor part of a docstring, so that documentation costs nothing.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("lemur", "extract", "curate", "train", "manifests", "lemur_core")
#: What each measure may be. A change that makes one smaller lowers the number here.
MOST = {
    "lines of code": 41_996,
    "files of code": 255,
    "lines of tests and their cases": 43_000,
    "lines of benchmarks": 4_908,
    "words of documents": 14_911,
    "commands": 26,
    "options": 132,
}
#: Written by commands, from the parsers and records.
GENERATED = {ROOT / "docs" / name for name in ("commands.md", "columns.md", "api.md")}
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code(text: str) -> int:
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def measure() -> dict[str, int]:
    def texts(folder: str, pattern: str) -> list[str]:
        paths = sorted(ROOT.joinpath(folder).rglob(pattern))
        return [path.read_text(encoding="utf-8") for path in paths if path not in GENERATED]

    code = [text for package in PRODUCT for text in texts(package, "*.py")]
    commands = ROOT.joinpath("docs", "commands.md").read_text(encoding="utf-8")
    return {
        "lines of code": sum(map(count_code, code)),
        "files of code": len(code),
        "lines of tests and their cases": sum(t.count("\n") for p in ("*.py", "*.md") for t in texts("tests", p)),
        "lines of benchmarks": sum(map(count_code, texts("benchmarks", "*.py"))),
        "words of documents": sum(len(text.split()) for text in texts("docs", "*.md")),
        "commands": len(re.findall(r"^## lemur ", commands, re.MULTILINE)),
        "options": len(re.findall(r"^\|\s*`--", commands, re.MULTILINE)),
    }


def test_nothing_grows() -> None:
    over = {name: (number, MOST[name]) for name, number in measure().items() if number > MOST[name]}
    assert over == {}, "more than before; make room, or say in the commit why the limit rises"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ('"""Only\na docstring."""\n', 0),
        ("# a comment\n\nx = 1  # another\n", 1),
        ('x = """a text\nof two lines"""\n', 2),
        ('def f():\n    """Say."""\n    return (\n        1\n    )\n', 4),
        ("def f(): ...\n", 1),
    ],
)
def test_a_line_of_code_holds_more_than_words(text: str, lines: int) -> None:
    assert count_code(text) == lines
