"""The figures of an extraction report, as PNG files whose bytes depend on the data alone.

Colours: Okabe and Ito 2008, "Color Universal Design"; every distinction is also one of position or lightness.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.results import at_least
from lemur_core.files.figures import BEHIND, BLUE, INK, save_figure
from lemur_core.files.markdown import count, percent, plural, shown
from manifests.records import LEVELS, Block, Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Below the rung that a run is judged by, dark to light; from it on, light to dark.
_BELOW = ("#B34700", "#D55E00", "#E69F00", "#F2CC7A")
_ABOVE = ("#A9CDE4", "#6DADD3", "#2F8BC0", "#005A8C")
_WIDTH = 8.0  # inches
_BARS = 30
_LABEL = 34  # characters


def draw_figures(folder: Path, rows: Sequence[Block], counts: Mapping[str, Any], goal: Level) -> dict[str, str]:
    """Draw what there is to show into `folder`.

    Args:
        counts: of `count_rows`.
        goal: the rung that the run is judged by.

    Returns: file name by figure: `sources`, `failures`, `sizes`.
    """
    lengths = [row.n_lines for row in rows if row.n_lines]
    drawings: dict[str, Callable[[Figure], None]] = {}
    if rows:
        drawings["sources"] = lambda figure: _sources(figure, counts["sources"], goal)
    if counts["failures"]:
        drawings["failures"] = lambda figure: _failures(figure, counts["failures"])
    if len(lengths) > 1:
        drawings["sizes"] = lambda figure: _sizes(figure, lengths)
    for name, draw in drawings.items():
        save_figure(folder / f"{name}.png", draw)
    return {name: f"{name}.png" for name in drawings}


def rung_colors(levels: Sequence[Level], goal: Level) -> dict[Level, str]:
    """A colour for each of these rungs, in their order: warm below the goal, blue from it on.

    There are at most four on either side, since the goal is `executed`, or the rung that the run stopped at before.
    """
    below = [level for level in levels if not at_least(level, goal)]
    above = [level for level in levels if at_least(level, goal)]
    blue = (BLUE,) if len(above) == 1 else _ABOVE[: len(above)]
    return {**dict(zip(below, _BELOW[4 - len(below) :], strict=True)), **dict(zip(above, blue, strict=True))}


def _sources(figure: "Figure", sources: Mapping[str, Mapping[str, int]], goal: Level) -> None:
    """A bar of shares for each source, one segment a rung."""
    bars = [(f"{shown(name, _LABEL)}  {count(sum(n.values()))}", n) for name, n in sources.items()]
    if len(bars) > _BARS:
        rest = sum((Counter(levels) for _, levels in bars[_BARS - 1 :]), Counter[str]())
        number = count(len(bars) - _BARS + 1)
        bars = [*bars[: _BARS - 1], (f"{number} others  {count(rest.total())}", rest)]
    present = [level for level in LEVELS if any(levels.get(level) for _, levels in bars)]
    colors = rung_colors(present, goal)
    figure.set_size_inches(_WIDTH, 1.1 + 0.31 * len(bars))
    axes = figure.subplots()
    left = [0.0] * len(bars)
    order = [*reversed(present)]  # what reached most first, so that the goal is read from the left
    for level in order:
        widths = [100 * levels.get(level, 0) / sum(levels.values()) for _, levels in bars]
        axes.barh(range(len(bars)), widths, 0.74, left=left, color=colors[level], label=level, ec="white", lw=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, (_, levels) in enumerate(bars):
        part, whole = sum(n for level, n in levels.items() if at_least(level, goal)), sum(levels.values())
        axes.annotate(
            percent(part, whole), (100, place), (5, 0), textcoords="offset points", va="center_baseline", fontsize=9.5
        )
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of classes, by highest rung; at the right, the share that is at least {goal}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(5, len(order)), handlelength=1.2)


def _failures(figure: "Figure", failures: Mapping[str, int]) -> None:
    """Horizontal bars, with their numbers."""
    from matplotlib.ticker import MaxNLocator

    bars = [(shown(kind, _LABEL), number) for kind, number in failures.items()]
    if len(bars) > _BARS:
        rest = bars[_BARS - 1 :]
        bars = [*bars[: _BARS - 1], (f"{count(len(rest))} others", sum(number for _, number in rest))]
    figure.set_size_inches(_WIDTH, 0.9 + 0.34 * len(bars))
    axes = figure.subplots()
    whole = sum(failures.values())
    axes.barh(range(len(bars)), [number for _, number in bars], 0.72, color=_BELOW[1])
    for place, (_, number) in enumerate(bars):
        axes.annotate(
            f"{count(number)}  ({percent(number, whole)})",
            (number, place),
            (5, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9.5,
            bbox=BEHIND,
        )
    axes.set_yticks(range(len(bars)), [kind for kind, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.2 * max(number for _, number in bars))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(f"classes, of {count(whole)} that came no further")


def _sizes(figure: "Figure", lengths: Sequence[int]) -> None:
    """A histogram over logarithmic classes of lines, five a decade, with the median."""
    from matplotlib.ticker import MaxNLocator

    bins = Counter(math.floor(5 * math.log10(length) + 1e-9) for length in lengths)
    places = sorted(bins)
    figure.set_size_inches(_WIDTH, 3.2)
    axes = figure.subplots()
    edges = {place: 10 ** (place / 5) for place in range(places[0], places[-1] + 2)}
    for place in places:
        axes.bar(edges[place], bins[place], edges[place + 1] - edges[place], align="edge", color=BLUE, ec="white")
    axes.set_xscale("log")
    axes.set_xlim(edges[places[0]] * 0.9, edges[places[-1] + 1] * 1.1)
    median = sorted(lengths)[len(lengths) // 2]
    axes.axvline(median, color=INK, lw=1.2, ls=(0, (4, 3)))
    axes.set_ylim(0, 1.22 * max(bins.values()))
    axes.annotate(f"median {plural(median, 'line')}", (median, 1), (6, -12), ("data", "axes fraction"), "offset points")
    ticks = [n * 10**power for power in range(6) for n in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if edges[places[0]] * 0.9 <= tick <= edges[places[-1] + 1] * 1.1])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: count(round(value)))
    axes.grid(axis="y")
    axes.set_xlabel("lines of a closed file (logarithmic)")
    axes.set_ylabel("files")
