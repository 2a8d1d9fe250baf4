"""`report.md` of a folder: what came out in one paragraph, then a table for each stage, and failures by reason.

All numbers are those of the manifest and of the tables; figures are on the page.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import code_span, count, percent, plain, table

#: Rows of a table; the rest is folded into one.
LONGEST = 20


def write_report(
    folder: Path, title: str, result: str, notes: Sequence[str], sections: Iterable[Sequence[str]], end: str
) -> None:
    """Write `report.md`; the same contents give the same bytes.

    Args: title: plain text. result, end: Markdown, the first and the last paragraph. notes: what could not be done.
        sections: their lines; one without lines has nothing to say.
    """
    lines = [f"# {plain(title)}", "", result, ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    lines += [line for section in sections for line in section]
    write_text(folder / "report.md", "\n".join([*lines, end]) + "\n")


def section(title: str, *parts: str | Sequence[str]) -> list[str]:
    """Return the lines of a section; none if all is empty. Args: parts: paragraphs, and tables as their lines."""
    filled = [[part, ""] if isinstance(part, str) else part for part in parts if part]
    return [f"## {title}", "", *(line for part in filled for line in part)] if filled else []


def listing(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, intro: str = "") -> list[str]:
    """Return the lines of a table below its introduction; none without rows. Args: left: columns aligned left."""
    return [*([intro, ""] if intro else []), *table(heads, rows, left)] if rows else []


def fold(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return rows with those beyond the longest table folded into one that counts them."""
    more = len(rows) - LONGEST
    return [*rows[:LONGEST], *([[f"{count(more)} others", *[""] * (len(rows[0]) - 1)]] if more > 0 else [])]


def count_shares(counts: Mapping[str, int], whole: int) -> list[list[str]]:
    """Return a row for each name, most first: the name, its number, and its share of the whole."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [[code_span(name), count(number), percent(number, whole)] for name, number in ranked]
