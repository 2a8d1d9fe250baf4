"""Report of an extraction: `report.md`, and the summary that the command prints at the end."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from extract.model.results import RowCounts, RunFacts, at_least, count_reached
from lemur_core.files.markdown import code_span, count, make_visible, percent, plain, plural
from lemur_core.similarity.views import LEXICAL, STRUCTURAL, Distinct
from manifests.folders.manifest import Manifest
from manifests.folders.report import count_shares, fold, listing, section
from manifests.folders.report import write_report as write
from manifests.provenance import without_source
from manifests.records import LEVELS, Block, Level

#: The level that the paper calls "validated and executable".
VALIDATED: Level = "executed"

_MEANS = {
    "discovered": "concrete `nn.Module` classes with a `forward`",
    "emitted": "a closed file was written",
    "parsed": "it is Python",
    "compiled": "it compiles",
    "executed": "it runs in a clean interpreter and its class is an `nn.Module`",
    "constructed": "the class was instantiated",
    "forward": "it computed an output",
    "backward": "gradients flow",
}
_END = (
    "## Single blocks\n\n"
    "`blocks.parquet` has one row for every class, and why it came no further; `lemur show BLOCK --in DIR` shows one"
    " with its code. `required_repos.json` says what each closed file needs, and where its parts came from.\n\n"
    "`specs.jsonl` has one line for each closed file: what the block is and does, without its source; `lemur search"
    " QUERY --in DIR` searches it."
)
#: Maximum number of notes to print; the manifest contains all.
_PRINTED_NOTES = 10

#: The number of blocks by level, of each group.
_Levels = Mapping[str, Mapping[str, int]]

_PLACE = re.compile(r"^\S+ \S+:\d+: ")


def write_report(folder: Path, rows: Sequence[Block], facts: RunFacts, counts: RowCounts, distinct: Distinct) -> None:
    """Write `report.md`. Args: counts: result of `count_rows`. distinct: of the executed blocks."""
    taken = [source for source in facts.sources if source.instead_of]
    substitutes = [[code_span(text) for text in (s.name, s.origin or s.name, s.instead_of)] for s in taken]
    unopened = [[code_span(name), plain(reason)] for name, reason in facts.unopened]
    days = [[code_span(release), plain(day)] for release, day in facts.details.get("days", {}).items()]
    apart = {source.name for source in taken}
    direct = {name: levels for name, levels in counts["sources"].items() if name not in apart}
    fidelity = count_shares(counts["fidelity"], sum(counts["fidelity"].values()))
    categories = "Categories are by name, not proven, by the table in `extract/model/categories.py`."
    of_package = "Against the class as imported from its own package:"
    sections = [
        _levels(facts.options.level, counts),
        section("Why they came no further", _failures(rows)),
        _running(rows, facts, counts),
        section("Fidelity", listing(["", "classes", "%"], fidelity, intro=of_package)),
        _distinct(distinct),
        section("By source", _groups("source", counts["sources"], facts, direct if apart else None)),
        section("Sources that could not be opened", listing(["source", "reason"], unopened, left=2)),
        section(
            "Sources that stand in for others",
            listing(["source", "taken from", "in the place of"], substitutes, left=3),
        ),
        section(f"Requirements as of {facts.options.as_of}", listing(["release", "of"], days, left=2)),
        section("By category", *((categories, _groups("category", counts["categories"], facts)) if rows else ())),
        _quality(rows),
    ]
    write(folder, "Extraction report", _result(facts, counts), facts.notes, sections, _END)


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
        lines += [f"    {count(number):>8}  {make_visible(kind)}" for kind, number in counts["failures"].items()]
    if "targets" in counts:
        targets = counts["targets"]
        lines.append(f"  {count(targets['found'])} of {plural(targets['names'], 'name')} found")
    lines += [f"  left out: {make_visible(name)}: {make_visible(why)}" for name, why in details["unopened"].items()]
    lines += [
        f"  taken: {make_visible(source['name'])} in the place of {make_visible(source['instead_of'])}"
        for source in details["sources"]
        if source.get("instead_of")
    ]
    notes = details["notes"]
    lines += [f"  note: {make_visible(note)}" for note in notes[:_PRINTED_NOTES]]
    if len(notes) > _PRINTED_NOTES:
        lines.append(f"  and {plural(len(notes) - _PRINTED_NOTES, 'further note')} in manifest.json")
    memory = manifest.measured.peak_memory_bytes / 2**20
    return "\n".join([*lines, f"{out}: {manifest.measured.seconds:.1f} s, {memory:,.0f} MiB; see report.md"])


# --- sections, each a list of Markdown lines; empty where there is nothing to say -------------------------------------


def _list_levels(level: Level) -> list[Level]:
    """Return the levels from the one that a run is judged by, `executed` or an earlier requested one, to this one."""
    return list(LEVELS[min(LEVELS.index(level), LEVELS.index(VALIDATED)) : LEVELS.index(level) + 1])


def _result(facts: RunFacts, counts: RowCounts) -> str:
    goal, *further = _list_levels(facts.options.level)
    part, whole = counts["reached"][goal], counts["blocks"]
    past = {"forward": "computed an output", "backward": "let gradients flow"}.get(goal, goal)
    beyond = ", ".join(f"{count(counts['reached'][name])} `{name}`" for name in further)
    return (
        f"**{count(part)} of {plural(whole, 'class', 'classes')} {past} ({percent(part, whole)}).** From"
        f" {plural(len(counts['sources']), 'source')}, validated up to level `{facts.options.level}`"
        f"{f' ({beyond})' if beyond else ''}; the closed files have {plural(counts['lines'], 'line')}."
    )


def _levels(goal: Level, counts: RowCounts) -> list[str]:
    """Count the blocks at each level, and those that stopped there; levels above the requested one were not tried."""
    rows = []
    for level in LEVELS[: LEVELS.index(goal) + 1]:
        reached, stopped = counts["reached"][level], counts["levels"][level] if level != goal else 0
        rows.append([f"`{level}`", _MEANS[level], count(reached), percent(reached, counts["blocks"]), count(stopped)])
    return section("How far they came", listing(["level", "", "classes", "%", "stopped here"], rows, left=2))


def _failures(rows: Iterable[Block]) -> list[str]:
    """Return a table of the failures by reason, most blocks first; each with its most common message."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        if row.error_kind is not None:  # a report is redistributed, whatever the license
            message = _PLACE.sub("", without_source(row.error or ""))
            kinds.setdefault(row.error_kind, []).append((message, row.block))
    whole, lines = sum(map(len, kinds.values())), []
    for kind, members in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        # The most common message; of equally common ones the first in order, so that runs agree.
        message, times = min(Counter(text for text, _ in members).items(), key=lambda item: (-item[1], item[0]))
        block = next(block for text, block in members if text == message)
        shown = (plain(message[:200]) or "(none)") + (f" ({count(times)} ×)" if times > 1 else "")
        lines.append([code_span(kind), shown, code_span(block, 90), count(len(members)), percent(len(members), whole)])
    return listing(["reason", "commonest message", "for example", "classes", "% of failures"], lines, left=3)


