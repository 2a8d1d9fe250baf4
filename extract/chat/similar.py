"""How alike conversations of one kind are; and those that may not stay, because another split holds a near one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from extract.chat.result import Pair
from manifests.near import near_pairs, shingles
from manifests.records import SPLITS, SpecChatKind

#: Jaccard of the shingles of question and answer from which two rows are near.
THRESHOLD = 0.90


def near_rows(pairs: Sequence[Pair], kinds: Sequence[SpecChatKind]) -> dict[str, dict[str, int]]:
    """By kind: rows, rows with a near one, and rows with a near one in another split. All pairs are compared."""
    near: dict[str, set[str]] = defaultdict(set)
    across: dict[str, set[str]] = defaultdict(set)
    for one, other in _near(pairs, kinds):
        near[one.kind].add(one.id)
        if one.subject.place.split != other.subject.place.split:
            across[one.kind].add(one.id)
    return {
        kind: {
            "rows": sum(pair.kind == kind for pair in pairs),
            "near": len(near[kind]),
            "across_splits": len(across[kind]),
        }
        for kind in kinds
    }


def held_by_another(pairs: Sequence[Pair], kinds: Sequence[SpecChatKind]) -> dict[str, Pair]:
    """The rows that are near one of an earlier split (train, validation, test), by id, each with that one."""
    found: dict[str, Pair] = {}
    for one, other in _near(pairs, kinds):
        if SPLITS.index(other.subject.place.split) < SPLITS.index(one.subject.place.split):
            found[one.id] = min(found.get(one.id, other), other, key=lambda pair: pair.id)
    return found


def _near(pairs: Sequence[Pair], kinds: Sequence[SpecChatKind]) -> Iterator[tuple[Pair, Pair]]:
    for kind in kinds:
        rows = [pair for pair in pairs if pair.kind == kind]
        sets = [shingles(f"{row.talk.user}\n{row.talk.assistant}") for row in rows]
        for ends in near_pairs(sets, THRESHOLD):
            for one, other in zip(*(part.tolist() for part in ends), strict=True):
                yield rows[one], rows[other]
