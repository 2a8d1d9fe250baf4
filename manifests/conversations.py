"""Fine-tuning conversations: rows from drafts, one for each subject and kind, or the reason why there is none.

A subject is the topic of conversations: a kept record of a snapshot, a block of an extraction. The packages that define
it draft the texts; ids, lengths, near-duplicates across splits, counts, tables and the card are made here.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import block, code_span, count, plural, table
from lemur_core.similarity.tokens import near_pairs, shingles, split_tokens
from manifests.folders.tables import (
    CHAT,
    CHAT_DROPS,
    iterate_rows,
    read_table,
    write_table,
    write_tables,
)
from manifests.options import MAX_TOKENS
from manifests.records import CHAT_ROLES, SPLITS, Record, arrow_schema

#: Requests of one kind whose shingles have this Jaccard similarity are not in two splits.
THRESHOLD = 0.90

_FENCED = re.compile(r"^(?P<fence>`{3,})python\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Draft:
    """The texts of one conversation. Args: variant: part of its id, if a kind has several; columns: more of its row."""

    system: str
    user: str
    assistant: str
    variant: str | None = None
    columns: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why there is no conversation: one short word, and the detail that decided it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The topic of conversations. `columns`: of their rows; the first is that of its id."""

    split: str
    columns: Json


@dataclass(frozen=True, slots=True)
class Chat:
    """All conversations, each with its split, and the rows of the table of drops, in the order of the drafts.

    Args: subject: the column with the id of a conversation's subject: `record` or `block`.
    """

    subject: str
    kinds: Sequence[str]
    rows: Sequence[tuple[str, Json]]
    drops: Sequence[Json]

    def counts(self) -> Json:
        """Count conversations by kind and split, and drops by kind and reason, for the manifest."""
        by_kind, by_split = Counter(row["task"] for _, row in self.rows), Counter(split for split, _ in self.rows)
        reasons = {kind: Counter(drop["reason"] for drop in self.drops if drop["task"] == kind) for kind in self.kinds}
        return {
            "rows": len(self.rows),
            f"{self.subject}s": len({row[self.subject] for _, row in self.rows}),
            "tokens": sum(row["n_tokens"] for _, row in self.rows),
            "kinds": {kind: by_kind[kind] for kind in self.kinds},
            "splits": {split: by_split[split] for split in SPLITS},
            "dropped": len(self.drops),
            "drops": {kind: dict(sorted(reasons[kind].items())) for kind in self.kinds},
        }


def finish(
    drafts: Iterable[tuple[Subject, str, Draft | Skipped]],
    subject: str,
    kinds: Sequence[str],
    max_tokens: int = MAX_TOKENS,
) -> Chat:
    """Return the conversations that are short enough and whose request is not nearly one of an earlier split.

    Args:
        drafts: one for each subject and kind.
        subject, kinds: as for `Chat`.
        max_tokens: maximum length of a conversation, in the tokens of `count_tokens`.
    """
    results: list[tuple[Subject, str, Json | Skipped]] = []
    for about, kind, draft in drafts:
        if isinstance(draft, Draft):
            row = _make_row(about, kind, draft, about.columns[subject])
            if row["n_tokens"] > max_tokens:
                draft = Skipped("too_long", f"{row['n_tokens']:,} tokens; the limit is {max_tokens:,}")
        results.append((about, kind, draft if isinstance(draft, Skipped) else row))
    made = [(about.split, row) for about, _, row in results if not isinstance(row, Skipped)]
    earlier = _find_earlier(made)
    drops = []
    for about, kind, result in results:
        if not isinstance(result, Skipped):
            if result["id"] not in earlier:
                continue
            split, other = earlier[result["id"]]
            result = Skipped("near_split", f"its request is nearly that about {other[subject]} in {split}")
        drops.append({**about.columns, "task": kind, "reason": result.reason, "detail": result.detail})
    return Chat(subject, kinds, [item for item in made if item[1]["id"] not in earlier], drops)


def _make_row(about: Subject, kind: str, draft: Draft, id_: str) -> Json:
    texts = draft.system, draft.user, draft.assistant
    return {
        "messages": [{"role": role, "content": text} for role, text in zip(CHAT_ROLES, texts, strict=True)],
        "id": conversation_id(id_, kind, draft.variant),
        "task": kind,
        **({} if draft.variant is None else {"variant": draft.variant}),
        **about.columns,
        **draft.columns,
        "n_tokens": count_tokens(texts),
    }


def conversation_id(subject: str, kind: str, variant: str | None = None) -> str:
    """Return the SHA-256 of the parts, joined by colons, independent of wording and of other conversations."""
    parts = (subject, kind) if variant is None else (subject, kind, variant)
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


def count_tokens(texts: Iterable[str]) -> int:
    """Return the total length of the texts; see `split_tokens`."""
    return sum(len(split_tokens(text)) for text in texts)


def _find_earlier(rows: Sequence[tuple[str, Json]]) -> dict[str, tuple[str, Json]]:
    """Map the id of each conversation whose request is nearly one in an earlier split to the first such one by id.

    All pairs of one kind are compared, by the exact Jaccard similarity of the hashed shingles of their requests.
    """
    earlier: dict[str, tuple[str, Json]] = {}
    for kind in {row["task"] for _, row in rows}:
        of_kind = [item for item in rows if item[1]["task"] == kind]
        requests = [shingles(row["messages"][1]["content"]) for _, row in of_kind]
        for ends in near_pairs(requests, THRESHOLD):
            for one, other in zip(*(part.tolist() for part in ends), strict=True):
                (split, row), found = of_kind[one], of_kind[other]
                if SPLITS.index(found[0]) < SPLITS.index(split):
                    known = earlier.get(row["id"], found)
                    earlier[row["id"]] = min(known, found, key=lambda item: str(item[1]["id"]))
    return earlier


