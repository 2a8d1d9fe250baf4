"""What came out of an extraction: report, summary of the command, dataset card, and page with its library of blocks.

The page contains nothing that must not be redistributed: code and graphs of blocks whose license is not known to
allow it stay in the files of the folder, which the page lists.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.folder.chat import extraction_chat_card
from extract.model.blocks import list_facts
from extract.model.results import at_least, count_reached
from extract.specs.make import print_call, read_observed, read_spec_graph, read_specs
from lemur_core.describe.picture import Box, boxes
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import code_span, count, make_visible, percent, plural
from lemur_core.files.progress import NOTED
from manifests.conversations import list_chat_drops, read_chat
from manifests.folders import frame
from manifests.folders.cards import EXTRACTION_DISCLOSURE, Card
from manifests.folders.frame import settings, shares
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import Manifest
from manifests.provenance import TABLE, get_minimized_path, without_source
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.provenance.parts import find_blocked_blocks, read_parts
from manifests.publishing.staged import find_withheld
from manifests.records import LEVELS, SPEC_CHAT_KINDS, SPLITS, Block, Level, Spec

#: The level that the paper calls "validated and executable".
VALIDATED: Level = "executed"

_MEANS = {
    "discovered": "nn.Module classes with a forward",
    "emitted": "a closed file was written",
    "parsed": "it is Python",
    "compiled": "it compiles",
    "executed": "it runs in a clean interpreter and its class is an nn.Module",
    "constructed": "the class was instantiated",
    "forward": "it computed an output",
    "backward": "gradients flow",
}
END = (
    "## Single blocks\n\n"
    "`blocks.parquet` has one row for every class, and why it came no further; `lemur show BLOCK --in DIR` shows one"
    " with its code. `required_repos.json` says what each closed file needs, and where its parts came from.\n\n"
    "`specs.jsonl` has one line for each closed file: what the block is and does, without its source; `lemur search"
    " QUERY --in DIR` searches it."
)
#: Maximum number of notes to print; the manifest contains all.
_PRINTED_NOTES = 10
#: Maximum number of boxes with one operation each.
_BOXES = 40

#: A part of a manifest.
Stated = Mapping[str, Any]
#: The number of blocks by level, of each group.
_Levels = Mapping[str, Mapping[str, int]]

_PLACE = re.compile(r"^\S+ \S+:\d+: ")
#: Columns that are counted and listed; the others are read when the entries are written.
_COUNTED = ("block", "error_kind", "error", "lean_error", "n_lines", "lean_lines")
_LISTED = ("block", "name", "source", "category", "level", "license", "fidelity", "n_lines", "lean_lines", "observed")
#: Facts of a block that have views of their own or links, or are long.
_APART = frozenset({"runs as", "shapes", "also", "file"})


def overview(folder: Path, manifest: Manifest) -> frame.Page:
    """Return title, lead and views of an extraction, from its table and its manifest."""
    parameters, counts, details = manifest.parameters, manifest.counts, manifest.details
    rows, level = list(EXTRACTION.rows(folder, Block, _COUNTED)), parameters["level"]
    goal, *further = _list_levels(level)
    part, whole = counts["reached"][goal], counts["blocks"]
    past = {"forward": "computed an output", "backward": "let gradients flow"}.get(goal, goal)
    beyond = ", ".join(f"{count(counts['reached'][name])} {name}" for name in further)
    lead = (
        f"{count(part)} of {plural(whole, 'class', 'classes')} {past} ({percent(part, whole)}). From"
        f" {plural(len(counts['sources']), 'source')}, validated up to level {level}"
        f"{f' ({beyond})' if beyond else ''}; the closed files have {plural(counts['lines'], 'line')}."
    )
    taken = {s["name"]: (s.get("origin") or s["name"], s["instead_of"]) for s in _list_taken(details)}
    direct = {name: levels for name, levels in counts["sources"].items() if name not in taken}
    categories = "Categories are by name, not proven, by the table in `extract/model/categories.py`."
    fidelity, original = counts["fidelity"], "Against the class as imported from its own package."
    stand_ins = [(name, *facts) for name, facts in taken.items()]
    days = list(details.get("days", {}).items())
    views = [
        _levels(level, counts),
        _failures(rows),
        *_running(rows, counts, details),
        shares("Fidelity", ("", "classes"), fidelity, sum(fidelity.values()), original),
        _groups("By source", "source", counts["sources"], level, direct=direct if taken else None),
        frame.table("Sources that could not be opened", ["source", "reason"], list(details["unopened"].items())),
        frame.table("Sources that stand in for others", ["source", "taken from", "in the place of"], stand_ins),
        frame.table(f"Requirements as of {parameters['as_of']}", ["release", "of"], days),
        _groups("By category", "category", counts["categories"], level, categories),
        settings(parameters),
    ]
    corpus = parameters.get("corpus")
    title = f"Blocks of the corpus {corpus}" if corpus else "Extracted PyTorch blocks"
    return frame.Page(title, "extraction", lead, [view for view in views if view["rows"]])


def _list_taken(details: Stated) -> list[Stated]:
    """Return the sources that stand in for others."""
    return [source for source in details["sources"] if source.get("instead_of")]


def _list_levels(level: Level) -> list[Level]:
    """Return the levels from the one that a run is judged by, `executed` or an earlier requested one, to this one."""
    return list(LEVELS[min(LEVELS.index(level), LEVELS.index(VALIDATED)) : LEVELS.index(level) + 1])


def _levels(goal: Level, counts: Stated) -> frame.View:
    """Count the blocks at each level, and those that stopped there; levels above the requested one were not tried."""
    rows: list[list[frame.Cell]] = []
    for level in LEVELS[: LEVELS.index(goal) + 1] if counts["blocks"] else ():
        reached, stopped = counts["reached"][level], counts["levels"][level] if level != goal else 0
        rows.append([level, _MEANS[level], reached, percent(reached, counts["blocks"]), stopped])
    return frame.table("How far they came", ["level", "", "classes", "%", "stopped here"], rows)


def _failures(rows: Iterable[Block]) -> frame.View:
    """Return the failures by reason, most blocks first; each with its most common message."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        if row.error_kind is not None:  # a report is redistributed, whatever the license
            message = _PLACE.sub("", without_source(row.error or ""))
            kinds.setdefault(row.error_kind, []).append((message, row.block))
    whole = sum(map(len, kinds.values()))
    lines: list[list[frame.Cell]] = []
    for kind, members in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        # The most common message; of equally common ones the first in order, so that runs agree.
        message, times = min(Counter(text for text, _ in members).items(), key=lambda item: (-item[1], item[0]))
        block = next(block for text, block in members if text == message)
        shown = (message[:200] or "(none)") + (f" ({count(times)} ×)" if times > 1 else "")
        lines.append([kind, shown, block, len(members), percent(len(members), whole)])
    head = ["reason", "commonest message", "for example", "classes", "% of failures"]
    return frame.table("Why they came no further", head, lines)


