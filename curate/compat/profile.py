"""The profile `nn-dup`: the decisions of the released package nn-dup 2.2.4, record for record.

It is a reference for the default profile and a migration path from nn-dup, so nn-dup's weaknesses are kept on purpose.
LSH groups are those of the installed datasketch release, as with nn-dup. nn-dup compares all records and pairs; this
works on distinct token streams and sets, of which there are far fewer.

Only where nn-dup depends on hash order (ties of accuracy, code length and name; which row a removal names) do we use
our own rule: see `stages`, `rescue` and `witness`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from curate.compat.code import NnDupFeatures, RowSets, first_prefix, nndup_features, normalise_name, prepare_rows
from curate.compat.stages import (
    PERMUTATIONS,
    SKETCH_SCHEME,
    Removed,
    remove_equal_code,
    remove_lexical,
    remove_structural,
    rescue_for_prefixes,
    top_up,
)
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.model.records import find_left_out, rank_rows, score_codes
from curate.model.splits import CorpusSplits
from curate.published.outcome import CurationOutcome
from lemur_core.files.progress import progress
from lemur_core.similarity.index import Verdict
from lemur_core.similarity.views import map_codes


def _find_canonicals(
    rows: RowSets, kept: Sequence[int], stages: Mapping[str, Removed]
) -> Iterator[tuple[int, Verdict]]:
    """Yield every row that a stage removed and that was not restored, with its canonical row.

    The canonical is the best kept row with the same code if there is one (a twin that was restored), else the best
    kept row of those that the row's stage kept; if none of these is left, the canonical of the best of them. The
    similarity is 1 for rows removed as exact, else the Jaccard of the stage; also 1 for rows with equal fingerprints.
    """
    present = set(kept)
    twin: dict[str, int] = {}
    # Best first, so that the twin of a code is its best kept row.
    for row in sorted(kept, key=lambda row: (rows.quality[row], row)):
        twin.setdefault(rows.code[row], row)
    kept_for = {row: kept_instead for removed in stages.values() for row, kept_instead in removed.items()}

    def follow(row: int) -> int:
        while (canonical := twin.get(rows.code[row])) is None:
            row = next((other for other in kept_for[row] if other in present), kept_for[row][0])
        return canonical

    for stage, removed in stages.items():
        pairs = [(row, follow(row)) for row in removed if row not in present]
        for (row, other), near in zip(pairs, _similarities(rows, stage, pairs), strict=True):
            yield row, Verdict(stage, other, near, _REASONS[stage])


def _similarities(rows: RowSets, stage: str, pairs: Sequence[tuple[int, int]]) -> list[float]:
    if stage == "exact":
        return [1.0] * len(pairs)
    sets, number_of = (rows.shingles, rows.shingles_of) if stage == "lexical" else (rows.layers, rows.layers_of)
    left, right = (np.array([number_of[pair[side]] for pair in pairs], dtype=np.int64) for side in (0, 1))
    jaccards: list[float] = sets.jaccards_of_pairs(left, right).tolist()
    return [
        1.0 if stage == "structural" and rows.fingerprint[row] == rows.fingerprint[other] else near
        for (row, other), near in zip(pairs, jaccards, strict=True)
    ]


#: Shares of the structural fingerprints; the rest is test.
_TRAIN, _VALIDATION = 0.80, 0.10
_REASONS = {
    "exact": "same code as a better row",
    "lexical": "lexically near-duplicate, not among the best of its group",
    "structural": "same or similar layer calls as a better row",
    "prefix": "restored: its prefix had too few rows",
    "topup": "restored: unlike the kept rows of its prefix",
}


@dataclass(slots=True)
class NnDupResult:
    """The decision on each input row; the split and family tag of each kept row, in nn-dup's order."""

    decisions: list[Verdict]  # canonicals are rows
    splits: dict[int, str]
    families: dict[int, str]


def curate_nndup(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
    options: CurateOptions,
    filtered: Mapping[int, str] = {},
) -> NnDupResult:
    """Decide every row as nn-dup 2.2.4 does.

    The canonical of a removed row is the best kept row with the same code if there is one, else the best kept row, by
    nn-dup's quality (accuracy, length of the code, name), of those that the row's stage kept; if none of these is kept
    in the end, the canonical of the best of them.

    Args:
        names: the network's name of each row, in the order of the LEMUR API.
        code_index: the index of each row's code in `features` and `code_sha`; -1 for a row without usable code (for
            nn-dup: blank).
        accuracies: the accuracy of each row; None or NaN ranks last.
        features: the features of each code.
        code_sha: digest of each code; rows with equal digests have equal code.
        filtered: why options that nn-dup does not have leave out a row.
    """
    rows = prepare_rows(names, code_index, accuracies, features, code_sha)
    include = [normalise_name(prefix) for prefix in options.include]
    prefer = [normalise_name(prefix) for prefix in options.prefer] or include
    selected = [
        row
        for row, name in enumerate(rows.names)
        if row not in filtered and (not include or first_prefix(name, include) is not None)
    ]
    usable = [row for row in selected if code_index[row] >= 0]

    kept, exact = remove_equal_code(rows, usable, prefer)
    lexical = remove_lexical(rows, kept, include, options)
    kept = [row for row in kept if row not in lexical]
    structural = remove_structural(rows, kept, options.structural)
    kept = [row for row in kept if row not in structural]
    stages = {"exact": exact, "lexical": lexical, "structural": structural}
    removed = [*exact, *lexical, *structural]
    rescued = dict.fromkeys(rescue_for_prefixes(rows, kept, removed, options), "prefix")
    rescued |= dict.fromkeys(top_up(rows, [*kept, *rescued], removed, options), "topup")
    kept += rescued

    # Later assignments win: a kept row was selected, and a removed row that was restored is kept.
    verdicts = dict.fromkeys(range(len(names)), Verdict("filter", reason="name begins with no included prefix"))
    verdicts.update({row: Verdict("filter", reason=reason) for row, reason in filtered.items()})
    verdicts.update(dict.fromkeys(selected, Verdict("invalid", reason="no code")))
    for row in kept:
        verdicts[row] = Verdict(None, row, None, _REASONS.get(rescued.get(row, ""), "kept"), rescued.get(row))
    verdicts.update(_find_canonicals(rows, kept, stages))
    return NnDupResult(
        decisions=[verdicts[row] for row in range(len(names))],
        splits=_split(kept, rows.fingerprint, options.seed),
        families={row: rows.families[row] for row in kept},
    )


