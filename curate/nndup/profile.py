"""The profile `nn-dup`: the decisions of nn-dup 2.2.4 in the form that all profiles share."""

import numpy as np

from curate.corpus import Corpus
from curate.nndup.decide import NnDupOptions, NnDupResult, curate_nndup
from curate.nndup.features import NnDupFeatures, nndup_features
from curate.options import CurateOptions
from curate.outcome import Outcome, RowDecision
from curate.score import row_scores
from lemur_core.files.progress import progress
from lemur_core.similarity.pool import map_codes


def curate_like_nndup(corpus: Corpus, options: CurateOptions, jobs: int | None) -> Outcome:
    """Decide every row as the released nn-dup does with these options and the installed datasketch.

    Unparseable code is judged as nn-dup judges it; only rows without any code are `invalid`.
    """
    features = _features(corpus, jobs)
    code_of_row = [code if features[code] is not None else -1 for code in corpus.code_of_row.tolist()]
    result = curate_nndup(
        names=[nn or "" for nn in corpus.rows.column("nn").to_pylist()],
        code_index=code_of_row,
        accuracies=corpus.rows.column("accuracy").to_pylist(),
        features=[item or _NOTHING for item in features],
        code_sha=corpus.ids,
        options=_options(options),
    )
    return _outcome(corpus, options, result)


_NOTHING = NnDupFeatures("", 0, (), (), (), "generic")


def _features(corpus: Corpus, jobs: int | None) -> list[NnDupFeatures | None]:
    """By code number; None where there is no code, or a worker died of it. The last entry answers for number -1."""
    found: list[NnDupFeatures | None] = []
    codes = ((bytes.fromhex(id_), corpus.codes[number]) for number, id_ in enumerate(corpus.ids))
    with progress("nn-dup features", len(corpus.ids), "codes") as advance:
        for result in map_codes(nndup_features, codes, jobs):
            found += [item if isinstance(item, NnDupFeatures) else None for _, item in result]
            advance(len(result))
    for number in range(len(found)):
        if corpus.features.problems.get(number) == "nn_code is empty":
            found[number] = None
    return [*found, None]


def _options(options: CurateOptions) -> NnDupOptions:
    return NnDupOptions(
        include=options.include,
        prefer=options.prefer,
        min_per_prefix=options.min_prefix,
        keep_per_family=options.keep_per_family,
        lexical_threshold=options.lexical_threshold,
        fractal_threshold=options.fractal_threshold,
        structural_threshold=options.structural,
        topup_prefixes=options.topup_prefix,
        topup_per_prefix=options.topup_per_prefix,
        topup_lexical_max=options.topup_lexical_max,
        topup_structural_max=options.topup_structural_max,
        seed=options.seed,
    )


def _outcome(corpus: Corpus, options: CurateOptions, result: NnDupResult) -> Outcome:
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    code_of_row = corpus.code_of_row.tolist()
    decisions = []
    for row, decision in enumerate(result.decisions):
        kept = decision.stage is None
        canonical = None if decision.canonical is None else code_of_row[decision.canonical]
        reason = corpus.problems.get(row, decision.reason) if decision.stage == "invalid" else decision.reason
        similarity = 1.0 if kept else decision.similarity
        decisions.append(RowDecision(kept, decision.stage, canonical, similarity, reason, decision.rescued))
    shown = {code_of_row[row]: row for row in result.splits}
    scores = row_scores(corpus.rows, corpus.code_of_row >= 0)
    return Outcome(
        decisions=decisions,
        kept=list(shown),
        shown=shown,
        splits={code_of_row[row]: split for row, split in result.splits.items()},
        clusters={code: corpus.ids[code][:16] for code in shown},
        families={code_of_row[row]: family for row, family in result.families.items()},
        scores={code: None if np.isnan(scores[row]) else float(scores[row]) for code, row in shown.items()},
        weights={code: _weight(names[row], options) for code, row in shown.items()},
    )


def _weight(name: str, options: CurateOptions) -> float:
    """nn-dup matches the beginning of a name, case ignored; the first factor that fits counts."""
    fits = (factor for prefix, factor in options.upweight if name.lower().startswith(prefix.lower()))
    return next(fits, 1.0)
