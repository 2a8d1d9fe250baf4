"""The one shape in which every source hands over its rows: Arrow batches with the columns of the LEMUR API."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

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
        ("problem", pa.string()),
    ]
)

#: Rows handed over at a time: enough to amortise calls, small enough to stay far from the memory limit.
BATCH_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input as the manifest names it: never an absolute path, always a digest."""

    name: str
    sha256: str
    bytes: int


class Source(Protocol):
    """A supplier of rows.

    `batches` may be called more than once and yields the same rows in the same order each time.
    `inputs` is complete after `batches` has been consumed once.
    """

    name: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of ROW_SCHEMA, at most BATCH_ROWS rows each, in input order."""
        ...

    def inputs(self) -> list[InputFile]:
        """What was read, with digests, for the manifest."""
        ...


def to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """One record batch of ROW_SCHEMA from dictionaries; missing keys become nulls."""
    return pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)
