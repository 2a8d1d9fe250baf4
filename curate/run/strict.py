"""The whole curation on one page: records, near pairs, selection with witnesses, traces, groups, splits, reasons."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from curate.compute.graphs import CorpusTracer, GraphTrace, differ_test, get_computations
from curate.compute.outcome import NOT_RUN, CurationOutcome
from curate.model.corpus import LoadedRecords
from curate.model.features import FeatureTable
from curate.model.options import CurateOptions, get_prefix, matching_prefix
from curate.model.previous import STAYS, GrowingSelection, Previous
from curate.model.records import Records, build_records, describe_no_networks, describe_off_scale, leave_out
from curate.model.splits import Computations, CorpusSplits, assign_splits, group_kept, group_names, split_corpus
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.join import Recall, enough_effort, exact_pairs, measure_recall
from lemur_core.similarity.minhash import PERMUTATIONS, SCHEME, Banding, jaccard


def curate_strict(
    corpus: LoadedRecords,
    options: CurateOptions,
    tracer: CorpusTracer | None = None,
    previous: Previous | None = None,
) -> CurationOutcome:
    """Decide every row by the guarantees.

    A code is traced, and run, only where it is about to be kept: all others are near a kept code that ranks higher, so
    the outcome is that of tracing and running all of them.

    Args:
        tracer: traces what codes compute, and whether they run; None: graphs are not compared.
        previous: what was kept before stays, and keeps its split.
    """
    published = {} if previous is None else previous.find(corpus)
    records = all_records = build_records(corpus, options, published)
    published = {code_index: published[code_index] for code_index in records.order if code_index in published}
    growing = None if previous is None else GrowingSelection(corpus, published)
    recall = _measure_recall(corpus, records, options)
    near = _index_near(corpus, options, recall)
    traces: Mapping[int, GraphTrace] = {} if tracer is None else tracer.known
    if tracer is not None and options.graphs != "survivors":
        traces = tracer.trace(records.representatives)

    def decide(order: Sequence[int]) -> dict[int, Verdict]:
        near.clear()
        near.graphs, near.differ = get_computations(traces), differ_test(traces, options.graphs)
        return select(order, near) if growing is None else growing.select(order, near, name_computations(traces))

    while True:  # ends: each pass traces a code that was unknown, or leaves one out
        chosen = select_with_support(records, options, corpus.features, decide)
        representatives = {code_index: records.representatives[code_index] for code_index in chosen.kept}
        if tracer is not None and not representatives.keys() <= traces.keys():
            traces = tracer.trace(representatives)
            continue
        failed = {
            code_index: NOT_RUN + (traces[code_index].error or "")
            for code_index in chosen.kept
            if options.require_runs and code_index not in published and not traces[code_index].runs
        }
        if not failed:
            break
        records = leave_out(records, corpus, failed)

    if records is not all_records:  # report the recall among the records that were compared in the end
        recall = _measure_recall(corpus, records, options, Banding(recall.bands, recall.rows))
    kept = [code_index for code_index in records.order if chosen.verdicts[code_index].kept]
    computations = name_computations(traces)
    groups = group_kept(kept, corpus.features, computations, published)
    roots, ids = [groups.root(code_index) for code_index in kept], [corpus.ids[code_index] for code_index in kept]
    kinds = [(records.prefixes[code_index], records.families[code_index]) for code_index in kept]
    decided = {root: split for root in roots if (split := groups.split(root)) is not None}
    split_of = dict(zip(kept, assign_splits(roots, ids, kinds, options.seed, decided), strict=True))
    details = {
        "lsh": recall.facts(),
        "sketch": {"scheme": SCHEME, "permutations": PERMUTATIONS},
        "split_groups": len(set(roots)),
    }
    if previous is not None and growing is not None:
        gone = previous.list_gone(corpus, all_records.filtered, published)
        details |= {"previous": {"kept": len(published), "gone": gone}, "inherited": growing.inherited}
    return CurationOutcome(
        decisions=_decide_rows(corpus, records, chosen, traces, published),
        kept=kept,
        representatives={code_index: records.representatives[code_index] for code_index in kept},
        splits=split_of,
        clusters=dict(zip(kept, group_names(roots, ids), strict=True)),
        families=records.families,
        scores={code_index: records.scores.get(code_index) for code_index in records.rows},
        weights={code_index: get_weight(records.names[code_index], options.upweight) for code_index in kept},
        rows=records.rows,
        whole=_split_corpus(corpus, records, chosen, split_of, computations, options.seed),
        graphs=None if tracer is None else dict(traces),
        runs={code_index: traces[code_index] for code_index in kept} if options.require_runs else None,
        notes=chosen.shortfalls + describe_off_scale(corpus) + describe_no_networks(corpus),
        details=details,
    )


def _measure_recall(
    corpus: LoadedRecords, records: Records, options: CurateOptions, banding: Banding | None = None
) -> Recall:
    """Return the recall of LSH among records: with these bands, by default with enough to find nearly all pairs."""
    features, threshold = corpus.features, options.lexical_threshold
    truth = exact_pairs(features, corpus.sets(records.order), threshold)
    if banding is None:
        return enough_effort(features, truth, threshold)
    return measure_recall(features, truth, banding, threshold)


def _index_near(corpus: LoadedRecords, options: CurateOptions, recall: Recall) -> KeptSet:
    features = corpus.features
    lexical = LexicalIndex(features, options.lexical_threshold, Banding(recall.bands, recall.rows))
    return KeptSet(features, lexical, StructuralIndex(features.elements, options.structural_threshold))


# Support for prefixes: records to decide first, so that enough of each prefix are kept. Every removed record is near a
# kept one, so raising the support of a prefix means choosing another maximal independent set, not adding to the present
# one: these records move to the front of the order, and all are decided again, so that all guarantees hold as before.
# Source of the farthest-first order: Gonzalez 1985, "Clustering to minimize the maximum intercluster distance".

_FARTHEST = 50  # members to order farthest first; the rest follow, best first


@dataclass(slots=True)
class Selection:
    """A verdict on each record, after each minimum support was met as far as possible."""

    verdicts: dict[int, Verdict]
    rescued: dict[int, str] = field(default_factory=dict)  # code index -> "prefix" or "topup"
    shortfalls: list[str] = field(default_factory=list)  # supports that could not be met, one line each

    @property
    def kept(self) -> list[int]:
        """The kept codes, in the order of the verdicts."""
        return [code_index for code_index, verdict in self.verdicts.items() if verdict.kept]


@dataclass(frozen=True, slots=True)
class Support:
    """Records of a prefix of which at least `minimum` should be kept."""

    label: str  # for the report, for example "minimum of prefix ast"
    kind: str  # "prefix": best first; "topup": farthest first
    minimum: int
    members: tuple[int, ...]  # code indices, best first

    def is_short(self, kept: Container[int]) -> bool:
        """Return whether too few members are kept."""
        return self.count(kept) < self.minimum

    def count(self, kept: Container[int]) -> int:
        """Return how many members are kept."""
        return sum(code_index in kept for code_index in self.members)


def select_with_support(
    records: Records,
    options: CurateOptions,
    features: FeatureTable,
    decide: Callable[[Sequence[int]], dict[int, Verdict]],
) -> Selection:
    """Select, then raise the support of each prefix once. Args: decide: decides the order, and parts of it on trial."""
    first = decide(records.order)
    chosen, supports = Selection(first), _list_supports(records, options)
    heads: dict[str, list[int]] = {}  # by label, the members to decide first: none near each other
    kept = set(chosen.kept)
    while short := [item for item in supports if item.label not in heads and item.is_short(kept)]:
        for support in short:
            taken = dict.fromkeys(chain.from_iterable(heads.values()))
            own = [code_index for code_index in support.members if code_index in kept]
            more = [code_index for code_index in support.members if code_index not in kept]
            candidates = [*own, *(_order_farthest_first(own, more, features) if support.kind == "topup" else more)]
            ordered = [code_index for code_index in candidates if code_index not in taken]
            verdicts = decide([*taken, *ordered])
            heads[support.label] = [item for item in ordered if verdicts[item].kept][: support.minimum]
        seeds = dict.fromkeys(chain.from_iterable(heads.values()))
        chosen.verdicts = decide([*seeds, *(code_index for code_index in records.order if code_index not in seeds)])
        kept = set(chosen.kept)
    for support in supports:
        for code_index in heads.get(support.label, ()):
            if code_index in kept and not first[code_index].kept:
                chosen.rescued.setdefault(code_index, support.kind)
        if support.is_short(kept):
            near = f"its {len(support.members):,} records are near-duplicates of each other or of other records"
            why = near if support.members else "it has no records"
            count = support.count(kept)
            chosen.shortfalls.append(f"{support.label}: {count} kept, {support.minimum} required; {why}")
    return chosen


def _list_supports(records: Records, options: CurateOptions) -> list[Support]:
    """Return minimum prefixes, then top-ups, each over the records in best-first order."""
    named = list(dict.fromkeys([*options.prefer, *options.include])) or sorted(set(records.prefixes.values()))
    wanted = [("minimum", "prefix", text, options.min_per_prefix) for text in named if options.min_per_prefix]
    wanted += [("top-up", "topup", text, options.topup_per_prefix) for text in options.topup_prefix]

    def list_members(text: str) -> tuple[int, ...]:
        return tuple(
            code_index for code_index in records.order if matching_prefix(records.names[code_index], [text]) is not None
        )

    return [
        Support(f"{what} of prefix {text}", kind, minimum, list_members(text)) for what, kind, text, minimum in wanted
    ]


def _order_farthest_first(own: Sequence[int], more: Sequence[int], features: FeatureTable) -> list[int]:
    """Order `more` by decreasing distance from `own` and from those before; equal distances stay in order."""

    def compare(one: int, other: int) -> float:
        """Return the larger of the lexical and the structural Jaccard similarity."""
        shingles = (features.shingles(int(features.shingle_set[code_index])) for code_index in (one, other))
        elements = (features.elements[int(features.fingerprint[code_index])] for code_index in (one, other))
        return max(jaccard(*shingles), jaccard(*elements))

    nearest = {code_index: max((compare(code_index, other) for other in own), default=0.0) for code_index in more}
    order: list[int] = []
    while nearest and len(order) < _FARTHEST:
        order.append(min(nearest, key=nearest.__getitem__))
        del nearest[order[-1]]
        for code_index in nearest:
            nearest[code_index] = max(nearest[code_index], compare(code_index, order[-1]))
    return [*order, *nearest]


def name_computations(traces: Mapping[int, GraphTrace]) -> Computations:
    """Return identities by code; codes that share one must be in one split: equal up to widths, equal in eval mode
    (they differ in what training draws), and equal in numbers.
    """
    widths = {code_index: trace.widths for code_index, trace in traces.items() if trace.widths is not None}
    evals = {code_index: trace.evaluated for code_index, trace in traces.items() if trace.evaluated is not None}
    return widths, evals, get_computations(traces)


def _split_corpus(
    corpus: LoadedRecords,
    records: Records,
    chosen: Selection,
    split_of: Mapping[int, str],
    computations: Computations,
    seed: int,
) -> CorpusSplits:
    """Assign a split to all codes, so that none is near to another in another split."""
    removed = {
        code_index: canonical
        for code_index in records.order
        if code_index not in split_of and (canonical := chosen.verdicts[code_index].canonical) is not None
    }
    names = corpus.rows.column("nn")
    others = {
        code_index: (get_prefix(names[row].as_py() or ""), corpus.features.family[code_index])
        for code_index, row in sorted(records.rows.items(), key=lambda item: corpus.ids[item[0]])
        if code_index not in records.representatives
    }
    return split_corpus(corpus.features, corpus.ids, split_of, removed, others, computations, seed)


def get_weight(name: str, upweight: Sequence[tuple[str, float]]) -> float:
    """Return the sampling weight of a record: the factor of the first prefix that its name starts with, else 1."""
    index = matching_prefix(name, [prefix for prefix, _ in upweight])
    return 1.0 if index is None else upweight[index][1]


def _decide_rows(
    corpus: LoadedRecords,
    records: Records,
    chosen: Selection,
    traces: Mapping[int, GraphTrace],
    published: Container[int],
) -> list[Verdict]:
    """Return one decision for every input row, in input order."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    decisions = []
    for row, code_index in enumerate(corpus.code_of_row.tolist()):
        if row in corpus.problems:
            decisions.append(Verdict("invalid", reason=corpus.problems[row]))
        elif row in records.filtered:
            decisions.append(Verdict("filter", reason=records.filtered[row]))
        else:
            verdict = chosen.verdicts[code_index]
            representative = records.network_rows[names[row], code_index]
            if row != representative:
                reason = f"further row of {names[row]}, see row {representative}"
                decisions.append(Verdict("repeat", verdict.canonical, verdict.similarity, reason))
            elif verdict.stage is None and row != records.representatives[code_index]:
                reason = f"same code as {records.names[code_index]}"
                decisions.append(Verdict("exact", code_index, 1.0, reason))
            elif code_index in published:
                decisions.append(Verdict(None, code_index, 1.0, STAYS))
            else:
                decisions.append(_decide_record(code_index, corpus, records, chosen, traces))
    return decisions


