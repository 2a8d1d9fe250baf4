"""Find conversations in a folder by id, and check them: form, splits, ids, reasons, counts."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import block, code_span, count, make_visible, percent, plural, table
from lemur_core.similarity.tokens import SHINGLE
from manifests.conversations.conversation import (
    DROPS,
    TABLES,
    THRESHOLD,
    Chat,
    conversation_id,
    count_chat,
    count_tokens,
)
from manifests.folders.checks import Check, check_faults
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_table, rows_by_split
from manifests.records import CHAT_ROLES, Record

Row = Mapping[str, Any]

_DIGITS = re.compile(r"[0-9a-f]{6,64}")


def chat_rows(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield all rows of conversations, each with the split of its file.

    Args: folder: any folder with tables of conversations.
    Returns: an iterator over pairs of split and row, with few rows in memory at a time.
    """
    return rows_by_split(folder, TABLES)


def has_chat(folder: Path) -> bool:
    """Return whether the folder has tables of conversations.

    Args: folder: any folder.
    Returns: True also if only the table of drops exists.
    """
    return (folder / TABLES).is_dir() or (folder / DROPS).exists()


def find_conversation(folder: Path, wanted: str, record: type[Record], columns: Sequence[str]) -> Json | None:
    """Return columns of the conversation whose id equals, or starts with, these digits.

    Args:
        folder: any folder; without conversations nothing matches.
        wanted: 6 to 64 hexadecimal digits, upper or lower case.
        record: the type of the rows.
        columns: the columns to return; `id` must be among them.
    Returns: a row; None if no id matches, or `wanted` cannot be the beginning of an id.
    Raises: UserError if several ids match; OSError or pyarrow.ArrowException if a table cannot be read.
    """
    if not _DIGITS.fullmatch(wanted.lower()):
        return None
    matches: list[Json] = []
    for path in sorted((folder / TABLES).glob("*.parquet")):
        table = read_table([path], record, columns)
        matches += table.filter(pc.starts_with(table["id"], wanted.lower())).to_pylist()
    if len(matches) > 1:
        raise UserError(f"{wanted!r} begins {len(matches)} ids of conversations; give more digits")
    return matches[0] if matches else None


def contents(row: Row) -> tuple[str, str, str]:
    """Return the texts of system, user and assistant.

    Args: row: a conversation with exactly these three messages.
    Returns: the texts, in this order.
    Raises: ValueError if there are more or fewer messages.
    """
    system, user, assistant = (message["content"] for message in row["messages"])
    return system, user, assistant


def form_faults(row: Row, subject: str) -> Iterator[str]:
    """Yield the faults in the roles, the id and the length of one conversation.

    Args: row: the conversation. subject: the column with the id of its subject.
    Returns: an iterator over one line per fault; empty if there is none.
    """
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        yield f"roles are not {', '.join(CHAT_ROLES)}"
    if row["id"] != conversation_id(row[subject], row["task"], row.get("variant")):
        yield f"its id is not the digest of {subject}, task{' and variant' if 'variant' in row else ''}"
    if row["n_tokens"] != count_tokens(contents(row)):
        yield f"n_tokens is {row['n_tokens']:,}, which is not what its contents hold"


def _list_unexplained(
    wanted: set[tuple[str, str]], present: Counter[tuple[str, str]], dropped: Counter[tuple[str, str]]
) -> list[str]:
    """Return where not each subject and kind has exactly one conversation or drop, or something else has any."""
    return [
        f"{key[0]} {key[1]}: {present[key]} conversations and {dropped[key]} drops"
        for key in sorted(wanted | present.keys() | dropped.keys())
        if present[key] + dropped[key] != (key in wanted)
    ]


def check_rows(
    folder: Path,
    manifest: Manifest,
    subject: str,
    splits: Mapping[str, str],
    kinds: Sequence[str],
    faults: Callable[[Row], Iterable[str]],
    facts: tuple[str, str],
) -> list[Check]:
    """Check each conversation, and all of them together with the table of drops, with few rows in memory at a time.

    Args:
        folder, manifest: a folder with conversations, and its manifest, which states their counts.
        subject: the column with the id of a conversation's subject; with an s, the key for the number of subjects.
        splits: the splits of all subjects, by id.
        kinds: every kind that each subject has a conversation or a drop of.
        faults: returns the faults of one conversation.
        facts: the name of the check of these faults, and its text after the number of conversations.
    Returns: five checks: the faults, splits, ids, drops and counts.
    """
    ids: Counter[str] = Counter()
    rows: list[tuple[str, str, str, int]] = []  # kind, subject, split, tokens
    wrong: list[str] = []
    misplaced: list[str] = []
    for split, row in chat_rows(folder):
        own = row[subject]
        label = f"{row.get('nn', own)} {row['task']}"
        ids[row["id"]] += 1
        rows.append((row["task"], own, split, row["n_tokens"]))
        wrong += [f"{label}: {fault}" for fault in faults(row)]
        for named in (own, *row.get("others", ())):
            expected = splits.get(named)
            if expected != split:
                what = f"its {subject}" if named == own else named
                misplaced.append(f"{label}: in {split}, {what} is in {expected or 'no split'}")
    drops = pq.read_table(folder / DROPS, columns=[subject, "task", "reason"]).to_pylist()
    present = Counter((own, kind) for kind, own, *_ in rows)
    dropped = Counter((drop[subject], drop["task"]) for drop in drops)
    unexplained = _list_unexplained({(own, kind) for own in splits for kind in kinds}, present, dropped)
    stated = manifest.counts.get("chat", {})
    counts = count_chat(rows, [(drop["task"], drop["reason"]) for drop in drops], kinds, f"{subject}s")
    miscounted = [
        f"{key}: {value} in the tables, {stated.get(key)} in the manifest"
        for key, value in counts.items()
        if stated.get(key) != value
    ]
    repeated = [f"{id_[:12]} occurs {number} times" for id_, number in sorted(ids.items()) if number > 1]
    number = f"{len(rows):,} conversations"
    return [
        check_faults(facts[0], wrong, f"{number}{facts[1]}"),
        check_faults("chat splits", misplaced, f"{number}, each in the split of what it is about"),
        check_faults("chat ids", repeated, f"{len(ids):,} ids, each once"),
        check_faults(
            "chat explained", unexplained, f"{len(splits):,} {subject}s, for each kind a conversation or a reason"
        ),
        check_faults("chat counts", miscounted, f"{number} and {len(drops):,} drops as stated"),
    ]


