"""How alike conversations of one kind are; and those that may not stay, because another split holds a near one."""

from collections.abc import Sequence

from extract.chat.result import Pair
from manifests.conversations.alike import count_near, held_earlier
from manifests.records import SpecChatKind


def near_rows(pairs: Sequence[Pair], kinds: Sequence[SpecChatKind]) -> dict[str, dict[str, int]]:
    """By kind: rows, rows with a near one, and rows with a near one in another split."""
    return count_near(pairs, kinds, _both, "rows")


def held_by_another(pairs: Sequence[Pair], kinds: Sequence[SpecChatKind]) -> dict[str, Pair]:
    """The rows that are near one of an earlier split (train, validation, test), by id, each with that one."""
    return held_earlier(pairs, kinds, _both)


def _both(pair: Pair) -> str:
    """Question and answer."""
    return f"{pair.talk.user}\n{pair.talk.assistant}"
