"""Source files as UTF-8 bytes with uniform line endings: all offsets of this package refer to them.

Also edits of a stretch of text by offsets, moving a statement to another indentation, and parsing of foreign code: a
failure is a SyntaxError, and what is returned can be walked. The parser runs out of memory on 100,000 minus signs, and
`ast.unparse`, like any visitor, out of stack on an expression with 900 attributes in a row.
"""

import ast
import io
import re
import sys
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lemur_core.files.foreign import decode_python

#: Levels of a syntax tree. `ast.unparse` takes four calls for a level, of the 1,000 that Python allows. Of 10,372 files
#: of torch, sympy and fourteen packages of models, three are deeper, all of them tables of polynomials in sympy.
MAX_DEPTH = 150


def normalise(source: bytes | str) -> bytes:
    """Return the text of a file as UTF-8 bytes that end with a line end, unless the file is empty.

    Args, Raises: as `decode_python`.
    """
    text = decode_python(source)
    return text.encode() if text.endswith("\n") or not text else text.encode() + b"\n"


def parse_code(code: str | bytes, max_depth: int | None = MAX_DEPTH) -> ast.Module:
    """Return the syntax tree of a file, without the warnings about it.

    Args:
        code: a file, as `decode_python` takes it.
        max_depth: levels of the tree; None where it is not unparsed or walked by a recursive visitor.
    Returns: a tree that any visitor can walk, unless `max_depth` is None.
    Raises: SyntaxError, also for null bytes, a broken encoding, or code that is nested more deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in foreign code is not for our users
            tree = ast.parse(decode_python(code))
    except ValueError as error:  # null bytes, surrogates
        raise SyntaxError(str(error)) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("nested too deeply to parse") from None
    if max_depth is None:
        return tree
    depth, level = 0, list_children(tree)
    while level:
        depth += 1
        level = [child for node in level for child in list_children(node)]
    if depth > max_depth:
        raise SyntaxError(f"nested {depth} levels deep, more than {max_depth}")
    return tree


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of one expression.

    Args: text: white space around the expression is ignored.
    Returns: a tree that any visitor can walk.
    Raises: SyntaxError as `parse_code`, and if it is not one expression.
    """
    body = parse_code(text.strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise SyntaxError("not an expression")
    return body[0].value


#: Fields that hold text, or nodes without anything: the use of a name, operators.
_PLAIN = frozenset({"arg", "asname", "attr", "ctx", "id", "kind", "level", "module", "op", "ops", "type_comment"})


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}  # by kind of node, the others


def list_children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a node, as `ast.iter_child_nodes` yields them, without operators and contexts."""
    children: list[ast.AST] = []
    fields = _FIELDS.get(node.__class__)
    if fields is None:
        fields = _FIELDS[node.__class__] = tuple(name for name in node._fields if name not in _PLAIN)
    for name in fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            if value:
                children += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children


def list_nodes(node: ast.AST) -> list[ast.AST]:
    """Return a node and all below it, in the order of `ast.walk`, without operators and contexts.

    Args: node: the root.
    Returns: a list, which callers may iterate over more than once.
    """
    nodes = [node]
    for item in nodes:  # it grows
        nodes += list_children(item)
    return nodes


def walk_scope(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, but not what is inside the functions and classes in it.

    Args: body: the statements of a scope, or the expression of a lambda.
    """
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += list_children(node)


class Lines:
    """Conversion between line numbers (from 1, as in `ast`) and byte offsets."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.starts = [0]
        position = text.find(b"\n")
        while position >= 0:
            self.starts.append(position + 1)
            position = text.find(b"\n", position + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of an `ast` position: line from 1, column in UTF-8 bytes."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.pattern) -> tuple[int, int]:
        """Return the start and end offsets of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def start(self, line: int) -> int:
        """Return the offset of a line's first byte; the length of the text for the line after the last."""
        return self.starts[line - 1] if line <= len(self.starts) else len(self.text)

    def number(self, offset: int) -> int:
        """Return the line that contains an offset."""
        return bisect_right(self.starts, offset)

    def line(self, number: int) -> bytes:
        """Return one line without its line end."""
        return self.text[self.start(number) : self.start(number + 1)].rstrip(b"\n")


