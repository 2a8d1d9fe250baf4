"""`lemur verify` of conversations, whatever they are about: form, splits, ids, reasons and counts, from the folder."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from manifests.checks import Check, found_check
from manifests.conversations.conversation import DROPS, TABLES, conversation_id, count_chat, count_tokens
from manifests.manifest import Manifest
from manifests.records import CHAT_ROLES
from manifests.tables import rows_by_split

Row = Mapping[str, Any]


def chat_rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All rows of conversations, each with the split of its file."""
    return rows_by_split(folder, TABLES)


def has_chat(folder: Path) -> bool:
    """Whether there is anything of conversations."""
    return (folder / TABLES).is_dir() or (folder / DROPS).exists()


def contents(row: Row) -> tuple[str, str, str]:
    """What system, user and assistant say."""
    system, user, assistant = (message["content"] for message in row["messages"])
    return system, user, assistant


def form_faults(row: Row, subject: str) -> Iterator[str]:
    """What is wrong with the roles, the id and the length of one conversation.

    Args: subject: the column that holds the id of what it is about.
    """
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        yield f"roles are not {', '.join(CHAT_ROLES)}"
    if row["id"] != conversation_id(row[subject], row["task"], row.get("variant")):
        yield f"its id is not the digest of {subject}, task{' and variant' if 'variant' in row else ''}"
    if row["n_tokens"] != count_tokens(contents(row)):
        yield f"n_tokens is {row['n_tokens']:,}, which is not what its contents hold"


class ChatTables:
    """Gathers what must hold of all conversations of a folder together, row by row: few of them are in memory."""

    def __init__(self, subject: str, kinds: Sequence[str], splits: Mapping[str, str]) -> None:
        """Nothing gathered yet.

        Args:
            subject: the column that holds the id of what a conversation is about; with an s, the key of their number.
            splits: of all subjects, by id.
        """
        self._subject = subject
        self._kinds = kinds
        self._splits = splits
        self._ids: Counter[str] = Counter()
        self._rows: list[tuple[str, str, str, int]] = []  # kind, subject, split, tokens
        self._places: list[str] = []

    def add(self, split: str, row: Row) -> None:
        """One conversation, with the split of its file."""
        own = row[self._subject]
        self._ids[row["id"]] += 1
        self._rows.append((row["task"], own, split, row["n_tokens"]))
        for named in (own, *row.get("others", ())):
            home = self._splits.get(named)
            if home != split:
                what = f"its {self._subject}" if named == own else named
                where = "in no split" if home is None else f"in {home}"
                self._places.append(f"{row.get('nn', own)} {row['task']}: in {split}, {what} is {where}")

    def checks(self, folder: Path, manifest: Manifest) -> list[Check]:
        """The checks of what was gathered, with the table of drops and the counts of the manifest."""
        drops = pq.read_table(folder / DROPS).to_pylist()
        repeated = [f"{id_[:12]} occurs {number} times" for id_, number in sorted(self._ids.items()) if number > 1]
        return [
            found_check(
                "chat splits",
                self._places,
                f"{len(self._rows):,} conversations, each in the split of what it is about",
            ),
            found_check("chat ids", repeated, f"{len(self._ids):,} ids, each once"),
            self._check_explained(drops),
            self._check_counts(drops, manifest),
        ]

    def _check_explained(self, drops: Sequence[Row]) -> Check:
        """Every subject and kind has one conversation or one reason, not both, and nothing else has any."""
        made = Counter((subject, kind) for kind, subject, *_ in self._rows)
        not_made = Counter((drop[self._subject], drop["task"]) for drop in drops)
        wanted = {(subject, kind) for subject in self._splits for kind in self._kinds}
        wrong = [
            f"{key[0]} {key[1]}: {made[key]} conversations and {not_made[key]} drops"
            for key in sorted(wanted | made.keys() | not_made.keys())
            if made[key] + not_made[key] != (key in wanted)
        ]
        told = f"{len(self._splits):,} {self._subject}s, for each kind a conversation or a reason"
        return found_check("chat explained", wrong, told)

    def _check_counts(self, drops: Sequence[Row], manifest: Manifest) -> Check:
        stated = manifest.counts.get("chat", {})
        reasons = [(drop["task"], drop["reason"]) for drop in drops]
        wrong = [
            f"{key}: {value} in the tables, {stated.get(key)} in the manifest"
            for key, value in count_chat(self._rows, reasons, self._kinds, f"{self._subject}s").items()
            if stated.get(key) != value
        ]
        told = f"{len(self._rows):,} conversations and {len(drops):,} drops as stated"
        return found_check("chat counts", wrong, told)
