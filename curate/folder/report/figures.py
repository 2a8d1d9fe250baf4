"""The figures of a curation report: charts as PNG files, and a few graphs; their bytes depend on the data alone.

Colors: Okabe and Ito 2008, "Color Universal Design"; every distinction is also one of position or lightness.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from curate.folder.report.facts import ReportFacts, select_compared_groups
from curate.model.corpus import LoadedRecords
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.describe.picture import draw as draw_graph
from lemur_core.files.figures import BEHIND, INK, bar_axes, label_bars, save_figure
from lemur_core.files.markdown import code_span, count, make_visible, plural, ratio
from lemur_core.graphs.graph import LEAVES, Graph, unpack
from lemur_core.similarity.minhash import jaccard

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEPT, GONE = "#0072B2", "#B9D5E6"
STAGE_COLORS = {"exact": "#009E73", "lexical": "#0072B2", "structural": "#D55E00", "graph": "#CC79A7"}
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


def draw_figures(
    folder: Path, facts: ReportFacts, thresholds: dict[str, float], pretrained: Collection[int] = ()
) -> dict[str, str]:
    """Draw the figures that have data into `folder`.

    Args:
        thresholds: those of the stages `lexical` and `structural`.
        pretrained: codes that load trained weights.

    Returns: file name by figure: `funnel`, `similarity`, `prefixes`, `families`, `best`.
    """
    drawings: dict[str, Callable[[Figure], None]] = {}
    if facts.codes.total() > facts.codes["filter"]:
        drawings["funnel"] = lambda figure: _funnel(figure, facts)
    if any(facts.codes[stage] for stage in thresholds):
        drawings["similarity"] = lambda figure: _similarity(figure, facts, thresholds)
    for name, groups in (
        ("prefixes", select_compared_groups(facts.prefixes)),
        ("families", select_compared_groups(facts.families)),
    ):
        if len(groups) > 1:
            drawings[name] = _group_drawing(groups, "networks" if name == "prefixes" else "codes")
    if len(facts.best) > 1:
        drawings["best"] = lambda figure: _best(figure, facts, pretrained)
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


def _similarity(figure: "Figure", facts: ReportFacts, thresholds: dict[str, float]) -> None:
    """Draw histograms of the similarity to the kept record, a panel per stage, with a separate bar for equal codes."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    similarities = {stage: [facts.similarity(code) for code in facts.list_removed(stage)] for stage in thresholds}
    similarities = {stage: values for stage, values in similarities.items() if values}
    lowest = min(min(thresholds.values()), *(min(values) for values in similarities.values()))
    width = 0.005 if lowest >= 0.8 else 0.02
    first = int(lowest / width + 1e-9)
    last = round(1 / width)
    figure.set_size_inches(_WIDTH, 0.8 + 1.75 * len(similarities))
    panels = figure.subplots(len(similarities), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (stage, values) in zip(panels, similarities.items(), strict=True):
        bins = Counter(last if value == 1.0 else min(int(value / width + 1e-9), last - 1) for value in values)
        places = sorted(bins)
        color = STAGE_COLORS[stage]
        axes.bar(
            [(index + 0.5) * width for index in places], [bins[index] for index in places], width * 0.86, color=color
        )
        highest = max(bins.values())
        if highest > _LINEAR:
            axes.set_yscale("log")
        axes.set_ylim(*((0.7, 3.2 * highest) if highest > _LINEAR else (0, 1.4 * highest)))
        axes.yaxis.set_major_locator(LogLocator() if highest > _LINEAR else MaxNLocator(4, integer=True))
        axes.grid(axis="y")
        axes.set_ylabel("codes")
        axes.yaxis.set_major_formatter(lambda value, _: count(round(value)))
        axes.minorticks_off()
        axes.axvline(thresholds[stage], color=INK, lw=1.2, ls=(0, (4, 3)))
        axes.text(
            thresholds[stage] + 0.25 * width,
            0.97,
            f"threshold {thresholds[stage]:g}",
            transform=axes.get_xaxis_transform(),
            va="top",
            fontsize=9.5,
            bbox=BEHIND,
        )
        axes.set_title(
            f"{stage}: {plural(len(values), 'code')}", loc="left", fontsize=10.5, color=color, fontweight="bold"
        )
        if bins[last]:
            axes.annotate(
                count(bins[last]),
                ((last + 0.5) * width, bins[last]),
                (0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9.5,
                bbox=BEHIND,
            )
    figure.align_ylabels(panels)
    bottom = panels[-1]
    bottom.set_xlim((first - 0.5) * width, (last + 1.3) * width)
    step = 0.01 if width == 0.005 and lowest >= 0.88 else 0.05 if lowest >= 0.6 else 0.1
    ticks = [index * step for index in range(round(1 / step)) if index * step >= lowest - 1e-9]
    bottom.set_xticks([*ticks, 1 + 0.5 * width], [*(f"{tick:.2f}" for tick in ticks), "1"])
    bottom.set_xlabel("Jaccard similarity to the kept record (last bar: exactly 1)")


def _best(figure: "Figure", facts: ReportFacts, pretrained: Collection[int]) -> None:
    """Draw horizontal bars of the best accuracies; networks with trained weights are hatched."""
    from matplotlib.patches import Patch

    numbers = [100 * accuracy for _, accuracy, _ in facts.best]
    axes = bar_axes(
        figure, [make_visible(facts.names[code], _NAME).strip() or "(no name)" for code, _, _ in facts.best], 1.1
    )
    low = max(0.0, min(numbers) - max(1.0, 0.5 * (max(numbers) - min(numbers))))
    for index, ((code, _, _), number) in enumerate(zip(facts.best, numbers, strict=True)):
        loads = code in pretrained
        axes.barh(
            index, number - low, 0.72, left=low, color=GONE if loads else KEPT, ec="white" if not loads else KEPT,
            hatch="///" if loads else None, lw=0.6,
        )  # fmt: skip
    label_bars(axes, [f"{number:.2f} %" for number in numbers], numbers)
    axes.set_xlim(low, max(numbers) + 0.16 * (max(numbers) - low))
    axes.set_xlabel(f"% accuracy on CIFAR-10; the axis starts at {low:.1f}")
    handles = [Patch(color=KEPT, label="own weights"), Patch(fc=GONE, ec=KEPT, hatch="///", label="trained weights")]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2, handlelength=1.4)


def _group_drawing(groups: dict[str, Counter[str]], unit: str) -> "Callable[[Figure], None]":
    return lambda figure: _groups(figure, groups, unit)


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
    publishable = {
        code: traced for code, traced in (outcome.graphs or {}).items() if not outcome.rights.is_blocked(code)
    }
    graphs = {code: traced.graph for code, traced in publishable.items() if traced.graph is not None}
    kept = [code for code in outcome.kept if code in graphs]
    twins = [code for code in facts.list_removed("graph") if code in graphs]
    if twins:
        near = {code: _lexical(corpus, code, facts.verdicts[code].canonical) for code in twins}
        code = min(twins, key=lambda twin: (_size(outcome, twin) > BOXES, near[twin], facts.ids[twin]))
        canonical = facts.verdicts[code].canonical
        assert canonical is not None
        one, other = facts.names[code], facts.names[canonical]
        yield (
            "graph_twins",
            code,
            f"{one} = {other}",
            f"Two texts, one computation: {code_span(one, 60)} was removed for {code_span(other, 60)}; of all their"
            f" shingles they share {ratio(near[code])}.",
        )
    shared = Counter(graphs.values())
    common = max(kept, key=lambda code: (shared[graphs[code]], facts.ids[code]), default=None)
    if common is not None and shared[graphs[common]] > 1:
        yield (
            "graph_common",
            common,
            facts.names[common],
            f"What {count(shared[graphs[common]])} of {plural(len(graphs), 'traced code')} compute;"
            f" {code_span(facts.names[common], 60)} stands for them.",
        )
    scored = [code for code in kept if outcome.scores.get(code) is not None]
    best = max(scored, key=lambda code: (outcome.scores[code] or 0.0, facts.ids[code]), default=None)
    if best is not None:
        score = outcome.scores[best] or 0.0
        yield (
            "graph_best",
            best,
            facts.names[best],
            f"The kept network with the best score, {score:.4f}: {code_span(facts.names[best], 60)}.",
        )


def _lexical(corpus: LoadedRecords, one: int, other: int | None) -> float:
    assert other is not None
    features = corpus.features
    return jaccard(*(features.shingles(int(features.shingle_set[code])) for code in (one, other)))


def _size(outcome: CurationOutcome, code: int) -> int:
    """Count the operations in eval mode."""
    assert outcome.graphs is not None
    nodes = unpack(outcome.graphs[code].answer["eval"])["nodes"]
    return sum(op not in LEAVES for op, *_ in nodes)
