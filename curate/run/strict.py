"""The whole curation on one page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from curate.compute.graphs import GraphTrace, GraphTracer, choose_traced, differ_test, get_computations
from curate.compute.runs import Check, reason_to_leave_out
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, get_prefix, matching_prefix
from curate.model.records import Records, build_records, choose_fitting
from curate.model.select import Rescue, Select, Support, rescue
from curate.model.splits import CorpusSplits, assign_splits, group_names, join_clusters, split_corpus, split_groups
from curate.published.delta import Baseline, SplitGuard
from curate.published.outcome import CurationOutcome, PublishedRecord
from lemur_core.files import Json
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.join import Recall, enough_effort, exact_pairs, measure_recall
from lemur_core.similarity.minhash import PERMUTATIONS, SCHEME, Banding

#: Returns what a code computes, if that is known.
GetTrace = Callable[[int], GraphTrace | None]


def curate_strict(
    corpus: LoadedRecords,
    options: CurateOptions,
    check: Check | None = None,
    tracer: GraphTracer | None = None,
    against: Baseline | None = None,
) -> CurationOutcome:
    """Decide every row by the guarantees.

    Args:
        check: checks which records run; required with `require_runs`.
        tracer: traces what codes compute; None: graphs are not compared.
        against: published records; the outcome is a delta to them.
    """
    records = build_records(corpus, options)
    recall = _measure_recall(corpus, records, options)

    def get_trace(code: int) -> GraphTrace | None:
        # Looked up at each call: the tracer replaces its table.
        return None if tracer is None else tracer.known.get(code)

    guard = None if against is None else SplitGuard(corpus.features, against, get_trace)
    selector = _selector(corpus, options, recall, tracer, guard)
    if tracer is not None:
        tracer.trace(_list_traced_first(records, options, against))
    choose = _make_chooser(corpus, options, selector, tracer, against, get_trace)
    find_reasons = _make_requirements(options, check)
    all_records, (records, chosen) = records, choose_fitting(records, corpus, choose, find_reasons)
    if records is not all_records:  # report the recall among the records that were compared in the end
        recall = _measure_recall(corpus, records, options, Banding(recall.bands, recall.rows))
    kept = sorted(chosen.kept, key=records.rank.__getitem__)
    traced = None if tracer is None else tracer.known
    widths = None if traced is None else [traced[code].widths for code in kept]
    grouped: tuple[list[int], Anchors]
    grouped = (split_groups(kept, corpus.features, widths), {}) if guard is None else guard.groups(kept)
    groups, anchors = grouped
    joined = {} if against is None else join_clusters([*against.key_pairs, *_list_clusters(anchors).values()])
    splits, names = _split(corpus, records, kept, options.seed, groups, anchors, joined)
    split_of = dict(zip(kept, splits, strict=True))
    return CurationOutcome(
        decisions=_decisions(corpus, records, chosen, get_trace),
        kept=kept,
        representatives={code: records.representatives[code] for code in kept},
        splits=split_of,
        clusters=dict(zip(kept, names, strict=True)),
        families=records.families,
        scores={code: records.scores.get(code) for code in records.rows},
        weights={code: get_weight(records.names[code], options.upweight) for code in kept},
        rows=records.rows,
        whole=_split_corpus(corpus, records, chosen, split_of, against, get_trace, options.seed),
        graphs=traced,
        published={} if against is None else against.records,
        further=frozenset() if against is None else frozenset(against.published),
        joined=joined,
        notes=chosen.shortfalls,
        details=_describe_details(recall, groups, anchors, against),
    )


def _describe_details(
    recall: Recall, groups: Sequence[int], anchors: Mapping[int, object], against: Baseline | None
) -> Json:
    """Return the details of the decisions for the manifest."""
    return {
        "lsh": recall.facts(),
        "sketch": {"scheme": SCHEME, "permutations": PERMUTATIONS},
        "split_groups": len(set(groups)),
        **({} if against is None else {"against": against.facts | {"split_groups": len(anchors)}}),
    }


def _list_traced_first(records: Records, options: CurateOptions, against: Baseline | None) -> dict[int, int]:
    """Return the codes to trace before anything is selected, with their representative rows."""
    if options.graphs == "survivors":
        return {}
    published = () if against is None else against.equal
    return {code: row for code, row in records.representatives.items() if code not in published}


def _make_chooser(
    corpus: LoadedRecords,
    options: CurateOptions,
    selector: Select,
    tracer: GraphTracer | None,
    against: Baseline | None,
    get_trace: GetTrace,
) -> Callable[[Records], Rescue]:
    """Return the function that selects among candidates; codes that are published already are decided by that."""

    def choose(candidates: Records) -> Rescue:
        published_verdicts = {} if against is None else against.verdicts(candidates.order, get_trace)
        new = replace(candidates, order=[code for code in candidates.order if code not in published_verdicts])
        selection = rescue(new.order, _supports(new, options), corpus.features, selector)
        selection.verdicts |= published_verdicts
        return selection

    return choose if tracer is None else lambda candidates: choose_traced(candidates, choose, tracer)


def _make_requirements(options: CurateOptions, check: Check | None) -> Callable[[Mapping[int, int]], dict[int, str]]:
    """Return the function that finds why options leave out codes that are about to be kept."""

    def find_reasons(kept: Mapping[int, int]) -> dict[int, str]:
        if not options.require_runs:
            return {}
        assert check is not None
        return {code: reason_to_leave_out(result) for code, result in check(kept).items() if not result.runs}

    return find_reasons


#: A record of each published group that a group of new records continues, by the number of the new group.
Anchors = Mapping[int, Sequence[PublishedRecord]]


def _list_clusters(anchors: Anchors) -> dict[int, list[str]]:
    return {group: [record.cluster for record in records] for group, records in anchors.items()}


def _split(
    corpus: LoadedRecords,
    records: Records,
    kept: Sequence[int],
    seed: int,
    groups: Sequence[int],
    anchors: Anchors,
    joined: Mapping[str, str],
) -> tuple[list[str], list[str]]:
    """Return the split and the group's name of each kept code."""
    ids = [corpus.ids[code] for code in kept]
    kinds = [(records.prefixes[code], records.families[code]) for code in kept]
    # A group that contains a published record stays where that one was published, whatever the seed draws.
    published = {group: members[0].split for group, members in anchors.items()}
    splits = assign_splits(groups, ids, kinds, seed, published)
    keys = {group: joined.get(names[0], names[0]) for group, names in _list_clusters(anchors).items()}
    return splits, group_names(groups, ids, keys)


