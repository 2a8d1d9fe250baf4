"""`report.md` of a folder: the views at the top of its page as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import count, make_visible, percent, plain, table
from manifests.folders import frame

#: Rows of a table; the rest is folded into one.
LONGEST = 20
_CELL = 200  # characters


def write_report(folder: Path, page: frame.Page, notes: Sequence[str], end: str) -> None:
    """Write `report.md`; the same contents give the same bytes.

    Args: page: its title, lead and views, of facts, tables and bars. notes: what could not be done. end: Markdown.
    """
    lines = [f"# {plain(page.title)}", "", f"**{plain(page.lead)}**", ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    for view in page.views:
        intro = view.get("intro")
        lines += [f"## {view['title']}", "", *([intro, ""] if intro else []), *_render(view)]
    write_text(folder / "report.md", "\n".join([*lines, end]) + "\n")


def _render(view: frame.View) -> list[str]:
    if view["view"] == "facts":
        return [*(f"- {plain(label)}: {_cell(value)}" for label, value in view["rows"]), ""]
    if view["view"] == "bars":
        return table(["", ""], [[_cell(label), text] for label, _, _, text in view["rows"]])
    rows = view["rows"]
    texts = [any(isinstance(row[at], str) for row in rows) for at in range(len(view["head"]))]
    left = texts.index(False) if False in texts else len(texts)
    return table(list(map(plain, view["head"])), [list(map(_cell, row)) for row in rows], left)


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    return "–" if value is None else plain(make_visible(str(value), _CELL))


def fold(rows: Sequence[Sequence[frame.Cell]]) -> list[Sequence[frame.Cell]]:
    """Return rows with those beyond the longest table folded into one that counts them."""
    more = len(rows) - LONGEST
    return [*rows[:LONGEST], *([[f"{count(more)} others", *[""] * (len(rows[0]) - 1)]] if more > 0 else [])]


def settings(parameters: Mapping[str, object]) -> frame.View:
    """Return all parameters of a manifest that have a value."""
    return frame.facts("Settings", [(name.replace("_", " "), _setting(value)) for name, value in parameters.items()])


def _setting(value: object) -> str | None:
    if isinstance(value, list | tuple):
        return ", ".join(":".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return None if value is None or value is False else "yes" if value is True else str(value)


def shares(title: str, heads: tuple[str, str], counts: Mapping[str, int], whole: int, intro: str = "") -> frame.View:
    """Return a table of names, most first: each with its number, and its share of the whole."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows: list[list[frame.Cell]] = [[name, number, percent(number, whole)] for name, number in ranked]
    return frame.table(title, [*heads, "%"], fold(rows), intro)