def _running(rows: Sequence[Block], counts: Stated, details: Stated) -> Iterator[frame.View]:
    """Yield what was seen of the blocks that run forward, and why something of them was not."""
    running, graphs = counts["reached"]["forward"], counts["graphs"]
    if not running:
        return
    numbers = {
        **{f"arguments: {name}": number for name, number in counts["arguments"].items()},
        **{f"not shown: {kind}": number for kind, number in counts["not_shown"].items()},
        "with a graph": graphs["blocks"],
    }
    if graphs["blocks"]:
        numbers |= {"different graphs": graphs["distinct"], "different up to widths": graphs["distinct_widths"]}
    if rebuilt := details.get("rebuilt", {}).get("specs"):
        numbers["rebuilt from their specs, as a proof"] = rebuilt
        labels = {"written": "written", "equal": "equal to the original in every bit"}
        labels["other_sizes"] = "compared at several input sizes"
        numbers |= {f"of these {label}": details["rebuilt"][name] for name, label in labels.items()}
    reasons = {"No graph": details.get("no_graph", {}), "Not rebuilt": details.get("not_rebuilt", {})}
    intro = "Equal graphs are the same computation in eval and in train mode."
    if lean := [row for row in rows if row.lean_lines is not None]:
        numbers["with a lean form, equal in every bit"] = len(lean)
        cut, full = (statistics.median(getattr(row, name) or 0 for row in lean) for name in ("lean_lines", "n_lines"))
        intro += f" A lean form has {cut:,g} lines at the median, the same blocks in full have {full:,g}."
        reasons["No lean form"] = Counter(row.lean_error.partition(":")[0] for row in rows if row.lean_error)
    seen = [(what, number, percent(number, running)) for what, number in numbers.items()]
    yield frame.table("Blocks that run forward", ["", "blocks", "%"], seen, intro)
    yield from (shares(title, ("reason", "blocks"), why, running) for title, why in reasons.items())


