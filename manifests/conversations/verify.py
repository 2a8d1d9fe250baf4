"""Read the conversations of a folder, and find them by id."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.conversations.conversation import TABLES
from manifests.folders.tables import read_table, rows_by_split
from manifests.records import Record

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
