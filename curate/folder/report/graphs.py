"""Pictures of a few graphs for the report: twins with different texts, a frequent network, the best one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from curate.folder.report.facts import ReportFacts
from curate.model.corpus import LoadedRecords
from curate.published.outcome import CurationOutcome
from lemur_core.files.markdown import code_span, count, plural, ratio
from lemur_core.graphs.graph import LEAVES, Graph, unpack
from lemur_core.similarity.minhash import jaccard

#: Maximum number of boxes in a picture; larger graphs are folded.
BOXES = 24


def draw_graphs(folder: Path, corpus: LoadedRecords, facts: ReportFacts, outcome: CurationOutcome) -> dict[str, str]:
    """Draw the chosen graphs into `folder`, as `NAME.svg`. Returns: the captions by name, in order."""
    from lemur_core.describe.picture import draw

    captions: dict[str, str] = {}
    drawn: set[str] = set()
    for name, code, title, caption in _choose_pictures(corpus, facts, outcome):
        assert outcome.graphs is not None
        traced = outcome.graphs[code]
        assert traced.graph is not None
        if traced.graph not in drawn:
            drawn.add(traced.graph)
            draw(Graph.from_json(unpack(traced.answer["eval"])), folder / f"{name}.svg", title, BOXES)
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
    twins = [code for code in facts.removed("graph") if code in graphs]
    if twins:
        near = {code: _lexical(corpus, code, facts.verdicts[code].canonical) for code in twins}
        code = min(twins, key=lambda one: (_size(outcome, one) > BOXES, near[one], facts.ids[one]))
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
    common = max(kept, key=lambda one: (shared[graphs[one]], facts.ids[one]), default=None)
    if common is not None and shared[graphs[common]] > 1:
        yield (
            "graph_common",
            common,
            facts.names[common],
            f"What {count(shared[graphs[common]])} of {plural(len(graphs), 'traced code')} compute;"
            f" {code_span(facts.names[common], 60)} stands for them.",
        )
    scored = [code for code in kept if outcome.scores.get(code) is not None]
    best = max(scored, key=lambda one: (outcome.scores[one] or 0.0, facts.ids[one]), default=None)
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
