"""The one shape in which every source hands over its rows: Arrow batches with the columns of the LEMUR API."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lemur_core.files.errors import UserError

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


class RowSource(ABC):
    """A source of rows that come from no file: the manifest names it with the digest of its rows, as JSON, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inputs: list[InputFile] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in their order.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        return require_rows(self.name, batch_rows(self._digested_rows()))

    def inputs(self) -> list[InputFile]:
        """The source, with the digest of its rows."""
        if not self._inputs:
            deque(self._digested_rows(), maxlen=0)
        return list(self._inputs)

    @abstractmethod
    def read_rows(self) -> Iterator[dict[str, Any]]:
        """The rows, read anew."""

    def label(self) -> str:
        """What the manifest calls it."""
        return self.name

    def _digested_rows(self) -> Iterator[dict[str, Any]]:
        digest, size = hashlib.sha256(), 0
        for row in self.read_rows():
            line = json.dumps(row, sort_keys=True).encode() + b"\n"
            digest.update(line)
            size += len(line)
            yield row
        self._inputs = [InputFile(self.label(), digest.hexdigest(), size)]
