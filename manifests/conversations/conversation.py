"""Conversations from drafts: each subject and kind results in a conversation, or in a reason why there is none.

A subject is the topic of conversations: a kept record of a snapshot, a block with a spec of an extraction. The
packages that define it draft the texts; lengths, near-duplicates across splits, counts and tables are shared.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lemur_core.files import Json
from lemur_core.files.markdown import block
from lemur_core.similarity.tokens import near_pairs, shingles, split_tokens
from manifests.folders.tables import write_table, write_tables
from manifests.options import MAX_TOKENS
from manifests.records import CHAT_ROLES, SPLITS, Record, arrow_schema

#: Folder of the tables below the dataset folder.
TABLES, DROPS = "data/chat", "chat_drops.parquet"

#: Minimum Jaccard similarity of the shingles of two texts for near-duplicates.
THRESHOLD = 0.90

_FENCED = re.compile(r"^(?P<fence>`{3,})python\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Subject:
    """The topic of conversations.

    Args:
        label: its name in the detail of a drop.
        columns: additional columns for the rows of its conversations; `license` is one of them.
        drop_columns: columns of the rows in the table of drops.
    """

    id: str
    label: str
    split: str
    columns: Json
    drop_columns: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Draft:
    """The texts of one conversation. `variant`, if a kind has several, becomes part of its id."""

    system: str
    user: str
    assistant: str
    variant: str | None = None
    columns: Json = field(default_factory=dict)  # additional columns of its row

    @property
    def texts(self) -> tuple[str, str, str]:
        """Return the texts in the order of the roles."""
        return self.system, self.user, self.assistant


@dataclass(frozen=True, slots=True)
class Skipped:
    """The reason why there is no conversation: one short word, and the detail that decided it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation."""

    subject: Subject
    kind: str
    draft: Draft
    tokens: int

    @property
    def id(self) -> str:
        """The id; see `conversation_id`."""
        return conversation_id(self.subject.id, self.kind, self.draft.variant)

    def row(self) -> Json:
        """Return its row in the tables."""
        turns = zip(CHAT_ROLES, self.draft.texts, strict=True)
        variant = {} if self.draft.variant is None else {"variant": self.draft.variant}
        return {
            "messages": [{"role": role, "content": content} for role, content in turns],
            "id": self.id,
            "task": self.kind,
            **variant,
            **self.subject.columns,
            **self.draft.columns,
            "n_tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True)
class Drop:
    """A subject and kind without a conversation."""

    subject: Subject
    kind: str
    skipped: Skipped

    def row(self) -> Json:
        """Return its row in the table of drops."""
        reason, detail = self.skipped.reason, self.skipped.detail
        return {**self.subject.drop_columns, "task": self.kind, "reason": reason, "detail": detail}


@dataclass(frozen=True, slots=True)
class Chat:
    """All conversations and drops, ordered by subject, then kind; `near` as returned by `count_near`."""

    kinds: Sequence[str]
    conversations: Sequence[Conversation]
    drops: Sequence[Drop]
    near: Mapping[str, Mapping[str, int]]

    def counts(self, subjects: str) -> Json:
        """Return the counts for the manifest; see `count_chat`."""
        rows = [(item.kind, item.subject.id, item.subject.split, item.tokens) for item in self.conversations]
        return count_chat(rows, [(drop.kind, drop.skipped.reason) for drop in self.drops], self.kinds, subjects)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The text of a conversation that is compared with others of its kind, and the words for it."""

    text: Callable[[Draft], str]
    counted: str  # the key of the count in `near`
    detail: str  # of a drop, with the label and the split of the retained conversation


def finish(
    drafts: Iterable[tuple[Subject, str, Draft | Skipped]],
    kinds: Sequence[str],
    comparison: Comparison,
    max_tokens: int = MAX_TOKENS,
) -> Chat:
    """Return the conversations of all drafts that are short enough and not a near-duplicate of one in an earlier split.

    Args:
        drafts: one for each subject and kind, in this order; a `Skipped` where there is no conversation.
        kinds: all kinds, in the order of the counts.
        comparison: which texts of two conversations are compared, and how a duplicate is reported.
        max_tokens: maximum length of a conversation, in the tokens of `count_tokens`.
    Returns: the conversations, a drop with its reason for each of the other drafts, and the number of near-duplicates.
    """
    results = [(subject, kind, _check_length(subject, kind, draft, max_tokens)) for subject, kind, draft in drafts]
    candidates = [item for *_, item in results if isinstance(item, Conversation)]
    earlier = find_earlier_duplicates(candidates, kinds, comparison)
    conversations: list[Conversation] = []
    drops: list[Drop] = []
    for subject, kind, item in results:
        if isinstance(item, Skipped):
            drops.append(Drop(subject, kind, item))
        elif item.id in earlier:
            other = earlier[item.id].subject
            detail = comparison.detail.format(label=other.label, split=other.split)
            drops.append(Drop(subject, kind, Skipped("near_split", detail)))
        else:
            conversations.append(item)
    return Chat(kinds, conversations, drops, count_near(conversations, kinds, comparison))


def _check_length(subject: Subject, kind: str, draft: Draft | Skipped, max_tokens: int) -> Conversation | Skipped:
    if isinstance(draft, Skipped):
        return draft
    tokens = count_tokens(draft.texts)
    if tokens > max_tokens:
        return Skipped("too_long", f"{tokens:,} tokens; the limit is {max_tokens:,}")
    return Conversation(subject, kind, draft, tokens)


