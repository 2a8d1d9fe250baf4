"""Markdown, safely: whatever a name or a message contains, it is shown as it is and breaks nothing around it."""

import re
from collections.abc import Sequence
from pathlib import Path

from manifests.manifest import Manifest
from manifests.records import LEVELS

_ODD = re.compile(r"[`|\\]")  # these cannot stand in inline code everywhere, least of all in a table
_NOTES = 10


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


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 class`, `2 classes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table; the first `left` columns are flush left, the others right. Cells are Markdown already."""
    rule = [":--" if place < left else "--:" for place in range(len(head))]
    return [*(f"| {' | '.join(line)} |" for line in (head, rule, *rows)), ""]


def summary_text(manifest: Manifest, out: Path) -> str:
    """What the command prints when it is done: how far the classes came, why some stopped, what was left out."""
    counts, level = manifest.counts, manifest.parameters["level"]
    whole = counts["blocks"]
    lines = [f"{plural(whole, 'class', 'classes')} of {plural(len(counts['sources']), 'source')}"]
    ladder = [(rung, counts["reached"][rung]) for rung in LEVELS[1 : LEVELS.index(level) + 1]]
    lines += [f"  {rung:<12} {count(number):>8}  {percent(number, whole)}" for rung, number in ladder]
    if counts["failures"]:
        lines.append("  came no further:")
        lines += [f"    {count(number):>8}  {shown(kind)}" for kind, number in counts["failures"].items()]
    if "targets" in counts:
        found = counts["targets"]
        lines.append(f"  {count(found['found'])} of {plural(found['names'], 'name')} found")
    lines += [f"  left out: {shown(name)}: {shown(why)}" for name, why in manifest.details["unopened"].items()]
    notes = manifest.details["notes"]
    lines += [f"  note: {shown(note)}" for note in notes[:_NOTES]]
    if len(notes) > _NOTES:
        lines.append(f"  and {plural(len(notes) - _NOTES, 'further note')} in manifest.json")
    measured = manifest.measured
    memory = measured.peak_memory_bytes / 2**20
    return "\n".join([*lines, f"{out}: {measured.seconds:.1f} s, {memory:,.0f} MiB; see report.md"])
