"""LEMUR's own identity of a network, `arch_uid`, beside ours: which of the two says of which codes that they are one.

`arch_uid` is worked out from the text: it keeps apart what has another order of operators, helper or training glue, and
says something of what never ran, too. Ours is the graph of what was run, and for the rest the likeness of texts. Each
code is compared with one other: the first of those that an identity calls the same, a kept one where there is one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from curate.folder.report.facts import Facts
from curate.model.corpus import Corpus
from curate.published.outcome import DUPLICATE_STAGES, Outcome
from lemur_core.files.markdown import code_span, count, plural, table
from manifests.records import Agreement

Pair = tuple[int, int]

_EXAMPLES = 3


def arch_uids(facts: Facts, corpus: Corpus, outcome: Outcome) -> list[str]:
    """The section of the report; empty where the source states no `arch_uid`."""
    uids = _stated(facts, corpus)
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


def _stated(facts: Facts, corpus: Corpus) -> dict[int, str]:
    """The `arch_uid` of each code that has one; of several the first row's."""
    column = corpus.rows.column("arch_uid")
    if column.null_count == len(column):
        return {}
    found: dict[int, str] = {}
    for code, uid in zip(corpus.code_of_row.tolist(), column.to_pylist(), strict=True):
        if uid is not None and code in facts.verdicts:
            found.setdefault(code, uid)
    return found


def _pairs(identity: Mapping[int, Hashable], order: Callable[[int], tuple[bool, str, str]]) -> Iterator[Pair]:
    """Each code with the first of those that have its identity."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for code in sorted(identity, key=order):
        members[identity[code]].append(code)
    for first, *others in members.values():
        yield from ((first, other) for other in others)


def _identities(
    uids: Mapping[int, str],
    outcome: Outcome,
    order: Callable[[int], tuple[bool, str, str]],
    examples: Callable[[Iterable[Pair]], str],
) -> list[str]:
    """The two identities side by side, over the codes that have both."""
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
    facts: Facts,
    outcome: Outcome,
    examples: Callable[[Iterable[Pair]], str],
) -> list[str]:
    """What curation decided of codes with one arch_uid, and whose arch_uid its removals join."""
    kept = set(outcome.kept)
    both = [(first, other) for first, other in merged if other in kept]
    found: Counter[tuple[str, bool]] = Counter()
    apart: dict[str, list[Pair]] = defaultdict(list)
    for code, verdict in facts.verdicts.items():
        other = verdict.canonical
        if verdict.stage in DUPLICATE_STAGES and other is not None and code in uids and other in uids:
            assert verdict.stage is not None
            found[verdict.stage, uids[code] == uids[other]] += 1
            if uids[code] != uids[other]:
                apart[verdict.stage].append((other, code))
    rows = [
        [stage, count(found[stage, True]), count(found[stage, False]), examples(apart[stage])]
        for stage in DUPLICATE_STAGES
        if found[stage, True] or found[stage, False]
    ]
    said = f"{plural(len(both), 'kept record has', 'kept records have')} the arch_uid of another kept one"
    lines = [f"{said}{_graphs_of(both, outcome)}, for example {examples(both)}." if both else f"{said}.", ""]
    if rows:
        head = ["removed at", "arch_uid of the kept one", "another", "for example"]
        lines += ["Removed codes beside the kept record that stands for them:", "", *table(head, rows)]
    return lines


def _graphs_of(pairs: Iterable[Pair], outcome: Outcome) -> str:
    """What the graphs say of pairs, as a clause."""
    graphs = outcome.graphs or {}
    known = [pair for pair in pairs if pair[0] in graphs and pair[1] in graphs]
    said = Counter(graphs[first].agrees(graphs[other]) for first, other in known)
    told = [f"{count(number)} {_SAID[agreement]}" for agreement in _SAID if (number := said[agreement])]
    return f" (by their graphs {', '.join(told)})" if told else ""


_SAID: dict[Agreement | None, str] = {
    "same": "equal",
    "widths": "equal up to widths",
    "different": "different",
    None: "not known",
}
