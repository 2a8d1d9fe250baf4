"""The whole curation on one page."""

import math
from collections.abc import Mapping, Sequence

from curate.compute.graphs import CorpusTracer, GraphTrace, choose_traced, differ_test, get_computations
from curate.compute.runs import Check, reason_to_leave_out
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, get_prefix, matching_prefix
from curate.model.records import Records, build_records, choose_fitting
from curate.model.select import Rescue, Select, Support, rescue
from curate.model.splits import CorpusSplits, assign_splits, group_names, split_corpus, split_groups
from curate.published.outcome import CurationOutcome
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.join import Recall, enough_effort, exact_pairs, measure_recall
from lemur_core.similarity.minhash import PERMUTATIONS, SCHEME, Banding


def curate_strict(
    corpus: LoadedRecords,
    options: CurateOptions,
    check: Check | None = None,
    tracer: CorpusTracer | None = None,
) -> CurationOutcome:
    """Decide every row by the guarantees.

    Args:
        check: checks which records run; required with `require_runs`.
        tracer: traces what codes compute; None: graphs are not compared.
    """
    records = build_records(corpus, options)
    recall = _measure_recall(corpus, records, options)
    selector = _selector(corpus, options, recall, tracer)
    if tracer is not None and options.graphs != "survivors":
        tracer.trace(records.representatives)

    def choose(candidates: Records) -> Rescue:
        return rescue(candidates.order, _supports(candidates, options), corpus.features, selector)

    def choose_when_traced(candidates: Records) -> Rescue:
        return choose(candidates) if tracer is None else choose_traced(candidates, choose, tracer)

    def find_reasons(kept: Mapping[int, int]) -> dict[int, str]:
        if not options.require_runs:
            return {}
        assert check is not None
        return {code: reason_to_leave_out(result) for code, result in check(kept).items() if not result.runs}

    all_records, (records, chosen) = records, choose_fitting(records, corpus, choose_when_traced, find_reasons)
    if records is not all_records:  # report the recall among the records that were compared in the end
        recall = _measure_recall(corpus, records, options, Banding(recall.bands, recall.rows))
    kept = sorted(chosen.kept, key=records.rank.__getitem__)
    traces: Mapping[int, GraphTrace] = {} if tracer is None else tracer.known
    groups = split_groups(kept, corpus.features, None if tracer is None else [traces[code].widths for code in kept])
    ids = [corpus.ids[code] for code in kept]
    kinds = [(records.prefixes[code], records.families[code]) for code in kept]
    split_of = dict(zip(kept, assign_splits(groups, ids, kinds, options.seed), strict=True))
    return CurationOutcome(
        decisions=_decisions(corpus, records, chosen, traces),
        kept=kept,
        representatives={code: records.representatives[code] for code in kept},
        splits=split_of,
        clusters=dict(zip(kept, group_names(groups, ids), strict=True)),
        families=records.families,
        scores={code: records.scores.get(code) for code in records.rows},
        weights={code: get_weight(records.names[code], options.upweight) for code in kept},
        rows=records.rows,
        whole=_split_corpus(corpus, records, chosen, split_of, traces, options.seed),
        graphs=None if tracer is None else tracer.known,
        notes=chosen.shortfalls,
        details={
            "lsh": recall.facts(),
            "sketch": {"scheme": SCHEME, "permutations": PERMUTATIONS},
            "split_groups": len(set(groups)),
        },
    )


def _split_corpus(
    corpus: LoadedRecords,
    records: Records,
    chosen: Rescue,
    split_of: Mapping[int, str],
    traces: Mapping[int, GraphTrace],
    seed: int,
) -> CorpusSplits:
    """Assign a split to all codes, so that none is near to another in another split."""
    removed = {
        code: canonical
        for code in records.order
        if code not in split_of and (canonical := chosen.verdicts[code].canonical) is not None
    }
    names = corpus.rows.column("nn")
    others = {
        code: (get_prefix(names[row].as_py() or ""), corpus.features.family[code])
        for code, row in sorted(records.rows.items(), key=lambda item: corpus.ids[item[0]])
        if code not in records.representatives
    }
    known = {code: traces[code] for code in records.rows if code in traces}
    widths = {code: trace.widths for code, trace in known.items() if trace.widths is not None}
    computed = (widths, get_computations(known))
    return split_corpus(corpus.features, corpus.ids, split_of, removed, others, computed, seed)


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


def _selector(corpus: LoadedRecords, options: CurateOptions, recall: Recall, tracer: CorpusTracer | None) -> Select:
    features, banding = corpus.features, Banding(recall.bands, recall.rows)
    lexical = LexicalIndex(features, options.lexical_threshold, banding)
    kept = KeptSet(features, lexical, StructuralIndex(features.elements, options.structural_threshold))

    def run(order: Sequence[int]) -> dict[int, Verdict]:
        kept.clear()
        kept.graphs = {} if tracer is None else tracer.computations
        kept.differ = None if tracer is None else differ_test(tracer.known, options.graphs)
        return select(order, kept)

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


def _decisions(
    corpus: LoadedRecords, records: Records, chosen: Rescue, traces: Mapping[int, GraphTrace]
) -> list[Verdict]:
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
                decisions.append(_record_decision(code, corpus, records, chosen, traces))
    return decisions


def _record_decision(
    code: int, corpus: LoadedRecords, records: Records, chosen: Rescue, traces: Mapping[int, GraphTrace]
) -> Verdict:
    verdict, features = chosen.verdicts[code], corpus.features
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
        if code in traces and other in traces and traces[code].graph != traces[other].graph:
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
