"""The sections of a curation report that count: each a list of Markdown lines, empty if there is nothing to report."""

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from curate.folder.snapshot import BY_TEXT
from curate.model.corpus import LoadedRecords
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix
from curate.model.records import BY_VALUE
from curate.model.splits import RARE
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table
from lemur_core.sandbox.runtime import option_for
from lemur_core.similarity.index import Verdict
from manifests.records import SPLITS, Agreement

# The facts of the report, counted once from the decisions: the outcome of every row, network and code.

#: The benchmark whose best networks are shown: task, dataset and metric.
BENCHMARK = ("img-classification", "cifar-10", "acc")
_BEST = 10

#: The possible outcomes of a network or a code, in the order of the funnel.
OUTCOMES = ("filter", *DUPLICATE_STAGES, "kept")

#: The row with the best outcome represents its network.
_RANK = {"kept": 0, "leak": 1, "graph": 1, "structural": 2, "lexical": 3, "exact": 4, "repeat": 5, "filter": 6}


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Counts by outcome. `rows`, `networks` and `codes` each add up to all rows, networks and codes of the input."""

    rows: Counter[str]  # by OUTCOMES, `invalid`, and `further`: repeat evaluations of a network
    networks: Counter[str]  # distinct (name, code) pairs
    codes: Counter[str]
    prefixes: dict[str, Counter[str]]  # networks, most first
    families: dict[str, Counter[str]]  # codes, most first
    verdicts: dict[int, Verdict]  # by code: the verdict on its best network
    names: dict[int, str]  # by code: the name of that network
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
        networks=networks,
        codes=Counter(verdict.outcome for verdict in verdicts.values()),
        prefixes=_count_by_group((get_prefix(name), stage_of[row]) for (name, _), row in best_rows.items()),
        families=_count_by_group((families[code], verdict.outcome) for code, verdict in verdicts.items()),
        verdicts=verdicts,
        names={code: name for code, (name, _) in chosen.items()},
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


#: Maximum number of rows of a table; the rest is folded into one.
LONG_TABLE = 20

#: The note shown if there are no graphs.
NOT_COMPARED = "Graphs were not compared: two of them may compute the same."

_STEPS = {
    "invalid": "invalid: no code, or not Python",
    "filter": "left out by an option",
    "further": "further rows of a network",
    "exact": "exact duplicates",
    "lexical": "lexical near-duplicates",
    "structural": "structural near-duplicates",
    "graph": "other texts of the same computation",
    "leak": "near to two published splits",
    "kept": "**kept**",
}
#: Steps of the funnel that most curations do not have.
_RARE_STEPS = ("invalid", "filter", "graph", "leak")

_SHOWN = 16  # digits of a graph's digest
_AGREEMENTS: tuple[Agreement | None, ...] = ("same", "widths", "different", None)


def fold_rows(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Fold the rows of a long table into one that counts them."""
    more = len(rows) - LONG_TABLE
    return [*rows[:LONG_TABLE], *([[f"{count(more)} others", *[""] * (len(rows[0]) - 1)]] if more > 0 else [])]


