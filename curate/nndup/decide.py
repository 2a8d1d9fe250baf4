"""The profile `nn-dup`: the decisions of the released package nn-dup 2.2.4, record for record.

It is an oracle for the default profile and a way to move from the peer, so the peer's weaknesses are kept on purpose.
LSH groups are those of the installed datasketch release, as with the peer. The peer walks every record and every pair;
here the work is done on distinct token streams and sets, of which there are far fewer.

Only where the peer depends on hash order (ties of accuracy, code length and name; which row a removal names) there is a
rule of our own: see `stages`, `rescue` and `witness`.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curate.nndup.features import NnDupFeatures
from curate.nndup.rescue import rescue_for_prefixes, top_up
from curate.nndup.rows import Rows, first_prefix, normalised, prepare_rows
from curate.nndup.stages import Near, Removed, remove_equal_code, remove_lexical, remove_structural
from curate.nndup.witness import Witness, name_witnesses
from lemur_core.files.errors import UserError

#: Shares of the structural fingerprints; the rest is test.
_TRAIN, _VALIDATION = 0.80, 0.10
_REASONS = {
    "exact": "same code as a better row",
    "lexical": "lexically near-duplicate, not among the best of its group",
    "structural": "same or similar layer calls as a better row",
    "prefix": "brought back: its prefix had too few rows",
    "topup": "brought back: unlike the kept rows of its prefix",
}


@dataclass(frozen=True, slots=True)
class NnDupOptions:
    """The options and module constants of nn-dup, with its defaults."""

    include: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()  # among rows with the same code; empty: as include
    min_per_prefix: int = 1
    keep_per_family: int = 5
    lexical_threshold: float = 0.90
    fractal_threshold: float = 0.97
    structural_threshold: float = 0.90
    lsh_threshold: float = 0.85
    num_perm: int = 256
    topup_prefixes: tuple[str, ...] = ()  # empty: the included ones that begin with FractalNet
    topup_per_prefix: int = 10
    topup_lexical_max: float = 0.85
    topup_structural_max: float = 0.60
    seed: int = 42


@dataclass(frozen=True, slots=True)
class NnDupDecision:
    """What became of one input row."""

    stage: str | None  # None: kept; else filter, invalid, exact, lexical or structural
    canonical: int | None  # the kept row that stands for it, its own when kept; None for filter and invalid
    similarity: float | None  # Jaccard of the stage to the canonical, 1.0 for exact; None for kept, filter, invalid
    rescued: str | None  # None, prefix or topup
    reason: str


@dataclass(slots=True)
class NnDupResult:
    """One decision for each input row; split and family tag of each kept row, in nn-dup's order."""

    decisions: list[NnDupDecision]
    splits: dict[int, str]
    families: dict[int, str]


def curate_nndup(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
    options: NnDupOptions,
) -> NnDupResult:
    """Decide about every row as nn-dup 2.2.4 does.

    The canonical of a removed row is the best kept row with the same code if there is one, else the best kept row, by
    nn-dup's quality (accuracy, length of the code, name), of those that the row's stage kept; when none of these is
    kept in the end, the canonical of the best of them.

    Args:
        names: the network's name of each row, in the order of the LEMUR API.
        code_index: where the code of each row is in `features` and `code_sha`; -1 for a row without usable code (for
            nn-dup: blank).
        accuracies: of each row; None or NaN ranks last.
        features: of each code.
        code_sha: digest of each code; rows with equal digests have equal code.

    Raises: UserError when `keep_per_family` is below 1 (nn-dup fails then).
    """
    if options.keep_per_family < 1:
        raise UserError(f"keep_per_family is {options.keep_per_family}, but nn-dup keeps at least 1 record of a group")
    rows = prepare_rows(names, code_index, accuracies, features, code_sha)
    include = [normalised(prefix) for prefix in options.include]
    prefer = [normalised(prefix) for prefix in options.prefer] or include
    near = Near(
        threshold=options.lexical_threshold,
        fractal_threshold=options.fractal_threshold,
        lsh_threshold=options.lsh_threshold,
        num_perm=options.num_perm,
        keep=options.keep_per_family,
    )
    selected = [row for row, name in enumerate(rows.names) if not include or first_prefix(name, include) is not None]
    usable = [row for row in selected if code_index[row] >= 0]

    kept, exact = remove_equal_code(rows, usable, prefer)
    lexical = remove_lexical(rows, kept, include, near)
    kept = [row for row in kept if row not in lexical]
    structural = remove_structural(rows, kept, options.structural_threshold)
    kept = [row for row in kept if row not in structural]
    stages = {"exact": exact, "lexical": lexical, "structural": structural}
    rescued = _bring_back(rows, kept, [*exact, *lexical, *structural], near, options)
    kept += rescued

    fates = dict.fromkeys(
        range(len(names)), NnDupDecision("filter", None, None, None, "name begins with no included prefix")
    )
    fates.update(dict.fromkeys(selected, NnDupDecision("invalid", None, None, None, "no code")))
    fates.update((row, _kept(row, rescued.get(row))) for row in kept)
    fates.update(_removed(stages, name_witnesses(rows, kept, stages)))
    return NnDupResult(
        decisions=[fates[row] for row in range(len(names))],
        splits=_split(kept, rows.fingerprint, options.seed),
        families={row: rows.families[row] for row in kept},
    )


def _bring_back(
    rows: Rows, kept: Sequence[int], removed: Sequence[int], near: Near, options: NnDupOptions
) -> dict[int, str]:
    """Rows brought back, in order, each with what for."""
    rescued = rescue_for_prefixes(rows, kept, removed, options.include, options.min_per_prefix, near.threshold_for)
    added = top_up(
        rows,
        [*kept, *rescued],
        removed,
        options.topup_prefixes or [name for name in options.include if normalised(name).startswith("fractalnet")],
        options.topup_per_prefix,
        options.topup_lexical_max,
        options.topup_structural_max,
    )
    return dict.fromkeys(rescued, "prefix") | dict.fromkeys(added, "topup")


def _kept(row: int, rescued: str | None) -> NnDupDecision:
    return NnDupDecision(None, row, None, rescued, _REASONS[rescued] if rescued else "kept")


def _removed(stages: Mapping[str, Removed], witnesses: Mapping[int, Witness]) -> dict[int, NnDupDecision]:
    """The decisions about removed rows that were not brought back."""
    return {
        row: NnDupDecision(stage, witnesses[row].canonical, witnesses[row].similarity, None, _REASONS[stage])
        for stage, removed in stages.items()
        for row in removed
        if row in witnesses
    }


def _split(kept: Sequence[int], fingerprint: Sequence[int], seed: int) -> dict[int, str]:
    """The split of each kept row: fingerprints, in the order of their first row, shuffled and cut."""
    drawn = list(dict.fromkeys(fingerprint[row] for row in kept))
    random.Random(seed).shuffle(drawn)
    train = round(len(drawn) * _TRAIN)
    validation = train + round(len(drawn) * _VALIDATION)
    names = ["train"] * train + ["validation"] * (validation - train) + ["test"] * (len(drawn) - validation)
    split_of = dict(zip(drawn, names, strict=True))
    return {row: split_of[fingerprint[row]] for row in kept}
