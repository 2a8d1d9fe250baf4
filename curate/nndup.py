"""The profile `nn-dup`: the decisions of the released package nn-dup 2.2.4, record for record.

It is an oracle for the default profile and a way to move from the peer. Its known weaknesses are kept on purpose. LSH
groups are those of the installed datasketch release, as with the peer. The peer walks every row and every pair; here the
work is done on distinct token streams and sets, of which there are far fewer than codes.

Where the peer depends on hash order, this is the rule: of rows that tie in quality, the lexical stage prefers the earlier
one, and both rescues the one that was removed first (by stage, and there in the order of the rows that were still kept).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from curate.nndup_features import NnDupFeatures, family_of
from curate.nndup_rescue import Pool, first_prefix, normalised, rescue_for_prefixes, top_up
from curate.nndup_sets import DistinctSets, layer_sets, shingle_sets
from curate.nndup_stages import Near, Removed, remove_equal_code, remove_lexical, remove_structural
from curate.nndup_witness import Witness, name_witnesses
from manifests.errors import UserError

#: What the top-up falls back to when no prefix is given for it: included prefixes that begin so.
_TOPUP_BY_DEFAULT = "fractalnet"
_SPLIT_RATIOS = (("train", 0.80), ("validation", 0.10))  # the rest: test
_REASONS = {
    "exact": "same code as a better row",
    "lexical": "in a lexical near-duplicate group, not among its best",
    "structural": "same or similar layer calls as a better row",
}
_RESCUES = {"prefix": "brought back: its prefix had too few rows", "topup": "brought back: unlike the kept rows of its prefix"}


@dataclass(frozen=True, slots=True)
class NnDupOptions:
    """The options of nn-dup and its module constants, with its defaults."""

    include: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()  # of several rows with the same code; empty: as include
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
    similarity: float | None  # of the stage, to the canonical; 1.0 for exact; None when kept, filter or invalid
    rescued: str | None  # None, prefix or topup
    reason: str


@dataclass(slots=True)
class NnDupResult:
    """One decision for each input row; split and family tag of each kept row, in nn-dup's order."""

    decisions: list[NnDupDecision]
    splits: dict[int, str]
    families: dict[int, str]


@dataclass(slots=True)
class _Rows:
    """The input as the stages use it; every list has one entry a row. Rows without code have number -1."""

    names: list[str]  # normalised
    code: list[str]  # digest
    families: list[str]
    quality: list[int]  # smaller is better: accuracy, then length of the code, then name; equal for ties
    fingerprint: list[int]
    shingles: DistinctSets
    shingles_of: list[int]
    layers: DistinctSets
    layers_of: list[int]


def curate_nndup(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
    options: NnDupOptions,
) -> NnDupResult:
    """Decide about every row as nn-dup 2.2.4 does.

    The canonical of a removed row is a kept one: the best kept row with the same code if there is one (a rescued twin), else
    the best by nn-dup's quality (accuracy, length of the code, name) of what the row's stage kept and is kept in the end;
    when nothing of that is left, the canonical of the best of it, and so on.

    Args:
        names: the network's name of each row, in the order of the LEMUR API.
        code_index: the place of each row's code in `features` and `code_sha`; -1 for a row without usable code (nn-dup:
            blank).
        accuracies: of each row; None or NaN ranks last.
        features: of each code.
        code_sha: digest of each code; equal digests mean equal code.

    Raises: UserError when fewer than one record of a group is to be kept, on which nn-dup fails.
    """
    if options.keep_per_family < 1:
        raise UserError(f"keep_per_family is {options.keep_per_family}; nn-dup needs at least 1")
    rows = _prepare(names, code_index, accuracies, features, code_sha)
    include = [normalised(prefix) for prefix in options.include]
    prefer = [normalised(prefix) for prefix in options.prefer or options.include]
    near = Near(
        options.lexical_threshold,
        options.fractal_threshold,
        options.lsh_threshold,
        options.num_perm,
        options.keep_per_family,
    )

    def preference(row: int) -> tuple[int, int]:
        place = first_prefix(rows.names[row], prefer)
        return len(prefer) if place is None else place, rows.quality[row]

    def included_as(row: int) -> int | None:
        return first_prefix(rows.names[row], include)

    selected = [row for row in range(len(names)) if not include or included_as(row) is not None]
    usable = [row for row in selected if code_index[row] >= 0]
    exact = remove_equal_code(usable, rows.code, preference)
    kept = _first_appearance(usable, exact, rows.code)
    lexical = remove_lexical(kept, rows.shingles, rows.shingles_of, rows.families, rows.quality, included_as, near)
    kept = [row for row in kept if row not in lexical]
    structural = remove_structural(
        kept, rows.layers, rows.layers_of, rows.fingerprint, rows.quality, options.structural_threshold
    )
    kept = [row for row in kept if row not in structural]
    stages: dict[str, Removed] = {"exact": exact, "lexical": lexical, "structural": structural}
    rescued = _rescue(rows, kept, stages, near, options)
    kept = [*kept, *rescued]
    witnesses = name_witnesses(kept, stages, rows)
    return NnDupResult(
        decisions=[
            _decide(row, row in usable_rows, rescued, stages, witnesses)
        ],
        splits=_split(kept, rows.fingerprint, options.seed),
        families={row: rows.families[row] for row in kept},
    )
