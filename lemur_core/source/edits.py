"""Changes to a stretch of text by offsets, and moving a statement to another indentation."""

import io
import re
import tokenize
from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Replace the bytes from start to end."""

    start: int
    end: int
    text: str


def apply(text: bytes, start: int, end: int, edits: Iterable[Edit]) -> str:
    """The text between two offsets with the edits made; an edit inside an earlier, wider one is dropped."""
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
    """The text moved left, but for the inside of multi-line strings (whose value would change)."""
    if not columns:
        return text
    inside = _string_lines(text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # splitlines would also split at form feeds
    return "".join(
        line if number in inside else line[min(columns, len(line) - len(line.lstrip(" \t"))) :]
        for number, line in enumerate(lines, start=1)
    )


def _string_lines(text: str) -> set[int]:
    """Numbers of the lines that begin inside a string."""
    inside: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING and token.end[0] > token.start[0]:
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
    except (tokenize.TokenError, IndentationError):
        pass  # the end of an indented fragment; its strings have been seen
    return inside
