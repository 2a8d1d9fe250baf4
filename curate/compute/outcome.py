"""The decisions of a curation, in the one form from which the snapshot is written, and their counts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from curate.compute.graphs import GraphTrace, find_faults, get_computations
from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.model.rights import Rights
from curate.model.splits import CorpusSplits
from lemur_core.files import Json
from lemur_core.similarity.index import Verdict
from manifests.conversations import Chat
from manifests.provenance.licenses import NOASSERTION
from manifests.records import SPLITS


@dataclass(slots=True)
class CurationOutcome:
    """The decision on every row, and the kept records."""

    decisions: list[Verdict]  # one for each input row
    kept: list[int]  # codes, best first
    representatives: dict[int, int]  # kept code -> row
    splits: dict[int, str]  # kept code -> split
    clusters: dict[int, str]  # kept code -> name of its split group
    scores: dict[int, float | None]  # code -> score, for every code that became a record
    weights: dict[int, float]
    rows: dict[int, int] = field(default_factory=dict)  # code -> its best row, for every usable code, kept or not
    whole: CorpusSplits = field(default_factory=lambda: CorpusSplits({}, {}))  # of all these codes
    require_runs: bool = False
    graphs: dict[int, GraphTrace] | None = None  # traced code -> what it computes; None if nothing was traced
    rights: Rights = field(default_factory=lambda: Rights(NOASSERTION))  # to kept and removed codes
    chat: Chat | None = None  # the conversations; None if not requested
    notes: list[str] = field(default_factory=list)  # what could not be done
    details: Json = field(default_factory=dict)  # for the manifest


#: The beginning of the decision on a code that does not run, with `--require-runs`; the error follows.
NOT_RUN = "does not run, or cannot be tried (--require-runs): "
#: The stages at which a record is removed as the duplicate of a kept one, in their order.
DUPLICATE_STAGES = ("exact", "lexical", "structural", "graph")
#: What the graphs of a removed code and its canonical say.
AGREEMENTS = {
    "same": "both compute the same",
    "widths": "both compute the same up to widths",
    "different": "they compute different things",
}
#: The stages at which a code is removed after it was compared.
REMOVED = (*DUPLICATE_STAGES, "leak")
#: What became of rows that are not kept, in the order of the stages. No code is `invalid` or a `repeat`.
STAGES = {
    "invalid": "rows without usable code",
    "filter": "left out by an option",
    "repeat": "further rows of a network",
    "exact": "same code, or the same but for comments and layout",
    "lexical": "near-duplicates by tokens",
    "structural": "near-duplicates by structure",
    "graph": "other texts of the same computation",
    "leak": "near to two published splits",
}


def count_decisions(corpus: LoadedRecords, outcome: CurationOutcome) -> Json:
    """Count the decisions by stage, split, prefix and family, for the manifest and the report.

    `rows` counts input rows by stage (they add up to `rows.input`), `stages` codes (to `codes`), `networks` distinct
    (name, code) pairs, so that repeat evaluations of one network are never counted as duplicates.
    """
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    code_of_row = corpus.code_of_row.tolist()
    rows: Counter[str] = Counter(decision.outcome for decision in outcome.decisions)
    stages = Counter(outcome.decisions[row].outcome for row in outcome.rows.values())
    usable = [row for row, decision in enumerate(outcome.decisions) if decision.stage != "invalid"]
    networks = {(names[row], code_of_row[row]) for row in usable}
    codes = {code_index for _, code_index in networks}
    family = corpus.features.family
    before_prefix: Counter[str] = Counter(get_prefix(name) for name, _ in networks)
    before_family: Counter[str] = Counter(family[code_index] for code_index in codes)
    kept_rows = [outcome.representatives[code_index] for code_index in outcome.kept]
    return {
        "rows": {"input": len(outcome.decisions), "kept": rows["kept"], **{stage: rows[stage] for stage in STAGES}},
        "stages": {stage: stages[stage] for stage in ("filter", *REMOVED, "kept") if stages[stage]},
        "networks": len(networks),
        "names": len({name for name, _ in networks}),
        "codes": len(codes),
        "trees": len({int(corpus.features.tree[code_index]) for code_index in codes}),
        "shingle_sets": len({int(corpus.features.shingle_set[code_index]) for code_index in codes}),
        "pretrained": {
            "codes": sum(code_index in corpus.features.pretrained for code_index in codes),
            "kept": sum(code_index in corpus.features.pretrained for code_index in outcome.kept),
        },
        "rescued": dict(sorted(Counter(d.rescued for d in outcome.decisions if d.rescued is not None).items())),
        "splits": {split: sum(s == split for s in outcome.splits.values()) for split in SPLITS},
        "prefixes": _before_after(before_prefix, Counter(get_prefix(names[row]) for row in kept_rows)),
        "families": _before_after(before_family, Counter(family[code_index] for code_index in outcome.kept)),
        **({} if outcome.graphs is None else {"graphs": _count_graphs(outcome)}),
        **({"runs": _count_runs(outcome, code_of_row)} if outcome.require_runs else {}),
        **({} if outcome.chat is None else {"chat": outcome.chat.counts()}),
    }


def _count_graphs(outcome: CurationOutcome) -> Json:
    assert outcome.graphs is not None
    graphs = outcome.graphs
    kept = [graphs[code_index] for code_index in outcome.kept]
    return {
        "traced": sum(trace.graph is not None for trace in graphs.values()),
        "measured": sum(trace.behavior is not None for trace in graphs.values()),
        "faults": find_faults((trace.graph, trace.behavior) for trace in graphs.values()),
        "not_traced": dict(sorted(Counter(trace.category for trace in graphs.values() if trace.graph is None).items())),
        "missing_packages": dict(sorted(Counter(trace.missing for trace in graphs.values() if trace.missing).items())),
        "kept": sum(trace.graph is not None for trace in kept),
        "distinct": len(set(get_computations(dict(enumerate(kept))).values())),
        "distinct_up_to_widths": len({trace.widths for trace in kept} - {None}),
    }


def _count_runs(outcome: CurationOutcome, code_of_row: Sequence[int]) -> Json:
    """Count the kept codes, and those that were left out because they do not run, by category."""
    left_out = {
        code_index: decision.reason.removeprefix(NOT_RUN).partition(":")[0]
        for code_index, decision in zip(code_of_row, outcome.decisions, strict=True)
        if decision.reason.startswith(NOT_RUN)
    }
    return {"runs": len(outcome.kept), "left_out": dict(sorted(Counter(left_out.values()).items()))}


def _before_after(before: Counter[str], after: Counter[str]) -> dict[str, dict[str, int]]:
    order = sorted(before, key=lambda name: (-before[name], name))
    return {name: {"before": before[name], "kept": after[name]} for name in order}
