"""The token stream on which nn-dup 2.2.4 compares code, quirks included.

nn-dup cuts the network classes out of a file, rebuilds that text from token columns without comments and docstrings, and
tokenises the rebuilt text once more. The rebuilding is lossy: tabs become single blanks and backslash continuations
disappear, so that some valid files tokenise badly the second time and end with no tokens at all. Such files take the
same two steps here; for all others one pass gives the same stream (see `_plain_stream`).
"""

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Set as AbstractSet
from keyword import iskeyword

from curate.nndup_outline import Outline, outline

#: Beginnings of names that stay in the stream, besides keywords, names that the text declares, and names with a capital
#: letter after the first (which covers the rest of nn-dup's lists: LSTM, ReLU, SEBlock, ModuleList, ...).
_KEPT_BEGINNINGS = tuple(
    "Conv Batch Layer Group Instance Max Avg Adaptive Dropout Linear Flatten Multihead Transformer Upsample Squeeze "
    "Sequential Module Fractal Dense".split()
)
_FAILURES = (SyntaxError, tokenize.TokenError)  # IndentationError is a SyntaxError
_COMMENT = re.compile(r"#.*$", re.MULTILINE)
#: Layout that the rebuilding of the text changes (tabs, form feeds, carriage returns, continuation lines).
_FRAGILE = re.compile(r"[\t\f\r]|\\\n")
_LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})


def token_stream(source: str, shape: Outline | None) -> list[str]:
    """The normalised tokens of the network part of a source text; an empty list when they cannot be had.

    Args:
        source: a whole file.
        shape: its outline, None when the file does not parse (then the whole file is the network part).
    """
    region, declared = _network_part(source, shape)
    if not _FRAGILE.search(region):
        tokens = _plain_stream(region, declared)
        if tokens is not None:
            return tokens
    return _scan(_rebuilt_without_comments(region), declared)


def _network_part(source: str, shape: Outline | None) -> tuple[str, AbstractSet[str]]:
    """The text of module classes and of the functions that they call, and the names which that text declares."""
    if shape is None:
        return source, frozenset()
    spans = shape.network_spans()
    if not spans:
        return source, {name for name, _, _ in shape.declared}
    lines = source.splitlines(keepends=True)
    merged: list[list[int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    region = "\n".join("".join(lines[first - 1 : last]) for first, last in merged)
    return region, _declared_in(region, lines, source, shape, merged)


def _declared_in(
    region: str, lines: list[str], source: str, shape: Outline, merged: list[list[int]]
) -> AbstractSet[str]:
    """Names of the classes and functions in the region as nn-dup sees them: none when the region alone does not parse.

    Whole top-level statements of a file that parses parse on their own, so the file's own outline answers for them.
    """
    same_lines = len(lines) == source.count("\n") + (not source.endswith("\n"))
    if same_lines and shape.starts_at_margin(merged) and not _FRAGILE.search(region):
        firsts = [first for first, _ in merged]
        names = set()
        for name, line, _ in shape.declared:
            at = bisect_right(firsts, line) - 1
            if at >= 0 and line <= merged[at][1]:
                names.add(name)
        return names
    alone = outline(region)
    return {name for name, _, _ in alone.declared} if alone else frozenset()


def _plain_stream(text: str, declared: AbstractSet[str]) -> list[str] | None:
    """The stream by one pass; None where the two passes of nn-dup could differ from it.

    Rebuilding keeps the column of every token, so the second pass sees the same tokens, provided that nothing but
    blanks indents, that no line continues by a backslash, and that a dropped docstring leaves an empty line behind.
    """
    word_of: dict[str, str] = {}
    tokens: list[str] = []
    before = tokenize.INDENT
    try:
        for kind, string, *_ in tokenize.generate_tokens(io.StringIO(text).readline):
            if kind == tokenize.COMMENT:
                continue
            if before == tokenize.COMMENT and kind != tokenize.NEWLINE:
                return None  # something follows a dropped docstring on its line
            if kind == tokenize.NAME:
                word = word_of.get(string)
                if word is None:
                    word = word_of[string] = _word(string, declared)
                tokens.append(word)
            elif kind == tokenize.OP:
                tokens.append(string)
            elif kind == tokenize.NUMBER:
                tokens.append("NUM")
            elif kind == tokenize.STRING:
                if before in (tokenize.INDENT, tokenize.NEWLINE):
                    before = tokenize.COMMENT  # a docstring: gone like a comment
                    continue
                tokens.append("STR")
            elif kind not in _LAYOUT:
                return None
            before = kind
    except _FAILURES:
        return None
    return tokens


def _rebuilt_without_comments(text: str) -> str:
    """The text put together again from its tokens by column, without comments and docstrings.

    When tokenising fails, the text with everything cut from each number sign to the end of its line.
    """
    pieces: list[str] = []
    before = tokenize.INDENT
    line, column = -1, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                continue
            docstring = token.type == tokenize.STRING and before in (tokenize.INDENT, tokenize.NEWLINE)
            before = token.type
            if docstring:
                continue
            if token.start[0] > line:
                column = 0
            pieces += " " * (token.start[1] - column), token.string
            line, column = token.end
    except (*_FAILURES, ValueError, RecursionError):
        return _COMMENT.sub("", text)
    return "".join(pieces)


def _scan(text: str, declared: AbstractSet[str]) -> list[str]:
    """The normalised tokens of a text as it stands; an empty list when tokenising fails."""
    fixed = {tokenize.NUMBER: "NUM", tokenize.STRING: "STR"}
    tokens: list[str] = []
    try:
        for kind, string, *_ in tokenize.generate_tokens(io.StringIO(text).readline):
            if kind == tokenize.NAME:
                tokens.append(_word(string, declared))
            elif kind == tokenize.OP:
                tokens.append(string)
            elif kind in fixed:
                tokens.append(fixed[kind])
    except _FAILURES:
        return []
    return tokens


def _word(name: str, declared: AbstractSet[str]) -> str:
    """A name as it stands in the stream: itself when it says something about the architecture, else ID."""
    telling = (
        name in declared
        or iskeyword(name)
        or name.startswith(_KEPT_BEGINNINGS)
        or any(letter.isupper() for letter in name[1:])
    )
    return name if telling else "ID"
