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
from manifests.conversations.conversation import DROPS, TABLES, conversation_id, count_chat, count_tokens
from manifests.folders.checks import Check, check_faults
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_table, rows_by_split
from manifests.records import CHAT_ROLES, Record

Row = Mapping[str, Any]

_DIGITS = re.compile(r"[0-9a-f]{6,64}")


def chat_rows(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield all rows of conversations, each with the split of its file, with few in memory at a time."""
    return rows_by_split(folder, TABLES)


def find_conversation(folder: Path, wanted: str, record: type[Record], columns: Sequence[str]) -> Json | None:
    """Return columns, with `id` among them, of the conversation whose id starts with these 6 to 64 digits, if any.

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
    """Return the texts of system, user and assistant."""
    system, user, assistant = (message["content"] for message in row["messages"])
    return system, user, assistant


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
        subject: the column with the id of a conversation's subject.
        splits: the splits of all subjects, by id.
        kinds: every kind that each subject has a conversation or a drop of.
        faults: returns the faults of one conversation besides those in its roles, id and length.
        facts: the name of the check of these faults, and its text after the number of conversations.
    Returns: five checks: the faults, splits, ids, drops and counts.
    """
    ids: Counter[str] = Counter()
    rows: list[tuple[str, Json]] = []  # with the columns that are counted
    wrong: list[str] = []
    misplaced: list[str] = []
    for split, row in chat_rows(folder):
        label = f"{row.get('nn', row[subject])} {row['task']}"
        ids[row["id"]] += 1
        rows.append((split, {name: row[name] for name in (subject, "task", "n_tokens")}))
        wrong += [f"{label}: {fault}" for fault in (*_form_faults(row, subject), *faults(row))]
        if splits.get(row[subject]) != split:
            misplaced.append(f"{label}: in {split}, its {subject} is in {splits.get(row[subject], 'no split')}")
    drops = pq.read_table(folder / DROPS, columns=[subject, "task", "reason"]).to_pylist()
    present, dropped = (Counter((row[subject], row["task"]) for row in of) for of in ([row for _, row in rows], drops))
    wanted = {(id_, kind) for id_ in splits for kind in kinds}
    unexplained = [
        f"{key[0]} {key[1]}: {present[key]} conversations and {dropped[key]} drops"
        for key in sorted(wanted | present.keys() | dropped.keys())
        if present[key] + dropped[key] != (key in wanted)
    ]
    stated = manifest.counts.get("chat", {})
    miscounted = [
        f"{key}: {value} in the tables, {stated.get(key)} in the manifest"
        for key, value in count_chat(rows, drops, kinds, subject).items()
        if stated.get(key) != value
    ]
    repeated = [f"{id_[:12]} occurs {number} times" for id_, number in sorted(ids.items()) if number > 1]
    number = f"{len(rows):,} conversations"
    explained = f"{len(splits):,} {subject}s, for each kind a conversation or a reason"
    return [
        check_faults(facts[0], wrong, f"{number}{facts[1]}"),
        check_faults("chat splits", misplaced, f"{number}, each in the split of its {subject}"),
        check_faults("chat ids", repeated, f"{len(ids):,} ids, each once"),
        check_faults("chat explained", unexplained, explained),
        check_faults("chat counts", miscounted, f"{number} and {len(drops):,} drops as stated"),
    ]


def _form_faults(row: Row, subject: str) -> Iterator[str]:
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        yield f"roles are not {', '.join(CHAT_ROLES)}"
    if row["id"] != conversation_id(row[subject], row["task"], row.get("variant")):
        yield f"its id is not the digest of {subject}, task{' and variant' if 'variant' in row else ''}"
    if row["n_tokens"] != count_tokens(contents(row)):
        yield f"n_tokens is {row['n_tokens']:,}, which is not what its contents hold"
