"""The whole curation on one page: records, near pairs, selection with witnesses, traces, groups, splits, reasons."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from curate.compute.graphs import CorpusTracer, GraphTrace, get_computations
from curate.compute.outcome import NOT_RUN, CurationOutcome
from curate.model.corpus import STAYS, FeatureTable, LoadedRecords, Previous
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix, matching_prefix
from curate.model.records import Records, build_records, describe_off_scale, leave_out
from curate.model.splits import Computations, SplitGroups, assign_splits, group_kept, group_names, split_corpus
from lemur_core.files import Json
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.join import Recall, enough_effort, exact_pairs, measure_recall
from lemur_core.similarity.minhash import PERMUTATIONS, SCHEME, Banding, banding_for, jaccard


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
    features, recall = corpus.features, _measure_recall(corpus, records, options)
    lexical = LexicalIndex(features, options.lexical_threshold, Banding(recall.bands, recall.rows))
    near = KeptSet(features, lexical, StructuralIndex(features.elements, options.structural_threshold))
    leaks = None if previous is None else LexicalIndex(features, LEAK_THRESHOLD, banding_for(LEAK_THRESHOLD))
    inherited: list[Json] = []
    traces: Mapping[int, GraphTrace] = {} if tracer is None else tracer.known
    if tracer is not None and options.graphs != "survivors":
        traces = tracer.trace(records.representatives)

    def differ(one: int, other: int) -> bool:
        return traces[one].agrees(traces[other]) == "different"

    def decide(order: Sequence[int]) -> dict[int, Verdict]:
        near.clear()
        near.graphs, near.differ = get_computations(traces), differ if options.graphs == "keep-different" else None
        if leaks is None:
            verdicts = select(order, near)
        else:
            verdicts, inherited[:] = select_grown(order, near, leaks, corpus, published, name_computations(traces))
        considered.update(code_index for code_index, verdict in verdicts.items() if verdict.kept)
        return verdicts

    while True:  # ends: each pass traces a code that was unknown, or leaves one out
        considered: set[int] = set()  # kept on trial, too: these decide what is kept for a support
        verdicts, rescued, shortfalls = select_with_support(records, options, features, decide)
        kept = [code_index for code_index in records.order if verdicts[code_index].kept]
        if tracer is not None and not considered <= traces.keys():
            traces = tracer.trace(
                {code_index: records.representatives[code_index] for code_index in sorted(considered)}
            )
            continue
        failed = {
            code_index: NOT_RUN + (traces[code_index].error or "")
            for code_index in kept
            if options.require_runs and code_index not in published and not traces[code_index].runs
        }
        if not failed:
            break
        records = leave_out(records, corpus, failed)

    if records is not all_records:  # report the recall among the records that were compared in the end
        recall = _measure_recall(corpus, records, options, Banding(recall.bands, recall.rows))
    computations = name_computations(traces)
    groups = group_kept(kept, features, computations, published)
    roots, ids = [groups.root(code_index) for code_index in kept], [corpus.ids[code_index] for code_index in kept]
    kinds = [(get_prefix(records.names[code_index]), features.family[code_index]) for code_index in kept]
    decided = {root: split for root in roots if (split := groups.split(root)) is not None}
    split_of = dict(zip(kept, assign_splits(roots, ids, kinds, options.seed, decided), strict=True))
    removed = {
        code_index: canonical
        for code_index in records.order
        if code_index not in split_of and (canonical := verdicts[code_index].canonical) is not None
    }
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    others = {
        code_index: (get_prefix(names[row]), features.family[code_index])
        for code_index, row in sorted(records.rows.items(), key=lambda item: corpus.ids[item[0]])
        if code_index not in records.representatives
    }
    details = {
        "lsh": recall.facts(),
        "sketch": {"scheme": SCHEME, "permutations": PERMUTATIONS},
        "split_groups": len(set(roots)),
    }
    if previous is not None:
        gone = previous.list_gone(corpus, all_records.filtered, published)
        details |= {"previous": {"kept": len(published), "gone": gone}, "inherited": inherited}
    return CurationOutcome(
        decisions=_decide_rows(corpus, records, names, verdicts, rescued, traces, published),
        kept=kept,
        representatives={code_index: records.representatives[code_index] for code_index in kept},
        splits=split_of,
        clusters=dict(zip(kept, group_names(roots, ids), strict=True)),
        scores={code_index: records.scores.get(code_index) for code_index in records.rows},
        weights={code_index: get_weight(records.names[code_index], options.upweight) for code_index in kept},
        rows=records.rows,
        whole=split_corpus(features, corpus.ids, split_of, removed, others, computations, options.seed),
        graphs=None if tracer is None else dict(traces),
        require_runs=options.require_runs,
        notes=shortfalls + describe_off_scale(corpus),
        details=details,
    )


def _measure_recall(
    corpus: LoadedRecords, records: Records, options: CurateOptions, banding: Banding | None = None
) -> Recall:
    """Return the recall of LSH among records: with these bands, by default with enough to find nearly all pairs."""
    truth = exact_pairs(corpus.features, corpus.sets(records.order), options.lexical_threshold)
    if banding is None:
        return enough_effort(corpus.features, truth, options.lexical_threshold)
    return measure_recall(corpus.features, truth, banding, options.lexical_threshold)


def name_computations(traces: Mapping[int, GraphTrace]) -> Computations:
    """Return identities by code; codes that share one must be in one split: equal up to widths, equal in eval mode by
    graph or numbers (they differ in what training draws), and equal.
    """
    kinds = ("graph_widths", "graph_eval", "behavior_eval")
    named = ({index: name for index, trace in traces.items() if (name := trace.answer.get(kind))} for kind in kinds)
    return *named, get_computations(traces)


# Support for prefixes: records to decide first, so that enough of each prefix are kept. Every removed record is near a
# kept one, so raising the support of a prefix means choosing another maximal independent set, not adding to the present
# one: these records move to the front of the order, and all are decided again, so that all guarantees hold as before.
# Source of the farthest-first order: Gonzalez 1985, "Clustering to minimize the maximum intercluster distance".

_FARTHEST = 50  # members to order farthest first; the rest follow, best first


class _Support(NamedTuple):
    """Records of a prefix of which at least `minimum` should be kept."""

    label: str  # for the report, for example "minimum of prefix ast"
    kind: str  # "prefix": best first; "topup": farthest first
    minimum: int
    members: list[int]  # code indices, best first


def select_with_support(
    records: Records,
    options: CurateOptions,
    features: FeatureTable,
    decide: Callable[[Sequence[int]], dict[int, Verdict]],
) -> tuple[dict[int, Verdict], dict[int, str], list[str]]:
    """Select, then raise the support of each prefix once.

    Args: decide: decides the order, and parts of it on trial.
    Returns: a verdict on each record; "prefix" or "topup" by code that was kept for a support; one line for each
        support that could not be met.
    """
    named = list(dict.fromkeys([*options.prefer, *options.include])) or sorted(
        set(map(get_prefix, records.names.values()))
    )
    wanted = [("minimum", "prefix", text, options.min_per_prefix) for text in named if options.min_per_prefix]
    wanted += [("top-up", "topup", text, options.topup_per_prefix) for text in options.topup_prefix]
    wanted += [("preference", "", text, 0) for text in options.prefer]  # that they have records is all that is asked
    wanted += [("weight", "", text, 0) for text, _ in options.upweight]

    supports = []
    for what, kind, text, minimum in wanted:
        own = [index for index in records.order if matching_prefix(records.names[index], [text]) is not None]
        supports.append(_Support(f"{what} of prefix {text}", kind, minimum, own))

    def count(support: _Support) -> int:
        return sum(verdicts[code_index].kept for code_index in support.members)

    first = verdicts = decide(records.order)
    heads: dict[str, list[int]] = {}  # by label, the members to decide first: none near each other
    while short := [item for item in supports if item.label not in heads and count(item) < item.minimum]:
        for support in short:
            taken = dict.fromkeys(chain.from_iterable(heads.values()))
            own = [code_index for code_index in support.members if verdicts[code_index].kept]
            more = [code_index for code_index in support.members if not verdicts[code_index].kept]
            if support.kind == "topup":
                more = _order_farthest_first(own, more, features)
            ordered = [code_index for code_index in (*own, *more) if code_index not in taken]
            trial = decide([*taken, *ordered])
            heads[support.label] = [code_index for code_index in ordered if trial[code_index].kept][: support.minimum]
        seeds = dict.fromkeys(chain.from_iterable(heads.values()))
        verdicts = decide([*seeds, *(code_index for code_index in records.order if code_index not in seeds)])
    rescued: dict[int, str] = {}
    shortfalls = []
    for support in supports:
        for code_index in heads.get(support.label, ()):
            if verdicts[code_index].kept and not first[code_index].kept:
                rescued.setdefault(code_index, support.kind)
        if (number := count(support)) < support.minimum or not support.members:
            near = f"its {len(support.members):,} records are near-duplicates of each other or of other records"
            why = near if support.members else "it has no records"
            counted = f"{number} kept, {support.minimum} required; " if support.minimum else ""
            shortfalls.append(f"{support.label}: {counted}{why}")
    return verdicts, rescued, shortfalls


def _order_farthest_first(own: Sequence[int], more: Sequence[int], features: FeatureTable) -> list[int]:
    """Order `more` by decreasing distance from `own` and from those before; equal distances stay in order."""

    def compare(one: int, other: int) -> float:
        """Return the larger of the lexical and the structural Jaccard similarity."""
        elements = (features.elements[int(features.fingerprint[code_index])] for code_index in (one, other))
        return max(features.compare(one, other), jaccard(*elements))

    nearest = {code_index: max((compare(code_index, other) for other in own), default=0.0) for code_index in more}
    order: list[int] = []
    while nearest and len(order) < _FARTHEST:
        order.append(min(nearest, key=nearest.__getitem__))
        del nearest[order[-1]]
        for code_index in nearest:
            nearest[code_index] = max(nearest[code_index], compare(code_index, order[-1]))
    return [*order, *nearest]


# Growth: what a previous snapshot kept is decided first. A new code that would join groups of two published splits is
# not kept (stage `leak`). What the present rules call near or equal among the published records stays, and is listed.


def select_grown(
    order: Sequence[int],
    kept: KeptSet,
    near: LexicalIndex,
    corpus: LoadedRecords,
    published: Mapping[int, str],
    computations: Computations,
) -> tuple[dict[int, Verdict], list[Json]]:
    """Select from an order, the published codes before all others.

    Args:
        kept: empty. near: of the threshold of leaks.
        published: the splits of the published codes, by code index.
    Returns: a verdict on each code; the pairs of published codes that are near, equal, or tied over splits.
    """
    near.clear()
    groups = SplitGroups(corpus.features, lambda shingle_set: (at.place for at in near.near(shingle_set)), computations)
    verdicts: dict[int, Verdict] = {}
    inherited: list[Json] = []
    for code_index in sorted(order, key=lambda code_index: code_index not in published):
        split = published.get(code_index)
        found = kept.witness(code_index) or _find_leak(code_index, groups, split, corpus)
        if split is None and found is not None:
            verdicts[code_index] = found
            continue
        if found is not None and found.canonical is not None:
            pair = {"id": corpus.ids[code_index], "other": corpus.ids[found.canonical]}
            inherited.append({**pair, "stage": found.stage, "similarity": found.similarity})
        groups.add(code_index, split, force=split is not None)
        kept.add(code_index)
        shingle_set = int(corpus.features.shingle_set[code_index])
        near.keep(shingle_set, shingle_set)
        verdicts[code_index] = Verdict(None, code_index, 1.0)
    return verdicts, inherited


def _find_leak(code_index: int, groups: SplitGroups, split: str | None, corpus: LoadedRecords) -> Verdict | None:
    """Return a verdict for the nearest kept code of a second split that a code must be with, if there is one."""
    tied = sorted(
        (-corpus.features.compare(code_index, other) if by_text else -1.0, corpus.ids[other], other)
        for other, by_text in groups.list_tied(code_index)
        if groups.split(other) is not None
    )
    for similarity, _, other in tied:
        split = split or groups.split(other)
        if groups.split(other) != split:
            return Verdict("leak", other, -similarity)
    return None


def get_weight(name: str, upweight: Sequence[tuple[str, float]]) -> float:
    """Return the sampling weight of a record: the factor of the first prefix that its name starts with, else 1."""
    index = matching_prefix(name, [prefix for prefix, _ in upweight])
    return 1.0 if index is None else upweight[index][1]


def _decide_rows(
    corpus: LoadedRecords,
    records: Records,
    names: Sequence[str],
    verdicts: Mapping[int, Verdict],
    rescued: Mapping[int, str],
    traces: Mapping[int, GraphTrace],
    published: Container[int],
) -> list[Verdict]:
    """Return one decision for every input row, in input order."""
    decisions = []
    for row, code_index in enumerate(corpus.code_of_row.tolist()):
        if row in corpus.problems:
            decisions.append(Verdict("invalid", reason=corpus.problems[row]))
        elif row in records.filtered:
            decisions.append(Verdict("filter", reason=records.filtered[row]))
        elif row != (shown := records.network_rows[names[row], code_index]):
            verdict = verdicts[code_index]
            reason = f"further row of {names[row]}, see row {shown}"
            decisions.append(Verdict("repeat", verdict.canonical, verdict.similarity, reason))
        elif (verdict := verdicts[code_index]).stage is not None:
            reason = _explain_removal(code_index, verdict, corpus.features, records.names, traces)
            decisions.append(Verdict(verdict.stage, verdict.canonical, verdict.similarity, reason))
        elif row != records.representatives[code_index]:
            decisions.append(Verdict("exact", code_index, 1.0, f"same code as {records.names[code_index]}"))
        elif code_index in published:
            decisions.append(Verdict(None, code_index, 1.0, STAYS))
        else:
            support = {"prefix": " for the support of its prefix", "topup": " for the support of its group"}
            reason = f"kept{support.get(rescued.get(code_index, ''), '')}"
            decisions.append(Verdict(None, code_index, 1.0, reason, rescued.get(code_index)))
    return decisions


def _explain_removal(
    code_index: int,
    verdict: Verdict,
    features: FeatureTable,
    names: Mapping[int, str],
    traces: Mapping[int, GraphTrace],
) -> str:
    """Return why a code is removed for its canonical."""
    stage, other, similarity = verdict.stage, verdict.canonical, verdict.similarity
    assert other is not None
    assert similarity is not None
    name = names[other]

    def equal(column: str) -> bool:
        numbers = getattr(features, column)
        return bool(numbers[code_index] == numbers[other])

    # A similarity below a threshold must not read as if it reached it.
    rounded = f"Jaccard {math.floor(similarity * 1000) / 1000:.3f} to {name}"
    if stage == "exact":
        return f"same code as {name} but for comments, docstrings and layout"
    if stage == "graph":
        reason, one, two = f"computes what {name} computes", traces.get(code_index), traces.get(other)
        if one is not None and two is not None:
            reason += ": other operations, equal numbers" if one.graph != two.graph else ""
            reason += "; same network, other training" if one.answer.get("glue") != two.answer.get("glue") else ""
        return reason
    if stage == "leak":
        tie = f"its structure or computation is that of {name}" if similarity == 1 else rounded
        return f"would join two published splits: {tie}"
    if stage == "lexical" and equal("literal"):
        return f"same model code as {name}"
    if stage == "lexical" and equal("shingle_set"):
        return f"same shingles as {name}; names, numbers or repetitions differ"
    if stage == "structural" and equal("fingerprint"):
        return f"same fingerprint as {name}"
    if stage == "structural" and similarity == 1:
        return f"same layer calls as {name}, sizes in powers of two; order, repetition or exact sizes differ"
    return f"{stage} {rounded}"
