"""The common shape of all sources' rows: Arrow batches with the columns of the LEMUR API."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lemur_core.files.errors import UserError
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION

#: Columns of an input row. `nn_code` is null if the row cannot be used; `problem` then says why in a few words.
ROW_SCHEMA = pa.schema(
    [
        ("nn", pa.string()),
        ("nn_code", pa.large_string()),
        ("task", pa.string()),
        ("dataset", pa.string()),
        ("metric", pa.string()),
        ("epoch", pa.int64()),
        ("accuracy", pa.float64()),
        ("duration", pa.float64()),
        ("prm", pa.string()),
        ("arch_uid", pa.string()),
        ("license", pa.string()),  # SPDX expression of this row's code; null if stated for all rows or none
        ("problem", pa.string()),
    ]
)

#: Rows per batch: enough to amortize calls, few enough to stay far from the memory limit.
BATCH_ROWS = 2_000


class RecordSource(ABC):
    """A source of rows. `name` identifies it in the manifest, `where` in messages."""

    def __init__(self, name: str, where: str = "") -> None:
        self.name = name
        self.where = where or name

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of ROW_SCHEMA, at most BATCH_ROWS rows each, in input order; the same each time."""

    @abstractmethod
    def inputs(self) -> list[Input]:
        """Return what was read, without absolute paths, with digests; complete once `batches` has been consumed."""

    def digests(self) -> dict[str, str]:
        """Return what identifies the rows without reading them where that is possible: digests of the inputs, by name.

        A source that can change at any time reads from then on what these identify.
        """
        return {item.name: item.sha256 for item in self.inputs()}

    def files(self) -> list[Path]:
        """Return every file that is read, sorted; empty for rows from elsewhere."""
        return []

    def license(self, stated: str | None) -> str:
        """Return the SPDX expression of the rows; if they state none, what the user has stated, else NOASSERTION."""
        return stated or NOASSERTION


def to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Build one record batch of ROW_SCHEMA from dictionaries; missing keys become nulls."""
    return pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


#: Maximum text in one batch, unless a single row is larger: bounds memory for huge codes.
BATCH_CHARACTERS = 32 << 20


class RowSource(RecordSource):
    """A source whose rows are read one by one, as dictionaries of ROW_SCHEMA."""

    @abstractmethod
    def read_rows(self) -> Iterator[dict[str, Any]]:
        """Read the rows again, in their order."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, cut at BATCH_ROWS rows and before BATCH_CHARACTERS.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        held: list[dict[str, Any]] = []
        characters = 0
        for row in self.read_rows():
            size = sum(len(value) for value in row.values() if isinstance(value, str))
            if held and (len(held) == BATCH_ROWS or characters + size > BATCH_CHARACTERS):
                batch = to_batch(held)
                held, characters = [], 0  # free the texts before the consumer works on the batch
                yield batch
            held.append(row)
            characters += size
        if not held:
            raise UserError(f"{self.where}: holds no rows; name a SOURCE that does")
        yield to_batch(held)
