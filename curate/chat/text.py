"""Source text with its syntax tree: places as offsets, edits by offset, and fenced blocks that give the text back."""

import ast
import bisect
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FENCED = re.compile(r"^(?P<fence>`{3,})python\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_TICKS = re.compile("`+")


@dataclass(frozen=True, slots=True)
class Edit:
    """The text from `start` to `end`, both offsets in characters, becomes `new`."""

    start: int
    end: int
    new: str


class Source:
    """One file of Python.

    Raises: SyntaxError or ValueError if it does not parse.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = parse(text)
        self.lines = split_lines(text)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, in the order of their places; not those inside formatted strings, whose places may be wrong."""
        strings = [node for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr)]
        inside = {id(part) for string in strings for part in ast.walk(string)} - {id(string) for string in strings}
        found = [node for node in ast.walk(self.tree) if hasattr(node, "lineno") and id(node) not in inside]
        return sorted(found, key=lambda node: (self.start(node), -self.end(node)))

    @cached_property
    def names(self) -> frozenset[str]:
        """All words of the text: a new name must be none of them."""
        return frozenset(re.findall(r"\w+", self.text))

    def line_start(self, line: int) -> int:
        """The offset of a line, counted from 1."""
        return self._starts[line - 1]

    def line_of(self, offset: int) -> int:
        """The line of an offset, counted from 1."""
        return bisect.bisect_right(self._starts, offset)

    def start(self, node: ast.AST) -> int:
        """The offset where a node starts."""
        return self._offset(getattr(node, "lineno"), getattr(node, "col_offset"))  # noqa: B009

    def end(self, node: ast.AST) -> int:
        """The offset behind a node."""
        return self._offset(getattr(node, "end_lineno"), getattr(node, "end_col_offset"))  # noqa: B009

    def segment(self, node: ast.AST) -> str:
        """The text of a node."""
        return self.text[self.start(node) : self.end(node)]

    def edit(self, edits: Iterable[Edit]) -> str:
        """The text after edits, which must not overlap."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            text = text[: edit.start] + edit.new + text[edit.end :]
        return text

    def _offset(self, line: int, column: int) -> int:
        # the parser counts columns in bytes of UTF-8
        return self._starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())


def parse(text: str) -> ast.Module:
    """The syntax tree of a foreign text, whose odd escapes are nobody's concern here.

    Raises: SyntaxError or ValueError if it does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def split_lines(text: str) -> list[str]:
    """The lines with their ends, split where Python's parser splits them."""
    found: list[str] = _LINE.findall(text)
    return found


def fence(code: str) -> str:
    """The code as a fenced block that nothing in it closes; a missing newline at its end is added."""
    longest = max((len(run) for run in _TICKS.findall(code)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}python\n{code}{'' if code.endswith(chr(10)) else chr(10)}{marks}"


def fenced_codes(content: str) -> list[str]:
    """The codes of all blocks that `fence` made in a message, each with a newline at its end."""
    return [match["text"] for match in _FENCED.finditer(content)]
