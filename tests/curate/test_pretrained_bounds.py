"""Any tree is read in bounded time and depth."""

import ast
import sys

import pytest

from curate.pretrained import find_pretrained


def find_lines(code: str) -> list[int]:
    return [one.line for one in find_pretrained(code, ast.parse(code))]


def chain(kind: str, depth: int) -> ast.Module:
    """A tree nested `depth` levels, which the parser itself would refuse."""
    expression: ast.expr = ast.Constant(True)
    body: list[ast.stmt] = [ast.Pass()]
    for _ in range(depth):
        if kind == "call":
            expression = ast.Call(ast.Name("f", ast.Load()), [expression], [ast.keyword("pretrained", ast.Constant(1))])
        elif kind == "attribute":
            expression = ast.Call(ast.Attribute(expression, "to", ast.Load()), [], [])
        elif kind == "or":
            expression = ast.BoolOp(ast.Or(), [ast.Name("x", ast.Load()), expression])
        elif kind == "list":
            expression = ast.List([expression], ast.Load())
        elif kind == "elif":
            body = [ast.If(ast.Name("x", ast.Load()), [ast.Pass()], body)]
        elif kind == "def":
            body = [ast.FunctionDef("g", ast.parse("def g(): 0").body[0].args, body, [])]  # type: ignore[attr-defined]
        elif kind == "class":
            body = [ast.ClassDef("C", [], [], body, [])]
        else:
            body = [ast.For(ast.Name("i", ast.Store()), ast.Name("x", ast.Load()), body, [])]
    tree = ast.Module([ast.Expr(expression), *body], [])
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            vars(node).update(lineno=1, end_lineno=1, col_offset=0, end_col_offset=0)
    return tree


@pytest.mark.parametrize("kind", ["call", "attribute", "or", "list", "elif", "def", "class", "for"])
def test_deep_trees_are_read_without_deep_recursion(kind: str) -> None:
    tree = chain(kind, 5_000)
    limit = sys.getrecursionlimit()
    find_pretrained("import timm  # pretrained=", tree)
    assert sys.getrecursionlimit() == limit


def test_calls_that_never_end_are_bounded() -> None:
    code = (
        "import timm\ndef f(a, b=True):\n    return f(a + [a], [b])\nm = f([timm.create_model('x', pretrained=True)])\n"
    )
    assert find_lines(code) == [4]
    mutual = (
        "import timm\ndef f(x):\n    return g([x])\ndef g(x):\n    return f([x])\nf(timm.create_model('x', True))\n"
    )
    assert find_lines(mutual) == [6]


def test_many_calls_are_bounded() -> None:
    lines = [f"def f{i}(x):\n    f{i + 1}([x])\n    f{i + 1}([x, 1])\n" for i in range(40)]
    find_lines("import timm\n" + "".join(lines) + "def f40(x):\n    pass\nf0(1)\n")
