"""The functions behind the commands of curation: typed options in, the text to print out.

The package loads this module when a command runs: `--help` must not wait for the tables and the networks.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from curate.compute.outcome import STAGES
from curate.folder.novelty import NovelFiles
from curate.folder.novelty import novel as novel  # as it is: the command reads its result
from curate.model.records import list_first
from lemur_core.files import Json
from lemur_core.files.markdown import plural
from manifests.folders.manifest import Manifest


def novelty_text(novelty: NovelFiles, *, as_json: bool) -> str:
    """Return the output of `lemur novel`."""
    return json.dumps(novelty.facts, indent=2) if as_json else "\n".join(novelty.lines)


def summary_text(out: Path, manifest: Manifest, *, as_json: bool) -> str:
    """Return the summary of a finished snapshot: one line for each stage that removed rows, and what is kept."""
    if not as_json:
        return "\n".join(_summary_lines(out, manifest))
    facts: Json = manifest.model_dump(include={"kind", "parameters", "counts", "details", "measured"})
    return json.dumps({"out": str(out), **facts})


def _summary_lines(out: Path, manifest: Manifest) -> Iterator[str]:
    counts, rows = manifest.counts, manifest.counts["rows"]
    unusable = f"; {plural(rows['invalid'], 'row')} without usable code" if rows["invalid"] else ""
    codes, networks = plural(counts["codes"], "distinct code"), plural(counts["networks"], "network")
    yield f"{codes} of {networks}, in {plural(rows['input'], 'row')}{unusable}"
    for stage, number in counts["stages"].items():
        splits = ", ".join(f"{number:,} {split}" for split, number in counts["splits"].items())
        yield f"  {stage:<10} {number:>9,}  {STAGES.get(stage, splits)}"
    if "graphs" in counts:
        graphs = counts["graphs"]
        text = f"of the kept traced, each a graph of its own; {graphs['distinct_up_to_widths']:,} up to widths"
        yield f"  {'graphs':<10} {graphs['kept']:>9,}  {text}"
    else:
        yield f"  {'graphs':<10} {'-':>9}  not compared: two of the kept may compute the same"
    if (previous := manifest.details.get("previous")) is not None:
        gone = list_first([f"{item['nn']} ({item['reason']})" for item in previous["gone"]])
        near = f"; {len(inherited):,} near or equal to another" if (inherited := manifest.details["inherited"]) else ""
        text = f"stay kept, in their splits{near}; gone: {gone or 'none'}"
        yield f"  {'previous':<10} {previous['kept']:>9,}  {text}"
    if "origins" in counts:
        kept_origins = counts["origins"]["kept"]
        licenses = ", ".join(f"{count:,} {name}" for name, count in kept_origins["licenses"].items())
        yield f"  {'origins':<10} {kept_origins['codes']:>9,}  of the kept are from a repository: {licenses or 'none'}"
    if "chat" in counts:
        chat = counts["chat"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in chat["kinds"].items())
        yield f"  {'chat':<10} {chat['rows']:>9,}  conversations: {kinds}; {chat['dropped']:,} not made"
    for note in manifest.details.get("notes", ()):
        yield f"  note: {note}"
    measured = manifest.measured
    yield f"{out}: {measured.seconds:.1f} s, {measured.peak_memory_bytes / 2**20:,.0f} MiB; see report.md"
