"""Source files as UTF-8 bytes with one kind of line end: the space in which all offsets of this package count."""

import ast
import io
import tokenize
from bisect import bisect_right


def normalise(raw: bytes) -> bytes:
    """The file's text as UTF-8 without byte-order mark and with `\\n` line ends.

    Raises: SyntaxError for an unknown or broken encoding (as Python itself does, PEP 263).
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"not valid {encoding}: byte {error.start}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text.encode() if text.endswith("\n") or not text else text.encode() + b"\n"


class Lines:
    """Line numbers (from 1, as `ast` counts them) to byte offsets and back."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.starts = [0]
        position = text.find(b"\n")
        while position >= 0:
            self.starts.append(position + 1)
            position = text.find(b"\n", position + 1)

    def offset(self, line: int, column: int) -> int:
        """The offset of a position as `ast` gives it: line from 1, column in UTF-8 bytes."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The offsets between which a node stands."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def start(self, line: int) -> int:
        """The offset of a line's first byte; the length of the text for the line after the last."""
        return self.starts[line - 1] if line <= len(self.starts) else len(self.text)

    def number(self, offset: int) -> int:
        """The line on which an offset lies."""
        return bisect_right(self.starts, offset)

    def line(self, number: int) -> bytes:
        """One line without its end."""
        return self.text[self.start(number) : self.start(number + 1)].rstrip(b"\n")
