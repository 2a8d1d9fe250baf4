"""Figures of an extraction report, as PNG files whose bytes depend only on the data.

Colors: Okabe and Ito 2008, "Color Universal Design"; every distinction is also visible by position or lightness.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.model.results import RowCounts, at_least
from lemur_core.describe.picture import draw
from lemur_core.files.figures import BLUE, INK, bar_axes, label_bars, save_figure
from lemur_core.files.markdown import code_span, count, make_visible, percent, plural
from lemur_core.graphs.graph import LEAVES
from lemur_core.graphs.serialization import load_graphs
from manifests.provenance.licenses import is_permissive
from manifests.records import LEVELS, Block, Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Below the level that a run is judged by, dark to light; from it on, light to dark.
_BELOW = ("#B34700", "#D55E00", "#E69F00", "#F2CC7A")
_ABOVE = ("#A9CDE4", "#6DADD3", "#2F8BC0", "#005A8C")
_WIDTH = 8.0  # inches
_BARS = 30
_LABEL = 34  # characters
_BOXES = 24  # of a graph; larger graphs are folded


def draw_figures(folder: Path, rows: Sequence[Block], counts: RowCounts, goal: Level) -> dict[str, str]:
    """Draw all figures with data into `folder`.

    Args:
        counts: result of `count_rows`.
        goal: the level that the run is judged by.

    Returns: File name by figure: `sources`, `failures`, `sizes`.
    """
    lengths = [row.n_lines for row in rows if row.n_lines]
    drawings: dict[str, tuple[object, Callable[[Figure], None]]] = {
        "sources": (rows, lambda figure: _sources(figure, counts["sources"], goal)),
        "failures": (counts["failures"], lambda figure: _failures(figure, counts["failures"])),
        "sizes": (lengths[1:], lambda figure: _sizes(figure, lengths)),
    }
    drawn = {name: draw_one for name, (shown_when, draw_one) in drawings.items() if shown_when}
    for name, draw_one in drawn.items():
        save_figure(folder / f"{name}.png", draw_one)
    return {name: f"{name}.png" for name in drawn}


def draw_graphs(folder: Path, rows: Sequence[Block], traced: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Draw the graphs of some blocks into `folder`, only if their license allows redistribution.

    Args: traced: by block, the result of `extract.proofs.trace_guest.trace_block`.

    Returns: Captions by figure: `graph_common`, `graph_median`.
    """
    forms = {
        row.block: load_graphs(traced[row.block])["eval"]
        for row in rows
        if row.block in traced and is_permissive(row.license)
    }
    if not forms:
        return {}
    sizes = {block: sum(node.op not in LEAVES for node in form.nodes) for block, form in forms.items()}
    shared = Counter(traced[block]["graph"] for block in forms)
    # The most common computation; of equally common ones the largest, since single operations say little.
    often = min(forms, key=lambda block: (-shared[traced[block]["graph"]], -sizes[block], block))
    middle = sorted(forms, key=lambda block: (sizes[block], block))[len(forms) // 2]
    chosen = {}
    if shared[traced[often]["graph"]] > 1:
        number = count(shared[traced[often]["graph"]])
        chosen["graph_common"] = (often, f"What {number} blocks compute, {code_span(often, 120)} among them.")
    operations = plural(sizes[middle], "operation")
    chosen["graph_median"] = (middle, f"A block of middling size ({operations}): {code_span(middle, 120)}.")
    for name, (block, _) in chosen.items():
        draw(forms[block], folder / f"{name}.svg", block.rpartition("::")[2], _BOXES)
    return {name: caption for name, (_, caption) in chosen.items()}


def level_colors(levels: Sequence[Level], goal: Level) -> dict[Level, str]:
    """Return a color for each of these levels, in order: warm below the goal, blue from it on.

    There are at most four on either side, since the goal is `executed`, or an earlier level where the run stopped.
    """
    below = [level for level in levels if not at_least(level, goal)]
    above = [level for level in levels if at_least(level, goal)]
    blue = (BLUE,) if len(above) == 1 else _ABOVE[: len(above)]
    return {**dict(zip(below, _BELOW[4 - len(below) :], strict=True)), **dict(zip(above, blue, strict=True))}


def _fold(groups: Mapping[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    """Return the groups with their labels in a figure; if there are many, the last ones are merged."""
    bars = [(make_visible(name, _LABEL), counts) for name, counts in groups.items()]
    if len(bars) > _BARS:
        rest = [counts for _, counts in bars[_BARS - 1 :]]
        bars[_BARS - 1 :] = [(f"{count(len(rest))} others", sum(rest, Counter[str]()))]
    return bars


def _sources(figure: "Figure", sources: Mapping[str, Mapping[str, int]], goal: Level) -> None:
    """Draw a bar of shares for each source, with one segment per level."""
    bars = _fold({name: Counter(levels) for name, levels in sources.items()})
    present = [level for level in LEVELS if any(levels[level] for _, levels in bars)]
    colors = level_colors(present, goal)
    axes = bar_axes(figure, [f"{name}  {count(levels.total())}" for name, levels in bars], 1.1)
    left = [0.0] * len(bars)
    order = [*reversed(present)]  # the highest level first, so that the goal is read from the left
    for level in order:
        widths = [100 * levels[level] / levels.total() for _, levels in bars]
        axes.barh(range(len(bars)), widths, 0.74, left=left, color=colors[level], label=level, ec="white", lw=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    above = [level for level in present if at_least(level, goal)]
    shares = [percent(sum(levels[level] for level in above), levels.total()) for _, levels in bars]
    label_bars(axes, shares, [100] * len(bars))
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of classes, by highest level; at the right, the share that is at least {goal}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(5, len(order)), handlelength=1.2)


def _failures(figure: "Figure", failures: Mapping[str, int]) -> None:
    """Draw horizontal bars with their numbers."""
    from matplotlib.ticker import MaxNLocator

    bars = _fold({kind: Counter(blocks=number) for kind, number in failures.items()})
    numbers, whole = [number.total() for _, number in bars], sum(failures.values())
    axes = bar_axes(figure, [kind for kind, _ in bars], 0.9)
    axes.barh(range(len(bars)), numbers, 0.72, color=_BELOW[1])
    label_bars(axes, [f"{count(number)}  ({percent(number, whole)})" for number in numbers], numbers)
    axes.set_xlim(0, 1.2 * max(numbers))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.set_xlabel(f"classes, of {count(whole)} that came no further")


def _sizes(figure: "Figure", lengths: Sequence[int]) -> None:
    """Draw a histogram over logarithmic bins of lines, five per decade, with the median."""
    from matplotlib.ticker import MaxNLocator

    # The small term keeps exact powers of ten, whose logarithm may be rounded down, in the bin that they begin.
    bins = Counter(math.floor(5 * math.log10(length) + 1e-9) for length in lengths)
    bin_indices = sorted(bins)
    figure.set_size_inches(_WIDTH, 3.2)
    axes = figure.subplots()
    edges = {bin_index: 10 ** (bin_index / 5) for bin_index in range(bin_indices[0], bin_indices[-1] + 2)}
    for bin_index in bin_indices:
        axes.bar(
            edges[bin_index],
            bins[bin_index],
            edges[bin_index + 1] - edges[bin_index],
            align="edge",
            color=BLUE,
            ec="white",
        )
    axes.set_xscale("log")
    axes.set_xlim(edges[bin_indices[0]] * 0.9, edges[bin_indices[-1] + 1] * 1.1)
    median = sorted(lengths)[len(lengths) // 2]
    axes.axvline(median, color=INK, lw=1.2, ls=(0, (4, 3)))
    axes.set_ylim(0, 1.22 * max(bins.values()))
    axes.annotate(f"median {plural(median, 'line')}", (median, 1), (6, -12), ("data", "axes fraction"), "offset points")
    ticks = [n * 10**power for power in range(6) for n in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if edges[bin_indices[0]] * 0.9 <= tick <= edges[bin_indices[-1] + 1] * 1.1])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.grid(axis="y")
    axes.set_xlabel("lines of a closed file (logarithmic)")
    axes.set_ylabel("files")
