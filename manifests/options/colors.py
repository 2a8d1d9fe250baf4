"""Colors of what is printed on a terminal: outcomes of checks, and differences of codes. `NO_COLOR` turns them off."""

import os
import re
import sys
from typing import TextIO

_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold red": "1;31"}
_OUTCOMES = {"ok": "green", "pass": "green", "note": "yellow", "FAIL": "red"}
_OUTCOME = re.compile(rf"^({'|'.join(_OUTCOMES)})(?= )", re.MULTILINE)
_CHANGES = {"+": "green", "-": "red", "@": "cyan"}


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """Return the text in a color if the stream is a terminal that shows colors.

    Args: color: `red`, `green`, `yellow`, `cyan` or `bold red`; stream: default: stdout.
    Returns: the text, between escape sequences or as it is.
    """
    shown = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    return f"\033[{_CODES[color]}m{text}\033[0m" if shown and not os.environ.get("NO_COLOR") else text


def paint_outcomes(text: str) -> str:
    """Return lines that begin with `ok`, `pass`, `note` or `FAIL`, with that word in color on a terminal.

    Args: text: lines for stdout.
    Returns: the same lines.
    """
    return _OUTCOME.sub(lambda word: paint(word[0], _OUTCOMES[word[0]]), text)


def paint_changes(text: str) -> str:
    """Return text that ends with a unified difference, with the changes in color on a terminal.

    Args: text: lines for stdout, with at most one difference.
    Returns: the same lines.
    """
    before, header, changes = text.partition("\n--- ")
    lines = f"{header[1:]}{changes}".split("\n") if header else []
    return "\n".join([before, *(paint(line, _CHANGES[line[0]]) if line[:1] in _CHANGES else line for line in lines)])
