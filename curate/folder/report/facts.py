"""The facts of the report, counted once from the decisions: the outcome of every row, network and code."""

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.similarity.index import Verdict

#: The benchmark whose best networks are shown: task, dataset and metric.
BENCHMARK = ("img-classification", "cifar-10", "acc")
_BEST = 10

#: The possible outcomes of a network or a code, in the order of the funnel.
OUTCOMES = ("filter", *DUPLICATE_STAGES, "leak", "kept")

#: The row with the best outcome represents its network.
_RANK = {"kept": 0, "graph": 1, "structural": 2, "lexical": 3, "exact": 4, "leak": 5, "repeat": 6, "filter": 7}


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Counts by outcome. `rows`, `networks` and `codes` each add up to all rows, networks and codes of the input."""

    rows: Counter[str]  # by OUTCOMES, `invalid`, and `further`: repeat evaluations of a network
    stages: Counter[str]  # rows by stage as the decisions name it
    networks: Counter[str]  # distinct (name, code) pairs
    codes: Counter[str]
    prefixes: dict[str, Counter[str]]  # networks, most first
    families: dict[str, Counter[str]]  # codes, most first
    verdicts: dict[int, Verdict]  # by code: the verdict on its best network
    names: dict[int, str]  # by code: the name of that network; for a published record its label
    invalid: list[tuple[int, str, str]]  # row, name, reason
    ids: list[str]
    best: list[tuple[int, float, int | None]]  # code, accuracy and epoch of the ten best on BENCHMARK, best first

    def similarity(self, code: int) -> float:
        """Return the similarity of a code to its canonical."""
        similarity = self.verdicts[code].similarity
        return 1.0 if similarity is None else similarity

    def list_removed(self, *stages: str) -> list[int]:
        """Return the codes removed at these stages, least similar first."""
        codes = [code for code, verdict in self.verdicts.items() if verdict.stage in stages]
        return sorted(codes, key=lambda code: (self.similarity(code), self.ids[code]))

    def groups(self) -> list[tuple[int, list[int]]]:
        """Return each kept code that has duplicates, with those, least similar first; the largest group first."""
        members: dict[int, list[int]] = {}
        for code in self.list_removed(*DUPLICATE_STAGES):
            canonical = self.verdicts[code].canonical
            if canonical is not None:
                members.setdefault(canonical, []).append(code)
        return sorted(members.items(), key=lambda item: (-len(item[1]), self.ids[item[0]]))


def gather_facts(corpus: LoadedRecords, outcome: CurationOutcome) -> ReportFacts:
    """Count everything in one pass over the decisions."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    stage_of = [decision.outcome for decision in outcome.decisions]
    stages = Counter(stage_of)
    best_rows: dict[tuple[str, int], int] = {}  # network -> its row with the best outcome
    for row, network in enumerate(zip(names, corpus.code_of_row.tolist(), strict=True)):
        if stage_of[row] != "invalid":
            previous = best_rows.setdefault(network, row)
            if _RANK[stage_of[row]] < _RANK[stage_of[previous]]:
                best_rows[network] = row
    networks = Counter(stage_of[row] for row in best_rows.values())
    rows = networks.copy()
    rows["filter"], rows["invalid"] = stages["filter"], stages["invalid"]
    rows["further"] = len(stage_of) - sum(rows.values())
    # The best network of each code, the first of equals; a kept code has its representative's name.
    shown = set(outcome.representatives.values())
    ranked = sorted(best_rows.items(), key=lambda item: (_RANK[stage_of[item[1]]], item[1] not in shown, item[0]))
    chosen: dict[int, tuple[str, int]] = {}
    for (name, code), row in ranked:
        chosen.setdefault(code, (name, row))
    verdicts = {code: outcome.decisions[row] for code, (_, row) in chosen.items()}
    families = {code: outcome.families.get(code, corpus.features.family[code]) for code in verdicts}
    return ReportFacts(
        rows=rows,
        stages=stages,
        networks=networks,
        codes=Counter(verdict.outcome for verdict in verdicts.values()),
        prefixes=_count_by_group((get_prefix(name), stage_of[row]) for (name, _), row in best_rows.items()),
        families=_count_by_group((families[code], verdict.outcome) for code, verdict in verdicts.items()),
        verdicts=verdicts,
        names={code: name for code, (name, _) in chosen.items()}
        | {number: record.label for number, record in outcome.published.items()},
        invalid=[
            (row, names[row], decision.reason)
            for row, decision in enumerate(outcome.decisions)
            if decision.stage == "invalid"
        ],
        ids=corpus.ids,
        best=_best_codes(corpus, {code for code, verdict in verdicts.items() if verdict.outcome != "filter"}),
    )


def _best_codes(corpus: LoadedRecords, codes: Collection[int]) -> list[tuple[int, float, int | None]]:
    """Return the distinct codes with the highest accuracies on one benchmark, over all epochs; ties in order of id."""
    columns = [corpus.rows.column(name) for name in ("task", "dataset", "metric")]
    wanted = np.ones(corpus.rows.num_rows, bool)
    for column, name in zip(columns, BENCHMARK, strict=True):
        wanted &= np.asarray(pc.fill_null(pc.equal(column, name), False))
    results = corpus.rows.select(["accuracy", "epoch"])
    best: dict[int, tuple[float, int | None]] = {}  # code -> its highest accuracy, and its first epoch
    reached = [
        (code, result["accuracy"], result["epoch"])
        for code, result in zip(corpus.code_of_row[wanted].tolist(), results.filter(wanted).to_pylist(), strict=True)
        if code in codes and result["accuracy"] is not None and math.isfinite(result["accuracy"])
    ]
    for code, accuracy, epoch in sorted(
        reached, key=lambda item: (-item[1], sys.maxsize if item[2] is None else item[2])
    ):
        best.setdefault(code, (accuracy, epoch))
    ranked = sorted(best.items(), key=lambda item: (-item[1][0], corpus.ids[item[0]]))[:_BEST]
    return [(code, *result) for code, result in ranked]


def rank(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the names with their counts, most first, equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _count_by_group(pairs: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for group, outcome in pairs:
        counted.setdefault(group, Counter())[outcome] += 1
    return dict(sorted(counted.items(), key=lambda item: (-item[1].total(), item[0])))
