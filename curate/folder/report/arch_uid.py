"""LEMUR's own identity of a network, `arch_uid`, compared with ours: which codes does each consider equal?

`arch_uid` is computed from the text: it distinguishes codes by the order of operators, helpers or training code, and
includes code that never runs. Ours is the graph of what was run, or else the similarity of texts. Each code is
compared with one other: the first that an identity considers equal, a kept one if possible.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from curate.folder.report.facts import ReportFacts
from curate.model.corpus import LoadedRecords
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files.markdown import code_span, count, plural, table
from manifests.records import Agreement

Pair = tuple[int, int]

_EXAMPLES = 3


def arch_uid_section(facts: ReportFacts, corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """Return the section of the report; empty if the source states no `arch_uid`."""
    uids = _collect_uids(facts, corpus)
    if not uids:
        return []
    kept = set(outcome.kept)

    def order(code: int) -> tuple[bool, str, str]:
        return code not in kept, facts.names[code], facts.ids[code]

    def examples(pairs: Iterable[Pair]) -> str:
        one_each = dict(sorted(((facts.names[first], facts.names[other]) for first, other in pairs), reverse=True))
        named = sorted(one_each.items())[:_EXAMPLES]
        return "; ".join(f"{code_span(first, 40)} and {code_span(other, 40)}" for first, other in named)

    merged = list(_pairs(uids, order))
    return [
        "## LEMUR's arch_uid",
        "",
        f"{plural(len(uids), 'code has', 'codes have')} one, {count(len(set(uids.values())))} different;"
        f" {plural(len(merged), 'code shares', 'codes share')} that of another.",
        "",
        *_identities(uids, outcome, order, examples),
        *_decisions(uids, merged, facts, outcome, examples),
    ]


def _collect_uids(facts: ReportFacts, corpus: LoadedRecords) -> dict[int, str]:
    """Return the `arch_uid` of each code that has one; if it has several, that of its first row."""
    column = corpus.rows.column("arch_uid")
    if column.null_count == len(column):
        return {}
    uids: dict[int, str] = {}
    for code, uid in zip(corpus.code_of_row.tolist(), column.to_pylist(), strict=True):
        if uid is not None and code in facts.verdicts:
            uids.setdefault(code, uid)
    return uids


def _pairs(identity: Mapping[int, Hashable], order: Callable[[int], tuple[bool, str, str]]) -> Iterator[Pair]:
    """Yield each code with the first of those that share its identity."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for code in sorted(identity, key=order):
        members[identity[code]].append(code)
    for first, *others in members.values():
        yield from ((first, other) for other in others)


def _identities(
    uids: Mapping[int, str],
    outcome: CurationOutcome,
    order: Callable[[int], tuple[bool, str, str]],
    examples: Callable[[Iterable[Pair]], str],
) -> list[str]:
    """Compare the two identities over the codes that have both."""
    graphs = {code: traced for code, traced in (outcome.graphs or {}).items() if traced.graph and code in uids}
    if not graphs:
        return []
    by_graph = list(_pairs({code: traced.graph for code, traced in graphs.items()}, order))
    by_uid = list(_pairs({code: uids[code] for code in graphs}, order))
    split = [pair for pair in by_graph if uids[pair[0]] != uids[pair[1]]]
    differ = [pair for pair in by_uid if graphs[pair[0]].graph != graphs[pair[1]].graph]
    widths = sum(graphs[first].widths == graphs[other].widths for first, other in differ)
    rows = [
        ["both call it the same as another", count(len(by_graph) - len(split)), ""],
        ["only the graph does", count(len(split)), examples(split)],
        ["only arch_uid does", count(len(differ)), examples(differ)],
    ]
    more = f"Of the last, {count(widths)} differ in widths alone." if differ else ""
    return [
        f"Of {plural(len(graphs), 'code')} with both a graph and an arch_uid:",
        "",
        *table(["", "codes", "for example"], rows),
        *([more, ""] if more else []),
    ]


def _decisions(
    uids: Mapping[int, str],
    merged: Iterable[Pair],
    facts: ReportFacts,
    outcome: CurationOutcome,
    examples: Callable[[Iterable[Pair]], str],
) -> list[str]:
    """Return the decisions on codes with the same arch_uid, and whether removed codes share that of their canonical."""
    kept = set(outcome.kept)
    both = [(first, other) for first, other in merged if other in kept]
    counts: Counter[tuple[str, bool]] = Counter()
    pairs_apart: dict[str, list[Pair]] = defaultdict(list)
    for code, verdict in facts.verdicts.items():
        other = verdict.canonical
        if verdict.stage in DUPLICATE_STAGES and other is not None and code in uids and other in uids:
            assert verdict.stage is not None
            counts[verdict.stage, uids[code] == uids[other]] += 1
            if uids[code] != uids[other]:
                pairs_apart[verdict.stage].append((other, code))
    rows = [
        [stage, count(counts[stage, True]), count(counts[stage, False]), examples(pairs_apart[stage])]
        for stage in DUPLICATE_STAGES
        if counts[stage, True] or counts[stage, False]
    ]
    summary = f"{plural(len(both), 'kept record has', 'kept records have')} the arch_uid of another kept one"
    lines = [f"{summary}{_graphs_clause(both, outcome)}, for example {examples(both)}." if both else f"{summary}.", ""]
    if rows:
        head = ["removed at", "arch_uid of the kept one", "another", "for example"]
        lines += ["Removed codes next to the kept records that represent them:", "", *table(head, rows)]
    return lines


def _graphs_clause(pairs: Iterable[Pair], outcome: CurationOutcome) -> str:
    """Summarize how the graphs of pairs compare, as a clause."""
    graphs = outcome.graphs or {}
    known = [pair for pair in pairs if pair[0] in graphs and pair[1] in graphs]
    counts = Counter(graphs[first].agrees(graphs[other]) for first, other in known)
    phrases = [
        f"{count(number)} {_AGREEMENT_TEXT[agreement]}"
        for agreement in _AGREEMENT_TEXT
        if (number := counts[agreement])
    ]
    return f" (by their graphs {', '.join(phrases)})" if phrases else ""


_AGREEMENT_TEXT: dict[Agreement | None, str] = {
    "same": "equal",
    "widths": "equal up to widths",
    "different": "different",
    None: "not known",
}
