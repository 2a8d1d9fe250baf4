"""Parts of a file that can be cut out, and put back so that the file is the same, byte for byte."""

import ast
from dataclasses import dataclass

from curate.chat.text import Source, parse, split_lines

#: Stands where the part was, on a line of its own.
MARK = "# <missing part>"

_MIN_LINES = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """A file with a marked gap, and the part that was there, without the indentation of the marked line.

    A part is `plain` where it holds nothing that the rest cannot tell: no docstring, no number but 0, 1 and 2, and no
    text with white space in it, such as a message.
    """

    what: str  # for example: the body of method `forward` of class `Net`
    name: str  # for example: body Net.forward
    text: str
    part: str
    plain: bool


def put_back(text: str, part: str) -> str:
    """The file with the part in its gap: every line that is not empty gets the indentation of the marked line."""
    head, _, tail = text.partition(MARK)
    start = max(head.rfind("\n"), head.rfind("\r")) + 1
    indent = head[start:]
    lines = [indent + line if line.strip("\r\n") else line for line in split_lines(part)]
    return head[:start] + "".join(lines) + tail


def gaps(source: Source) -> list[Gap]:
    """All gaps of a file: bodies of functions and methods, and of top-level classes beside others, but for `Net`.

    Docstrings stay: a gap begins behind them.
    """
    found = []
    if MARK in source.text:
        return []
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef)]
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef):
            found.append(_body(source, node, f"the body of the function `{node.name}`", f"body {node.name}"))
        if isinstance(node, ast.ClassDef):
            if len(classes) > 1 and node.name != "Net":
                found.append(_body(source, node, f"the body of the class `{node.name}`", f"class {node.name}"))
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    what = f"the body of the method `{item.name}` of class `{node.name}`"
                    found.append(_body(source, item, what, f"body {node.name}.{item.name}"))
    return [gap for gap in found if gap is not None]


def _body(source: Source, node: ast.FunctionDef | ast.ClassDef, what: str, name: str) -> Gap | None:
    body = node.body[1:] if _has_docstring(node) else node.body
    if not body:
        return None
    first = body[0]
    decorators = [item.lineno for item in getattr(first, "decorator_list", [])]
    before = source.lines[first.lineno - 1].encode()[: first.col_offset].decode()
    if before.strip():
        return None  # on the line of the def, or of the docstring
    return _cut(source, min([first.lineno, *decorators]), node.end_lineno, what, name)


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _is_plain(part: ast.Module) -> bool:
    for node in ast.walk(part):
        if _has_docstring(node):
            return False
        if isinstance(node, ast.Constant):
            value = node.value
            if isinstance(value, int | float | complex) and value not in (0, 1, 2):
                return False
            if isinstance(value, str | bytes) and len(value.split()) > 1:
                return False
    return True


def _cut(source: Source, first: int, last: int | None, what: str, name: str) -> Gap | None:
    """The lines from `first` to `last` as a gap; None where they are few, do not parse alone or do not come back."""
    assert last is not None
    if last - first + 1 < _MIN_LINES:
        return None
    lines = source.lines[first - 1 : last]
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    ending = lines[-1][len(lines[-1].rstrip("\r\n")) :]
    cut = [line.removeprefix(indent) for line in lines]
    part = "".join(cut).removesuffix(ending)
    text = "".join([*source.lines[: first - 1], indent, MARK, ending, *source.lines[last:]])
    try:
        tree = parse(part)
    except (SyntaxError, ValueError):
        return None  # a line that stands further left, for example in a long string
    if put_back(text, part) != source.text:
        return None
    return Gap(what, name, text, part, _is_plain(tree))
