"""The figure of an ablation."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lemur_core.files.figures import BLUE, FAINT, INK, save_figure
from train.paired import Difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
