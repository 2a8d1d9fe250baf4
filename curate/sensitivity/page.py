"""The page and the figure of a sensitivity grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import curate.sensitivity.grid as grid_values
from curate.options import CurateOptions
from curate.sensitivity.grid import Grid, GridPoint
from lemur_core.files.figures import INK, save_figure
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _taus(grid: Grid) -> list[float]:
    return list(dict.fromkeys(point.lexical_threshold for point in grid.points))


def _kappas(grid: Grid) -> list[float | None]:
    return list(dict.fromkeys(point.structural_threshold for point in grid.points))


def _text(threshold: float | None) -> str:
    return "off" if threshold is None else f"{threshold:.2f}" if round(threshold, 2) == threshold else f"{threshold:g}"


def _default() -> tuple[float, float | None]:
    """The thresholds that `lemur curate` uses when none are given."""
    options = CurateOptions()
    return options.lexical_threshold, options.structural


def sensitivity_page(name: str, grid: Grid) -> str:
    """The Markdown of `report.md`."""
    taus, kappas = _taus(grid), _kappas(grid)
    at = {(point.lexical_threshold, point.structural_threshold): point for point in grid.points}
    default = at.get(_default())
    cells = []
    for tau in taus:
        line = [_text(tau)]
        for kappa in kappas:
            kept = at[tau, kappa].kept
            text = f"{count(kept)} ({percent(kept, grid.records)})"
            line.append(f"**{text}**" if default is not None and at[tau, kappa] is default else text)
        cells.append(line)
    bold = " The defaults of `lemur curate` are in bold." if default is not None else ""
    lines = [
        f"# Sensitivity of {plain(name)} to the thresholds",
        "",
        f"Records kept of {plural(grid.records, 'distinct code')}, by lexical threshold τ (rows) and structural"
        f" threshold κ (columns; off: no structural stage).{bold}",
        "",
        *table(["τ \\ κ", *map(_text, kappas)], cells),
        "![Records kept over the lexical threshold](figures/sensitivity.png)",
        "",
        f"{_HOW_TO_READ}{_range(grid)}",
        "",
        *_prefix_section(grid, at, taus, kappas),
        *_recall_section(grid),
    ]
    return "\n".join(lines)


_HOW_TO_READ = (
    "A threshold is the similarity from which two records count as near-duplicates, so a higher one keeps more. Down a"
    " column, one sees what the text decides: at τ = 1 only codes with the same set of shingles are near by it. Along a"
    " row, one sees what the structure (the layers called, how often, with which sizes) adds: at κ = 1 only codes whose"
    " sets of these are equal are near by it. Where neighbouring numbers differ little, the snapshot depends little on"
    " the choice; where they jump, look at records between the two thresholds (`lemur explain`) before choosing. Every"
    " number is the size of a set without near-duplicates that was chosen best-first and to which no further record can"
    " be added; such sets nearly always grow with a threshold, but need not. How many records are kept says nothing"
    " about how good they are."
)


def _range(grid: Grid) -> str:
    """The range of the grid in words."""
    if len(grid.points) < 2:
        return ""
    kept = [point.kept for point in grid.points]
    low, high, whole = min(kept), max(kept), grid.records
    return f" Over this grid, {count(low)} to {count(high)} are kept ({percent(low, whole)} to {percent(high, whole)})."


def _prefix_section(
    grid: Grid,
    at: Mapping[tuple[float, float | None], GridPoint],
    taus: Sequence[float],
    kappas: Sequence[float | None],
) -> list[str]:
    kappa = _default()[1] if _default()[1] in kappas else kappas[-1]
    prefixes = list(grid.records_by_prefix)
    if len(prefixes) < 2:
        return []
    cells = [
        [
            "other" if prefix is None else code_span(prefix),
            count(grid.records_by_prefix[prefix]),
            *(count(at[tau, kappa].kept_by_prefix.get(prefix, 0)) for tau in taus),
        ]
        for prefix in prefixes
    ]
    return [
        f"## By prefix, κ {_text(kappa)}",
        "",
        f"Records kept by prefix of the name (those with at least one in {1 / grid_values.PREFIX_SHARE:.0f} of the"
        " records) and lexical threshold; `by_prefix.parquet` has them for every κ.",
        "",
        *table(["prefix", "records", *(f"τ {_text(tau)}" for tau in taus)], cells),
    ]


def _recall_section(grid: Grid) -> list[str]:
    cells = [
        [
            _text(tau),
            count(recall.pairs),
            count(recall.found),
            f"{recall.bands} × {recall.rows}",
            f"{recall.sets_asked:,} of {recall.sets:,}",
        ]
        for tau, recall in grid.recalls.items()
    ]
    return [
        "## Were all pairs found?",
        "",
        "Pairs of distinct shingle sets at or above τ by an exact join, and how many of them MinHash-LSH proposes.",
        "",
        *table(["τ", "pairs", "proposed by LSH", "bands × rows", "sets joined with all"], cells),
    ]


def write_figure(path: Path, grid: Grid) -> None:
    """Records kept over the lexical threshold, one line for each structural threshold."""

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(7.0, 4.4)
        _draw(figure, grid)

    save_figure(path, draw, dpi=200)


def _draw(figure: "Figure", grid: Grid) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import StrMethodFormatter

    taus, kappas = _taus(grid), _kappas(grid)
    numeric = [kappa for kappa in kappas if kappa is not None]
    looks: dict[float | None, dict[str, Any]] = {None: {"color": "0.35", "linestyle": "--"}}
    shades = np.linspace(0.85, 0.1, len(numeric))
    looks |= {kappa: {"color": colormaps["viridis"](shade)} for kappa, shade in zip(numeric, shades, strict=True)}
    kept = {(point.lexical_threshold, point.structural_threshold): point.kept for point in grid.points}
    axes = figure.add_subplot()
    for kappa in reversed(kappas):  # the legend in the order of the lines
        counts = [kept[tau, kappa] for tau in taus]
        axes.plot(taus, counts, marker="o", markersize=4, linewidth=1.7, label=_text(kappa), **looks[kappa])
    default = _default()
    if default in kept:
        at = (default[0], kept[default])
        axes.plot(*at, "o", markersize=11, markerfacecolor="none", markeredgecolor=INK)
        axes.annotate(
            f"default: {count(kept[default])}",
            at,
            xytext=(0, -70),
            textcoords="offset points",
            ha="center",
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8, "shrinkB": 6},
        )
    axes.set_xlabel("lexical threshold τ")
    axes.set_ylabel(f"records kept of {plural(grid.records, 'distinct code')}")
    axes.set_ylim(bottom=0)
    axes.set_xticks(taus, [_text(tau) for tau in taus])
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y")
    axes.legend(title="structural\nthreshold κ", loc="upper left")
