"""Figures in one style, as PNG or SVG files whose bytes depend only on the data.

Colors: Okabe and Ito 2008, "Color Universal Design".
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemur_core.files.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
_DPI = 160  # sharp on finer screens at 8 inches and 800 pixels

_STYLE: dict[str, object] = {
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
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