def _decide_record(
    code_index: int, corpus: LoadedRecords, records: Records, chosen: Selection, traces: Mapping[int, GraphTrace]
) -> Verdict:
    verdict, features = chosen.verdicts[code_index], corpus.features
    other, similarity = verdict.canonical, verdict.similarity
    assert other is not None
    assert similarity is not None
    name = records.names[other]
    if verdict.stage is None:
        rescued = chosen.rescued.get(code_index)
        support = "" if rescued is None else f" for the support of its {'prefix' if rescued == 'prefix' else 'group'}"
        return Verdict(None, code_index, 1.0, f"kept{support}", rescued)
    if verdict.stage == "exact":
        reason = f"same code as {name} but for comments, docstrings and layout"
    elif verdict.stage == "graph":
        reason = f"computes what {name} computes"
        if code_index in traces and other in traces and traces[code_index].graph != traces[other].graph:
            reason += ": other operations, equal numbers"
        if code_index in traces and other in traces and traces[code_index].training != traces[other].training:
            reason += "; same network, other training"
    elif verdict.stage == "leak" and similarity == 1:
        reason = f"would join two published splits: its structure or computation is that of {name}"
    elif verdict.stage == "leak":
        reason = f"would join two published splits: Jaccard {_round_down(similarity)} to {name}"
    elif verdict.stage == "lexical" and features.literal[code_index] == features.literal[other]:
        reason = f"same model code as {name}"
    elif verdict.stage == "lexical" and features.shingle_set[code_index] == features.shingle_set[other]:
        reason = f"same shingles as {name}; names, numbers or repetitions differ"
    elif verdict.stage == "structural" and features.fingerprint[code_index] == features.fingerprint[other]:
        reason = f"same fingerprint as {name}"
    elif verdict.stage == "structural" and similarity == 1:
        reason = f"same layer calls and sizes as {name}; their order or repetition differs"
    else:
        reason = f"{verdict.stage} Jaccard {_round_down(similarity)} to {name}"
    return Verdict(verdict.stage, other, verdict.similarity, reason)


def _round_down(similarity: float) -> str:
    """Return three digits: a similarity below a threshold must not read as if it reached it."""
    return f"{math.floor(similarity * 1000) / 1000:.3f}"
