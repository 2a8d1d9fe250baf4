"""Conversations of one kind that are nearly the same, and those of them that another split holds too."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from lemur_core.similarity.text import near_pairs, shingles
from manifests.records import SPLITS

#: Jaccard of the shingles of two texts from which they are near.
THRESHOLD = 0.90


class Told(Protocol):
    """A conversation, as far as it is compared."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def split(self) -> str: ...  # noqa: D102


T = TypeVar("T", bound=Told)


def count_near(
    rows: Sequence[T], kinds: Sequence[str], text: Callable[[T], str], label: str
) -> dict[str, dict[str, int]]:
    """By kind: how many rows there are (under `label`), have a near one, and have a near one in another split.

    All pairs are compared, by the exact Jaccard of the sets of hashed shingles of what `text` gives.
    """
    near: dict[str, set[str]] = defaultdict(set)
    across: dict[str, set[str]] = defaultdict(set)
    for one, other in _near(rows, kinds, text):
        near[one.kind].add(one.id)
        if one.split != other.split:
            across[one.kind].add(one.id)
    counts = Counter(row.kind for row in rows)
    return {kind: {label: counts[kind], "near": len(near[kind]), "across_splits": len(across[kind])} for kind in kinds}


def held_earlier(rows: Sequence[T], kinds: Sequence[str], text: Callable[[T], str]) -> dict[str, T]:
    """The rows that are near one of an earlier split (train, validation, test), by id, each with that one."""
    found: dict[str, T] = {}
    for one, other in _near(rows, kinds, text):
        if SPLITS.index(other.split) < SPLITS.index(one.split):
            found[one.id] = min(found.get(one.id, other), other, key=lambda row: row.id)
    return found


def _near(rows: Sequence[T], kinds: Sequence[str], text: Callable[[T], str]) -> Iterator[tuple[T, T]]:
    for kind in kinds:
        of_kind = [row for row in rows if row.kind == kind]
        for ends in near_pairs([shingles(text(row)) for row in of_kind], THRESHOLD):
            for one, other in zip(*(part.tolist() for part in ends), strict=True):
                yield of_kind[one], of_kind[other]
