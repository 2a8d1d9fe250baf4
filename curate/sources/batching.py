"""Rows gathered into record batches that are small in rows and in bytes."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from curate.rows import BATCH_ROWS, InputFile, to_batch
from lemur_core.files.errors import UserError

#: Text in one batch at most, unless a single row is larger: keeps memory bounded when codes are huge.
BATCH_CHARACTERS = 32 << 20


def batch_rows(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Batches of the rows, in their order, cut at BATCH_ROWS rows and before BATCH_CHARACTERS."""
    held: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        if held and (len(held) == BATCH_ROWS or characters + size > BATCH_CHARACTERS):
            batch = to_batch(held)
            held, characters = [], 0  # let the texts go before the consumer works on the batch
            yield batch
        held.append(row)
        characters += size
    if held:
        yield to_batch(held)


def require_rows(where: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that hold rows.

    Raises: UserError at the end if there was none.
    """
    found = False
    for batch in batches:
        if batch.num_rows:
            found = True
            yield batch
    if not found:
        raise UserError(f"{where}: holds no rows; name a SOURCE that does")


class RowDigest:
    """Digest of rows that come from no file: of each row as JSON, however they were batched."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def watch(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same rows, counted in."""
        for row in rows:
            line = json.dumps(row, sort_keys=True).encode() + b"\n"
            self._sha256.update(line)
            self._bytes += len(line)
            yield row

    def as_input(self, name: str) -> InputFile:
        """What the manifest says of the rows seen so far."""
        return InputFile(name, self._sha256.hexdigest(), self._bytes)
