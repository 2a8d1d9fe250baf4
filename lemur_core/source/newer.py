"""Syntax that is newer than the running Python: taken out of a file, so that the rest of it can be read."""

import re

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from lemur_core.source.facts import NewerSyntax
from lemur_core.source.text import Edit, apply, parse_code


def remove_newer_syntax(text: bytes) -> tuple[bytes, tuple[NewerSyntax, ...]]:
    """Return a text without the syntax of Python 3.12 and later, and what was taken out, by position.

    Type parameters become spaces, `type A = B` becomes `A = B`, `except A, B` becomes `except A`, and formatted strings
    become empty: all offsets and lines stay as they are.

    Args: text: normalized, and not parsed by the running Python.
    Returns: the text as it is and nothing, if it is not Python of any version, or if only other syntax is newer.
    """
    try:
        spans = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    except cst.ParserSyntaxError:
        return text, ()
    edits, newer = [], []
    for node, span in spans.items():
        start, end = span.start, span.start + span.length
        needs = ""
        if isinstance(node, cst.TypeParameters):
            version = "3.12" if all(parameter.default is None for parameter in node.params) else "3.13"
            needs, new = f"Python {version} (type parameters)", _blank(text[start:end])
        elif isinstance(node, cst.TypeAlias):
            needs, name = "Python 3.12 (type statement)", node.name.value
            end = text.index(name.encode(), start + len("type")) + len(name.encode())
            new = name.encode().ljust(end - start)
        elif isinstance(node, cst.ExceptHandler | cst.ExceptStarHandler):
            if isinstance(node.type, cst.Tuple) and not node.type.lpar:
                needs, listed = "Python 3.14 (except without parentheses)", spans[node.type]
                start = listed.start + spans[node.type.elements[0].value].length
                end = listed.start + listed.length
                new = _blank(text[start:end])
        elif isinstance(node, cst.FormattedString | cst.TemplatedString) and not _is_known(text[start:end]):
            is_template = isinstance(node, cst.TemplatedString)
            needs = "Python 3.14 (template strings)" if is_template else "Python 3.12 (formatted strings)"
            opening, closing = len(node.start), len(node.end)
            inside = _blank(text[start + opening : end - closing], continued=closing == 1)
            new = node.end.encode().rjust(opening) + inside + node.end.encode()
        if needs:
            edits.append(Edit(start, end, new.decode()))
            newer.append(NewerSyntax(start, needs))
    return apply(text, 0, len(text), edits).encode(), tuple(sorted(newer))


def _blank(text: bytes, *, continued: bool = True) -> bytes:
    """Return as many spaces, with the same lines; these are continued, where line ends would end the statement."""
    blank = re.sub(rb"[^\n]", b" ", text)
    return blank.replace(b" \n", b"\\\n") if continued else blank


def _is_known(expression: bytes) -> bool:
    try:
        parse_code(b"(" + expression + b")")
    except SyntaxError:
        return False
    return True