def _split_corpus(
    corpus: LoadedRecords,
    records: Records,
    chosen: Rescue,
    split_of: Mapping[int, str],
    against: Baseline | None,
    get_trace: GetTrace,
    seed: int,
) -> CorpusSplits:
    """Assign a split to all codes but those that are published, so that none is near to another in another split."""
    published: Mapping[int, PublishedRecord] = {} if against is None else against.records
    further = set() if against is None else against.published
    removed: dict[int, tuple[int | None, set[str]]] = {}
    for code in records.order:
        canonical = chosen.verdicts[code].canonical
        if code in split_of or code in further:
            continue
        splits = (
            set() if against is None else {split for split, _ in against.find_published_groups(code, get_trace(code))}
        )
        if canonical is not None and canonical in published:
            splits.add(published[canonical].split)
        removed[code] = (canonical if canonical in split_of else None, splits)
    names = corpus.rows.column("nn")
    others = {
        code: (get_prefix(names[row].as_py() or ""), corpus.features.family[code])
        for code, row in sorted(records.rows.items(), key=lambda item: corpus.ids[item[0]])
        if code not in records.representatives and code not in further
    }
    traces = {code: trace for code in records.rows if (trace := get_trace(code)) is not None}
    widths = {code: trace.widths for code, trace in traces.items() if trace.widths is not None}
    return split_corpus(
        corpus.features, corpus.ids, split_of, removed, others, (widths, get_computations(traces)), seed
    )


def get_weight(name: str, upweight: Sequence[tuple[str, float]]) -> float:
    """Return the sampling weight of a record: the factor of the first prefix that its name starts with, else 1."""
    index = matching_prefix(name, [prefix for prefix, _ in upweight])
    return 1.0 if index is None else upweight[index][1]


def _measure_recall(
    corpus: LoadedRecords, records: Records, options: CurateOptions, banding: Banding | None = None
) -> Recall:
    """Return the recall of LSH among records: with these bands, by default with enough to find nearly all pairs."""
    features, threshold = corpus.features, options.lexical_threshold
    truth = exact_pairs(features, corpus.sets(records.order), threshold)
    if banding is None:
        return enough_effort(features, truth, threshold)
    return measure_recall(features, truth, banding, threshold)


