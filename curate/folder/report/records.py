"""The sections of a curation report that list single records: the best, groups, runs, origins, `arch_uid`, invalid.

LEMUR's own identity of a network, `arch_uid`, is computed from the text: it distinguishes codes by the order of
operators, helpers or training code, and includes code that never runs. Ours is the graph of what was run, or else the
similarity of texts. Each code is compared with one other: the first that an identity considers equal, a kept one if
possible.
"""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping

from curate.folder.report.sections import LONG_TABLE, ReportFacts, fold_rows, rank
from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.model.records import find_off_scale
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import code_span, count, percent, plain, plural, ratio, table
from manifests.records import Agreement

LARGEST_GROUPS = 10


def report_best(facts: ReportFacts, corpus: LoadedRecords) -> list[str]:
    """List the best codes on one benchmark, with their outcomes."""
    if not facts.best:
        return []
    rows = [
        [
            str(number),
            code_span(facts.names[code]),
            f"`{facts.ids[code][:12]}`",
            _describe_outcome(code, facts),
            "yes" if code in corpus.features.pretrained else "",
            "–" if epoch is None else count(epoch),
            f"{100 * accuracy:.2f} %",
        ]
        for number, (code, accuracy, epoch) in enumerate(facts.best, 1)
    ]
    return [
        "## Best on CIFAR-10",
        "",
        f"The {count(len(rows))} distinct codes with the highest accuracies, over all epochs and hyperparameters, as"
        " Figure 7 of NN-RAG's paper has them, before curation. What loads trained weights is marked: it was not"
        " trained on CIFAR-10 alone. Epochs and sizes of images differ, so this is not a comparison of architectures.",
        "",
        *table(["", "code", "id", "outcome", "trained weights", "epoch", "accuracy"], rows, 5),
    ]


def _describe_outcome(code: int, facts: ReportFacts) -> str:
    verdict = facts.verdicts[code]
    if verdict.kept or verdict.canonical is None:
        return "kept" if verdict.kept else "left out by an option"
    return f"{verdict.outcome}, {ratio(facts.similarity(code))} to {code_span(facts.names[verdict.canonical])}"