def report_head(name: str, facts: ReportFacts, options: CurateOptions, outcome: CurationOutcome) -> list[str]:
    """Return the title, the result in one line, the settings, and what could not be done."""
    compared, notes = outcome.graphs is not None, outcome.notes
    kept, codes = facts.codes["kept"], facts.codes.total()
    result = (
        f"**{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}).**"
        f" The source has {plural(facts.rows.total(), 'row')}: evaluations of"
        f" {plural(facts.networks.total(), 'network')} (a name with a code)."
    )
    result += (
        " No two kept records are near-duplicates, every removed one names a kept record that it is near,"
        " and nothing close crosses the splits."
        + (" No two of them compute the same, as far as they run." if compared else f" **{NOT_COMPARED}**")
    )
    if most := rank({prefix: counts["kept"] for prefix, counts in facts.prefixes.items() if counts["kept"]}):
        rest = [(f"{count(len(most) - 4)} others", sum(number for _, number in most[4:]))] if len(most) > 4 else []
        shares = [*((code_span(prefix, 40), number) for prefix, number in most[:4]), *rest]
        by_prefix = ", ".join(f"{label} {count(number)} ({percent(number, kept)})" for label, number in shares)
        result += f" Kept by prefix: {by_prefix}."
    lines = [f"# Curation report: {plain(name)}", "", result, ""]
    lines += [f"Settings: {', '.join(_list_settings(options, compared=compared))}.", ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    return lines


def _list_settings(options: CurateOptions, *, compared: bool) -> list[str]:
    chosen = {label: getattr(options, label) for label in (*BY_VALUE, "include", "prefer")}
    topups = ", ".join(map(code_span, options.topup_prefix))
    settings = {
        f"lexical Jaccard ≥ {options.lexical_threshold:g}": True,
        f"structural Jaccard ≥ {options.structural_threshold:g}": True,
        f"tokens `{options.tokens}`": True,
        f"graphs `{options.graphs if compared else 'off'}`": True,
        f"seed {options.seed}": True,
        **{f"{label} {', '.join(map(code_span, texts))}": bool(texts) for label, texts in chosen.items()},
        f"at least {options.min_per_prefix} a prefix": bool(options.min_per_prefix),
        f"at least {options.topup_per_prefix} of {topups}": bool(topups),
        "only networks trained from scratch": options.from_scratch,
        "only networks that run": options.require_runs,
    }
    return [text for text, applies in settings.items() if applies]


def report_funnel(facts: ReportFacts) -> list[str]:
    """Return the table of rows, networks and codes by outcome; each column adds up."""
    all_rows, all_codes = facts.rows.total(), facts.codes.total()
    rows = [["in", count(all_rows), count(facts.networks.total()), count(all_codes), percent(all_codes, all_codes)]]
    for step, label in _STEPS.items():
        if facts.rows[step] or step not in _RARE_STEPS:
            cells = [f"{count(facts.rows[step])} ({percent(facts.rows[step], all_rows)})", "", "", ""]
            if step in OUTCOMES:
                codes = facts.codes[step]
                cells[1:] = [count(facts.networks[step]), count(codes), percent(codes, all_codes)]
            rows.append([label, *(f"**{cell}**" if step == "kept" else cell for cell in cells)])
    notes = (
        "Rows are evaluations. A network is a name with a code: its further rows (other data sets, epochs,"
        " hyperparameters) are not duplicates, and one row represents it. Each column adds up to its first line."
    )
    shared = facts.networks.total() - all_codes
    if shared:
        notes += f" {plural(shared, 'network has', 'networks have')} exactly the code of another."
    if facts.rows["invalid"]:
        notes += " Networks and codes are those of the rows that can be used."
    return ["## From rows to records", "", *table(["", "rows", "networks", "codes", "% of codes"], rows), notes, ""]


def report_by_text(facts: ReportFacts) -> list[str]:
    """Return what removals by text are, if there are any."""
    return [BY_TEXT, ""] if facts.codes["lexical"] or facts.codes["structural"] else []


def report_graphs(facts: ReportFacts, outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report how many networks were traced, and how their graphs agree with the decisions by text."""
    graphs = outcome.graphs
    if graphs is None:
        return []
    stated = counts["graphs"]
    lines = [
        "## What the networks compute",
        "",
        f"{plural(len(graphs), 'code was', 'codes were')} run in the sandbox,"
        f" {count(stated['traced'])} have a graph. Of {plural(len(outcome.kept), 'kept record')}"
        f" {count(stated['kept'])} have one:"
        f" {count(stated['distinct'])} computations, {count(stated['distinct_up_to_widths'])} up to widths."
        " A code without a graph is decided by its text alone.",
        "",
        f"The numbers of {plural(stated['measured'], 'code')} were compared, too: those whose parameters have the"
        " same sizes as another's. Where numbers and graphs disagree, the numbers decide.",
        "",
    ]
    if stated["faults"]:
        faults = ", ".join(f"`{graph[:_SHOWN]}`" for graph in stated["faults"])
        lines += [f"Faulty graphs, equal for several computations, none of which was removed for it: {faults}.", ""]
    if stated["not_traced"]:
        lines += table(["no graph", "codes"], [[f"`{name}`", count(n)] for name, n in stated["not_traced"].items()])
    if stated["missing_packages"]:
        lines += ["Codes that import packages outside the declared runtime, and the option that allows each:", ""]
        rows = [
            [f"`{name}`", count(number), f"`{option_for(name) or '--runtime NAME'}`"]
            for name, number in stated["missing_packages"].items()
        ]
        lines += [*table(["package", "codes", "option"], rows), ""]
    agreements = Counter(
        (verdict.stage, graphs[code].agrees(graphs[verdict.canonical]))
        for code, verdict in facts.verdicts.items()
        if verdict.stage in DUPLICATE_STAGES and code in graphs and verdict.canonical in graphs
    )
    numbers = {stage: [agreements[stage, agreement] for agreement in _AGREEMENTS] for stage in DUPLICATE_STAGES}
    rows = [[stage, *map(count, line)] for stage, line in numbers.items() if any(line)]
    if rows:
        lines += ["Removals by the agreement of the graphs, where both codes were traced:", ""]
        lines += table(["stage", "same", "same up to widths", "different", "no graph"], rows)
    return lines


def report_by_group(title: str, label: str, unit: str, groups: dict[str, Counter[str]]) -> list[str]:
    """Return a table of groups before and after, with their removals by stage and their drop rates."""
    kept_in_all = sum(counts["kept"] for counts in groups.values())
    columns = [stage for stage in OUTCOMES if stage != "kept" and any(counts[stage] for counts in groups.values())]

    def list_cells(counts: Counter[str]) -> list[str]:
        dropped, kept = sum(counts[stage] for stage in DUPLICATE_STAGES), counts["kept"]
        shares = [percent(dropped, dropped + kept), percent(kept, kept_in_all)]
        return [count(counts.total()), *(count(counts[column]) for column in columns), count(kept), *shares]

    compared = {name: counts for name, counts in groups.items() if counts.total() > counts["filter"]}
    tail = list(compared)[LONG_TABLE:] if len(compared) > LONG_TABLE + 1 else []
    rows = [[code_span(name, 40), *list_cells(counts)] for name, counts in compared.items() if name not in tail]
    for names, what in ((tail, "others"), (list(groups.keys() - compared.keys()), "left out by an option")):
        if names:
            rest = sum((groups[name] for name in names), Counter[str]())
            rows.append([f"{count(len(names))} {what}", *list_cells(rest)])
    heads = [label, f"{unit} in", *columns, "kept", "% dropped", "% of kept"]
    return [f"## {title}", "", *table(heads, rows)] if rows else []


def report_splits(facts: ReportFacts, outcome: CurationOutcome, counts: Json) -> list[str]:
    """Return the records and split groups of each split, and its shares of the prefixes and families."""
    if not outcome.kept:
        return []
    groups_of: dict[str, Counter[str]] = {split: Counter() for split in counts["splits"]}
    for code, split in outcome.splits.items():
        groups_of[split][outcome.clusters[code]] += 1
    rows = []
    for split, groups in groups_of.items():
        cells = [split, count(groups.total()), percent(groups.total(), len(outcome.kept))]
        rows.append([*cells, count(len(groups)), count(max(groups.values(), default=0))])
    heads = ["split", "records", "%", "groups", "largest group"]
    lines = [
        "## Splits",
        "",
        *table(heads, rows),
        f"Records linked by a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, or by an equal fingerprint, form"
        " a group, which is in one split as a whole. Test and validation get their share of each prefix and family"
        " if its groups allow that: a group that is larger than half of such a split is in train.",
        "",
    ]
    prefixes = {code: get_prefix(facts.names[code]) for code in outcome.kept}
    return lines + _share_table("prefix", prefixes, outcome) + _share_table("family", outcome.families, outcome)


def _share_table(label: str, values: Mapping[int, str], outcome: CurationOutcome) -> list[str]:
    """Return a table of the records of each prefix or family in each split, with their share of the split."""
    counted = Counter((values[code], outcome.splits[code]) for code in outcome.kept)
    sizes = Counter(outcome.splits.values())
    ranked = rank(Counter(values[code] for code in outcome.kept))
    large = [value for value, number in ranked[:LONG_TABLE] if number >= RARE]
    numbers = {code_span(value, 40): [counted[value, split] for split in SPLITS] for value in large}
    if len(ranked) > len(large):
        shown = [sum(counted[value, split] for value in large) for split in SPLITS]
        rest = [sizes[split] - number for split, number in zip(SPLITS, shown, strict=True)]
        numbers[f"{count(len(ranked) - len(large))} others"] = rest
    rows = [
        [name, *(f"{count(n)} ({percent(n, sizes[split])})" for n, split in zip(line, SPLITS, strict=True))]
        for name, line in numbers.items()
    ]
    return table([label, *SPLITS], rows)
