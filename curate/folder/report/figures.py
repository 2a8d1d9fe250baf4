"""The figures of a curation report: charts as PNG files, and a few graphs; their bytes depend on the data alone.

Colors: Okabe and Ito 2008, "Color Universal Design"; every distinction is also one of position or lightness.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from curate.compute.graphs import GraphTrace
from curate.folder.report.facts import ReportFacts, select_compared_groups
from curate.model.corpus import LoadedRecords
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.describe.picture import draw as draw_graph
from lemur_core.files.figures import INK, bar_axes, label_bars, save_figure
from lemur_core.files.markdown import code_span, count, make_visible, plural, ratio
from lemur_core.graphs.graph import LEAVES, Graph, unpack
from lemur_core.similarity.minhash import jaccard

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEPT, GONE = "#0072B2", "#B9D5E6"
_DUPLICATE = {
    "exact": "exact duplicate",
    "lexical": "lexical near-duplicate",
    "structural": "structural near-duplicate",
    "graph": "other text of the same computation",
}
_WIDTH = 8.0  # inches
_BARS = 14
_NAME = 44  # characters
_LINEAR = 30  # numbers up to here are drawn on a linear scale


def draw_figures(folder: Path, facts: ReportFacts) -> dict[str, str]:
    """Draw the figures that have data into `folder`. Returns: file name by figure: `funnel`, `prefixes`, `families`."""
    drawings: dict[str, Callable[[Figure], None]] = {}
    if facts.codes.total() > facts.codes["filter"]:
        drawings["funnel"] = partial(_funnel, facts=facts)
    for name, unit, groups in (("prefixes", "networks", facts.prefixes), ("families", "codes", facts.families)):
        compared = select_compared_groups(groups)
        if len(compared) > 1:
            drawings[name] = partial(_groups, groups=compared, unit=unit)
    for name, draw in drawings.items():
        save_figure(folder / f"{name}.png", draw)
    return {name: f"{name}.png" for name in drawings}


def _funnel(figure: "Figure", facts: ReportFacts) -> None:
    """Draw the distinct codes, and how many each stage leaves."""
    left = facts.codes.total() - facts.codes["filter"]
    steps = [("distinct codes", left, "")]
    stages = [stage for stage in DUPLICATE_STAGES if stage != "graph" or facts.codes[stage]]
    for stage in stages:
        number = facts.codes[stage]
        left -= number
        note = f"− {plural(number, _DUPLICATE[stage])}" if number else ""
        steps.append((f"after {stage}" if stage != stages[-1] else "kept", left, note))
    figure.set_size_inches(_WIDTH, 0.6 + 0.42 * len(steps))
    _steps(figure.subplots(), steps)


def _steps(axes: "Axes", steps: Sequence[tuple[str, int, str]]) -> None:
    """Draw bars of the codes left after each step, with those that the step removed in a lighter color."""
    whole = max(1, *(number for _, number, _ in steps))
    for index, (_, number, note) in enumerate(steps):
        before = steps[index - 1][1] if index else number
        axes.barh(index, before, 0.64, color=GONE)
        axes.barh(index, number, 0.64, color=KEPT)
        inside = number > 0.4 * whole
        start = 0 if inside else number if before - number > 0.4 * whole else before
        axes.annotate(
            f"{count(number)}    {note}",
            (start, index),
            (7, 0),
            textcoords="offset points",
            va="center_baseline",
            color="white" if inside else INK,
        )
    axes.set_yticks(range(len(steps)), [label for label, _, _ in steps])
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_xlim(0, whole)
    axes.tick_params(length=0)
    axes.set_xticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _groups(figure: "Figure", groups: dict[str, Counter[str]], unit: str) -> None:
    """Draw horizontal bars, logarithmic for large numbers: all of a group, and in front of it those kept."""
    from matplotlib.ticker import MaxNLocator

    bars = [
        (make_visible(name, 24).strip() or "(no name)", counts.total(), counts["kept"])
        for name, counts in groups.items()
    ]
    if len(bars) > _BARS:
        tail = bars[_BARS - 1 :]
        bars = bars[: _BARS - 1]
        bars.append((f"{count(len(tail))} others", sum(bar[1] for bar in tail), sum(bar[2] for bar in tail)))
    axes = bar_axes(figure, [name for name, _, _ in bars], 1.2)
    positions = range(len(bars))
    highest = max(before for _, before, _ in bars)
    logarithmic = highest > _LINEAR
    start = 0.6 if logarithmic else 0.0
    axes.barh(positions, [before - start for _, before, _ in bars], 0.72, left=start, color=GONE, label=f"{unit} in")
    axes.barh(positions, [max(kept - start, 0) for _, _, kept in bars], 0.72, left=start, color=KEPT, label="kept")
    if logarithmic:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlim(start, 3.5 * highest if logarithmic else 1.15 * highest)
    label_bars(axes, [f"{count(kept)} of {count(before)}" for _, before, kept in bars], [bar[1] for bar in bars], 6)
    axes.xaxis.set_major_formatter(lambda value, _: count(round(value)) if value >= start else "")
    axes.minorticks_off()
    axes.set_xlabel(f"{unit}, logarithmic scale" if logarithmic else unit)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2, handlelength=1.4)


#: Maximum number of boxes in a picture; larger graphs are folded.
BOXES = 24


def draw_graphs(folder: Path, corpus: LoadedRecords, facts: ReportFacts, outcome: CurationOutcome) -> dict[str, str]:
    """Draw the chosen graphs into `folder`, as `NAME.svg`. Returns: the captions by name, in order."""
    captions: dict[str, str] = {}
    drawn: set[str] = set()
    for name, code, title, caption in _choose_pictures(corpus, facts, outcome):
        assert outcome.graphs is not None
        traced = outcome.graphs[code]
        assert traced.graph is not None
        if traced.graph not in drawn:
            drawn.add(traced.graph)
            draw_graph(Graph.from_json(unpack(traced.answer["eval"])), folder / f"{name}.svg", title, BOXES)
            captions[name] = caption
    return captions


def _choose_pictures(
    corpus: LoadedRecords, facts: ReportFacts, outcome: CurationOutcome
) -> Iterator[tuple[str, int, str, str]]:
    """Yield the name, code, title and caption of each picture."""
    traces = outcome.graphs or {}
    graphs = {
        code: trace.graph for code, trace in traces.items() if trace.graph and not outcome.rights.is_blocked(code)
    }
    kept = [code for code in outcome.kept if code in graphs]
    near = {
        code: _lexical(corpus, code, canonical)
        for code in facts.list_removed("graph")
        if code in graphs and (canonical := facts.verdicts[code].canonical) is not None
    }
    if near:
        code = min(near, key=lambda twin: (_size(traces[twin]) > BOXES, near[twin], facts.ids[twin]))
        one, other = (facts.names[number] for number in (code, facts.verdicts[code].canonical or 0))
        caption = (
            f"Two texts, one computation: {code_span(one, 60)} was removed for {code_span(other, 60)}; of all their"
            f" shingles they share {ratio(near[code])}."
        )
        yield "graph_twins", code, f"{one} = {other}", caption
    shared = Counter(graphs.values())
    common = max(kept, key=lambda code: (shared[graphs[code]], facts.ids[code]), default=None)
    if common is not None and shared[graphs[common]] > 1:
        name = facts.names[common]
        computed = f"What {count(shared[graphs[common]])} of {plural(len(graphs), 'traced code')} compute"
        yield "graph_common", common, name, f"{computed}; {code_span(name, 60)} stands for them."
    scores = {code: score for code in kept if (score := outcome.scores.get(code)) is not None}
    best = max(scores, key=lambda code: (scores[code], facts.ids[code]), default=None)
    if best is not None:
        name = facts.names[best]
        text = f"The kept network with the best score, {scores[best]:.4f}: {code_span(name, 60)}."
        yield "graph_best", best, name, text


def _lexical(corpus: LoadedRecords, *codes: int) -> float:
    features = corpus.features
    return jaccard(*(features.shingles(int(features.shingle_set[code])) for code in codes))


def _size(trace: GraphTrace) -> int:
    """Count the operations in eval mode."""
    return sum(op not in LEAVES for op, *_ in unpack(trace.answer["eval"])["nodes"])
