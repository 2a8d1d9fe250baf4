"""HTML page of an extraction: the level that its blocks reached, and the library of blocks with how each runs.

The page contains nothing that must not be redistributed: code and graphs of blocks whose license is not known to
allow it stay in the files of the folder, which the page lists.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from extract.model.results import at_least, count_reached, sort_by_size
from extract.specs.make import read_observed
from extract.specs.printed import print_call
from lemur_core.describe.picture import Box, boxes
from lemur_core.files.markdown import count, percent, plural
from lemur_core.graphs.serialization import deserialize
from lemur_core.graphs.symbolic import evaluate_graph
from manifests.folders.frame import (
    Cell,
    Entry,
    EntryLibrary,
    Page,
    View,
    bars,
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
from manifests.records import LEVELS, Block, Observed

_LARGEST = 15
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
    number, ran = len(rows), sum(at_least(row.level, "executed") for row in rows)
    learn = sum(row.level == "backward" for row in rows)
    corpus = manifest.parameters.get("corpus")
    views = [
        facts("Overview", _overview(manifest, rows)),
        _level_view(rows),
        _sources(rows),
        _commonest("By category", rows, "category", "Classes by purpose: by name, not proven."),
        _commonest("Why they stopped", [row for row in rows if row.error_kind], "error_kind", "Classes by failure."),
    ]
    library = EntryLibrary(
        title="Library",
        noun="blocks",
        facets=("level", "category", "source", "license", "fidelity"),
        numbers=("parameters", "lines", "lean lines", "quality"),
        entries=[_entry(row) for row in rows],
        views=_views(folder),
        total=number,
        elsewhere=TABLE,
    )
    lead = (
        f"{plural(number, 'class', 'classes')} of {plural(len({row.source for row in rows}), 'source')}:"
        f" {count(ran)} execute as closed files ({percent(ran, number)}), {count(learn)} are seen to learn."
    )
    title = f"Blocks of the corpus {corpus}" if corpus else "Extracted PyTorch blocks"
    return Page(title, "extraction", lead, [view for view in views if view["rows"]], library)


def _overview(manifest: Manifest, rows: Sequence[Block]) -> list[tuple[str, Any]]:
    outcomes = Counter(row.fidelity for row in rows)
    compared = outcomes["match"] + outcomes["mismatch"]
    versions = manifest.versions
    return [
        ("classes", count(len(rows))),
        ("same as the original", f"{count(outcomes['match'])} of {count(compared)} compared" if compared else None),
        ("licenses", ", ".join(f"{name} {count(n)}" for name, n in Counter(r.license for r in rows).most_common(6))),
        ("created with", f"lemur-curator {versions.get('lemur-curator')}, torch {versions.get('torch', '–')}"),
        ("in words", [link("report.md", "report.md"), link("manifest.json", "manifest.json")]),
    ]


def _level_view(rows: Sequence[Block]) -> View:
    counts = count_reached(Counter[str](row.level for row in rows))
    lines = [
        (level, float(counts[level]), float(len(rows)), f"{count(counts[level])} ({percent(counts[level], len(rows))})")
        for level in LEVELS
    ]
    return bars("Levels reached", lines, "Classes that reached at least this level.", ("reached", "not reached"))


def _sources(rows: Sequence[Block]) -> View:
    levels: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        levels.setdefault((row.source, row.license), Counter())[row.level] += 1
    lines: list[list[Cell]] = []
    for (source, expression), counter in sorted(levels.items(), key=lambda item: (-item[1].total(), item[0])):
        counts = count_reached(counter)
        share = percent(counts["executed"], counter.total())
        lines.append([source, expression, counter.total(), counts["executed"], share, counts["backward"]])
    return table("By source", ["source", "license", "classes", "execute", "share", "learn"], lines)


def _commonest(title: str, rows: Sequence[Block], column: str, intro: str) -> View:
    all_of = Counter(getattr(row, column) for row in rows)
    ran = Counter(getattr(row, column) for row in rows if at_least(row.level, "executed"))
    lines = []
    for name, number in list(sort_by_size(all_of).items())[:_LARGEST]:
        dark, shown = ran[name], f"{count(ran[name])} of {count(number)}"
        if column == "error_kind":
            dark, shown = number, count(number)
        lines.append((name, float(dark), float(number), shown))
    return bars(title, lines, intro, () if column == "error_kind" else ("execute", "do not execute"))


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