class Edit(NamedTuple):
    """A replacement of the bytes from start to end."""

    start: int
    end: int
    text: str


def apply(text: bytes, start: int, end: int, edits: Iterable[Edit]) -> str:
    """Return the text between two offsets with the edits applied.

    Args:
        text: normalized, so that byte offsets are those of the edits.
        start, end: byte offsets; edits that begin before `start` are dropped, and none may reach beyond `end`.
        edits: in any order; an edit inside an earlier, wider one is dropped.
    Returns: the new text, decoded.
    """
    pieces: list[bytes] = []
    at = start
    for edit in sorted(set(edits), key=lambda e: (e.start, -e.end)):
        if edit.start < at:
            continue
        pieces += [text[at : edit.start], edit.text.encode()]
        at = edit.end
    pieces.append(text[at:end])
    return b"".join(pieces).decode()


def dedent(text: str, columns: int) -> str:
    """Return the text moved left, except the inside of multi-line strings (whose value would change).

    Args: columns: the number of spaces or tabs to remove; of a line with fewer, all are removed.
    Returns: the text with the same line endings.
    """
    if not columns:
        return text
    inside = _string_lines(text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # splitlines would also split at form feeds
    return "".join(
        line if number in inside else line[min(columns, len(line) - len(line.lstrip(" \t"))) :]
        for number, line in enumerate(lines, start=1)
    )


def _string_lines(text: str) -> set[int]:
    """Return the numbers of the lines that begin inside a string."""
    inside: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING and token.end[0] > token.start[0]:
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
    except (tokenize.TokenError, IndentationError):
        pass  # the end of an indented fragment; its strings were read before
    return inside


# Import statements and sections as text.

_WIDTH = 120


class Import(NamedTuple):
    """One import: `from package import name as bound`, or, with an empty name, `import package as bound`."""

    package: str
    name: str
    whole: bool  # `import a.b as c` binds a.b itself; `import a.b` binds a
    bound: str

    @property
    def thing(self) -> str:
        """The imported object: the same for `import torch.nn as nn` and `from torch import nn`."""
        if self.name:
            return f"{self.package}.{self.name}"
        return self.package if self.whole else self.package.split(".")[0]

    def __str__(self) -> str:
        """Return the statement."""
        package, name, whole, bound = self
        if name:
            return f"from {package} import {name}" + (f" as {bound}" if bound != name else "")
        top = package.split(".")[0]
        if package == bound or (not whole and bound == top):
            return f"import {package}"
        if not whole and "." in package:  # bind the first part under another name, and load the submodule
            return f"import {top} as {bound}; import {package} as {bound}_{package.rpartition('.')[2]}"
        return f"import {package} as {bound}"


def import_section(imports: Iterable[Import]) -> list[str]:
    """Return import lines: the standard library, then the rest, each sorted (PEP 8).

    Args: imports: if two bind the same object to the same name, the first decides how it is written.
    Returns: lines without line endings; an empty line between the two groups.
    """
    modules: set[tuple[str, str]] = set()
    members: dict[str, set[str]] = {}
    bound: set[tuple[str, str]] = set()
    for item in imports:
        dotted = f"{item.package}.{item.name}" if item.name else item.package
        if item.name and (dotted, item.bound) not in bound:
            alias = f" as {item.bound}" if item.bound != item.name else ""
            members.setdefault(item.package, set()).add(item.name + alias)
        elif not item.name and (not item.whole or (dotted, item.bound) not in bound):
            modules.add((str(item), item.package))
        bound.add((dotted, item.bound))
    lines = sorted(modules) + [(_from_line(p, sorted(members[p])), p) for p in sorted(members)]
    groups: tuple[list[str], list[str]] = ([], [])
    for line, package in lines:
        groups[package.split(".")[0] not in sys.stdlib_module_names].append(line)
    return [*groups[0], *([""] if groups[0] and groups[1] else []), *groups[1]]


def _from_line(package: str, names: list[str]) -> str:
    line = f"from {package} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return f"from {package} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
