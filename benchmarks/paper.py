"""Metrics of the NN-RAG paper, counted over an extraction: its Tables 2 and 3, its classes of failure, its figures.

    python -m benchmarks.paper DIR [--figures FOLDER]

The paper's figures are shown next to each. It neither defines its code quality score, nor states a figure for it or
for its resolution accuracy: both are in the report of the extraction.

Source: https://arxiv.org/abs/2512.04329, version 1, section 5 and Tables 2 and 3
"""

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.model.blocks import read_blocks
from extract.model.results import at_least, wilson
from lemur_core.files.figures import BLUE, FAINT, INK, ORANGE, bar_axes, label_bars, save_figure
from lemur_core.files.markdown import code_span, count, make_visible, percent, plural, table
from manifests.folders.formats import EXTRACTION
from manifests.folders.manifest import Manifest
from manifests.records import LEVELS, Block

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The paper's categories with its counts, "about", and our categories in each. Its own examples decide where
#: possible: `PatchEmbed` and `DropPath` are utilities; resampling belongs to pooling; layers of graph networks
#: are convolutions; heads, necks, detectors and segmentors are architectures.
CATEGORIES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "Attention mechanisms": (180, ("Attention",)),
    "Convolutional layers": (220, ("Convolution", "Graph")),
    "Transformer blocks": (150, ("Transformer",)),
    "Pooling operations": (110, ("Pooling", "Resampling")),
    "Normalization techniques": (100, ("Normalization",)),
    "Loss functions": (90, ("Loss",)),
    "Network architectures": (150, ("Network", "Head", "Neck", "Detection", "Segmentation")),
    "Utility modules": (
        289,
        ("Activation", "Augmentation", "Embedding", "MLP", "Quantization", "Recurrent", "Regularization", "Other"),
    ),
}
_OF_OURS = {ours: name for name, (_, all_ours) in CATEGORIES.items() for ours in all_ours}

#: The paper's classes of blocks that are not validated, with its counts, "about", and our reasons in each.
#: Other reasons fall in its last, utilities and configuration of a repository: the file lacks something.
FAILURES: Mapping[str, tuple[int, frozenset[str]]] = {
    "External C++/CUDA operators": (87, frozenset({"native_op"})),
    "Complex or circular dependencies": (
        70,
        frozenset({"unresolved_name", "unresolved_import", "undefined_name", "too_large", "name_error", "import_error"})
        | {"unbound_local_error", "recursion_error"},
    ),
    "Dynamic metaprogramming": (
        52,
        frozenset({"dynamic_module", "nested_class", "attribute_error", "type_error", "not_defined", "not_a_module"}),
    ),
    "Utilities and configuration of a repository": (139, frozenset()),
}
*_, _LAST = FAILURES
#: Reasons unrelated to the source: the generated text, or the limits of the sandbox.
NEITHER = "None of these: the text as written, or a limit of the sandbox"
_OURS = frozenset(
    {"syntax_error", "compile_error", "timeout", "crashed", "out_of_memory", "over_limit", "denied", "error"}
)


#: What the tables and figures read of a block.
COLUMNS = ("block", "source", "category", "level", "error_kind", "n_lines", "seconds")


def to_paper_category(category: str) -> str:
    """Return the paper's category for one of ours; a category that the paper lacks is a utility."""
    return _OF_OURS.get(category, "Utility modules")


def to_paper_failure(kind: str) -> str:
    """Return the paper's class of failure for the reason why a block is not executed."""
    if kind in _OURS:
        return NEITHER
    return next((name for name, (_, kinds) in FAILURES.items() if kind in kinds), _LAST)


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Headline:
    """Counts of the paper's Table 3."""

    targeted: int  # classes, and names that match no class
    extracted: int
    validated: int
    lines: int

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> "Headline":
        """Select the counts from the result of `extract.model.results.count_rows`."""
        missing = len(counts["targets"]["missing"]) if "targets" in counts else 0
        reached = counts["reached"]
        return cls(counts["blocks"] + missing, reached["emitted"], reached["executed"], counts["lines"])


def count_categories(rows: Iterable[Block]) -> dict[str, tuple[int, int]]:
    """Count, by category of the paper, in its order: classes, and executed classes."""
    whole: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    for row in rows:
        name = to_paper_category(row.category)
        whole[name] += 1
        executed[name] += at_least(row.level, "executed")
    return {name: (whole[name], executed[name]) for name in CATEGORIES}


def count_failures(rows: Iterable[Block]) -> dict[str, Counter[str]]:
    """Count, by the paper's class of failure, in its order, the reasons of blocks that are not executed."""
    reasons: dict[str, Counter[str]] = {name: Counter() for name in (*FAILURES, NEITHER)}
    for row in rows:
        if row.error_kind is not None and not at_least(row.level, "executed"):
            reasons[to_paper_failure(row.error_kind)][row.error_kind] += 1
    return reasons


# --- tables, each a list of Markdown lines ------------------------------------------------------------