def _running(rows: Sequence[Block], facts: RunFacts, counts: RowCounts) -> list[str]:
    """Report what was seen of the blocks that run forward, and why something of them was not."""
    running, graphs, lean = counts["reached"]["forward"], counts["graphs"], counts["lean"]
    if not running:
        return []
    numbers = {
        **{f"arguments: {name} (`arguments_from`)": number for name, number in counts["arguments"].items()},
        **{f"not shown: {kind}": number for kind, number in counts["not_shown"].items()},
        "with a graph": graphs["blocks"],
    }
    if graphs["blocks"]:
        numbers |= {"different graphs": graphs["distinct"], "different up to widths": graphs["distinct_widths"]}
    if rebuilt := facts.details.get("rebuilt", {}).get("specs"):
        numbers["rebuilt from their specs, as a proof"] = rebuilt
        labels = {"written": "written", "equal": "equal to the original in every bit"}
        labels["other_sizes"] = "compared at several input sizes"
        numbers |= {f"of these {label}": facts.details["rebuilt"][name] for name, label in labels.items()}
    sizes = ""
    if lean["blocks"]:
        numbers["with a lean form, equal in every bit"] = lean["blocks"]
        cut, full = (
            statistics.median(getattr(row, name) or 0 for row in rows if row.lean_lines is not None)
            for name in ("lean_lines", "n_lines")
        )
        sizes = f"A lean form has {cut:,g} lines at the median, the same blocks in full have {full:,g}."
    lines = [[what, count(number), percent(number, running)] for what, number in numbers.items()]
    reasons = {"no graph": facts.details.get("no_graph", {}), "not rebuilt": facts.details.get("not_rebuilt", {})}
    if lean["blocks"]:
        reasons["no lean form"] = Counter(row.lean_error.partition(":")[0] for row in rows if row.lean_error)
    return section(
        "Blocks that run forward",
        f"Of {plural(running, 'block')}; equal graphs are the same computation in eval and in train mode.",
        listing(["", "blocks", "%"], lines),
        sizes,
        *(listing([what, "blocks", "%"], fold(count_shares(why, running))) for what, why in reasons.items()),
    )


