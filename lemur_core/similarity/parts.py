"""The outline of a code, with a cache of its parts: codes of the same origin share most of their functions.

A source is cut, by its lines, where a class or function seems to begin at the margin or four columns from it. A stretch
that is known from another code, as a class or function and nothing else, is replaced by a placeholder name in the text
to parse. Where the parser reads this name as a statement, it would have read the class or function there, since both
begin on a new line and end before the next one; so the outline is the same as that of the whole code. If the name is
not parsed as a statement, the whole code is parsed.
"""

import ast
import re
import sys
from itertools import pairwise

from lemur_core.similarity.outline import Outline, OutlineCut, OutlinePart, outline_tree

#: A network's code is tens of kilobytes at most; a file a hundred times larger is data, and is not parsed.
MAX_CODE_BYTES = 1_000_000

#: The number of cached parts, at most doubled; one takes some kilobytes.
_CACHED_PARTS = 8_192
_MAX_CHARACTERS = 20_000

#: Where a stretch begins: decorators with what they decorate, a class or function, any statement at the margin; never
#: after a line that ends in a backslash.
_BEGIN = re.compile(r"\n(?<!\\\n)(?:(?: {4})?@[^\n]*\n)*(?:(?: {4})?(?:def|class|async def) |(?=[^\W\d]))")
_DEFINITION = re.compile(r" {4}|@|def |class |async def ")
_PLACEHOLDER = "_left_out_"

#: Line beginnings that are valid since a Python version: PEP 695 and 701; 696; 750 and 758.
_LATER = tuple(
    (since, re.compile(text))
    for since, text in (
        ((3, 12), r"\s*type\s+\w+\s*(?:\[.*\])?\s*="),
        ((3, 12), r".*\b(?:[fF][rR]?|[rR][fF])['\"]"),
        ((3, 13), r"\s*(?:class|(?:async\s+)?def)\s+\w+\s*\["),
        ((3, 14), r".*\b(?:[tT][rR]?|[rR][tT])['\"]"),
        ((3, 14), r"\s*except\*?\s[^:(]+,"),
    )
)
_NEWER = f"not Python {sys.version_info.major}.{sys.version_info.minor}, but perhaps a newer one"


def outline_code(code: str) -> Outline | str:
    """Return the outline of a code, or a short reason why it has none; never raises, whatever the text.

    Args: code: any text, also one with lone surrogates.
    Returns: an Outline, or a reason in one line of at most 200 characters.
    """
    size = len(code) if code.isascii() else len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        return f"too large: {size:,} bytes of code, limit {MAX_CODE_BYTES:,}"
    if not code.strip():
        return "nn_code is empty"
    if "\0" in code:
        return "not Python: contains a null byte"
    try:
        return _outline(code)
    except SyntaxError as error:
        line = error.lineno or 1
        newer = any(since > sys.version_info[:2] and pattern.match(_line(code, line)) for since, pattern in _LATER)
        return f"{_NEWER if newer else 'not Python'}: line {line}: {error.msg}"[:200]
    except ValueError as error:
        return f"not Python: {error}"[:200]
    except (RecursionError, MemoryError):
        return "nested too deeply for Python's parser"


def _line(code: str, number: int) -> str:
    """Return a line of a code, counted from 1; only the beginning of a long one."""
    return next(iter(code.splitlines()[number - 1 : number]), "")[:1_000]


def is_other_python(reason: str) -> bool:
    """Return whether a reason came from another Python version, and need not hold for this one.

    Args: reason: from `outline_code`, possibly recorded under another Python.
    Returns: True only for `not Python 3.x, but perhaps a newer one` with another version than this one's.
    """
    return reason.startswith("not Python ") and not reason.startswith(_NEWER)


def _outline(code: str) -> Outline:
    if "\r" in code or _PLACEHOLDER in code:
        return outline_tree(ast.parse(code))
    cuts = _find_cuts(code)
    known = [cut for cut in cuts.values() if cut.part is not None]
    if not known:
        outline = outline_tree(ast.parse(code), cuts)
    else:
        try:
            outline = outline_tree(ast.parse(_replace_known(code, known)), cuts)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return outline_tree(ast.parse(code))
        lines = {cut.line for cut in outline.parts}
        if not all(cut.line in lines for cut in known):
            return outline_tree(ast.parse(code))
    for cut in outline.parts:
        if cut.part is not None:
            _KNOWN.put(cut.text, cut.part)
    return outline


def _find_cuts(code: str) -> dict[int, OutlineCut]:
    """Return the stretches that seem to contain a class or function by first line, or by last line if known."""
    starts = [0, *(match.start() + 1 for match in _BEGIN.finditer(code)), len(code)]
    cuts = {}
    line = 1
    for start, stop in pairwise(starts):
        text = code[start:stop]
        head = text[0] != " " and code[stop : stop + 1] == " "  # of a class whose methods are separate stretches
        if not head and len(text) <= _MAX_CHARACTERS and _DEFINITION.match(text):
            part = _KNOWN.get(text)
            cuts[line if part is None else line + part.last] = OutlineCut(line, start, stop, text, part)
        line += text.count("\n")
    return cuts


def _replace_known(code: str, known: list[OutlineCut]) -> str:
    """Return the code with a placeholder for each of these on its last line; all other lines keep their
    numbers.
    """
    pieces = []
    at = 0
    for cut in known:
        before = cut.part.last if cut.part is not None else 0
        indent = "    " if cut.text[0] == " " else ""
        after = "\n" * (cut.text.count("\n") - before)
        pieces += [code[at : cut.start], "\n" * before, indent, _PLACEHOLDER, after]
        at = cut.stop
    return "".join(pieces) + code[at:]


class _Recent:
    """A cache of parts by text; it forgets those not used since the last few thousand new ones."""

    def __init__(self) -> None:
        self._young: dict[str, OutlinePart] = {}
        self._old: dict[str, OutlinePart] = {}

    def get(self, text: str) -> OutlinePart | None:
        return self._young.get(text) or self._old.get(text)

    def put(self, text: str, part: OutlinePart) -> None:
        if len(self._young) >= _CACHED_PARTS:
            self._young, self._old = {}, self._young
        self._young[text] = part


_KNOWN = _Recent()
