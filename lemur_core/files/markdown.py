"""Markdown, safely: whatever a name or a line of code contains, it is shown as it is and breaks nothing around it."""

import math
import re
from collections.abc import Sequence

_TICKS = re.compile("`+")
_ODD = re.compile(r"[`|\\]")  # these cannot stand in inline code everywhere, least of all in a table


def count(number: int) -> str:
    """`1234` as `1,234`."""
    return f"{number:,}"


def percent(part: float, whole: float) -> str:
    """`part / whole` with one decimal; a dash when there is no whole, and never 0 or 100 unless it is exactly so."""
    if not whole:
        return "–"
    value = 100 * part / whole
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if value >= 99.95 else f"{value:.1f} %"


def ratio(value: float) -> str:
    """A similarity with three decimals, rounded down, so that 1.000 means equal."""
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 record`, `2 records`, `1 family`, `2 families`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def article(noun: str) -> str:
    """`a snapshot`, `an extraction`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def shown(text: str, limit: int = 0) -> str:
    """The text with what cannot be seen spelled out, cut at `limit` characters when one is given."""
    visible = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text)
    return visible if not limit or len(visible) <= limit else f"{visible[:limit]} …"


def code_span(text: str, limit: int = 80) -> str:
    """The text as inline code, in a table or out of it, whatever it holds."""
    text = shown(text, limit).replace("\t", " ")
    if not text.strip():
        return "(no name)"
    if _ODD.search(text) or text != text.strip():
        entities = "".join(f"&#{ord(char)};" if not char.isalnum() and char not in "-. " else char for char in text)
        return f"<code>{entities}</code>"
    return f"`{text}`"


def plain(text: str) -> str:
    """The text as running text, in a table or out of it, without meaning to Markdown or HTML."""
    text = re.sub(r"([\\`*_\[\]<>#~$&])", r"\\\1", shown(text).replace("\t", " "))
    return text.replace("|", "&#124;")


def block(lines: Sequence[str], language: str) -> list[str]:
    """Lines as a fenced block that none of them can close."""
    longest = max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence, ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table; the first `left` columns are flush left, the others right. Cells are Markdown already."""
    rule = [":--" if place < left else "--:" for place in range(len(head))]
    return [*(f"| {' | '.join(line)} |" for line in (head, rule, *rows)), ""]