# The section of a dataset card about conversations: sizes, lengths, near-duplicates, licenses, examples.

_QUANTILES = {"10 %": 10, "median": 50, "90 %": 90, "longest": 100}
_EXAMPLES = 5
_HEAD, _TAIL = 8, 4  # lines of a message in an example
_WIDTH = 240


def chat_card(
    chat: Chat, subjects: tuple[str, str], meanings: Mapping[str, str], promise: str, compared: str
) -> list[str]:
    """Return the section of a dataset card about conversations.

    Args:
        chat: the conversations of the folder, and those that were skipped.
        subjects: the noun for the subject of a conversation, singular and plural: `block`, `blocks`.
        meanings: the description of each kind.
        promise: sentences that are true of all conversations.
        compared: whose near-duplicates were counted: `rows whose question …`.
    Returns: lines of Markdown: sizes, lengths, near-duplicates, licenses, skipped conversations, five short examples.
    """
    one, many = subjects
    counts = chat.counts(many)
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    return [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts[many], one)}, each in the split of its"
        f" {one}: {splits}. `messages` is a list of `role` and `content` (system, user, assistant), as fine-tuning"
        f" libraries read it. {promise}",
        "",
        *_kinds(chat, meanings),
        "Lengths are in tokens: words, numbers and single signs; white space is not counted. Near: "
        f"{compared} have a Jaccard of {THRESHOLD:.2f} or more, over sets of {SHINGLE}-token shingles, to another row"
        " of the kind; across: to one in another split, of which only that in the earlier split is kept. All pairs"
        " were compared.",
        "",
        *_licences(chat),
        f"`{DROPS}` says of every {one} and kind without a conversation why there is none:"
        f" {plural(len(chat.drops), 'row')}.",
        "",
        *_reasons(chat),
        *_examples(chat),
    ]


def quantile(values: Sequence[int], percents: int) -> int:
    """Return the smallest value that is at least as large as this percentage of all values."""
    return sorted(values)[max(0, -(-percents * len(values) // 100) - 1)]


def _kinds(chat: Chat, meanings: Mapping[str, str]) -> list[str]:
    rows = []
    for kind in chat.kinds:
        tokens = [item.tokens for item in chat.conversations if item.kind == kind]
        near = chat.near[kind]
        rows.append(
            [
                f"`{kind}`",
                meanings[kind],
                count(len(tokens)),
                *(count(quantile(tokens, share)) if tokens else "–" for share in _QUANTILES.values()),
                percent(near["near"], len(tokens)),
                percent(near["across_splits"], len(tokens)),
            ]
        )
    return table(["task", "from what to what", "rows", *_QUANTILES, "near", "across"], rows, 2)


def _licences(chat: Chat) -> list[str]:
    """Count conversations by license of their subject; those whose answer is code are also listed separately."""
    counts = Counter[str](item.subject.columns["license"] for item in chat.conversations)
    noticed = [item for item in chat.conversations if item.draft.columns.get("notice") is not None]
    with_code = Counter[str](item.subject.columns["license"] for item in noticed)
    further = ["with code"] if noticed else []
    rows = [
        [code_span(name, 160), count(number), *(count(with_code[name]) for _ in further)]
        for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table(["license", "conversations", *further], rows)


def _reasons(chat: Chat) -> list[str]:
    counts = Counter((drop.kind, drop.skipped.reason) for drop in chat.drops)
    reasons = sorted({reason for _, reason in counts})
    rows = [[f"`{reason}`", *(count(counts[kind, reason]) for kind in chat.kinds)] for reason in reasons]
    return table(["not made", *(f"`{kind}`" for kind in chat.kinds)], rows) if rows else []


def _examples(chat: Chat) -> list[str]:
    """Return five conversations, chosen by their ids: one of each kind before the second of any."""
    by_kind = [sorted((c for c in chat.conversations if c.kind == kind), key=lambda c: c.id) for kind in chat.kinds]
    ordered = [items[index] for index in range(_EXAMPLES) for items in by_kind if index < len(items)]
    lines = ["### Examples", ""] if ordered else []
    for item in ordered[:_EXAMPLES]:
        lines += [f"`{item.kind}`, `{item.id[:12]}`, {plural(item.tokens, 'token')}:", ""]
        for role, text in (("user", item.draft.user), ("assistant", item.draft.assistant)):
            lines += block([f"{role}:", *_shorten(text)], "text")
    return lines


def _shorten(text: str) -> list[str]:
    """Return the first and last lines of a text, each truncated to a fixed width."""
    lines = [make_visible(line, _WIDTH) for line in text.split("\n")]
    left_out = len(lines) - _HEAD - _TAIL
    return [*lines[:_HEAD], f"… {plural(left_out, 'line')} …", *lines[-_TAIL:]] if left_out > 1 else lines
