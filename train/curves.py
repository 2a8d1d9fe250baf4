"""The learning curves of a run, as a PNG whose bytes depend on the figures alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lemur_core.files.figures import BLUE, ORANGE, save_figure
from train.history import EpochFigures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = (("train", "training, augmented", BLUE, "--"), ("val", "held out", ORANGE, "-"))


def draw_curves(history: Sequence[EpochFigures], title: str, path: Path) -> None:
    """Draw loss and accuracy against the epoch, on the images trained on and on those held out."""

    def draw(figure: "Figure") -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        figure.set_size_inches(8.0, 3.2)
        figure.suptitle(title, fontsize=11)
        for axes, kind in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for which, label, colour, dash in _LINES:
                values = [(epoch.epoch, getattr(epoch, f"{which}_{kind}")) for epoch in history]
                points = [(epoch, value) for epoch, value in values if value is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), dash, color=colour, label=label, marker=".", markersize=4)
            axes.set_xlabel("epoch")
            axes.set_ylabel(kind)
            axes.grid(axis="y")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if axes.lines:
                axes.legend()
            if kind == "accuracy":
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    save_figure(path, draw)
