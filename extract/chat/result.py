"""What is said about a block, and what became of each (block, kind): a conversation, or why there is none."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extract.specs.splits import Place
from manifests.records import SPEC_CHAT_KINDS, SPLITS, Spec, SpecChatKind


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How conversations are made. `seed` draws their wording; `include_code` adds the kind `write`."""

    seed: int = 42
    max_tokens: int = 8192
    include_code: bool = False

    @property
    def kinds(self) -> tuple[SpecChatKind, ...]:
        """The kinds that are made of each spec."""
        return tuple(kind for kind in SPEC_CHAT_KINDS if kind != "write" or self.include_code)


@dataclass(frozen=True, slots=True)
class Subject:
    """A block with what may be said of it: its spec, its place, and its code, which answers must not repeat."""

    spec: Spec
    place: Place
    code: str


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said. `others` are further blocks that it speaks of; `notice` is of the code that the answer holds."""

    user: str
    assistant: str
    others: tuple[Subject, ...] = ()
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class No:
    """Why there is nothing to say: one short word, and what decided it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One finished conversation."""

    kind: SpecChatKind
    subject: Subject
    system: str
    talk: Talk
    tokens: int

    @property
    def id(self) -> str:
        """See `pair_id`."""
        return pair_id(self.subject.spec.block, self.kind)

    @property
    def split(self) -> str:
        """That of its spec."""
        return self.subject.place.split


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a block gave no conversation of a kind."""

    spec: Spec
    kind: SpecChatKind
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Chat:
    """All conversations and drops, in the order of the specs, then of the kinds."""

    options: ChatOptions
    pairs: Sequence[Pair]
    drops: Sequence[Drop]

    def counts(self) -> dict[str, Any]:
        """For the manifest."""
        return count_chat(
            [(pair.kind, pair.subject.spec.block, pair.subject.place.split, pair.tokens) for pair in self.pairs],
            [(drop.kind, drop.reason) for drop in self.drops],
            self.options.kinds,
        )


def pair_id(block: str, kind: str) -> str:
    """SHA-256 of the two, joined by a colon: the same whatever the wording and whatever else the folder holds."""
    return hashlib.sha256(f"{block}:{kind}".encode()).hexdigest()


def count_chat(
    rows: Sequence[tuple[str, str, str, int]], drops: Sequence[tuple[str, str]], kinds: Sequence[str]
) -> dict[str, Any]:
    """Rows by kind and split, and what was not made, by kind and reason.

    Args:
        rows: kind, block, split and tokens of each.
        drops: kind and reason of each.
    """
    by_kind, by_split = Counter(row[0] for row in rows), Counter(row[2] for row in rows)
    reasons = Counter(drops)
    return {
        "rows": len(rows),
        "blocks": len({row[1] for row in rows}),
        "tokens": sum(row[3] for row in rows),
        "kinds": {kind: by_kind[kind] for kind in kinds},
        "splits": {split: by_split[split] for split in SPLITS},
        "dropped": len(drops),
        "drops": {
            kind: dict(sorted((reason, n) for (of, reason), n in reasons.items() if of == kind)) for kind in kinds
        },
    }
