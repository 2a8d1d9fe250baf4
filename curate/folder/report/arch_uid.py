"""LEMUR's own identity of a network, `arch_uid`, compared with ours: which codes does each consider equal?

`arch_uid` is computed from the text: it distinguishes codes by the order of operators, helpers or training code, and
includes code that never runs. Ours is the graph of what was run, or else the similarity of texts. Each code is
compared with one other: the first that an identity considers equal, a kept one if possible.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping

from curate.folder.report.facts import ReportFacts
from curate.model.corpus import LoadedRecords
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files.markdown import code_span, count, plural, table
from manifests.records import Agreement

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