def write_chat_tables(folder: Path, chat: Chat, record: type[Record], drop: type[Record]) -> None:
    """Write the tables of conversations, one per split, and of drops.

    Args: record, drop: the types of their rows.
    Returns: rows by path below `folder`.
    """
    for split in SPLITS:
        chosen = [row for of, row in chat.rows if of == split]
        write_tables(folder / CHAT, split, record, chosen, len(chosen))
    drops = ({name: row[name] for name in drop.model_fields} for row in chat.drops)
    write_table(folder / CHAT_DROPS, arrow_schema(drop), drops)


def chat_card(chat: Chat, meanings: Mapping[str, str], promise: str) -> list[str]:
    """Return the lines of a dataset card about conversations: numbers, lengths, licenses, reasons.

    Args:
        meanings: the description of each kind.
        promise: sentences that are true of all conversations.
    """
    counts = chat.counts()
    subject, kinds, reasons = chat.subject, [], sorted({drop["reason"] for drop in chat.drops})
    for kind in chat.kinds:
        lengths = sorted(row["n_tokens"] for _, row in chat.rows if row["task"] == kind)
        median, longest = (count(lengths[at]) if lengths else "–" for at in ((len(lengths) - 1) // 2, -1))
        kinds.append([f"`{kind}`", meanings[kind], count(len(lengths)), median, longest])
    licenses = sorted(Counter(code_span(row["license"], 160) for _, row in chat.rows).items())
    made = [counts["drops"][kind] for kind in chat.kinds]
    drops = [[f"`{reason}`", *(count(numbers.get(reason, 0)) for numbers in made)] for reason in reasons]
    return [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts[f'{subject}s'], subject)}, each in the split of"
        f" its {subject}: {', '.join(f'{count(number)} {split}' for split, number in counts['splits'].items())}."
        f" `messages` is a list of `role` and `content` (system, user, assistant). {promise}",
        "",
        *table(["task", "from what to what", "rows", "median tokens", "longest"], kinds, 2),
        "Tokens are words, numbers and single signs; white space is not counted. No request has a Jaccard of"
        f" {THRESHOLD:.2f} or more to one of its kind in another split.",
        "",
        *(table(["license", "conversations"], [[name, count(n)] for name, n in licenses]) if licenses else []),
        f"`{CHAT_DROPS}` says why a {subject} has no conversation of a kind: {plural(len(chat.drops), 'row')}.",
        "",
        *(table(["not made", *(f"`{kind}`" for kind in chat.kinds)], drops) if drops else []),
    ]


def list_chat_drops(counts: Json) -> str:
    """Return why conversations were not made, and how many of each reason. Args: counts: those of a manifest."""
    drops = sum(map(Counter, counts.get("chat", {}).get("drops", {}).values()), Counter[str]())
    return ", ".join(f"{reason} ({count(number)})" for reason, number in sorted(drops.items()))


def fence(text: str, language: str = "python") -> str:
    """Return the text, with or without a newline at its end, as a block of Markdown that nothing in it closes."""
    return "\n".join(block([text.removesuffix("\n")], language)[:-1])


def read_fenced_code(content: str) -> list[str]:
    """Return the code of all Python blocks that `fence` wrote in a message, each with a newline at its end."""
    return [match["text"] for match in _FENCED.finditer(content)]


# What was written, read again.

Row = Mapping[str, Any]

_DIGITS = re.compile(r"[0-9a-f]{6,64}")


def read_chat(folder: Path, subject: str, kinds: Sequence[str]) -> Chat:
    """Return the conversations of a folder without their messages."""
    columns = ("task", subject, "license", "n_tokens")
    return Chat(subject, kinds, list(chat_rows(folder, columns)), list(iterate_rows(folder / CHAT_DROPS)))


def chat_rows(folder: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Json]]:
    """Yield all rows of conversations, each with the split of its file, with few in memory at a time.

    Rows are not validated: `check_table` does that.

    Args: columns: all by default.
    """
    for path in sorted((folder / CHAT).glob("*.parquet")):
        check_plain(path)
        for row in iterate_rows(path, columns):
            yield path.name.partition("-")[0], row


def find_conversation(folder: Path, wanted: str, record: type[Record], columns: Sequence[str]) -> Json | None:
    """Return columns, with `id` among them, of the conversation whose id starts with these 6 to 64 digits, if any.

    Raises: UserError if several ids match; OSError or pyarrow.ArrowException if a table cannot be read.
    """
    if not _DIGITS.fullmatch(wanted.lower()):
        return None
    matches: list[Json] = []
    for path in sorted((folder / CHAT).glob("*.parquet")):
        table = read_table([path], record, columns)
        matches += table.filter(pc.starts_with(table["id"], wanted.lower())).to_pylist()
    if len(matches) > 1:
        raise UserError(f"{wanted!r} begins {len(matches)} ids of conversations; give more digits")
    return matches[0] if matches else None


def contents(row: Row) -> tuple[str, str, str]:
    """Return the texts of system, user and assistant."""
    system, user, assistant = (message["content"] for message in row["messages"])
    return system, user, assistant
