"""Neutrality: no spec repeats eight consecutive tokens of its block's source.

A token is a word, a number or one character of punctuation, whatever stands between; a text is tokenised the same way
whether it is code, comment, docstring or the JSON line of a spec. The header that extraction itself writes above a
block is not source: it names the block, as the spec does.
"""

import re
from collections.abc import Sequence
from typing import Any

from lemur_core.similarity.text import tokens_of

#: Tokens in a row that would be a passage of the source.
LIMIT = 8

#: What identifies a block: said elsewhere too, also in the source's own comments, and no design.
IDENTITY = frozenset(
    {"block", "name", "source", "path", "start_line", "end_line", "swhid", "license", "code_sha256", "file"}
)

_HEADER = re.compile(r"(?:#[^\n]*\n)*")
_STEP = LIMIT // 2


def source_of(code: str) -> str:
    """A closed file without the comment lines that it begins with."""
    return code[_HEADER.match(code).end() :]  # type: ignore[union-attr]


def repeated(text: str, source: Sequence[str], limit: int = LIMIT) -> list[str] | None:
    """The first `limit` tokens in a row that a text has in common with a source's tokens; None when there are none."""
    tokens = tokens_of(text)
    step = max(1, limit // 2)
    width = limit - step + 1  # of `limit` tokens in a row, these begin at a multiple of `step`
    starts = {tuple(tokens[place : place + width]) for place in range(len(tokens) - width + 1)}
    hits = [
        place for place in range(0, len(source) - width + 1, step) if tuple(source[place : place + width]) in starts
    ]
    if not hits:
        return None
    whole = {tuple(tokens[place : place + limit]) for place in range(len(tokens) - limit + 1)}
    for hit in hits:
        for place in range(max(0, hit - step + 1), hit + 1):
            run = tuple(source[place : place + limit])
            if len(run) == limit and run in whole:
                return list(run)
    return None


def design_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of a spec that must not repeat its source."""
    return {name: value for name, value in facts.items() if name not in IDENTITY}
