"""What `lemur extract` prints when it is done."""

from pathlib import Path

from lemur_core.files.markdown import count, percent, plural, shown
from manifests.manifest import Manifest
from manifests.records import LEVELS

#: Notes that are printed; the manifest has all of them.
_NOTES = 10


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
