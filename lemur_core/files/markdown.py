"""Markdown in which any name or line of code appears literally and cannot break the text around it."""

import math
import re
from collections.abc import Sequence

_TICKS = re.compile("`+")
_ODD = re.compile(r"[`|\\]")  # not safe in inline code everywhere, least of all in a table


def count(number: int) -> str:
    """Format a number with separators.

    Args: number: such as 1234.
    Returns: such as `1,234`.
    """
    return f"{number:,}"


def percent(part: float, whole: float) -> str:
    """Format a share as percent.

    Args: part: from 0 to `whole`. whole: 0 or more.
    Returns: one decimal; 0 and 100 only for exact values, else `< 0.1 %` or `> 99.9 %`; a dash if `whole` is 0.
    """
    if not whole:
        return "–"
    value = 100 * part / whole
    if value in (0, 100):
        return f"{value:.0f} %"
    # Rounded to 0.0 or 100.0, these would look exact.
    if value < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if value >= 99.95 else f"{value:.1f} %"


def ratio(value: float) -> str:
    """Format a similarity.

    Args: value: 0 to 1.
    Returns: three decimals, rounded down, so that 1.000 means equal.
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def plural(number: int, singular: str, many: str | None = None) -> str:
    """Format a number with its noun: `1 record`, `2 records`, `1 family`, `2 families`.

    Args: many: the plural; by default the singular with an s.
    Returns: the number, with separators, and the noun.
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def article(noun: str) -> str:
    """Prefix the indefinite article: `a snapshot`, `an extraction`.

    Args: noun: a word whose first letter decides, unlike that of `hour` or `unit`.
    Returns: both words.
    """
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8.

    Args: text: a text of any origin; file names that are not UTF-8 contain lone surrogates.
    Returns: False if the text contains a lone surrogate.
    """
    return not any("\ud800" <= char <= "\udfff" for char in text)


def make_visible(text: str, limit: int = 0) -> str:
    """Escape the unprintable characters of a text.

    Args: limit: characters to keep, after escaping; 0 for all.
    Returns: one line, in which tabs remain; ` …` at the end if it was cut.
    """
    visible = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text)
    return visible if not limit or len(visible) <= limit else f"{visible[:limit]} …"


#: What no name, path or license holds: control characters, and what some readers take for the end of a line.
CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_CONTROL = re.compile(f"[{CONTROLS}]")


def escape_controls(text: str) -> str:
    """Return one line: as the text, but for escapes instead of control characters and line breaks of any kind."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def code_span(text: str, limit: int = 80) -> str:
    """Format any text as inline code that is safe inside and outside of tables.

    Args: limit: characters to keep; 0 for all.
    Returns: the text in backticks; a `<code>` element where backticks would not be safe; `(no name)` for a blank text.
    """
    text = make_visible(text, limit).replace("\t", " ")
    if not text.strip():
        return "(no name)"
    if _ODD.search(text) or text != text.strip():
        entities = "".join(f"&#{ord(char)};" if not char.isalnum() and char not in "-. " else char for char in text)
        return f"<code>{entities}</code>"
    return f"`{text}`"


def plain(text: str) -> str:
    """Escape any text as plain text.

    Args: text: a foreign text, such as the name of a family.
    Returns: Markdown that is safe inside and outside of tables, on one line.
    """
    text = re.sub(r"([\\`*_\[\]<>#~$&])", r"\\\1", make_visible(text).replace("\t", " "))
    return text.replace("|", "&#124;")


def block(lines: Sequence[str], language: str) -> list[str]:
    """Format lines as a fenced block that none of them can close.

    Args: lines: any text, without line endings. language: for highlighting; empty for none.
    Returns: the lines of Markdown, and an empty one.
    """
    longest = max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence, ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Format a table.

    Args:
        head: the titles of the columns, as Markdown.
        rows: cells as Markdown, one per column.
        left: the number of columns, from the first, that are left-aligned; the others are right-aligned.
    Returns: the lines of Markdown, and an empty one.
    """
    rule = [":--" if index < left else "--:" for index in range(len(head))]
    return [*(f"| {' | '.join(line)} |" for line in (head, rule, *rows)), ""]
