"""The input rows as the stages of nn-dup see them: everything that they ask about a row, by row number."""

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from curate.nndup.features import NnDupFeatures, family_of
from curate.nndup.sets import DistinctSets, layer_sets, shingle_sets

_OTHER = re.compile("[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class Rows:
    """One entry a row in every list; for rows without usable code it means nothing."""

    names: list[str]  # normalised
    code: list[str]  # digest
    families: list[str]
    quality: list[int]  # smaller is better; equal for ties
    fingerprint: list[int]  # number of the structural fingerprint
    shingles: DistinctSets
    shingles_of: list[int]  # number of the shingle set
    layers: DistinctSets
    layers_of: list[int]  # number of the layer set

    def has_tokens(self, row: int) -> bool:
        """Whether nn-dup gets tokens for the row's code."""
        return bool(self.shingles.sizes[self.shingles_of[row]])


def prepare_rows(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
) -> Rows:
    """Look up and number everything once for each code, then hand it out to the rows."""
    usable = [code if code >= 0 else None for code in code_index]
    plain = {name: normalised(name) for name in set(names)}
    shingles, layers = shingle_sets(features), layer_sets(features)
    fingerprints = _numbers(code.fingerprint for code in features)
    keys = [
        (_worst_last(accuracy), 0 if code is None else -features[code].length, name)
        for name, code, accuracy in zip(names, usable, accuracies, strict=True)
    ]
    place_of = {key: place for place, key in enumerate(sorted(set(keys)))}
    family = {
        (name, code): "" if code is None else family_of(name, features[code])
        for name, code in set(zip(names, usable, strict=True))
    }
    return Rows(
        names=[plain[name] for name in names],
        code=["" if code is None else code_sha[code] for code in usable],
        families=[family[pair] for pair in zip(names, usable, strict=True)],
        quality=[place_of[key] for key in keys],
        fingerprint=[-1 if code is None else fingerprints[code] for code in usable],
        shingles=shingles,
        shingles_of=_spread(shingles, usable),
        layers=layers,
        layers_of=_spread(layers, usable),
    )


def normalised(name: str) -> str:
    """A name or prefix as nn-dup compares it: lower case, nothing but letters and digits."""
    return _OTHER.sub("", name.lower())


def first_prefix(name: str, prefixes: Sequence[str]) -> int | None:
    """The place of the first prefix with which a name begins (all normalised); None without one."""
    return next((place for place, prefix in enumerate(prefixes) if name.startswith(prefix)), None)


def _worst_last(accuracy: float | None) -> float:
    return math.inf if accuracy is None or math.isnan(accuracy) else -accuracy


def _numbers(items: Iterable[Hashable]) -> list[int]:
    """Each item's number among the distinct ones."""
    number_of: dict[Hashable, int] = {}
    return [number_of.setdefault(item, len(number_of)) for item in items]


def _spread(sets: DistinctSets, codes: Sequence[int | None]) -> list[int]:
    numbers = sets.number.tolist()
    return [-1 if code is None else numbers[code] for code in codes]
