"""Report of an extraction: `report.md`, and the summary that the command prints at the end."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from extract.model.results import RowCounts, RunFacts, at_least, count_reached, wilson
from lemur_core.files.markdown import code_span, count, make_visible, percent, plain, plural, table
from lemur_core.similarity.views import LEXICAL, STRUCTURAL, Distinct
from manifests.folders.manifest import Manifest
from manifests.provenance import without_source
from manifests.records import LEVELS, Block, Level

#: The level that the paper calls "validated and executable".
VALIDATED: Level = "executed"

#: Maximum number of reasons to list; the others are only counted.
_NAMED = 40

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
_OF_CATEGORIES = "Categories are by name, not proven, by the table in `extract/model/categories.py`."
_SINGLE_BLOCKS = (
    "## Single blocks",
    "",
    "`blocks.parquet` has one row for every class, and why it came no further; `lemur show BLOCK --in DIR` shows"
    " one with its code. `required_repos.json` says what each closed file needs, and where its parts came from.",
    "",
    "`specs.jsonl` has one line for each closed file: what the block is and does, without its source;"
    " `lemur search QUERY --in DIR` searches it.",
    "",
)
#: Maximum number of notes to print; the manifest contains all.
_PRINTED_NOTES = 10

T = TypeVar("T")

_PLACE = re.compile(r"^\S+ \S+:\d+: ")


def write_report(
    folder: Path,
    rows: Sequence[Block],
    facts: RunFacts,
    counts: RowCounts,
    distinct: Distinct,
) -> None:
    """Write `report.md` into `folder`; the same rows give the same bytes.

    Args:
        counts: result of `count_rows`.
        distinct: distinct blocks among the executed ones.
    """
    substitutes = [source for source in facts.sources if source.instead_of]
    taken = [[code_span(text) for text in (s.name, s.origin or s.name, s.instead_of)] for s in substitutes]
    unopened = [[code_span(name), plain(reason)] for name, reason in facts.unopened]
    by_source = _report_by_group("source", counts["sources"], facts, apart=[source.name for source in substitutes])
    fidelity = counts["fidelity"]
    compared = [[f"`{name}`", count(n), share(n, sum(fidelity.values()))] for name, n in fidelity.items()]
    days = [[code_span(release), plain(day)] for release, day in facts.details.get("days", {}).items()]
    lines = [
        *_head(facts, counts),
        *_levels(facts, counts),
        *_distinct(distinct),
        *_graphs(facts, counts),
        *by_source,
        *_section("Sources that could not be opened", ["source", "reason"], unopened, left=2),
        *_section("Sources that stand in for others", ["source", "taken from", "in the place of"], taken, left=3),
        *_section(f"Requirements as of {facts.options.as_of}", ["release", "of"], days, left=2),
        *_report_by_group("category", counts["categories"], facts, intro=_OF_CATEGORIES),
        *_failures(list_failures(rows), counts["blocks"]),
        *_arguments(counts),
        *_not_shown(counts),
        *_describe_minimized(rows, counts),
        *_quality(rows),
        *_section(
            "Fidelity", ["", "classes", "%"], compared, intro="Against the class as imported from its own package:"
        ),
    ]
    (folder / "report.md").write_text("\n".join([*lines, *_SINGLE_BLOCKS]), encoding="utf-8", newline="\n")


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


def find_goal(level: Level) -> Level:
    """Return the level that a run is judged by: `executed`, or an earlier one if it was requested to stop there."""
    return min(level, VALIDATED, key=LEVELS.index)


def _list_levels(facts: RunFacts) -> list[Level]:
    """Return the levels from the one that the run is judged by to the requested one."""
    level = facts.options.level
    return list(LEVELS[LEVELS.index(find_goal(level)) : LEVELS.index(level) + 1])


def _section(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, intro: str = ""
) -> list[str]:
    """Return a section that consists of a table; the first `left` columns are left-aligned."""
    return [f"## {title}", "", *([intro, ""] if intro else []), *table(heads, rows, left=left)] if rows else []


def _head(facts: RunFacts, counts: RowCounts) -> list[str]:
    """Return the heading: subject, result in one line, and deviations from the request."""
    goal, *further = _list_levels(facts)
    part, whole = counts["reached"][goal], counts["blocks"]
    past = {"forward": "computed an output", "backward": "let gradients flow"}.get(goal, goal)
    beyond = ", ".join(f"{count(counts['reached'][name])} `{name}`" for name in further)
    lines = [
        "# Extraction report",
        "",
        f"**{count(part)} of {plural(whole, 'class', 'classes')} {past} ({share(part, whole)}).** They come from"
        f" {plural(len(counts['sources']), 'source')} and were validated up to level `{facts.options.level}`"
        f"{f' ({beyond})' if beyond else ''}; the closed files have {count(counts['lines'])} lines.",
        "",
        "Intervals are 95 % Wilson intervals.",
        "",
    ]
    if facts.notes:
        lines += ["Deviations from the request:", "", *(f"- {plain(note)}" for note in facts.notes), ""]
    return lines


def _levels(facts: RunFacts, counts: RowCounts) -> list[str]:
    """Count the blocks at each level, and those that stopped there."""
    whole, goal = counts["blocks"], facts.options.level
    rows = []
    # Levels above the requested one were not tried: zero blocks there would be wrong.
    for level in LEVELS[: LEVELS.index(goal) + 1]:
        reached, stopped = counts["reached"][level], counts["levels"][level] if level != goal else 0
        cells = [count(reached), percent(reached, whole), _interval(reached, whole), count(stopped)]
        rows.append([f"`{level}`", _MEANS[level], *cells])
    return _section("How far they came", ["level", "", "classes", "%", "95 %", "stopped here"], rows, left=2)


def _distinct(distinct: Distinct) -> list[str]:
    """Report unique blocks among the executed, by stage of curation, next to the published figure."""
    if not distinct.codes:
        return []
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
        f" The stages of NN-RAG's paper, text, near text and near structure, leave {count(distinct.structural)}"
        f" ({percent(distinct.structural, distinct.codes)}); it counts 771 of its 941 validated blocks (82 %)."
    )
    return [*_section("Unique", ["", "blocks", "%"], rows), text, ""]


def _graphs(facts: RunFacts, counts: RowCounts) -> list[str]:
    """Report the traced blocks, the number of different computations, and how many specs reproduce their block."""
    graphs, running = counts["graphs"], counts["reached"]["forward"]
    if not running:
        return []
    traced = graphs["blocks"]
    numbers = {"different graphs": graphs["distinct"], "different up to widths": graphs["distinct_widths"]}
    rebuilt = facts.details.get("rebuilt")
    if rebuilt is not None:
        numbers["rebuilt from their specs, as a proof"] = rebuilt["specs"]
        numbers["of these written"] = rebuilt["written"]
        numbers["of these equal to the original in every bit"] = rebuilt["equal"]
        numbers["of these compared at several input sizes"] = rebuilt["other_sizes"]
    rows = [["blocks that run forward", count(running), ""], ["with a graph", count(traced), percent(traced, running)]]
    rows += [[what, count(number), percent(number, traced)] for what, number in numbers.items()]
    lines = _section("What they compute", ["", "blocks", "%"], rows)
    lines += [
        "Equal graphs are the same computation in eval and in train mode; docs/graphs.md explains how it is computed.",
        "",
    ]
    for what, name in (("No graph", "no_graph"), ("Not rebuilt", "not_rebuilt")):
        reasons = list(facts.details.get(name, {}).items())
        if reasons:
            more = f"; and {count(len(reasons) - _NAMED)} further reasons" if len(reasons) > _NAMED else ""
            summary = "; ".join(f"{count(number)}: {plain(why)}" for why, number in reasons[:_NAMED])
            lines += [f"{what}: {summary}{more}.", ""]
    return lines


def _report_by_group(
    label: str,
    groups: Mapping[str, Mapping[str, int]],
    facts: RunFacts,
    *,
    intro: str = "",
    apart: Collection[str] = (),
) -> list[str]:
    """Return a table of groups with the number at each level, and the share at the level that the run is judged by.

    Args: apart: groups that an additional line excludes: sources that replace others.
    """
    goal = find_goal(facts.options.level)
    ladder: list[Level] = [level for level in LEVELS if level != LEVELS[0] and at_least(facts.options.level, level)]
    # Levels below the goal say little once blocks were executed.
    ladder = ladder if goal == facts.options.level else _list_levels(facts)

    def row(name: str, levels: Mapping[str, int]) -> list[str]:
        on = count_reached(levels)
        part, whole = on[goal], on["discovered"]
        numbers = [count(whole), *(count(on[level]) for level in ladder)]
        return [name, *numbers, percent(part, whole), _interval(part, whole)]

    rows = [row(code_span(name, 60), levels) for name, levels in groups.items()]
    direct = [levels for name, levels in groups.items() if name not in apart]
    for name, parts in (("**all**", list(groups.values())), *([("**reached directly**", direct)] if apart else [])):
        rows.append(row(name, {level: sum(levels.get(level, 0) for levels in parts) for level in LEVELS}))
    heads = [label, "classes", *(f"`{level}`" for level in ladder), f"% `{goal}`", "95 %"]
    return _section(f"By {label}", heads, rows, intro=intro) if groups else []


def _arguments(counts: RowCounts) -> list[str]:
    """Report where the arguments of the blocks that run forward are from."""
    whole = sum(counts["arguments"].values())
    rows = [[f"`{name}`", count(number), percent(number, whole)] for name, number in counts["arguments"].items()]
    intro = "Of the blocks that run forward, how the constructor's arguments were found (column `arguments_from`):"
    return _section("Arguments", ["", "blocks", "%"], rows, intro=intro)


def _not_shown(counts: RowCounts) -> list[str]:
    """Report what the runs of the blocks did not show."""
    whole = counts["reached"]["forward"]
    rows = [[kind, count(number), percent(number, whole)] for kind, number in counts["not_shown"].items()]
    intro = "Of the blocks that run forward, so many have a level that rests on less (column `not_shown`):"
    return _section("Not shown", ["", "blocks", "%"], rows, intro=intro)


def _describe_minimized(rows: Sequence[Block], counts: RowCounts) -> list[str]:
    """Report how many running blocks have a lean form, their size, and why others have none."""
    counted, running = counts["lean"], counts["reached"]["forward"]
    if not counted["blocks"]:
        return []
    known = [row for row in rows if row.lean_lines is not None]
    cells = []
    for label, lengths in (
        ("lines of a lean form", sorted(row.lean_lines or 0 for row in known)),
        ("lines of the same blocks in full", sorted(row.n_lines or 0 for row in known)),
    ):
        quantiles = _quantiles(lengths, (0, 0.5, 0.9, 1))
        cells.append([label, *map(count, quantiles), f"{sum(lengths) / len(lengths):,.0f}"])
    reasons = Counter(row.lean_error.partition(":")[0] for row in rows if row.lean_error is not None)
    summary = "; ".join(f"{plain(reason)} ({count(number)})" for reason, number in reasons.most_common())
    intro = (
        f"{count(counted['blocks'])} of {plural(running, 'block')} that run forward have a lean form"
        f" ({percent(counted['blocks'], running)}): cut to what the arguments reach, and equal in every bit there."
        + (f" Of the others: {summary}." if summary else "")
    )
    return _section("Lean forms", ["", "least", "median", "90 %", "most", "mean"], cells, intro=intro)


def _quality(rows: Sequence[Block]) -> list[str]:
    """Report the code quality of the closed files, by LEMUR's score."""
    scores = sorted(row.quality for row in rows if row.quality is not None)
    if not scores:
        return []
    mean, full = sum(scores) / len(scores), sum(score == 1 for score in scores)
    quantiles = [f"{score:.2f}" for score in _quantiles(scores, (0, 0.1, 0.5))]
    cells = [count(len(scores)), *quantiles, f"{mean:.3f}", percent(full, len(scores))]
    note = (
        "1.0 less 0.05 an error, 0.02 a warning (Pyflakes), 0.01 a line over 120 characters or a function of a"
        " complexity above 10 (Radon): LEMUR's score, over the whole lean form, or the closed file where there is none;"
        " column `quality`."
        " NN-RAG's paper names a code quality score, and gives neither its definition nor a figure."
    )
    heads = ["files", "least", "10 %", "median", "mean", "without a finding"]
    return [*_section("Code quality", heads, [cells], left=0), note, ""]


