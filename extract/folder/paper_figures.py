"""Figures of the NN-RAG paper, drawn from a run's rows: counts with their mean, validated and failed blocks, and
throughput. They do not contain the paper's own data.

Source: https://arxiv.org/abs/2512.04329, version 1, Figures 2 to 5
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.folder.paper import Headline, count_categories
from lemur_core.files.figures import BLUE, FAINT, INK, ORANGE, bar_axes, label_bars, save_figure
from lemur_core.files.markdown import count, make_visible, percent, plural
from manifests.records import LEVELS, Block

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 15  # sources with a separate bar; the others share one, which counts once in the mean
_LABEL = 34  # characters

CAPTIONS = {
    "paper_sources": "Classes of each source; dashed, the mean of the bars (the paper's Figure 2).",
    "paper_categories": "Classes of each of the paper's categories; dashed, their mean (the paper's Table 2).",
    "paper_flow": "What came through each step, and what stopped before it (the paper's Figures 3 and 4).",
    "paper_throughput": "Seconds per block in the sandbox, and the lines of code produced over time (the paper's"
    " Figure 5); only with `--timings`.",
}


def draw_paper(folder: Path, rows: Sequence[Block], counts: Mapping[str, Any], *, timings: bool) -> dict[str, str]:
    """Draw the figures with data into `folder`.

    Args:
        counts: result of `extract.model.results.count_rows`.
        timings: whether the blocks' seconds are recorded and may be shown.

    Returns: File name by figure, in the order of `CAPTIONS`.
    """
    timed = [row for row in rows if timings and row.seconds is not None]
    drawings: dict[str, tuple[object, Callable[[Figure], None]]] = {
        "paper_sources": (rows, lambda figure: _bars(figure, _sources(counts["sources"]))),
        "paper_categories": (rows, lambda figure: _bars(figure, _categories(rows))),
        "paper_flow": (rows, lambda figure: _flow(figure, counts)),
        "paper_throughput": (timed[1:], lambda figure: _throughput(figure, timed)),
    }
    drawn = {name: draw for name, (shown_when, draw) in drawings.items() if shown_when}
    for name, draw in drawn.items():
        save_figure(folder / f"{name}.png", draw)
    return {name: f"{name}.png" for name in drawn}


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
