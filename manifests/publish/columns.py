"""The texts of a Parquet table with the row and the column that each stands in, a batch of rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS = 2_000  # at once, so that a column of long codes stays small in memory


@dataclass(frozen=True, slots=True)
class Texts:
    """The values of one column in some rows, end to end, so that one search goes through all of them."""

    column: str
    first_row: int
    data: bytes
    ends: np.ndarray[Any, np.dtype[np.int64]]  # value i is data[ends[i]:ends[i + 1]]

    def places_of(self, head: bytes) -> Iterator[int]:
        """The values in which `head` begins, in order and each once; it may go on into the next one."""
        at = self.data.find(head)
        while at >= 0:
            place = int(np.searchsorted(self.ends, at, side="right")) - 1
            yield place
            at = self.data.find(head, int(self.ends[place + 1]))

    def value(self, place: int) -> bytes:
        """One value; null is empty."""
        return self.data[int(self.ends[place]) : int(self.ends[place + 1])]


def table_texts(path: Path) -> Iterator[Texts]:
    """Every text of a table: columns of text and of bytes, texts inside lists and structs, and what its schema says.

    Raises: pyarrow.ArrowInvalid if it is no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        yield _pack("names", 0, pa.array([_schema_text(file.schema_arrow)], pa.large_string()))
        row = 0
        for batch in file.iter_batches(batch_size=_ROWS):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                values = _as_text(column)
                if values is not None and len(values):
                    yield _pack(name, row, values)
            row += batch.num_rows


def _schema_text(schema: pa.Schema) -> str:
    metadata = [schema.metadata or {}, *(field.metadata or {} for field in schema)]
    return "\n".join([*schema.names, *(text for item in metadata for text in _strings(dict(item)))])


def _as_text(column: pa.Array) -> pa.Array | None:
    """A column as long strings; None if its type holds no text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_text(column.dictionary_decode())
    if pa.types.is_nested(kind):
        return pa.array(["\n".join(_strings(value)) for value in column.to_pylist()], pa.large_string())
    if pa.types.is_fixed_size_binary(kind):
        return pa.array(column.to_pylist(), pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    return None


def _strings(value: object) -> Iterator[str]:
    """The texts inside a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, dict):
        for item in value.items():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _pack(column: str, first_row: int, values: pa.Array) -> Texts:
    values = values.fill_null(b"" if pa.types.is_large_binary(values.type) else "")
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    start, end = int(ends[0]), int(ends[-1])
    return Texts(column, first_row, data[start:end].to_pybytes() if end > start else b"", ends - start)
