"""Figures of an extraction report, as files whose bytes depend only on the data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.model.results import RowCounts, at_least
from lemur_core.describe.picture import draw
from lemur_core.files.figures import bar_axes, label_bars, save_figure
from lemur_core.files.markdown import code_span, count, make_visible, percent, plural
from lemur_core.graphs.graph import LEAVES
from lemur_core.graphs.serialization import load_graphs
from manifests.provenance.licenses import is_permissive
from manifests.records import LEVELS, Block, Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Warm below the level `executed`, blue from it on; neighbors also differ in lightness (Okabe and Ito 2008).
_COLORS = ("#B34700", "#D55E00", "#E69F00", "#F2CC7A", "#A9CDE4", "#6DADD3", "#2F8BC0", "#005A8C")
_BARS = 30
_LABEL = 34  # characters
_BOXES = 24  # of a graph; larger graphs are folded


def draw_figures(
    folder: Path, rows: Sequence[Block], counts: RowCounts, goal: Level, traced: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Draw the levels by source, and the graphs of two blocks whose license allows redistribution, into `folder`.

    Args:
        counts: result of `count_rows`.
        goal: the level that the run is judged by.
        traced: by block, the result of `extract.proofs.trace_guest.trace_block`.

    Returns: Captions by file name: `sources.png`, `graph_common.svg`, `graph_median.svg`, as far as there is data.
    """
    captions = {}
    if rows:
        save_figure(folder / "sources.png", lambda figure: _draw_sources(figure, counts["sources"], goal))
        caption = "Highest level of each source's classes, as shares; next to the name, the number of classes."
        captions["sources.png"] = caption
    permissive = [row.block for row in rows if row.block in traced and is_permissive(row.license)]
    return captions | _draw_graphs(folder, {block: traced[block] for block in permissive})


def _draw_graphs(folder: Path, traced: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Draw the most common computation, if two blocks share one, and that of a block of middling size."""
    if not traced:
        return {}
    forms = {block: load_graphs(answer)["eval"] for block, answer in traced.items()}
    sizes = {block: sum(node.op not in LEAVES for node in form.nodes) for block, form in forms.items()}
    identities = Counter(answer["graph"] for answer in traced.values())
    shared = {block: identities[answer["graph"]] for block, answer in traced.items()}
    # Of equally common computations the largest, since single operations say little.
    common = min(forms, key=lambda block: (-shared[block], -sizes[block], block))
    median = sorted(forms, key=lambda block: (sizes[block], block))[len(forms) // 2]
    chosen = {}
    if shared[common] > 1:
        chosen["graph_common.svg"] = (common, f"What {count(shared[common])} blocks compute, {{}} among them.")
    chosen["graph_median.svg"] = (median, f"A block of middling size ({plural(sizes[median], 'operation')}): {{}}.")
    for name, (block, _) in chosen.items():
        draw(forms[block], folder / name, block.rpartition("::")[2], _BOXES)
    return {name: caption.format(code_span(block, 120)) for name, (block, caption) in chosen.items()}


def _draw_sources(figure: "Figure", sources: Mapping[str, Mapping[str, int]], goal: Level) -> None:
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