def _groups(
    title: str, label: str, groups: _Levels, asked: Level, intro: str = "", *, direct: _Levels | None = None
) -> frame.View:
    """Return a table of groups with the number at each level, and the share at the level that the run is judged by.

    Args: direct: the groups that do not stand in for others, which get a line below that of all.
    """
    goal, *further = _list_levels(asked)
    # Levels below the goal say little once blocks were executed.
    ladder = [goal, *further] if further else [level for level in LEVELS[1:] if at_least(asked, level)]
    wholes = {"all": groups, **({} if direct is None else {"reached directly": direct})}
    summed = {name: sum((Counter(levels) for levels in part.values()), Counter[str]()) for name, part in wholes.items()}
    rows: list[list[frame.Cell]] = []
    for name, levels in (*groups.items(), *summed.items()) if groups else ():
        on = count_reached(levels)
        rows.append([name, on["discovered"], *(on[level] for level in ladder), percent(on[goal], on["discovered"])])
    return frame.table(title, [label, "classes", *ladder, f"% {goal}"], rows, intro)


def summary_text(manifest: Manifest, out: Path) -> str:
    """Return the summary that the command prints: levels reached, reasons for failures, omitted sources."""
    counts, details, level = manifest.counts, manifest.details, manifest.parameters["level"]
    whole, reached = counts["blocks"], counts["reached"]
    lines = [f"{plural(whole, 'class', 'classes')} of {plural(len(counts['sources']), 'source')}"]
    lines += [
        f"  {name:<12} {count(reached[name]):>8}  {percent(reached[name], whole)}"
        for name in LEVELS[1 : LEVELS.index(level) + 1]
    ]
    lines += [f"    {count(number):>8}  of these: {kind}" for kind, number in counts["not_shown"].items()]
    if counts["failures"]:
        lines.append("  came no further:")
        lines += [f"    {count(number):>8}  {kind}" for kind, number in counts["failures"].items()]
    if "targets" in counts:
        targets = counts["targets"]
        lines.append(f"  {count(targets['found'])} of {plural(targets['names'], 'name')} found")
    lines += [f"  left out: {name}: {why}" for name, why in details["unopened"].items()]
    lines += [f"  taken: {source['name']} in the place of {source['instead_of']}" for source in _list_taken(details)]
    notes = [text for text in details["notes"] if text not in NOTED]
    lines += [f"  note: {note}" for note in notes[:_PRINTED_NOTES]]
    if len(notes) > _PRINTED_NOTES:
        lines.append(f"  and {plural(len(notes) - _PRINTED_NOTES, 'further note')} in manifest.json")
    if chat := counts.get("chat"):
        kinds = ", ".join(f"{count(number)} {kind}" for kind, number in chat["kinds"].items())
        why = list_chat_drops(counts)
        lines.append(f"  {'chat':<12} {count(chat['rows']):>8}  conversations: {kinds}; not made: {why or 'none'}")
    memory = manifest.measured.peak_memory_bytes / 2**20
    lines.append(f"{out}: {manifest.measured.seconds:.1f} s, {memory:,.0f} MiB of memory; see report.md")
    return "\n".join(map(make_visible, lines))


# --- the page ---------------------------------------------------------------------------------------------------------


def extraction_page(folder: Path, manifest: Manifest) -> frame.Page:
    """Return the page of an extraction, from its table and specs; code is read when the page is written."""
    entries = []
    for row in EXTRACTION.rows(folder, Block, _LISTED):
        seen = read_observed(row)
        facets = (row.level, row.category, row.source, row.license, row.fidelity or "not compared")
        numbers = (None if seen is None else seen.parameters, row.n_lines, row.lean_lines)
        entries.append(frame.Entry(name=row.name, note=row.block, facets=facets, numbers=numbers))
    library = frame.EntryLibrary(
        title="Library",
        noun="blocks",
        facets=("level", "category", "source", "license", "fidelity"),
        numbers=("parameters", "lines", "lean lines"),
        entries=entries,
        views=_views(folder),
        total=len(entries),
        elsewhere=TABLE,
    )
    versions = manifest.versions
    about = [
        ("licenses", ", ".join(f"{name} {count(n)}" for name, n in manifest.counts["licenses"].items())),
        ("created with", f"lemur-curator {versions.get('lemur-curator')}, torch {versions.get('torch', '–')}"),
        ("in words", [frame.link("report.md", "report.md"), frame.link("manifest.json", "manifest.json")]),
    ]
    page = overview(folder, manifest)
    return replace(page, views=[frame.facts("Overview", about), *page.views], library=library)


