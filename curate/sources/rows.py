"""The one shape in which every source hands over its rows: Arrow batches with the columns of the LEMUR API."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lemur_core.files.errors import UserError
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION

#: Columns of an input row. `nn_code` is null when the row cannot be used; `problem` then says why in a few words.
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
        ("license", pa.string()),  # SPDX expression of this row's code; null where the source says it of all or none
        ("problem", pa.string()),
    ]
)

#: Rows handed over at a time: enough to amortise calls, small enough to stay far from the memory limit.
BATCH_ROWS = 2_000


class Source(ABC):
    """A supplier of rows. `name` is what the manifest calls it, `where` what messages call it."""

    def __init__(self, name: str, where: str = "") -> None:
        self.name = name
        self.where = where or name

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of ROW_SCHEMA, at most BATCH_ROWS rows each, in input order; the same each time."""

    @abstractmethod
    def inputs(self) -> list[Input]:
        """What was read, never by an absolute path, with digests; complete once `batches` has been consumed."""

    def files(self) -> list[Path]:
        """Every file that is read, sorted; none for rows that come from elsewhere."""
        return []

    def license(self, stated: str | None) -> str:
        """The SPDX expression of the rows; what a user has stated where they state none, else NOASSERTION."""
        return stated or NOASSERTION


def to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """One record batch of ROW_SCHEMA from dictionaries; missing keys become nulls."""
    return pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


#: Text in one batch at most, unless a single row is larger: keeps memory bounded when codes are huge.
BATCH_CHARACTERS = 32 << 20


class RowSource(Source):
    """A source whose rows are read one by one, as dictionaries of ROW_SCHEMA."""

    @abstractmethod
    def read_rows(self) -> Iterator[dict[str, Any]]:
        """The rows in their order, read anew."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in their order, cut at BATCH_ROWS rows and before BATCH_CHARACTERS.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        held: list[dict[str, Any]] = []
        characters = 0
        for row in self.read_rows():
            size = sum(len(value) for value in row.values() if isinstance(value, str))
            if held and (len(held) == BATCH_ROWS or characters + size > BATCH_CHARACTERS):
                batch = to_batch(held)
                held, characters = [], 0  # let the texts go before the consumer works on the batch
                yield batch
            held.append(row)
            characters += size
        if not held:
            raise UserError(f"{self.where}: holds no rows; name a SOURCE that does")
        yield to_batch(held)