def report_off_scale(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """List the accuracies that are outside the scale of their benchmark, if any record has a score."""
    off = find_off_scale(corpus) if any(outcome.scores.get(code) is not None for code in outcome.kept) else []
    if not off:
        return []
    columns = ("nn", "accuracy", "task", "dataset", "metric", "epoch")
    rows = [[_cell(corpus.rows.column(name)[row].as_py()) for name in columns] for row in off]
    return [
        "## Accuracies off their scale",
        "",
        f"{plural(len(off), 'accuracy lies', 'accuracies lie')} outside 0 to 1 where the others of the data set are"
        " fractions. They are compared unchanged, so one in percent ranks first on its benchmark:",
        "",
        *table(columns, fold_rows(rows), 1),
    ]


def _cell(value: object) -> str:
    return "–" if value is None else code_span(f"{value:g}" if isinstance(value, float) else str(value), 40)


def report_invalid(facts: ReportFacts) -> list[str]:
    """List why rows are unusable, with the first of each kind."""
    kinds: dict[str, list[tuple[int, str, str]]] = {}
    for row, name, reason in facts.invalid:
        kinds.setdefault(re.sub(r"\d[\d,]*", "N", reason), []).append((row, name, reason))
    rows = []
    for kind, number in rank({kind: len(cases) for kind, cases in kinds.items()}):
        cases = kinds[kind]
        first = ", ".join(f"{row}: {code_span(name, 40)}" for row, name, _ in cases[:3])
        same = len({reason for _, _, reason in cases}) == 1
        rows.append([plain(cases[0][2] if same else kind), first + (", …" if number > 3 else ""), count(number)])
    return ["## Invalid rows", "", *table(["reason", "row: name", "rows"], fold_rows(rows), 2)] if rows else []


def report_origins(facts: ReportFacts, outcome: CurationOutcome) -> list[str]:
    """List the codes that come from repositories, by license and source, with examples; empty if not requested."""
    rights = outcome.rights
    if rights.origins is None:
        return []
    kept = set(outcome.kept)
    code_origins = {code: rights.origins[code] for code in sorted(rights.origins, key=lambda origin: facts.ids[origin])}
    stated = outcome.details["origins"]
    blocked = sum(rights.is_blocked(code) for code in code_origins if code in kept)
    lines = [
        "## Where codes are from",
        "",
        f"Compared with {plural(stated['blocks'], 'block')} of {', '.join(map(code_span, stated['folders']))}, class by"
        f" class: {plural(len(code_origins.keys() & kept), 'kept record')} of {count(len(kept))} and"
        f" {plural(len(code_origins.keys() - kept), 'removed code')} have a class of one of them (Jaccard ≥"
        f" {stated['threshold']:g}, classes of {stated['least_shingles']} shingles or more). For {count(blocked)} of"
        " the records the license forbids redistribution of the code: publishing leaves it out.",
        "",
    ]
    if not code_origins:
        return lines
    for title, named in (
        ("license", {code: origin.license for code, origin in code_origins.items()}),
        ("source", {code: origin.source for code, origin in code_origins.items()}),
    ):
        of_kept = Counter(name for code, name in named.items() if code in kept)
        rows = [[code_span(name, 60), count(of_kept[name]), count(n)] for name, n in rank(Counter(named.values()))]
        lines += table([title, "kept records", "codes"], fold_rows(rows))
    shown = sorted(code_origins.items(), key=lambda item: (item[0] not in kept, not rights.is_blocked(item[0])))
    rows = [
        [
            code_span(facts.names[code]),
            code_span(origin.name, 40),
            code_span(origin.block),
            code_span(origin.license, 40),
            ratio(origin.similarity),
        ]
        for code, origin in shown[:LONG_TABLE]
    ]
    return lines + table(["record", "its class", "is from", "license", "similarity"], rows, 4)


def report_largest_groups(facts: ReportFacts) -> list[str]:
    """List the kept records with most duplicates."""
    groups = facts.groups()
    if not groups:
        return []
    rows = []
    for index, (canonical, members) in enumerate(groups[:LARGEST_GROUPS], start=1):
        similarities = [facts.similarity(code) for code in members]
        prefixes = Counter(get_prefix(facts.names[code]) for code in (canonical, *members))
        common = ", ".join(f"{code_span(prefix, 20)} {count(number)}" for prefix, number in rank(prefixes)[:3])
        rows.append(
            [
                f"{index}",
                code_span(facts.names[canonical]),
                common + (", …" if len(prefixes) > 3 else ""),
                count(len(members) + 1),
                ratio(similarities[0]),
                ratio(statistics.median(similarities)),
            ]
        )
    return [
        "## The largest groups",
        "",
        f"{plural(len(groups), 'kept record stands', 'kept records stand')} for others; the largest group has"
        f" {plural(len(groups[0][1]) + 1, 'record')}.",
        "",
        *table(["", "kept record", "prefixes", "records", "least similar", "median"], rows, 3),
    ]


def report_runs(outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report why networks were left out that do not run; empty if they were not."""
    if outcome.runs is None or not (left_out := counts["runs"]["left_out"]):
        return []
    lines = [
        "## Networks that do not run",
        "",
        "Left out, since they do not run or could not be tried (`--require-runs`):",
        "",
    ]
    return lines + _tabulate_categories(left_out, "codes")


def _tabulate_categories(errors: dict[str, int], unit: str) -> list[str]:
    rows = [[f"`{name}`", count(number), percent(number, sum(errors.values()))] for name, number in rank(errors)]
    return table(["category", unit, "%"], rows)


Pair = tuple[int, int]

_EXAMPLES = 3
_AGREEMENT_TEXT: dict[Agreement | None, str] = {
    "same": "equal",
    "widths": "equal up to widths",
    "different": "different",
    None: "not known",
}


def arch_uid_section(facts: ReportFacts, corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """Return the section of the report; empty if the source states no `arch_uid`."""
    column = corpus.rows.column("arch_uid")
    uids: dict[int, str] = {}  # of several for one code, that of its first row
    if column.null_count < len(column):
        for code, uid in zip(corpus.code_of_row.tolist(), column.to_pylist(), strict=True):
            if uid is not None and code in facts.verdicts:
                uids.setdefault(code, uid)
    if not uids:
        return []
    kept, graphs = set(outcome.kept), outcome.graphs or {}

    def list_pairs(identity: Mapping[int, Hashable]) -> Iterator[Pair]:
        """Yield each code with the first of those that share its identity."""
        members: dict[Hashable, list[int]] = defaultdict(list)
        for code in sorted(identity, key=lambda code: (code not in kept, facts.names[code], facts.ids[code])):
            members[identity[code]].append(code)
        for first, *others in members.values():
            yield from ((first, other) for other in others)

    lines = []
    traced = {code: graphs[code] for code in uids if code in graphs and graphs[code].graph}
    if traced:
        by_graph = list(list_pairs({code: trace.graph for code, trace in traced.items()}))
        split = [(first, other) for first, other in by_graph if uids[first] != uids[other]]
        by_uid = list_pairs({code: uids[code] for code in traced})
        differ = [(first, other) for first, other in by_uid if traced[first].graph != traced[other].graph]
        widths = sum(traced[first].widths == traced[other].widths for first, other in differ)
        rows = [
            ["both call it the same as another", count(len(by_graph) - len(split)), ""],
            ["only the graph does", count(len(split)), _list_examples(split, facts)],
            ["only arch_uid does", count(len(differ)), _list_examples(differ, facts)],
        ]
        lines += [f"Of {plural(len(traced), 'code')} with both a graph and an arch_uid:", ""]
        lines += table(["", "codes", "for example"], rows)
        lines += [f"Of the last, {count(widths)} differ in widths alone.", ""] if differ else []
    merged = list(list_pairs(uids))
    both = [(first, other) for first, other in merged if other in kept]
    known = Counter(graphs[first].agrees(graphs[other]) for first, other in both if first in graphs and other in graphs)
    phrases = ", ".join(f"{count(known[key])} {text}" for key, text in _AGREEMENT_TEXT.items() if known[key])
    clause = f" (by their graphs {phrases})" if phrases else ""
    examples = f"{clause}, for example {_list_examples(both, facts)}" if both else ""
    lines += [
        f"{plural(len(both), 'kept record has', 'kept records have')} the arch_uid of another kept one{examples}.",
        "",
    ]
    rows = list(_count_removals(uids, facts))
    if rows:
        head = ["removed at", "arch_uid of the kept one", "another", "for example"]
        lines += ["Removed codes next to the kept records that represent them:", "", *table(head, rows)]
    return [
        "## LEMUR's arch_uid",
        "",
        f"{plural(len(uids), 'code has', 'codes have')} one, {count(len(set(uids.values())))} different;"
        f" {plural(len(merged), 'code shares', 'codes share')} that of another.",
        "",
        *lines,
    ]


def _count_removals(uids: Mapping[int, str], facts: ReportFacts) -> Iterator[list[str]]:
    """Yield by stage how many removed codes have the identity of their canonical, and how many another one."""
    for stage in DUPLICATE_STAGES:
        codes = {code: facts.verdicts[code].canonical for code in uids if facts.verdicts[code].stage == stage}
        pairs = [(other, code) for code, other in codes.items() if other is not None and other in uids]
        apart = [(other, code) for other, code in pairs if uids[code] != uids[other]]
        if pairs:
            yield [stage, count(len(pairs) - len(apart)), count(len(apart)), _list_examples(apart, facts)]


def _list_examples(pairs: Iterable[Pair], facts: ReportFacts) -> str:
    one_each = dict(sorted(((facts.names[first], facts.names[other]) for first, other in pairs), reverse=True))
    named = sorted(one_each.items())[:_EXAMPLES]
    return "; ".join(f"{code_span(first, 40)} and {code_span(other, 40)}" for first, other in named)