def conversation_id(subject: str, kind: str, variant: str | None = None) -> str:
    """Return the SHA-256 of the parts, joined by colons, independent of wording and of other conversations."""
    parts = (subject, kind) if variant is None else (subject, kind, variant)
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


def count_tokens(texts: Iterable[str]) -> int:
    """Return the total length of the texts; see `split_tokens`."""
    return sum(len(split_tokens(text)) for text in texts)


def count_chat(
    rows: Sequence[tuple[str, str, str, int]], drops: Sequence[tuple[str, str]], kinds: Sequence[str], subjects: str
) -> Json:
    """Count conversations by kind and split, and drops by kind and reason.

    Args:
        rows: kind, subject, split and tokens of each conversation.
        drops: kind and reason of each drop.
        subjects: the key for the number of subjects: `records`, `blocks`.
    """
    by_kind, by_split = Counter(row[0] for row in rows), Counter(row[2] for row in rows)
    reasons = Counter(drops)
    return {
        "rows": len(rows),
        subjects: len({row[1] for row in rows}),
        "tokens": sum(row[3] for row in rows),
        "kinds": {kind: by_kind[kind] for kind in kinds},
        "splits": {split: by_split[split] for split in SPLITS},
        "dropped": len(drops),
        "drops": {
            kind: dict(sorted((reason, n) for (of, reason), n in reasons.items() if of == kind)) for kind in kinds
        },
    }


def count_near(
    conversations: Sequence[Conversation], kinds: Sequence[str], comparison: Comparison
) -> dict[str, dict[str, int]]:
    """Count by kind: all conversations, those with a near-duplicate, and those with one in another split.

    All pairs are compared, by the exact Jaccard similarity of the sets of hashed shingles of their texts.
    """
    near: dict[str, set[str]] = defaultdict(set)
    across: dict[str, set[str]] = defaultdict(set)
    for one, other in _near(conversations, kinds, comparison):
        near[one.kind].add(one.id)
        if one.subject.split != other.subject.split:
            across[one.kind].add(one.id)
    counts = Counter(item.kind for item in conversations)
    return {
        kind: {comparison.counted: counts[kind], "near": len(near[kind]), "across_splits": len(across[kind])}
        for kind in kinds
    }


def find_earlier_duplicates(
    conversations: Sequence[Conversation], kinds: Sequence[str], comparison: Comparison
) -> dict[str, Conversation]:
    """Map the id of each conversation with a near-duplicate in an earlier split to the first such one by id."""
    earlier: dict[str, Conversation] = {}
    for one, other in _near(conversations, kinds, comparison):
        if SPLITS.index(other.subject.split) < SPLITS.index(one.subject.split):
            earlier[one.id] = min(earlier.get(one.id, other), other, key=lambda item: item.id)
    return earlier


def _near(
    conversations: Sequence[Conversation], kinds: Sequence[str], comparison: Comparison
) -> Iterator[tuple[Conversation, Conversation]]:
    for kind in kinds:
        of_kind = [item for item in conversations if item.kind == kind]
        for ends in near_pairs([shingles(comparison.text(item.draft)) for item in of_kind], THRESHOLD):
            for one, other in zip(*(part.tolist() for part in ends), strict=True):
                yield of_kind[one], of_kind[other]


def write_chat_tables(folder: Path, chat: Chat, record: type[Record], drop: type[Record]) -> dict[str, int]:
    """Write the tables of conversations, one per split, and of drops.

    Args: record, drop: the types of their rows.
    Returns: rows by path below `folder`.
    """
    rows: dict[str, int] = {}
    for split in SPLITS:
        chosen = [item for item in chat.conversations if item.subject.split == split]
        written = write_tables(folder / TABLES, split, record, (item.row() for item in chosen), len(chosen))
        rows |= {f"{TABLES}/{name}": count for name, count in written.items()}
    write_table(folder / DROPS, arrow_schema(drop), (item.row() for item in chat.drops))
    return rows | {DROPS: len(chat.drops)}


def fence(text: str, language: str = "python") -> str:
    """Return the text as a fenced block of Markdown.

    Args: text, language: the content, with or without a newline at its end, and the word after the fence.
    Returns: the block with a fence longer than any in the text, and a newline at its end.
    """
    return "\n".join(block([text.removesuffix("\n")], language)[:-1])


def read_fenced_code(content: str) -> list[str]:
    """Return the code of all Python blocks that `fence` wrote in a message.

    Args: content: the text of one message.
    Returns: the codes in order, each with a newline at its end.
    """
    return [match["text"] for match in _FENCED.finditer(content)]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples for one subject (the id of a record, a block) and kind."""

    seed: int
    subject: str
    kind: str

    def choice(self, items: Sequence[T], purpose: str) -> T:
        """Choose one of the items."""
        return items[self.number(purpose) % len(items)]

    def sample(self, items: Sequence[T], count: int, purpose: str) -> list[T]:
        """Choose at most `count` of the items, in their original order."""
        return [items[index] for index in sorted(self._order(items, purpose)[:count])]

    def shuffle(self, items: Sequence[T], purpose: str) -> list[T]:
        """Return the items in a random order."""
        return [items[index] for index in self._order(items, purpose)]

    def number(self, purpose: str) -> int:
        """Return a 64-bit number, uniformly distributed over purposes."""
        text = f"{self.seed}:{self.subject}:{self.kind}:{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _order(self, items: Sequence[T], purpose: str) -> list[int]:
        numbers = [self.number(f"{purpose}:{index}") for index in range(len(items))]
        return sorted(range(len(items)), key=numbers.__getitem__)
