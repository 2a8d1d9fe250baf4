"""Markdown in which any name or line of code is shown literally and breaks nothing around it."""

import math
import re
from collections.abc import Sequence

_TICKS = re.compile("`+")
_ODD = re.compile(r"[`|\\]")  # not safe in inline code everywhere, least of all in a table


def count(number: int) -> str:
    """Format `1234` as `1,234`."""
    return f"{number:,}"


def percent(part: float, whole: float) -> str:
    """Format `part / whole` with one decimal; a dash if `whole` is 0; 0 and 100 only for exact values."""
    if not whole:
        return "–"
    value = 100 * part / whole
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if value >= 99.95 else f"{value:.1f} %"


def ratio(value: float) -> str:
    """Format a similarity with three decimals, rounded down, so that 1.000 means equal."""
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Format `1 record`, `2 records`, `1 family`, `2 families`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def article(noun: str) -> str:
    """Prefix the article: `a snapshot`, `an extraction`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def shown(text: str, limit: int = 0) -> str:
    """Return the text with unprintable characters escaped, cut to `limit` characters unless it is 0."""
    visible = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text)
    return visible if not limit or len(visible) <= limit else f"{visible[:limit]} …"


def code_span(text: str, limit: int = 80) -> str:
    """Format any text as inline code that is safe inside and outside of tables."""
    text = shown(text, limit).replace("\t", " ")
    if not text.strip():
        return "(no name)"
    if _ODD.search(text) or text != text.strip():
        entities = "".join(f"&#{ord(char)};" if not char.isalnum() and char not in "-. " else char for char in text)
        return f"<code>{entities}</code>"
    return f"`{text}`"


def plain(text: str) -> str:
    """Escape any text as plain text that is safe inside and outside of tables."""
    text = re.sub(r"([\\`*_\[\]<>#~$&])", r"\\\1", shown(text).replace("\t", " "))
    return text.replace("|", "&#124;")


def block(lines: Sequence[str], language: str) -> list[str]:
    """Format lines as a fenced block that none of them can close."""
    longest = max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence, ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Format a table; the first `left` columns are left-aligned, the others right. Cells are Markdown already."""
    rule = [":--" if index < left else "--:" for index in range(len(head))]
    return [*(f"| {' | '.join(line)} |" for line in (head, rule, *rows)), ""]
