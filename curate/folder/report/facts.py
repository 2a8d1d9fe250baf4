"""The facts of the report, counted once from the decisions: the outcome of every row, network and code."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.similarity.selection import Verdict

#: The benchmark whose best networks are shown: task, dataset and metric.
BENCHMARK = ("img-classification", "cifar-10", "acc")
_BEST = 10
_NO_EPOCH = sys.maxsize

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
    representatives: dict[tuple[str, int], int] = {}  # network -> its row with the best outcome
    invalid = []
    stages: Counter[str] = Counter()
    filtered_rows = 0
    stage_of = [decision.outcome for decision in outcome.decisions]
    for row, (name, code, stage) in enumerate(zip(names, corpus.code_of_row.tolist(), stage_of, strict=True)):
        stages[stage] += 1
        if stage == "invalid":
            invalid.append((row, name, outcome.decisions[row].reason))
            continue
        filtered_rows += stage == "filter"
        previous = representatives.setdefault((name, code), row)
        if _RANK[stage] < _RANK[stage_of[previous]]:
            representatives[name, code] = row
    outcome_of = {network: stage_of[row] for network, row in representatives.items()}
    networks = Counter(outcome_of.values())
    rows = networks.copy()
    rows["filter"], rows["invalid"] = filtered_rows, len(invalid)
    rows["further"] = len(stage_of) - sum(rows.values())
    chosen = _best_networks(representatives, outcome_of, outcome)
    verdicts = {code: outcome.decisions[representatives[name, code]] for code, name in chosen.items()}
    families = {code: outcome.families.get(code, corpus.features.family[code]) for code in verdicts}
    return ReportFacts(
        rows=rows,
        stages=stages,
        networks=networks,
        codes=Counter(verdict.outcome for verdict in verdicts.values()),
        prefixes=_count_by_group(
            (get_prefix(name), network_outcome) for (name, _), network_outcome in outcome_of.items()
        ),
        families=_count_by_group((families[code], verdict.outcome) for code, verdict in verdicts.items()),
        verdicts=verdicts,
        names=chosen | {number: record.label for number, record in outcome.published.items()},
        invalid=invalid,
        ids=corpus.ids,
        best=_best_codes(corpus, {code for code, verdict in verdicts.items() if verdict.outcome != "filter"}),
    )


def _best_codes(corpus: LoadedRecords, codes: Collection[int]) -> list[tuple[int, float, int | None]]:
    """Return the distinct codes with the highest accuracies on one benchmark, over all epochs; ties in order of id."""
    columns = [corpus.rows.column(name) for name in ("task", "dataset", "metric")]
    wanted = np.ones(corpus.rows.num_rows, bool)
    for column, name in zip(columns, BENCHMARK, strict=True):
        wanted &= np.asarray(pc.fill_null(pc.equal(column, name), False))
    accuracies = np.nan_to_num(corpus.rows.column("accuracy").to_numpy(), nan=-np.inf)
    epochs = corpus.rows.column("epoch").to_pylist()
    best: dict[int, tuple[float, int]] = {}  # code -> its highest accuracy, negated, and its first epoch
    for row in np.flatnonzero(wanted & np.isfinite(accuracies)).tolist():
        code = int(corpus.code_of_row[row])
        reached = -float(accuracies[row]), _NO_EPOCH if epochs[row] is None else epochs[row]
        if code in codes and reached < best.get(code, (np.inf, 0)):
            best[code] = reached
    ranked = sorted(best.items(), key=lambda item: (item[1][0], corpus.ids[item[0]]))[:_BEST]
    return [(code, -low, None if epoch == _NO_EPOCH else epoch) for code, (low, epoch) in ranked]


def rank(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the names with their counts, most first, equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def select_compared_groups(groups: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Return the groups of which at least one member was compared."""
    return {name: counts for name, counts in groups.items() if counts.total() > counts["filter"]}


def _best_networks(
    representatives: dict[tuple[str, int], int], outcome_of: dict[tuple[str, int], str], outcome: CurationOutcome
) -> dict[int, str]:
    """Return the name of each code's best network, the first of equals; a kept code has its representative's name."""
    kept_rows = set(outcome.representatives.values())
    best: dict[int, tuple[int, bool, str]] = {}
    for (name, code), row in representatives.items():
        key = (_RANK[outcome_of[name, code]], row not in kept_rows, name)
        if code not in best or key < best[code]:
            best[code] = key
    return {code: name for code, (_, _, name) in best.items()}


def _count_by_group(pairs: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for group, outcome in pairs:
        counted.setdefault(group, Counter())[outcome] += 1
    return dict(sorted(counted.items(), key=lambda item: (-item[1].total(), item[0])))