def categories_section(rows: Sequence[Block]) -> list[str]:
    """Return the paper's Table 2: the number of classes in each of its categories."""
    if not rows:
        return []
    body = [
        [
            name,
            ", ".join(ours),
            count(whole),
            percent(whole, len(rows)),
            count(done),
            percent(done, whole),
            f"~{count(stated)}",
        ]
        for (name, (whole, done)), (stated, ours) in zip(
            count_categories(rows).items(), CATEGORIES.values(), strict=True
        )
    ]
    heads = ["category", "of ours", "classes", "%", "`executed`", "% `executed`", "paper"]
    intro = "NN-RAG's eight categories (its Table 2). Which of ours fall under which is our reading of its examples."
    return ["## By category of the paper", "", intro, "", *table(heads, body, 2)]


def failures_section(rows: Sequence[Block]) -> list[str]:
    """Return the section on the paper's classes of failure: why classes are not executed."""
    failures = count_failures(rows)
    whole = sum(kinds.total() for kinds in failures.values())
    if not whole:
        return []
    body = []
    for name, kinds in failures.items():
        stated = FAILURES[name][0] if name in FAILURES else 0
        if name == NEITHER and not kinds:
            continue
        reasons = ", ".join(f"{code_span(kind)} {count(number)}" for kind, number in _by_size(kinds))
        paper = f"~{stated} ({percent(stated, 348)})" if stated else ""
        body.append([name, reasons, count(kinds.total()), percent(kinds.total(), whole), paper])
    intro = (
        f"Of {plural(whole, 'class', 'classes')} that are not `executed`, by the four classes in which NN-RAG's paper"
        " puts its 348."
    )
    heads = ["class", "reasons", "classes", "%", "paper"]
    return ["## Failures by the paper's classes", "", intro, "", *table(heads, body, 2)]


def headline_section(manifest: Manifest) -> list[str]:
    """Return the paper's Table 3 as one table; its last line has no counterpart in the paper."""
    counts = manifest.counts
    headline = Headline.of(counts)
    if not headline.targeted:
        return []
    executed = at_least(manifest.parameters["level"], "executed")
    low, high = (f"{100 * end:.1f}" for end in wilson(headline.validated, headline.targeted))
    per_block = headline.lines / headline.extracted if headline.extracted else None
    body = [
        ["total blocks targeted", count(headline.targeted), "1,289"],
        ["successfully extracted", count(headline.extracted), "1,289"],
        ["extraction success rate", percent(headline.extracted, headline.targeted), "100 %"],
        ["validated and executable", count(headline.validated) if executed else "–", "941"],
        [
            "validation pass rate, 95 % Wilson interval",
            f"{percent(headline.validated, headline.targeted)}, {low}–{high}" if executed else "–",
            "73.0 %, 70.5–75.4",
        ],
        ["average lines per block", "–" if per_block is None else f"{per_block:,.0f}", "~180"],
        ["total generated code, lines", count(headline.lines), "~232,020"],
        ["seconds a block, all of that run", f"{manifest.measured.seconds / headline.targeted:,.2f}", "~2.5"],
    ]
    minimized = counts["lean"]
    if minimized["blocks"]:
        body.insert(6, ["average lines per lean form", f"{minimized['lines'] / minimized['blocks']:,.0f}", ""])
    intro = "All but the last line are the same in every run."
    return ["## Table 3 of NN-RAG's paper", "", intro, "", *table(["metric", "here", "paper"], body)]