def _quantiles(ordered: Sequence[T], fractions: Sequence[float]) -> list[T]:
    """Return the values at these fractions of a sorted sequence that is not empty."""
    return [ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] for fraction in fractions]


def share(part: int, whole: int) -> str:
    """Return a proportion and its interval as `73.0 %, 70.5–75.3`; a dash if the total is zero."""
    return f"{percent(part, whole)}, {_interval(part, whole)}" if whole else "–"


def _interval(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{100 * low:.1f}–{100 * high:.1f}" if whole else "–"


# --- failures by category ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A category of failure: its blocks, and the most common message with the first block that has it."""

    kind: str
    blocks: int
    message: str
    times: int  # occurrences of this message
    block: str


def list_failures(rows: Iterable[Block]) -> list[FailureKind]:
    """Return the categories of failure, most blocks first; each with its most common message, without the location."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        if row.error_kind is not None:  # a report is redistributed, whatever the license
            message = _PLACE.sub("", without_source(row.error or ""))
            kinds.setdefault(row.error_kind, []).append((message, row.block))
    failures = []
    for kind, members in kinds.items():
        # The most common message; of equally common ones the first in order, so that runs agree.
        message, times = min(Counter(text for text, _ in members).items(), key=lambda item: (-item[1], item[0]))
        block = next(block for text, block in members if text == message)
        failures.append(FailureKind(kind, len(members), message, times, block))
    return sorted(failures, key=lambda failure: (-failure.blocks, failure.kind))


def _failures(failures: Sequence[FailureKind], blocks: int) -> list[str]:
    whole = sum(failure.blocks for failure in failures)
    rows = []
    for failure in failures:
        text = plain(failure.message[:200]) or "(none)"
        message = f"{text} ({count(failure.times)} ×)" if failure.times > 1 else text
        shares = percent(failure.blocks, whole), percent(failure.blocks, blocks)
        rows.append([code_span(failure.kind), message, code_span(failure.block, 90), count(failure.blocks), *shares])
    heads = ["category", "commonest message", "for example", "classes", "% of failures", "% of all"]
    return _section("Why they came no further", heads, rows, left=3)
