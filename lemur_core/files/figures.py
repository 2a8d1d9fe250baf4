"""Figures of one look, as PNG files whose bytes depend on the data alone.

Colours: Okabe and Ito 2008, "Color Universal Design".
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemur_core.files.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
#: Of labels that lie on grid lines.
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
_DPI = 160  # sharp on finer screens at 8 inches and 800 pixels

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


def save_figure(path: Path, draw: Callable[["Figure"], None], *, dpi: int = _DPI) -> None:
    """Draw one figure into a PNG file, in our style whatever the user's settings are; its folder is made if missing."""
    import matplotlib  # here, because it takes longer than everything else in a report
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # its keys are typed as literals
        settings.update(_STYLE)
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # a name in a script the font lacks
        figure = Figure(layout="constrained")
        draw(figure)
        with atomic_file(path) as part:
            figure.savefig(part, format="png", dpi=dpi, metadata={"Software": None})