def _by_size(kinds: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(kinds.items(), key=lambda item: (-item[1], item[0]))


# --- figures ----------------------------------------------------------------------------------------------------------

_NAMED = 15  # sources with a separate bar; the others share one, which counts once in the mean
_LABEL = 34  # characters


def draw_paper(folder: Path, rows: Sequence[Block], counts: Mapping[str, Any]) -> list[str]:
    """Draw the figures with data into `folder`: counts with their mean, validated and failed blocks, and throughput.

    Args: counts: result of `extract.model.results.count_rows`.
    Returns: The names of the files.
    """
    timed = [row for row in rows if row.seconds is not None]
    drawings: dict[str, tuple[object, Callable[[Figure], None]]] = {
        "paper_sources": (rows, lambda figure: _bars(figure, _sources(counts["sources"]))),
        "paper_categories": (rows, lambda figure: _bars(figure, _categories(rows))),
        "paper_flow": (rows, lambda figure: _flow(figure, counts)),
        "paper_throughput": (timed[1:], lambda figure: _throughput(figure, timed)),
    }
    drawn = {name: draw for name, (shown_when, draw) in drawings.items() if shown_when}
    for name, draw in drawn.items():
        save_figure(folder / f"{name}.png", draw)
    return [f"{name}.png" for name in drawn]


def _sources(sources: Mapping[str, Mapping[str, int]]) -> list[tuple[str, int]]:
    """Return the classes of each source, the largest first; the smallest are merged."""
    sizes = Counter({name: sum(levels.values()) for name, levels in sources.items()})
    bars = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    if len(bars) > _NAMED + 1:
        rest = bars[_NAMED:]
        bars[_NAMED:] = [(f"{count(len(rest))} others", sum(size for _, size in rest))]
    return [(make_visible(name, _LABEL), size) for name, size in bars]


def _categories(rows: Sequence[Block]) -> list[tuple[str, int]]:
    return [(name, whole) for name, (whole, _) in count_categories(rows).items()]


def _bars(figure: "Figure", bars: Sequence[tuple[str, int]]) -> None:
    """Draw horizontal bars with a dashed line at their mean; those below it are paler."""
    sizes = [size for _, size in bars]
    mean = sum(sizes) / len(sizes)
    axes = bar_axes(figure, [name for name, _ in bars], 0.9)
    colors = [BLUE if size >= mean else "#6DADD3" for size in sizes]
    axes.barh(range(len(bars)), sizes, 0.72, color=colors)
    axes.axvline(mean, color=ORANGE, lw=1.4, ls=(0, (4, 3)), zorder=3)
    label_bars(axes, [count(size) for size in sizes], sizes)
    axes.annotate(f"mean {mean:,.1f}", (mean, -0.5), (0, 4), textcoords="offset points", ha="center", color=ORANGE)
    axes.set_xlim(0, 1.12 * max(sizes))
    _numbers(axes)
    axes.set_xlabel("classes")


def _flow(figure: "Figure", counts: Mapping[str, Any]) -> None:
    """Draw a bar for each step, split into passed and stopped; the widths add up to the bar above."""
    headline = Headline.of(counts)
    reached = counts["reached"]
    steps = [("targeted", headline.targeted), *((level, reached[level]) for level in LEVELS)]
    steps = [(name, number) for index, (name, number) in enumerate(steps) if index < 2 or number]
    if steps[0][1] == steps[1][1]:
        del steps[0]
    axes = bar_axes(figure, [name for name, _ in steps], 1.1)
    through = [number for _, number in steps]
    lost = [0, *(before - now for before, now in itertools.pairwise(through))]
    axes.barh(range(len(steps)), through, 0.72, color=BLUE, label="came through")
    axes.barh(range(len(steps)), lost, 0.72, left=through, color=ORANGE, label="stopped here")
    whole = max(headline.targeted, 1)
    texts = [
        f"{count(number)}  ({percent(number, whole)})" + (f", −{count(gone)}" if gone else "")
        for number, gone in zip(through, lost, strict=True)
    ]
    label_bars(axes, texts, [number + gone for number, gone in zip(through, lost, strict=True)])
    axes.set_xlim(0, 1.32 * max(through))
    _numbers(axes)
    stopped = headline.targeted - headline.validated
    axes.set_xlabel(
        f"classes; validated, as the paper calls executed: {count(headline.validated)}, failed: {count(stopped)}"
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, handlelength=1.2)


def _throughput(figure: "Figure", timed: Sequence[Block]) -> None:
    """Draw a histogram of seconds in logarithmic bins at the left, lines of code by elapsed seconds at the right."""
    figure.set_size_inches(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    seconds = [max(row.seconds or 0.0, 1e-3) for row in timed]
    bins = Counter(math.floor(5 * math.log10(value) + 1e-9) for value in seconds)
    for bin_index, number in sorted(bins.items()):
        start, end = 10 ** (bin_index / 5), 10 ** ((bin_index + 1) / 5)
        left.bar(start, number, end - start, align="edge", color=BLUE, ec="white")
    left.set_xscale("log")
    median = sorted(seconds)[len(seconds) // 2]
    left.axvline(median, color=INK, lw=1.2, ls=(0, (4, 3)))
    left.set_title(f"median {median:,.2g} s", loc="left", fontsize=10.5)
    left.minorticks_off()
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.grid(axis="y")
    left.set_xlabel("seconds a block in the sandbox (logarithmic)")
    left.set_ylabel("blocks")
    whole, lines = [0.0], [0]
    for row, value in zip(timed, seconds, strict=True):
        whole.append(whole[-1] + value)
        lines.append(lines[-1] + (row.n_lines or 0))
    right.plot(whole, lines, color=BLUE, lw=1.8)
    right.plot([0, whole[-1]], [0, lines[-1]], color=FAINT, lw=1, ls=(0, (4, 3)))
    right.grid()
    right.set_xlim(0, whole[-1])
    right.set_ylim(0, 1.05 * lines[-1])
    right.yaxis.set_major_formatter(lambda value, _: count(round(value)))
    right.xaxis.set_major_formatter(lambda value, _: count(round(value)))
    rate = len(timed) / whole[-1]
    right.set_title(f"{plural(len(timed), 'block')}, {rate:,.1f} a second", loc="left", fontsize=10.5)
    right.set_xlabel("seconds so far, of one core")
    right.set_ylabel("lines of closed files")


def _numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)))


def main() -> None:
    """Print the tables of one extraction, and draw the figures if a folder for them is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a finished extraction")
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    arguments = parser.parse_args()
    manifest = EXTRACTION.open(arguments.folder)
    rows = read_blocks(arguments.folder, COLUMNS)
    print("\n".join([*categories_section(rows), *failures_section(rows), *headline_section(manifest)]))
    if arguments.figures is not None:
        draw_paper(arguments.figures, rows, manifest.counts)


if __name__ == "__main__":
    main()
