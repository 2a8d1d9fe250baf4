"""HTML page of an extraction: the level that its blocks reached, and the library of blocks with how each runs.

The page contains nothing that must not be redistributed: code and graphs of blocks whose license is not known to
allow it stay in the files of the folder, which the page lists.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.chat.build import extraction_chat_card
from extract.folder.report import END, overview
from extract.specs.make import read_observed
from extract.specs.printed import print_call
from lemur_core.describe.picture import Box, boxes
from lemur_core.files.markdown import code_span, count, plural
from lemur_core.graphs.serialization import deserialize
from lemur_core.graphs.symbolic import evaluate_graph
from manifests.conversations import read_chat
from manifests.folders.cards import Card
from manifests.folders.frame import (
    Entry,
    EntryLibrary,
    Page,
    View,
    code,
    facts,
    graph,
    link,
    note,
    operations,
    table,
)
from manifests.folders.kinds import EXTRACTION, lines_text
from manifests.folders.manifest import Manifest
from manifests.provenance import SPECS, TABLE, get_minimized_path, without_source
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.provenance.parts import find_blocked_blocks, read_parts
from manifests.records import SPEC_CHAT_KINDS, SPLITS, Block, Observed

#: Maximum number of boxes with one operation each.
_BOXES = 40
#: The summary of a block, the operations of its graph, and the graph as boxes.
_Described = tuple[str, Sequence[str], Sequence[Box]]
#: Columns that are counted and listed; the others are read when the entries are written.
_LISTED = (
    *("block", "name", "source", "category", "level", "error_kind", "license", "fidelity", "n_lines", "lean_lines"),
    *("quality", "observed"),
)
_OPENED = (
    *("qualname", "path", "start_line", "end_line", "error", "requires", "swhid", "file", "arguments", "dynamic"),
    *("lean_code", "lean_license", "lean_requires", "lean_error"),
)


def extraction_page(folder: Path, manifest: Manifest) -> Page:
    """Return the page of an extraction, from its table and specs; code is read when the page is written."""
    rows = list(EXTRACTION.rows(folder, Block, _LISTED))
    library = EntryLibrary(
        title="Library",
        noun="blocks",
        facets=("level", "category", "source", "license", "fidelity"),
        numbers=("parameters", "lines", "lean lines", "quality"),
        entries=[_entry(row) for row in rows],
        views=_views(folder),
        total=len(rows),
        elsewhere=TABLE,
    )
    versions = manifest.versions
    about = [
        ("licenses", ", ".join(f"{name} {count(n)}" for name, n in manifest.counts["licenses"].items())),
        ("created with", f"lemur-curator {versions.get('lemur-curator')}, torch {versions.get('torch', '–')}"),
        ("in words", [link("report.md", "report.md"), link("manifest.json", "manifest.json")]),
    ]
    page = overview(folder, manifest)
    return replace(page, views=[facts("Overview", about), *page.views], library=library)


# -- blocks -------------------------------------------------------------------------------------------------------


def _entry(row: Block) -> Entry:
    seen = read_observed(row)
    return Entry(
        name=row.name,
        note=row.block,
        facets=(row.level, row.category, row.source, row.license, row.fidelity or "not compared"),
        numbers=(None if seen is None else seen.parameters, row.n_lines, row.lean_lines, row.quality),
    )


def _views(folder: Path) -> Iterator[list[View]]:
    withheld = find_blocked_blocks(folder, read_parts(folder))
    specs = _specs(folder, withheld)
    for row in EXTRACTION.rows(folder, Block, (*_LISTED, *_OPENED)):
        yield _detail_views(row, *specs.get(row.block, ("", [], [])), withheld=row.block in withheld)


def _specs(folder: Path, withheld: Collection[str]) -> dict[str, _Described]:
    """Return summary, operations and graph of each spec; none shows how a withheld block computes its outputs."""
    specs: dict[str, _Described] = {}
    with (folder / SPECS).open(encoding="utf-8") as lines:
        for line in lines:
            spec = json.loads(line)
            algorithm, summary = spec.get("algorithm"), spec["summary"]
            described: list[str] = []
            drawn: list[Box] = []
            if algorithm is not None and spec["block"] not in withheld:
                described = algorithm["operations"]
                try:
                    drawn = boxes(evaluate_graph(deserialize(algorithm["eval"], algorithm["sizes"])), _BOXES)
                except (ValueError, LookupError, TypeError):  # written by another release
                    drawn = []
            specs[spec["block"]] = (summary, described, drawn)
    return specs


def _detail_views(
    row: Block, summary: str, described: Sequence[str], drawn: Sequence[Box], *, withheld: bool
) -> list[View]:
    seen, lines, minimized = read_observed(row), print_call(row, row.lean_code), row.lean_code
    views = [facts("Block", _facts(row, seen, summary, withheld=withheld))]
    if lines:
        views.append(code("How it runs", "\n".join(lines)))
    if seen is not None and seen.cases:
        cases = []
        for case in seen.cases:
            inputs = "; ".join(f"{name} {shape}" for name, shape in case.inputs.items())
            cases.append([inputs, "; ".join(case.outputs) or "no tensor"])
        views.append(table("Shapes", ["in", "out"], cases))
    if described:
        views.append(operations("What it computes", described, "From its graph, without names of its source."))
    if drawn:
        views.append(graph("Graph", drawn))
    if minimized is not None and not withheld and is_permissive(row.lean_license or NOASSERTION):
        views.append(code("Lean code", minimized, get_minimized_path(row.file or "")))
    elif row.file is not None:
        why = "its license is not known to permit redistribution" if minimized is not None else "there is no lean form"
        views.append(note("Code", f"It is not shown here: {why}. The files are linked above."))
    return views


def _facts(row: Block, seen: Observed | None, summary: str, *, withheld: bool) -> list[tuple[str, Any]]:
    use = " (not known to be permissive: for local use)" if withheld or not is_permissive(row.license) else ""
    stopped = None if row.error_kind is None else f"{row.error_kind}: {without_source(row.error or '')}"
    names = [(row.file, row.n_lines)] if row.file else []
    if row.file and row.lean_code is not None:
        names.append((get_minimized_path(row.file), row.lean_lines))
    files = [link(f"{name} ({plural(lines or 0, 'line')})", name) for name, lines in names]
    return [
        ("summary", summary),
        ("level", row.level),
        ("stopped", stopped),
        ("from", f"{row.source}, {row.path}, lines {lines_text(row.start_line, row.end_line)}"),
        ("license", f"{row.license}{use}"),
        ("fidelity", row.fidelity and f"{row.fidelity} with the class of the installed package"),
        ("requires", ", ".join(row.requires)),
        ("parameters", None if seen is None else count(seen.parameters)),
        ("layers", seen and ", ".join(f"{layer} {count(n)}" for layer, n in seen.layers.items())),
        ("dynamic", (row.dynamic or "").splitlines()),
        ("lean form", None if not row.lean_error else f"none: {without_source(row.lean_error)}"),
        ("files", files),
        ("swhid", row.swhid),
    ]


def extraction_card(folder: Path, manifest: Manifest) -> Card:
    """Return the content of the dataset card of an extraction, from its tables and its manifest."""
    counts, sources = manifest.counts, manifest.details["sources"]
    lines = ["The code of each block is under the license of its source."]
    if taken := [source for source in sources if source.get("instead_of")]:
        names = ", ".join(f"{code_span(source['name'])} ({code_span(source['instead_of'])})" for source in taken)
        lines += ["", f"Releases in the place of sources that could not be reached: {names}."]
    if "chat" in counts:
        lines += ["", *extraction_chat_card(read_chat(folder, "block", SPEC_CHAT_KINDS))]
    specs = sum(counts["specs"][split] for split in SPLITS)
    return Card(
        name="Extracted PyTorch blocks",
        description=f"{plural(counts['blocks'], 'PyTorch module')} as closed files where they could be closed, and"
        f" {plural(specs, 'neutral spec')} of them: what each module is and does, as facts that were read or"
        " measured, never text of its source. Related blocks are in one split.",
        licenses=sorted({source["license"] for source in sources}),
        text="\n".join(lines),
        sources=[(source["name"], source["swhid"]) for source in sources],
    )


FACED = replace(EXTRACTION, overview=overview, ending=END, card=extraction_card, page=extraction_page)
