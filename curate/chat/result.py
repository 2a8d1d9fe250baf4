"""What became of each (record, kind): conversations, or the reason why there is none."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from manifests.records import CHAT_KINDS, SPLITS, ChatKind


@dataclass(frozen=True, slots=True)
class Conversation:
    """One finished conversation. `variant` names what was cut out, broken or changed."""

    id: str
    kind: ChatKind
    variant: str
    nn: str
    record: str
    split: str
    system: str
    user: str
    assistant: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a record gave no conversation of a kind: one short word, and what decided it."""

    record: str
    nn: str
    kind: ChatKind
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Chat:
    """All conversations and drops, in the order of the kept records, then of the kinds."""

    conversations: list[Conversation]
    drops: list[Drop]
    license: str
    similar: dict[str, dict[str, int]]  # kind -> prompts compared, and those near another record's prompt

    def counts(self) -> dict[str, Any]:
        """For the manifest: rows by kind and split, and what was not made, by kind and reason."""
        kinds = Counter(item.kind for item in self.conversations)
        splits = Counter(item.split for item in self.conversations)
        reasons = Counter((drop.kind, drop.reason) for drop in self.drops)
        return {
            "rows": len(self.conversations),
            "records": len({item.record for item in self.conversations}),
            "tokens": sum(item.tokens for item in self.conversations),
            "kinds": {kind: kinds[kind] for kind in CHAT_KINDS},
            "splits": {split: splits[split] for split in SPLITS},
            "dropped": len(self.drops),
            "drops": {
                kind: dict(sorted((reason, n) for (of, reason), n in reasons.items() if of == kind))
                for kind in CHAT_KINDS
            },
        }
