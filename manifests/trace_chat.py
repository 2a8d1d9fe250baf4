"""The conversation of an id, in the tables of a snapshot or an extraction."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lemur_core.files.errors import UserError

_DIGITS = re.compile(r"[0-9a-f]{6,64}")


def find_conversation(folder: Path, wanted: str, columns: Sequence[str]) -> dict[str, Any] | None:
    """These columns of the conversation whose id is, or begins with, these digits; `id` must be among them.

    Raises: UserError if several ids begin so; OSError or pyarrow.ArrowException if a table cannot be read.
    """
    if not _DIGITS.fullmatch(wanted.lower()):
        return None
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "data" / "chat").glob("*.parquet")):
        table = pq.read_table(path, columns=list(columns))
        found += table.filter(pc.starts_with(table["id"], wanted.lower())).to_pylist()
    if len(found) > 1:
        raise UserError(f"{wanted!r} begins {len(found)} ids of conversations; give more digits")
    return found[0] if found else None