def _distinct(distinct: Distinct) -> list[str]:
    """Report unique blocks among the executed, by stage of curation, next to the published figure."""
    numbers = {
        "executed blocks that can be compared": distinct.codes,
        "different but for comments and layout": distinct.exact,
        f"and no near text (Jaccard >= {LEXICAL:.2f})": distinct.lexical,
        f"and no near structure (Jaccard >= {STRUCTURAL:.2f})": distinct.structural,
        "and no other text of the same computation": distinct.graph,
    }
    rows = [[label, count(number), percent(number, distinct.codes)] for label, number in numbers.items()]
    text = (
        "Each line includes those above it; these are the stages of `lemur curate`, over the whole closed file."
        " NN-RAG's paper counts 771 of its 941 validated blocks (82 %) after text, near text and near structure."
    )
    return section("Unique", listing(["", "blocks", "%"], rows), text) if distinct.codes else []


def _groups(label: str, groups: _Levels, facts: RunFacts, direct: _Levels | None = None) -> list[str]:
    """Return a table of groups with the number at each level, and the share at the level that the run is judged by.

    Args: direct: the groups that do not stand in for others, which get a line below that of all.
    """
    asked = facts.options.level
    goal, *further = _list_levels(asked)
    # Levels below the goal say little once blocks were executed.
    ladder = [goal, *further] if further else [level for level in LEVELS[1:] if at_least(asked, level)]

    def row(name: str, levels: Mapping[str, int]) -> list[str]:
        on = count_reached(levels)
        numbers = [on["discovered"], *(on[level] for level in ladder)]
        return [name, *map(count, numbers), percent(on[goal], numbers[0])]

    rows = [row(code_span(name, 60), levels) for name, levels in groups.items()]
    for name, part in {"all": groups, "reached directly": direct}.items():
        if part is not None:
            rows.append(row(f"**{name}**", sum((Counter(levels) for levels in part.values()), Counter[str]())))
    return listing([label, "classes", *(f"`{level}`" for level in ladder), f"% `{goal}`"], rows) if groups else []


def _quality(rows: Sequence[Block]) -> list[str]:
    """Report the code quality of the closed files, by LEMUR's score."""
    scores = [row.quality for row in rows if row.quality is not None]
    if not scores:
        return []
    clean = sum(score == 1 for score in scores)
    text = (
        f"{count(clean)} of {plural(len(scores), 'file')} without a finding ({percent(clean, len(scores))}); the"
        f" median is {statistics.median(scores):.2f}, the mean {statistics.mean(scores):.3f}, the least"
        f" {min(scores):.2f}. A score is 1.0 less 0.05 an error, 0.02 a warning (Pyflakes), 0.01 a line over 120"
        " characters or a function of a complexity above 10 (Radon): LEMUR's score, over the whole lean form, or the"
        " closed file where there is none; column `quality`."
    )
    return section("Code quality", text)
