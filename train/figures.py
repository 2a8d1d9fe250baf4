"""The figures of training, as PNG files whose bytes depend on the data alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manifests.atomic import atomic_file
from train.paired import Difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito 2008, "Color Universal Design".
BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
_DPI = 160
_STYLE: dict[str, Any] = {
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
}


def save_figure(path: Path, draw: Callable[["Figure"], None]) -> None:
    """Draw one figure into a PNG file, in our style whatever the user's settings are."""
    import matplotlib  # here, because it takes longer than everything else in a report
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # its keys are typed as literals
        settings.update(_STYLE)
        figure = Figure(layout="constrained")
        draw(figure)
        with atomic_file(path) as part:
            figure.savefig(part, format="png", dpi=_DPI, metadata={"Software": None})


def draw_differences(path: Path, found: Sequence[tuple[str, Difference]]) -> None:
    """Draw what each variant loses or gains against the full recipe, in percentage points, with its interval."""

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(8.0, 1.2 + 0.5 * len(found))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.grid(axis="x")
        for place, (_, difference) in enumerate(found):
            if difference.mean is None:
                continue
            colour = BLUE if difference.decided else FAINT
            if difference.low is not None and difference.high is not None:
                axes.plot([100 * difference.low, 100 * difference.high], [place, place], color=colour, linewidth=2)
            axes.plot([100 * difference.mean], [place], "o", color=colour, markersize=6)
        axes.set_yticks(range(len(found)), [f"{name} (n = {difference.n})" for name, difference in found])
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlabel("accuracy against the full recipe, percentage points")

    save_figure(path, draw)
