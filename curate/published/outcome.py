"""What a profile decided, in the one form from which the snapshot is written, and the counts of it."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from curate.compute.graphs import Traced
from curate.compute.runs import RunResult, category_left_out
from curate.model.corpus import Corpus
from curate.model.options import prefix_of
from curate.model.rights import Rights
from lemur_core.similarity.selection import Verdict
from manifests.conversations.conversation import Chat
from manifests.provenance.licenses import NOASSERTION
from manifests.records import SPLITS


@dataclass(frozen=True, slots=True)
class Published:
    """A record of a finished snapshot, beside which a delta is made."""

    folder: str  # the name of its snapshot
    id: str
    nn: str
    split: str
    cluster: str
    graph: str | None
    graph_widths: str | None

    @property
    def label(self) -> str:
        """What it is called in a reason."""
        return f"{self.nn} of {self.folder}"

    @property
    def traced(self) -> Traced:
        """What it computes."""
        return Traced({"graph": self.graph, "graph_widths": self.graph_widths})


@dataclass(slots=True)
class Outcome:
    """Decisions for every row, and the kept records."""

    decisions: list[Verdict]  # one for each input row
    kept: list[int]  # codes, best first
    shown: dict[int, int]  # kept code -> row
    splits: dict[int, str]  # kept code -> split
    clusters: dict[int, str]  # kept code -> name of its leak-free group
    families: dict[int, str]  # code -> family, for every code that became a record
    scores: dict[int, float | None]  # code -> score, for every code that became a record
    weights: dict[int, float]
    runs: dict[int, RunResult] | None = None  # kept code -> whether it runs; None where that was not asked
    graphs: dict[int, Traced] | None = None  # code -> what it computes, of those that were traced; None: of none
    published: dict[int, Published] = field(default_factory=dict)  # of a delta, by number: those that canonicals name
    further: frozenset[int] = frozenset()  # codes that are published already
    rights: Rights = field(default_factory=lambda: Rights(NOASSERTION))  # to kept and removed codes
    chat: Chat | None = None  # the conversations; None where they were not asked for
    notes: list[str] = field(default_factory=list)  # what could not be done as asked
    details: dict[str, Any] = field(default_factory=dict)  # for the manifest

    def traced(self, code: int) -> Traced | None:
        """What a code computes, or a published record by its number; None where that was not looked at."""
        there = self.published.get(code)
        return (self.graphs or {}).get(code) if there is None else there.traced


#: The stages at which a kept record stands for what is removed, in their order.
DUPLICATE_STAGES = ("exact", "lexical", "structural", "graph")
STAGES = ("invalid", "filter", "repeat", *DUPLICATE_STAGES, "leak")


def count_decisions(corpus: Corpus, outcome: Outcome) -> dict[str, Any]:
    """Counts by stage, split, prefix and family, for the manifest and the report.

    `rows` counts input rows by stage (they add up to `rows.input`); `networks` counts distinct (name, code) pairs, and
    `codes` distinct codes, so that further evaluations of one network never pass for duplicates.
    """
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    code_of_row = corpus.code_of_row.tolist()
    rows: Counter[str] = Counter(decision.outcome for decision in outcome.decisions)
    usable = [row for row, decision in enumerate(outcome.decisions) if decision.stage != "invalid"]
    networks = {(names[row], code_of_row[row]) for row in usable}
    codes = {code for _, code in networks}
    family = {code: outcome.families.get(code, corpus.features.family[code]) for code in codes}
    before_prefix: Counter[str] = Counter(prefix_of(name) for name, _ in networks)
    before_family: Counter[str] = Counter(family.values())
    kept_rows = [outcome.shown[code] for code in outcome.kept]
    return {
        "rows": {"input": len(outcome.decisions), "kept": rows["kept"], **{stage: rows[stage] for stage in STAGES}},
        "networks": len(networks),
        "names": len({name for name, _ in networks}),
        "codes": len(codes),
        "trees": len({int(corpus.features.tree[code]) for code in codes}),
        "shingle_sets": len({int(corpus.features.shingle_set[code]) for code in codes}),
        "pretrained": {
            "codes": sum(code in corpus.features.pretrained for code in codes),
            "kept": sum(code in corpus.features.pretrained for code in outcome.kept),
        },
        "rescued": dict(sorted(Counter(d.rescued for d in outcome.decisions if d.rescued is not None).items())),
        "splits": {split: sum(s == split for s in outcome.splits.values()) for split in SPLITS},
        "prefixes": _before_after(before_prefix, Counter(prefix_of(names[row]) for row in kept_rows)),
        "families": _before_after(before_family, Counter(family[code] for code in outcome.kept)),
        **({} if outcome.graphs is None else {"graphs": _count_graphs(outcome)}),
        **({} if outcome.runs is None else {"runs": count_runs(outcome.runs.values(), _fates(corpus, outcome))}),
    }


def _count_graphs(outcome: Outcome) -> dict[str, Any]:
    assert outcome.graphs is not None
    found = outcome.graphs
    kept = [found[code] for code in outcome.kept]
    return {
        "traced": sum(one.graph is not None for one in found.values()),
        "not_traced": dict(sorted(Counter(one.category for one in found.values() if one.graph is None).items())),
        "missing_packages": dict(sorted(Counter(one.missing for one in found.values() if one.missing).items())),
        "kept": sum(one.graph is not None for one in kept),
        "distinct": len({one.graph for one in kept} - {None}),
        "distinct_up_to_widths": len({one.widths for one in kept} - {None}),
    }


def _fates(corpus: Corpus, outcome: Outcome) -> Iterator[tuple[int, str]]:
    return zip(corpus.code_of_row.tolist(), (decision.reason for decision in outcome.decisions), strict=True)


def count_runs(results: Iterable[RunResult], reasons: Iterable[tuple[Hashable, str]]) -> dict[str, Any]:
    """How many of the kept records run, do not run, and could not be tried; and how many codes were left out for it.

    Args:
        results: of the kept records.
        reasons: of all decisions, each with its code.
    """
    found = list(results)
    errors = Counter(result.category for result in found if result.category is not None)
    left_out = {code: category for code, reason in reasons if (category := category_left_out(reason)) is not None}
    return {
        "runs": sum(result.runs is True for result in found),
        "fails": sum(result.runs is False for result in found),
        "not_tried": sum(result.runs is None for result in found),
        "errors": dict(sorted(errors.items())),
        "left_out": dict(sorted(Counter(left_out.values()).items())),
    }


def _before_after(before: Counter[str], after: Counter[str]) -> dict[str, dict[str, int]]:
    order = sorted(before, key=lambda name: (-before[name], name))
    return {name: {"before": before[name], "kept": after[name]} for name in order}
