"""The profile `strict`: the whole of the curation on one page."""

import math
from collections.abc import Sequence

import numpy as np

from curate.corpus import Corpus
from curate.options import CurateOptions, matching_prefix
from curate.outcome import Outcome
from curate.records import Records, build_records
from curate.runs.check import Check, choose_running
from curate.select import Rescue, Select, Support, Verdict, rescue, select
from curate.split import assign_splits, group_names, leak_groups
from lemur_core.similarity.index import LexicalIndex, StructuralIndex
from lemur_core.similarity.join import ExactPairs, Recall, enough_effort, exact_pairs, measure_recall
from lemur_core.similarity.minhash import Banding


def curate_strict(corpus: Corpus, options: CurateOptions, check: Check | None = None) -> Outcome:
    """Decide every row by the guarantees of the strict profile.

    Args:
        check: tells which records run; needed where they are required to.
    """
    records = build_records(corpus, options)
    recall = enough_effort(corpus.features, _true_pairs(corpus, records, options), options.lexical_threshold)
    selector = _selector(corpus, options, recall)

    def choose(candidates: Records) -> Rescue:
        return rescue(candidates.order, _supports(candidates, options), corpus.features, selector)

    if options.require_runs:
        assert check is not None
        every, (records, chosen) = records, choose_running(records, corpus, choose, check)
        if records is not every:  # the recall that is told is that among the records which were compared in the end
            recall = _recall_again(corpus, records, options, recall)
    else:
        chosen = choose(records)
    rank = records.rank
    kept = sorted((code for code, verdict in chosen.verdicts.items() if verdict.stage is None), key=rank.__getitem__)
    groups = leak_groups(kept, corpus.features)
    ids = [corpus.ids[code] for code in kept]
    splits = assign_splits(groups, ids, options.seed)
    return Outcome(
        decisions=_decisions(corpus, records, chosen),
        kept=kept,
        shown={code: records.shown[code] for code in kept},
        splits=dict(zip(kept, splits, strict=True)),
        clusters=dict(zip(kept, group_names(groups, ids), strict=True)),
        families=records.families,
        scores={code: _known(records.scores[row]) for code, row in records.shown.items()},
        weights={code: weight_of(records.names[code], options.upweight) for code in kept},
        notes=chosen.shortfalls,
        details={"lsh": recall.facts(), "split_groups": len(set(groups))},
    )


def weight_of(name: str, upweight: Sequence[tuple[str, float]]) -> float:
    """The sampling weight of a record: the factor of the first prefix that its name starts with, else 1."""
    place = matching_prefix(name, [prefix for prefix, _ in upweight])
    return 1.0 if place is None else upweight[place][1]


def _true_pairs(corpus: Corpus, records: Records, options: CurateOptions) -> ExactPairs:
    sets = np.unique(corpus.features.shingle_set[np.array(records.order, np.int64)])
    return exact_pairs(corpus.features, sets, options.lexical_threshold)


def _recall_again(corpus: Corpus, records: Records, options: CurateOptions, recall: Recall) -> Recall:
    """The recall among fewer records, LSH as before."""
    banding = Banding(recall.bands, recall.rows)
    return measure_recall(corpus.features, _true_pairs(corpus, records, options), banding, options.lexical_threshold)


def _selector(corpus: Corpus, options: CurateOptions, recall: Recall) -> Select:
    banding = Banding(recall.bands, recall.rows)
    lexical = LexicalIndex(corpus.features, options.lexical_threshold, banding)
    structural = StructuralIndex(corpus.features.elements, options.structural)

    def run(order: Sequence[int]) -> dict[int, Verdict]:
        lexical.clear()
        structural.clear()
        return select(order, corpus.features, lexical, structural)

    return run


def _supports(records: Records, options: CurateOptions) -> list[Support]:
    """Minimum prefixes first, then top-ups, each over the records in best-first order."""
    supports = []
    if options.min_prefix:
        named = list(dict.fromkeys([*options.prefer, *options.include]))
        prefixes = named or sorted(set(records.prefixes.values()))
        supports += [_by_prefix("prefix", text, records, options.min_prefix) for text in prefixes]
    supports += [_by_prefix("topup", text, records, options.topup_per_prefix) for text in options.topup_prefix]
    for family in options.topup_family:
        members = tuple(code for code in records.order if records.families[code] == family.casefold())
        supports.append(Support(f"top-up of family {family}", members, options.topup_per_prefix, "topup"))
    return supports


def _by_prefix(kind: str, text: str, records: Records, minimum: int) -> Support:
    members = tuple(code for code in records.order if matching_prefix(records.names[code], [text]) is not None)
    return Support(f"{'minimum' if kind == 'prefix' else 'top-up'} of prefix {text}", members, minimum, kind)


def _decisions(corpus: Corpus, records: Records, chosen: Rescue) -> list[Verdict]:
    """One decision for every input row, in input order."""
    rows = corpus.rows.num_rows
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    decisions = []
    for row in range(rows):
        code = int(corpus.code_of_row[row])
        if row in corpus.problems:
            decisions.append(Verdict("invalid", reason=corpus.problems[row]))
        elif row in records.filtered:
            decisions.append(Verdict("filter", reason=records.filtered[row]))
        else:
            verdict = chosen.verdicts[code]
            speaks = records.speaking[names[row], code]
            if row != speaks:
                reason = f"further row of {names[row]}, see row {speaks}"
                decisions.append(Verdict("repeat", verdict.canonical, verdict.similarity, reason))
            elif verdict.stage is None and row != records.shown[code]:
                reason = f"same code as {records.names[code]}"
                decisions.append(Verdict("exact", code, 1.0, reason))
            else:
                decisions.append(_record_decision(code, corpus, records, chosen))
    return decisions


def _record_decision(code: int, corpus: Corpus, records: Records, chosen: Rescue) -> Verdict:
    verdict, features = chosen.verdicts[code], corpus.features
    other, similarity = verdict.canonical, verdict.similarity
    assert other is not None
    assert similarity is not None
    name = records.names[other]
    if verdict.stage is None:
        rescued = chosen.rescued.get(code)
        reason = (
            "kept" if rescued is None else f"kept for the support of its {'prefix' if rescued == 'prefix' else 'group'}"
        )
        return Verdict(None, code, 1.0, reason, rescued)
    if verdict.stage == "exact":
        reason = f"same code as {name} but for comments, docstrings and layout"
    elif verdict.stage == "lexical" and features.literal[code] == features.literal[other]:
        reason = f"same model code as {name}"
    elif verdict.stage == "lexical" and features.shingle_set[code] == features.shingle_set[other]:
        reason = f"same shingles as {name}; names, numbers or repetitions differ"
    elif verdict.stage == "structural" and features.fingerprint[code] == features.fingerprint[other]:
        reason = f"same fingerprint as {name}"
    elif verdict.stage == "structural" and similarity == 1:
        reason = f"same layer calls and sizes as {name}; their order or repetition differs"
    else:
        reason = f"{verdict.stage} Jaccard {math.floor(similarity * 1000) / 1000:.3f} to {name}"
    return Verdict(verdict.stage, other, verdict.similarity, reason)


def _known(score: float) -> float | None:
    return None if math.isnan(score) else float(score)