def _selector(
    corpus: LoadedRecords, options: CurateOptions, recall: Recall, tracer: GraphTracer | None, guard: SplitGuard | None
) -> Select:
    features, banding = corpus.features, Banding(recall.bands, recall.rows)
    lexical = LexicalIndex(features, options.lexical_threshold, banding)
    kept = KeptSet(features, lexical, StructuralIndex(features.elements, options.structural_threshold))

    def run(order: Sequence[int]) -> dict[int, Verdict]:
        kept.clear()
        kept.graphs = {} if tracer is None else tracer.computations
        admit = None
        if guard is not None:
            guard.clear()
            admit = guard.admit
        kept.differ = None if tracer is None else differ_test(tracer.known, options.graphs)
        return select(order, kept, admit)

    return run


def _supports(records: Records, options: CurateOptions) -> list[Support]:
    """Return minimum prefixes, then top-ups, each over the records in best-first order."""
    named = list(dict.fromkeys([*options.prefer, *options.include])) or sorted(set(records.prefixes.values()))
    prefixes = [("prefix", "minimum", text, options.min_per_prefix) for text in named if options.min_per_prefix]
    prefixes += [("topup", "top-up", text, options.topup_per_prefix) for text in options.topup_prefix]
    supports = []
    for kind, what, text, minimum in prefixes:
        members = tuple(code for code in records.order if matching_prefix(records.names[code], [text]) is not None)
        supports.append(Support(f"{what} of prefix {text}", members, minimum, kind))
    return supports


def _decisions(corpus: LoadedRecords, records: Records, chosen: Rescue, get_trace: GetTrace) -> list[Verdict]:
    """Return one decision for every input row, in input order."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    decisions = []
    for row, code in enumerate(corpus.code_of_row.tolist()):
        if row in corpus.problems:
            decisions.append(Verdict("invalid", reason=corpus.problems[row]))
        elif row in records.filtered:
            decisions.append(Verdict("filter", reason=records.filtered[row]))
        else:
            verdict = chosen.verdicts[code]
            representative = records.network_rows[names[row], code]
            if row != representative:
                reason = f"further row of {names[row]}, see row {representative}"
                decisions.append(Verdict("repeat", verdict.canonical, verdict.similarity, reason))
            elif verdict.stage is None and row != records.representatives[code]:
                reason = f"same code as {records.names[code]}"
                decisions.append(Verdict("exact", code, 1.0, reason))
            else:
                decisions.append(_record_decision(code, corpus, records, chosen, get_trace))
    return decisions


def _record_decision(
    code: int, corpus: LoadedRecords, records: Records, chosen: Rescue, get_trace: GetTrace
) -> Verdict:
    verdict, features = chosen.verdicts[code], corpus.features
    if verdict.reason:  # decided by something published
        return verdict
    other, similarity = verdict.canonical, verdict.similarity
    assert other is not None
    assert similarity is not None
    name = records.names[other]
    if verdict.stage is None:
        rescued = chosen.rescued.get(code)
        support = "" if rescued is None else f" for the support of its {'prefix' if rescued == 'prefix' else 'group'}"
        return Verdict(None, code, 1.0, f"kept{support}", rescued)
    if verdict.stage == "exact":
        reason = f"same code as {name} but for comments, docstrings and layout"
    elif verdict.stage == "graph":
        reason = f"computes what {name} computes"
        own, canonical = get_trace(code), get_trace(other)
        if own is not None and canonical is not None and own.graph != canonical.graph:
            reason += ": other operations, equal numbers"
    elif verdict.stage == "lexical" and features.literal[code] == features.literal[other]:
        reason = f"same model code as {name}"
    elif verdict.stage == "lexical" and features.shingle_set[code] == features.shingle_set[other]:
        reason = f"same shingles as {name}; names, numbers or repetitions differ"
    elif verdict.stage == "structural" and features.fingerprint[code] == features.fingerprint[other]:
        reason = f"same fingerprint as {name}"
    elif verdict.stage == "structural" and similarity == 1:
        reason = f"same layer calls and sizes as {name}; their order or repetition differs"
    else:
        # Rounded down: a similarity below a threshold must not read as if it reached it.
        reason = f"{verdict.stage} Jaccard {math.floor(similarity * 1000) / 1000:.3f} to {name}"
    return Verdict(verdict.stage, other, verdict.similarity, reason)
