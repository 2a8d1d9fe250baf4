"""Figures of an extraction report, as files whose bytes depend only on the data."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from extract.model.results import at_least
from lemur_core.files.figures import bar_axes, label_bars
from lemur_core.files.markdown import count, make_visible, percent
from manifests.records import LEVELS, Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Warm below the level `executed`, blue from it on; neighbors also differ in lightness (Okabe and Ito 2008).
_COLORS = ("#B34700", "#D55E00", "#E69F00", "#F2CC7A", "#A9CDE4", "#6DADD3", "#2F8BC0", "#005A8C")
_BARS = 30
_LABEL = 34  # characters


def draw_sources(figure: "Figure", sources: Mapping[str, Mapping[str, int]], goal: Level) -> None:
    """Draw a bar of shares for each source, with one segment per level; of many sources, the last ones are merged."""
    bars = [(make_visible(name, _LABEL), Counter(levels)) for name, levels in sources.items()]
    if len(bars) > _BARS:
        rest = [levels for _, levels in bars[_BARS - 1 :]]
        bars[_BARS - 1 :] = [(f"{count(len(rest))} others", sum(rest, Counter[str]()))]
    axes = bar_axes(figure, [f"{name}  {count(levels.total())}" for name, levels in bars], 1.1)
    left = [0.0] * len(bars)
    # The highest level first, so that the goal is read from the left.
    order = [level for level in reversed(LEVELS) if any(levels[level] for _, levels in bars)]
    for level in order:
        widths = [100 * levels[level] / levels.total() for _, levels in bars]
        color = _COLORS[LEVELS.index(level)]
        axes.barh(range(len(bars)), widths, 0.74, left=left, color=color, label=level, ec="white", lw=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    above = [level for level in order if at_least(level, goal)]
    shares = [percent(sum(levels[level] for level in above), levels.total()) for _, levels in bars]
    label_bars(axes, shares, [100] * len(bars))
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of classes, by highest level; at the right, the share that is at least {goal}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(5, len(order)), handlelength=1.2)
