"""The report of a curation: `report.md` and its figures, all counted from the decisions.

Figures are a chart as PNG file, and a few graphs; their bytes depend on the data alone.

Colors: Okabe and Ito 2008, "Color Universal Design"; every distinction is also one of position or lightness.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from curate.compute.graphs import GraphTrace
from curate.folder.report import records, sections
from curate.folder.report.records import arch_uid_section
from curate.folder.report.sections import ReportFacts, gather_facts
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.describe.picture import draw as draw_graph
from lemur_core.files import Json
from lemur_core.files.figures import INK, save_figure
from lemur_core.files.markdown import code_span, count, plural, ratio
from lemur_core.graphs.graph import LEAVES
from lemur_core.similarity.minhash import jaccard

_FUNNEL = "Codes that remain after each stage; in a light color, those removed."


def write_report(
    folder: Path, corpus: LoadedRecords, outcome: CurationOutcome, counts: Json, options: CurateOptions, name: str
) -> None:
    """Write `report.md` and `figures/*` into `folder`; the same outcome gives the same bytes.

    Args: counts: from `curate.published.outcome.count_decisions`. name: the name of the source.
    """
    facts = gather_facts(corpus, outcome)
    captions = {"funnel.png": _FUNNEL} if draw_funnel(folder / "figures", facts) else {}
    graphs = draw_graphs(folder / "figures", corpus, facts, outcome)
    captions |= {f"{name}.svg": caption for name, caption in graphs.items()}

    def figure(file: str) -> list[str]:
        if file not in captions:
            return []
        caption = f"Figure {list(captions).index(file) + 1}. {captions[file]}"
        return [f"![{caption}](figures/{file})", "", f"*{caption}*", ""]

    lines = [
        *sections.report_head(name, facts, options, outcome),
        *sections.report_funnel(facts),
        *figure("funnel.png"),
        *sections.report_by_text(facts),
        *sections.report_by_group("By prefix", "prefix", "networks", facts.prefixes),
        *sections.report_by_group("By family", "family", "codes", facts.families),
        *sections.report_splits(facts, outcome, counts),
        *records.report_off_scale(corpus, outcome),
        *records.report_best(facts, corpus),
        *sections.report_graphs(facts, outcome, counts),
        *(line for name in graphs for line in figure(f"{name}.svg")),
        *arch_uid_section(facts, corpus, outcome),
        *records.report_runs(outcome, counts),
        *records.report_origins(facts, outcome),
        *records.report_largest_groups(facts),
        *records.report_invalid(facts),
        "## Single records",
        "",
        "`decisions.parquet` has one row for every input row: its outcome, the kept record that represents it,"
        " how similar the two are, and why. `lemur explain DIR NAME_OR_ID` shows one of them with its code.",
    ]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEPT, _GONE = "#0072B2", "#B9D5E6"
_DUPLICATE = {
    "exact": "exact duplicate",
    "lexical": "lexical near-duplicate",
    "structural": "structural near-duplicate",
    "graph": "graph duplicate",
}
_WIDTH = 8.0  # inches


def draw_funnel(folder: Path, facts: ReportFacts) -> bool:
    """Draw the distinct codes, and how many each stage leaves, as `funnel.png`. Returns: False if there are none."""
    left = facts.codes.total() - facts.codes["filter"]
    if not left:
        return False
    steps = [("distinct codes", left, "")]
    stages = [stage for stage in DUPLICATE_STAGES if stage != "graph" or facts.codes[stage]]
    for stage in stages:
        number = facts.codes[stage]
        left -= number
        note = f"− {plural(number, _DUPLICATE[stage])}" if number else ""
        steps.append((f"after {stage}" if stage != stages[-1] else "kept", left, note))
    save_figure(folder / "funnel.png", partial(_draw_steps, steps=steps))
    return True


def _draw_steps(figure: "Figure", steps: Sequence[tuple[str, int, str]]) -> None:
    """Draw bars of the codes left after each step, with those that the step removed in a lighter color."""
    figure.set_size_inches(_WIDTH, 0.6 + 0.42 * len(steps))
    axes = figure.subplots()
    whole = max(1, *(number for _, number, _ in steps))
    for index, (_, number, note) in enumerate(steps):
        before = steps[index - 1][1] if index else number
        axes.barh(index, before, 0.64, color=_GONE)
        axes.barh(index, number, 0.64, color=_KEPT)
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
            draw_graph(traced.read_graph(), folder / f"{name}.svg", title, BOXES)
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
    return sum(op not in LEAVES for op, *_ in trace.read_stored()["nodes"])