def _views(folder: Path) -> Iterator[list[frame.View]]:
    parts = read_parts(folder)
    withheld = find_blocked_blocks(folder, parts)
    specs = {spec.block: _describe(spec, withheld=spec.block in withheld) for spec in read_specs(folder)}
    for row in EXTRACTION.rows(folder, Block):
        licenses = parts.licenses(row.block, row.license)
        yield _detail_views(row, licenses, *specs.get(row.block, ("", (), ())), withheld=row.block in withheld)


def _describe(spec: Spec, *, withheld: bool) -> tuple[str, Sequence[str], Sequence[Box]]:
    """Return the summary of a block, the operations of its graph and the graph as boxes; those not if withheld."""
    if spec.algorithm is None or withheld:
        return spec.summary, (), ()
    try:
        graph = read_spec_graph(spec)
    except UserError:  # written by another release
        graph = None
    return spec.summary, spec.algorithm.operations, () if graph is None else boxes(graph, _BOXES)


def _detail_views(
    row: Block, parts: Iterable[str], summary: str, described: Sequence[str], drawn: Sequence[Box], *, withheld: bool
) -> list[frame.View]:
    seen, lines, minimized = read_observed(row), print_call(row, row.lean_code), row.lean_code
    names = [(row.file, row.n_lines)] if row.file else []
    if row.file and minimized is not None:
        names.append((get_minimized_path(row.file), row.lean_lines))
    files = [frame.link(f"{name} ({plural(lines or 0, 'line')})", name) for name, lines in names]
    facts = [fact for fact in list_facts(row, parts, redact=without_source) if fact[0] not in _APART]
    views = [frame.facts("Block", [("summary", summary), *facts, ("files", files)])]
    if lines:
        views.append(frame.code("How it runs", "\n".join(lines)))
    if seen is not None and seen.cases:
        cases = []
        for case in seen.cases:
            inputs = "; ".join(f"{name} {shape}" for name, shape in case.inputs.items())
            cases.append([inputs, "; ".join(case.outputs) or "no tensor"])
        views.append(frame.table("Shapes", ["in", "out"], cases))
    if described:
        views.append(frame.operations("What it computes", described, "From its graph, without names of its source."))
    if drawn:
        views.append(frame.graph("Graph", drawn))
    if minimized is not None and not withheld and is_permissive(row.lean_license or NOASSERTION):
        views.append(frame.code("Lean code", minimized, get_minimized_path(row.file or "")))
    elif row.file is not None:
        why = "its license is not known to permit redistribution" if minimized is not None else "there is no lean form"
        views.append(frame.note("Code", f"It is not shown here: {why}. The files are linked above."))
    return views


# --- the card ---------------------------------------------------------------------------------------------------------


def extraction_card(folder: Path, manifest: Manifest) -> Card:
    """Return the content of the dataset card of an extraction, from its tables and its manifest."""
    counts, sources = manifest.counts, manifest.details["sources"]
    lines = ["The code of each block is under the license of its source."]
    part = ""
    if withheld := len(find_withheld(folder)):
        part = f" (a published copy lacks those of {count(withheld)})"
        lines[0] += (
            f" That of {plural(withheld, 'block')} is not published, for a license or a requirement that is a guess: a"
            " copy has their rows and specs, an empty `code` and `algorithm`, and nothing at the path in `file`."
        )
    if taken := [source for source in sources if source.get("instead_of")]:
        names = ", ".join(f"{code_span(source['name'])} ({code_span(source['instead_of'])})" for source in taken)
        lines += ["", f"Releases in the place of sources that could not be reached: {names}."]
    if "chat" in counts:
        lines += ["", *extraction_chat_card(read_chat(folder, "block", SPEC_CHAT_KINDS))]
    specs = sum(counts["specs"][split] for split in SPLITS)
    return Card(
        name="Extracted PyTorch blocks",
        description=f"{plural(counts['blocks'], 'PyTorch module')} as closed files where they could be closed{part},"
        f" and {plural(specs, 'neutral spec')} of them: what each module is and does, as facts that were read or"
        " measured, never text of its source. Related blocks are in one split.",
        licenses=sorted({source["license"] for source in sources}),
        text="\n".join(lines),
        disclosure=EXTRACTION_DISCLOSURE,
        sources=[(source["name"], source["swhid"]) for source in sources],
    )


FACED = replace(EXTRACTION, overview=overview, ending=END, card=extraction_card, page=extraction_page)
