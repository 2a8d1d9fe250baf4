"""Source files as UTF-8 bytes with uniform line endings: all offsets of this package refer to them.

Also edits of a stretch of text by offsets, moving a statement to another indentation, and parsing of foreign code: a
failure is a SyntaxError, and what is returned can be walked. The parser runs out of memory on 100,000 minus signs, and
`ast.unparse`, like any visitor, out of stack on an expression with 900 attributes in a row.
"""

import ast
import codecs
import io
import re
import sys
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import escape_controls

#: Levels of a syntax tree. `ast.unparse` takes four calls for a level, of the 1,000 that Python allows. Of 10,372 files
#: of torch, sympy and fourteen packages of models, three are deeper, all of them tables of polynomials in sympy.
MAX_DEPTH = 150


_BOM = b"\xef\xbb\xbf"
#: A declared encoding (PEP 263): in the first line, or in the second below a blank line or a comment.
_DECLARED = re.compile(
    rb"(?:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))??[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)", re.ASCII
)
_UTF_8, _LATIN_1 = "utf-8", "iso8859-1"
_PLAIN_ENCODINGS = frozenset({"ascii", _LATIN_1, _UTF_8})


def decode_python(source: bytes | str) -> str:
    """Return the text of a Python file: what is checked, and what runs.

    Encodings other than UTF-8, which is the default, and Latin-1 are refused: in `unicode_escape`, for example, what
    reads as a comment may be code.

    Args: source: the bytes of a file; or a text, whose UTF-8 bytes Python must read as that text.
    Returns: the text without byte-order mark, with `\n` line endings; what it declares, if anything, is UTF-8.
    Raises: SyntaxError if it declares another encoding, or is not valid in it; ValueError for a lone surrogate.
    """
    raw = source.encode() if isinstance(source, str) else source
    is_marked = isinstance(source, bytes) and source.startswith(_BOM)
    raw = raw[len(_BOM) :] if is_marked else raw
    declared = _DECLARED.match(raw)
    encoding = _UTF_8 if declared is None else _find_encoding(declared[1].decode())
    if encoding not in ({_UTF_8} if is_marked else _PLAIN_ENCODINGS):
        marked = " after a byte-order mark" if is_marked else ""
        only = "only UTF-8 and Latin-1 are read, so save it as UTF-8"
        raise SyntaxError(f"declares the encoding {encoding}{marked}; {only}")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"invalid {encoding.upper()} at byte {error.start}") from None
    if isinstance(source, str) and encoding == _LATIN_1 and not raw.isascii():
        raise SyntaxError("declares Latin-1, as which its UTF-8 would be read as another text; declare UTF-8")
    if declared is not None and encoding != _UTF_8:
        text = f"{text[: declared.start(1)]}{_UTF_8}{text[declared.end(1) :]}"
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _find_encoding(declared: str) -> str:
    """Return the name of an encoding: Python's own if it knows it, by the rules of its tokenizer."""
    plain = re.match(r"(utf-8|latin-1|iso-8859-1|iso-latin-1)(?:-|$)", declared[:12].lower().replace("_", "-"))
    if plain is not None:
        return _UTF_8 if plain[1] == _UTF_8 else _LATIN_1
    try:
        return codecs.lookup(declared[:40]).name
    except LookupError:
        return declared[:40]


def read_python_file(path: Path, advice: str) -> str:
    """Return the text of a Python file that a user names.

    Args: advice: the end of the message if it cannot be read: what to give instead.
    Raises: UserError if there is no such file, or it is no text.
    """
    check_plain(path)
    try:
        return decode_python(path.read_bytes())
    except (OSError, SyntaxError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.msg
        raise UserError(f"{path}: cannot be read: {reason}; {advice}") from error


def normalise(source: bytes | str) -> bytes:
    """Return the text of a file as UTF-8 bytes that end with a line end, unless the file is empty.

    Args, Raises: as `decode_python`.
    """
    text = decode_python(source)
    return text.encode() if text.endswith("\n") or not text else text.encode() + b"\n"


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Return lines as comments: all that is in them stays one, wherever they stand, and declares no encoding.

    Args: lines: of any origin; line ends in them begin another comment, and other control characters are escaped.
    """
    pieces = [escape_controls(piece) for line in lines for piece in line.split("\n")]
    pieces[:2] = [re.sub(r"coding(?=[:=])", "coding ", piece) for piece in pieces[:2]]
    return [f"# {piece}".rstrip() for piece in pieces]


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
