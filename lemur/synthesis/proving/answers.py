"""Parse a model's answer to code: a fenced file, or a delta to the network that it was shown."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from textwrap import dedent

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)")
_SEARCH, _CHANGED, _REPLACE = (
    re.compile(pattern) for pattern in (r"<{5,9} ?SEARCH[ \t]*", r"={5,9}[ \t]*", r">{5,9} ?REPLACE[ \t]*")
)
_THOUGHT_ENDS = re.compile(r"</think(?:ing)?>")  # many chat templates open the thought themselves
_THOUGHT_BEGINS = re.compile(r"\s*<think(?:ing)?>")


_MAX_CODE = 1 << 18  # characters; the longest network of LEMUR 2.1.0 has 178,375


class AnswerError(Exception):
    """The reason why an answer has no code."""


def code_in(answer: str) -> str:
    """Return the file in an answer: the longest Python fence, or the whole answer if there is none.

    Raises: AnswerError if it is empty.
    """
    text = _without_thoughts(answer)
    fences = [body for language, body in _fences(text) if language.lower() in ("", "py", "python", "python3")]
    code = max(fences, key=lambda body: ("class Net" in body, len(body)), default=text)
    if not code.strip():
        raise AnswerError("the answer holds no code; answer with one fence ```python … ```")
    if len(code) > _MAX_CODE:
        raise AnswerError(f"the file has {len(code):,} characters; at most {_MAX_CODE:,} are read")
    return code.strip("\n") + "\n"


def apply_changes(parent: str, answer: str) -> str:
    """Apply the changes of an answer to a network; each must match exactly once; lines end with `\\n`.

    Raises: AnswerError if there are no changes, or one does not match.
    """
    changes = list(_changes(_without_thoughts(answer)))
    if not changes:
        raise AnswerError("the answer holds no change; write <<<<<<< SEARCH … ======= … >>>>>>> REPLACE")
    original = text = _lines(parent).rstrip("\n") + "\n"
    for number, (old, new) in enumerate(changes, start=1):
        count = _count(old, text) if old else 0
        if count != 1:
            first = next((line.strip() for line in old.splitlines() if line.strip()), "nothing")
            fault = "is not in the file" if count == 0 else f"stands {count} times in the file"
            raise AnswerError(f"change {number}: its SEARCH text, which begins {first[:80]!r}, {fault}")
        text = text.replace(old, new)
    if text == original:
        raise AnswerError("the changes leave the file as it is")
    return text


# Both read line by line: one regular expression for a block takes hours for an answer of nothing but its first signs.


def _fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the body of each fence; the end of the text closes the last one."""
    lines = iter(text.split("\n"))
    for line in lines:
        if opened := _FENCE.match(line):
            body = list(takewhile(partial(_is_inside, opened[2]), lines))
            code = "".join(f"{inner}\n" for inner in body)
            yield opened[3], dedent(code) if opened[1] else code


def _is_inside(fence: str, line: str) -> bool:
    return line.strip(" \t") != fence


def _changes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new lines of each complete change."""
    parts: list[list[str]] = []
    for line in text.split("\n"):
        if not parts:
            parts = [[]] if _SEARCH.fullmatch(line) else []
        elif len(parts) == 1 and _CHANGED.fullmatch(line):
            parts.append([])
        elif len(parts) == 2 and _REPLACE.fullmatch(line):
            old, new = ("".join(f"{one}\n" for one in lines) for lines in parts)
            yield old, new
            parts = []
        else:
            parts[-1].append(line)


def _count(part: str, text: str) -> int:
    """Count the places where a part begins, also those that overlap."""
    count, place = 0, text.find(part)
    while place >= 0:
        count, place = count + 1, text.find(part, place + 1)
    return count


def _without_thoughts(answer: str) -> str:
    final = _THOUGHT_ENDS.split(_lines(answer))[-1]
    return "" if _THOUGHT_BEGINS.match(final) else final


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
