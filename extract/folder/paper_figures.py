"""The figures of the NN-RAG paper, drawn from a run's rows: counts with their mean, the validated and the failed, and
throughput. The paper's own data are not in them.

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
from lemur_core.files.markdown import count, percent, plural, shown
from manifests.records import LEVELS, Block

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 15  # sources with a bar of their own; the others share one, which counts for the mean as one
_LABEL = 34  # characters

CAPTIONS = {
    "paper_sources": "Classes of each source; dashed, the mean of the bars (the paper's Figure 2).",
    "paper_categories": "Classes of each of the paper's categories; dashed, their mean (the paper's Table 2).",
    "paper_flow": "What came through each step, and what stopped before it (the paper's Figures 3 and 4).",
    "paper_throughput": "How long a block takes in the sandbox, and the code that is made meanwhile (the paper's"
    " Figure 5); only with `--timings`.",
}


def draw_paper(folder: Path, rows: Sequence[Block], counts: Mapping[str, Any], *, timings: bool) -> dict[str, str]:
    """Draw the figures for which there are data into `folder`.

    Args:
        counts: of `extract.model.results.count_rows`.
        timings: the blocks' seconds are recorded, and may be shown.

    Returns: file name by figure, in the order of `CAPTIONS`.
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
    """The classes of each source, most first; those of the last ones together."""
    sizes = Counter({name: sum(levels.values()) for name, levels in sources.items()})
    bars = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    if len(bars) > _NAMED + 1:
        rest = bars[_NAMED:]
        bars[_NAMED:] = [(f"{count(len(rest))} others", sum(size for _, size in rest))]
    return [(shown(name, _LABEL), size) for name, size in bars]


def _categories(rows: Sequence[Block]) -> list[tuple[str, int]]:
    return [(name, whole) for name, (whole, _) in count_categories(rows).items()]


def _bars(figure: "Figure", bars: Sequence[tuple[str, int]]) -> None:
    """Horizontal bars with a dashed line at their mean, those below it paler."""
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
    """A bar for each step: what came through it, and what stopped before it; the widths add up to the bar above."""
    found = Headline.of(counts)
    reached = counts["reached"]
    steps = [("targeted", found.targeted), *((rung, reached[rung]) for rung in LEVELS)]
    steps = [(name, number) for place, (name, number) in enumerate(steps) if place < 2 or number]
    if steps[0][1] == steps[1][1]:
        del steps[0]
    axes = bar_axes(figure, [name for name, _ in steps], 1.1)
    through = [number for _, number in steps]
    lost = [0, *(before - now for before, now in itertools.pairwise(through))]
    axes.barh(range(len(steps)), through, 0.72, color=BLUE, label="came through")
    axes.barh(range(len(steps)), lost, 0.72, left=through, color=ORANGE, label="stopped here")
    whole = max(found.targeted, 1)
    texts = [
        f"{count(number)}  ({percent(number, whole)})" + (f", −{count(gone)}" if gone else "")
        for number, gone in zip(through, lost, strict=True)
    ]
    label_bars(axes, texts, [number + gone for number, gone in zip(through, lost, strict=True)])
    axes.set_xlim(0, 1.32 * max(through))
    _numbers(axes)
    stopped = found.targeted - found.validated
    axes.set_xlabel(
        f"classes; validated, as the paper calls executed: {count(found.validated)}, failed: {count(stopped)}"
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, handlelength=1.2)


def _throughput(figure: "Figure", timed: Sequence[Block]) -> None:
    """At the left a histogram of seconds over logarithmic classes; at the right lines of code by the seconds so far."""
    figure.set_size_inches(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    seconds = [max(row.seconds or 0.0, 1e-3) for row in timed]
    bins = Counter(math.floor(5 * math.log10(value) + 1e-9) for value in seconds)
    for place, number in sorted(bins.items()):
        start, end = 10 ** (place / 5), 10 ** ((place + 1) / 5)
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
