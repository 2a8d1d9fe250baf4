"""Figures in one style, as PNG or SVG files whose bytes depend only on the data.

Colors: Okabe and Ito 2008, "Color Universal Design".
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemur_core.files.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
#: Background of labels on grid lines.
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
_INCHES, _BAR_INCHES = 8.0, 0.34  # width of a figure, height of a bar
_DPI = 160  # sharp on finer screens at 8 inches and 800 pixels

_STYLE: dict[str, object] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.hashsalt": "lemur",  # otherwise the IDs in an SVG file are random
}


def save_figure(path: Path, draw: Callable[["Figure"], None]) -> None:
    """Draw one figure into a PNG file, or an SVG file if the name ends in `.svg`; create its folder if needed.

    The style does not depend on the user's Matplotlib settings; the file has no date, so equal figures are equal bytes.

    Args: path: replaced as a whole, or not at all. draw: called once with an empty figure.
    """
    import matplotlib  # imported here: slower than the rest of a report
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # its keys are typed as literals
        settings.update(_STYLE)
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # a name in a script that the font lacks
        figure = Figure(layout="constrained")
        draw(figure)
        with atomic_file(path) as part:
            # Without dates and versions, equal figures are equal bytes.
            if path.suffix == ".svg":
                figure.savefig(part, format="svg", metadata={"Date": None, "Creator": None})
            else:
                figure.savefig(part, format="png", dpi=_DPI, metadata={"Software": None})


def bar_axes(figure: "Figure", labels: Sequence[str], height: float) -> "Axes":
    """Create axes for horizontal bars: bar `n` is at y = `n`, the first at the top, with its label on the left.

    Args:
        figure: resized here: its height follows from the number of bars.
        labels: one per bar, from the top.
        height: inches of everything except the bars.
    Returns: the only axes of the figure; the caller draws the bars.
    """
    figure.set_size_inches(_INCHES, height + _BAR_INCHES * len(labels))
    axes = figure.subplots()
    axes.set_yticks(range(len(labels)), list(labels))
    # Upside down, so that the first bar is at the top.
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return axes


def label_bars(axes: "Axes", texts: Sequence[str], ends: Sequence[float]) -> None:
    """Write a text after the end of each bar.

    Args:
        axes: from `bar_axes`.
        texts: one per bar, from the top.
        ends: where the bars end, in units of the x axis.
    """
    for index, (text, end) in enumerate(zip(texts, ends, strict=True)):
        axes.annotate(
            text, (end, index), (5, 0), textcoords="offset points", va="center_baseline", fontsize=9.5, bbox=_BEHIND
        )
