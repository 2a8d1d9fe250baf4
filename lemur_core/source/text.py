"""Source files as UTF-8 bytes with uniform line ends: all offsets of this package refer to them.

Also edits of a stretch of text by offsets, and moving a statement to another indentation.
"""

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


def normalise(raw: bytes) -> bytes:
    """Return the file's text as UTF-8 without byte-order mark and with `\\n` line ends.

    Args: raw: the bytes of the file, in the encoding that it declares (PEP 263).
    Returns: bytes that end with a line end, unless the file is empty.
    Raises: SyntaxError for an unknown or broken encoding (like Python itself, PEP 263).
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"not valid {encoding}: byte {error.start}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text.encode() if text.endswith("\n") or not text else text.encode() + b"\n"


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

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
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
    Returns: the text with the same line ends.
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
