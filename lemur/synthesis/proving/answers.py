"""Parse a model's answer to code: a fenced file, or a delta to the network that it was shown."""

import re
from textwrap import dedent

_FENCE = re.compile(
    r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\2[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_CHANGE = re.compile(
    r"^<{5,9} ?SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE[ \t]*$", re.DOTALL | re.MULTILINE
)
_THOUGHT_ENDS = re.compile(r"</think(?:ing)?>")  # many chat templates open the thought themselves
_THOUGHT_BEGINS = re.compile(r"\s*<think(?:ing)?>")


class AnswerError(Exception):
    """The reason why an answer has no code."""


def code_in(answer: str) -> str:
    """Return the file in an answer: the longest Python fence, or the whole answer if there is none.

    Raises: AnswerError if it is empty.
    """
    text = _without_thoughts(answer)
    fences = [
        dedent(match[4]) if match[1] else match[4]
        for match in _FENCE.finditer(text)
        if match[3].lower() in ("", "py", "python", "python3")
    ]
    code = max(fences, key=lambda body: ("class Net" in body, len(body)), default=text)
    if not code.strip():
        raise AnswerError("the answer holds no code; answer with one fence ```python … ```")
    return code.strip("\n") + "\n"


def apply_changes(parent: str, answer: str) -> str:
    """Apply the changes of an answer to a network; each must match exactly once; lines end with `\\n`.

    Raises: AnswerError if there are no changes, or one does not match.
    """
    changes = _CHANGE.findall(_without_thoughts(answer))
    if not changes:
        raise AnswerError("the answer holds no change; write <<<<<<< SEARCH … ======= … >>>>>>> REPLACE")
    original = text = _lines(parent).rstrip("\n") + "\n"
    for number, (old, new) in enumerate(changes, start=1):
        count = sum(text.startswith(old, at) for at in range(len(text))) if old else 0
        if count != 1:
            first = next((line.strip() for line in old.splitlines() if line.strip()), "nothing")
            fault = "is not in the file" if count == 0 else f"stands {count} times in the file"
            raise AnswerError(f"change {number}: its SEARCH text, which begins {first[:80]!r}, {fault}")
        text = text.replace(old, new)
    if text == original:
        raise AnswerError("the changes leave the file as it is")
    return text


def _without_thoughts(answer: str) -> str:
    final = _THOUGHT_ENDS.split(_lines(answer))[-1]
    return "" if _THOUGHT_BEGINS.match(final) else final


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
