"""Places in a file: byte offsets of the nodes of the whole, or of an expression inside one of its strings."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_STRING = re.compile(rb"([A-Za-z]{0,2})(\"\"\"|'''|\"|')((?:\\.|[^\\])*?)\2", re.DOTALL)
_BETWEEN = re.compile(rb"(?:\s|\\\n|#[^\n]*)*")
_PLAIN = re.compile(rb"[rRuU]?(\"\"\"|'''|\"|')([^\\]*)\1", re.DOTALL)
_NAMED_CHARACTER = re.compile(rb"\\N\{[^}]*\}")


class Located(Protocol):
    """A node that has a place."""

    @property
    def lineno(self) -> int:
        """First line, from 1."""

    @property
    def col_offset(self) -> int:
        """First byte in it."""

    @property
    def end_lineno(self) -> int | None:
        """Last line."""

    @property
    def end_col_offset(self) -> int | None:
        """The byte after the last."""


class Piece:
    """Some Python text and where it begins in the file."""

    def __init__(self, text: bytes, base: int = 0) -> None:
        self._base = base
        self._starts = [0, *(found.end() for found in re.finditer(rb"\n", text))]

    def start(self, node: Located) -> int:
        """Offset of a node's first byte, counted in the file."""
        return self._base + self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: Located) -> int:
        """Offset after a node's last byte."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._base + self._starts[node.end_lineno - 1] + node.end_col_offset

    def line_start(self, line: int) -> int:
        """Offset of a line's first byte, lines from 1; of the end for the line after the last."""
        return self._base + self._starts[min(line, len(self._starts)) - 1]


@dataclass(frozen=True, slots=True)
class Inside:
    """An expression inside a string: its tree, its places, and whether `{x=}` prints its text."""

    tree: ast.expr
    piece: Piece
    shown: bool = False


def expression_at(text: bytes, start: int, end: int, shown: bool = False) -> Inside | None:
    """The expression between two offsets of the file; None if it is none."""
    inner = b"(" + text[start:end] + b")"
    try:
        tree = ast.parse(inner.decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return Inside(tree, Piece(inner, start - 1), shown)


def inside_literal(text: bytes, start: int, end: int, value: str) -> tuple[int, int] | None:
    """The bounds of a string literal's content; None where that is not written out in one literal."""
    found = _PLAIN.fullmatch(text, start, end)
    if found is None or found.group(2).decode() != value:
        return None
    return found.start(2), found.end(2)


def fields(text: bytes, start: int, end: int) -> Iterator[Inside]:
    """The expressions of the f-strings that stand between two offsets, with their true places.

    Before 3.12 `ast` gives those nodes places that may be wrong.
    """
    at = start
    while at < end:
        at = _next_token(text, at)
        found = _STRING.match(text, at, end)
        if found is None:
            return
        at = found.end()
        prefix = found.group(1).lower()
        if b"f" in prefix:
            yield from _fields(text, found.start(3), found.end(3), b"r" in prefix)


def _next_token(text: bytes, at: int) -> int:
    found = _BETWEEN.match(text, at)
    assert found is not None
    return found.end()


def _fields(text: bytes, at: int, end: int, raw: bool, nested: bool = False) -> Iterator[Inside]:
    while at < end:
        name = None if raw else _NAMED_CHARACTER.match(text, at, end)
        if name is not None:
            at = name.end()
        elif text[at] != ord("{"):
            at += 1
        elif text[at + 1 : at + 2] == b"{" and not nested:
            at += 2
        else:
            stop, shown = _expression_end(text, at + 1, end)
            found = expression_at(text, at + 1, stop, shown)
            if found is not None:
                yield found
            close = _field_end(text, stop, end)
            yield from _fields(text, stop, close, raw, nested=True)
            at = close + 1


def _expression_end(text: bytes, at: int, end: int) -> tuple[int, bool]:
    """Where a field's expression ends, and whether a `=` follows that prints its text."""
    depth = 0
    while at < end:
        character = text[at : at + 1]
        if character in b"\"'":
            found = _STRING.match(text, at, end)
            at = found.end() if found is not None else at + 1
            continue
        if text[at : at + 2] in {b"==", b"!=", b"<=", b">="}:
            at += 2
            continue
        if depth == 0 and character in b"!:}=":
            return at, character == b"="
        depth += (character in b"([{") - (character in b")]}")
        at += 1
    return end, False


def _field_end(text: bytes, at: int, end: int) -> int:
    """Where a field's closing brace is, from the end of its expression on."""
    depth = 0
    while at < end:
        if text[at] == ord("}"):
            if depth == 0:
                return at
            depth -= 1
        depth += text[at] == ord("{")
        at += 1
    return end