def _split(kept: Sequence[int], fingerprint: Sequence[int], seed: int) -> dict[int, str]:
    """Return the split of each kept row: fingerprints, in the order of their first row, are shuffled and cut."""
    drawn = list(dict.fromkeys(fingerprint[row] for row in kept))
    # The generator of nn-dup: any other would draw other splits.
    random.Random(seed).shuffle(drawn)
    train = round(len(drawn) * _TRAIN)
    validation = train + round(len(drawn) * _VALIDATION)
    names = ["train"] * train + ["validation"] * (validation - train) + ["test"] * (len(drawn) - validation)
    split_of = dict(zip(drawn, names, strict=True))
    return {row: split_of[fingerprint[row]] for row in kept}


def curate_like_nndup(corpus: LoadedRecords, options: CurateOptions, jobs: int | None) -> CurationOutcome:
    """Decide every row as the released nn-dup does with these options and the installed datasketch.

    Unparsable code is treated as in nn-dup; only rows without any code are `invalid`.
    """
    filtered = find_left_out(corpus, options, corpus.code_of_row >= 0)
    wanted = {code for row, code in enumerate(corpus.code_of_row.tolist()) if code >= 0 and row not in filtered}
    features = _features(corpus, wanted, jobs)
    result = curate_nndup(
        names=[nn or "" for nn in corpus.rows.column("nn").to_pylist()],
        code_index=[code if features[code] is not None else -1 for code in corpus.code_of_row.tolist()],
        accuracies=corpus.rows.column("accuracy").to_pylist(),
        features=[item or _NOTHING for item in features],
        code_sha=corpus.ids,
        options=options,
        filtered=filtered,
    )
    return _outcome(corpus, options, result)


_NOTHING = NnDupFeatures("", 0, (), (), (), "generic")


def _features(corpus: LoadedRecords, wanted: set[int], jobs: int | None) -> list[NnDupFeatures | None]:
    """Return features by code number; None if unwanted, without code, or fatal to a worker. The last is number -1."""
    features: list[NnDupFeatures | None] = [None] * (len(corpus.ids) + 1)
    number_of = {bytes.fromhex(corpus.ids[number]): number for number in sorted(wanted)}
    codes = ((digest, corpus.codes[number]) for digest, number in number_of.items())
    with progress("nn-dup features", len(wanted), "codes") as advance:
        for result in map_codes(nndup_features, codes, jobs):
            for digest, item in result:
                features[number_of[digest]] = item if isinstance(item, NnDupFeatures) else None
            advance(len(result))
    for number in wanted:
        # nn-dup skips blank codes, and takes all others, whether they parse or not.
        if corpus.features.problems.get(number) == "nn_code is empty":
            features[number] = None
    return features


def _outcome(corpus: LoadedRecords, options: CurateOptions, result: NnDupResult) -> CurationOutcome:
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    code_of_row = corpus.code_of_row.tolist()
    decisions = []
    for row, decision in enumerate(result.decisions):
        canonical = None if decision.canonical is None else code_of_row[decision.canonical]
        reason = corpus.problems.get(row, decision.reason) if decision.stage == "invalid" else decision.reason
        similarity = 1.0 if decision.kept else decision.similarity
        decisions.append(replace(decision, canonical=canonical, similarity=similarity, reason=reason))
    shown = {code_of_row[row]: row for row in result.splits}
    rows = {code: row for row, code in reversed([*enumerate(code_of_row)]) if code >= 0 and row not in corpus.problems}
    clusters = {code: corpus.ids[code][:16] for code in shown}
    splits = {code_of_row[row]: split for row, split in result.splits.items()}
    ranks = rank_rows(corpus.rows, corpus.code_of_row >= 0)
    scores = score_codes(corpus.rows, corpus.code_of_row, ranks)
    return CurationOutcome(
        decisions=decisions,
        kept=list(shown),
        representatives=shown,
        splits=splits,
        clusters=clusters,
        families={code_of_row[row]: family for row, family in result.families.items()},
        scores={code: scores.get(code) for code in shown},
        weights={code: _weight(names[row], options) for code, row in shown.items()},
        rows=rows | shown,
        whole=CorpusSplits(clusters, splits),  # nn-dup splits only what it keeps
        details={"sketch": {"scheme": f"datasketch {SKETCH_SCHEME}", "permutations": PERMUTATIONS}},
    )


def _weight(name: str, options: CurateOptions) -> float:
    """Return the weight by the beginning of a name, ignoring case, as in nn-dup; the first matching factor counts."""
    fits = (factor for prefix, factor in options.upweight if name.lower().startswith(prefix.lower()))
    return next(fits, 1.0)
