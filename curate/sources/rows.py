"""The common shape of all sources' rows: Arrow batches with the columns of the LEMUR API, and foreign records as rows.

An invalid value of a record becomes null, or a problem.
"""

import hashlib
import json
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import escape_controls, is_unicode, make_visible
from lemur_core.files.progress import note
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.records import split_outcomes

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
        ("outcomes", pa.string()),  # a JSON object: further results of the run, which LEMUR stores in prm
        ("license", pa.string()),  # SPDX expression of this row's code; null if stated for all rows or none
        ("problem", pa.string()),
    ]
)

#: A row before it is part of a batch: values by column of ROW_SCHEMA; one that is missing is null.
SourceRow = dict[str, Any]

#: The columns that a source reads. `problem` is ours to fill: a column of that name in an input is ignored.
COLUMNS = tuple(name for name in ROW_SCHEMA.names if name != "problem")
REQUIRED = ("nn", "nn_code")
_TEXTS = ("task", "dataset", "metric", "prm", "arch_uid", "outcomes", "license")

#: Maximum bytes of one record: a code of a million lines, somewhat more than a batch holds.
MAX_RECORD_BYTES = 40 << 20

#: Of a row, the values of number columns that are no numbers, by column; `RowSource` tells of them.
_UNREAD = "unread"


def check_columns(where: str, columns: Collection[str], required: Collection[str] = REQUIRED) -> None:
    """Raise UserError if a required column is missing, or a column to read occurs twice."""
    present = list(columns)
    names = ", ".join(make_visible(str(name), 40) for name in present[:30]) or "none"
    names += ", …" if len(present) > 30 else ""
    for name in required:
        if name not in present:
            raise UserError(f"{where}: no column {name!r}; it has {names}; rename the column that holds it to {name!r}")
    for name in COLUMNS:
        if present.count(name) > 1:
            raise UserError(f"{where}: column {name!r} is there {present.count(name)} times; keep one of them")


def read_row(record: Mapping[str, object]) -> SourceRow:
    """Convert a record of Python values into a row of ROW_SCHEMA."""
    code, problem = _read_code(record.get("nn_code"))
    row: SourceRow = {"nn": escape_controls(read_text(record.get("nn")) or ""), "nn_code": code, "problem": problem}
    row |= {name: read_text(record.get(name)) for name in _TEXTS}
    row |= {name: read(record.get(name)) for name, read in _NUMBERS.items()}
    row["prm"], outcomes = split_outcomes(row["prm"])
    row["outcomes"] = outcomes or row["outcomes"]
    stated = row["license"] or ""
    row["license"] = license_of_fields(stated, "", ()) if stated.strip() else None
    unread = {name: _decode(record[name]) for name in _NUMBERS if row[name] is None and name in record}
    unread = {name: value for name, value in unread.items() if value.strip().lower() not in _NO_NUMBER}
    return {**row, _UNREAD: unread} if unread else row


_NO_NUMBER = ("", "nan", "none", "null")


def build_broken_row(problem: str, nn: str = "") -> SourceRow:
    """Return the row of a record that cannot be read."""
    return {"nn": nn, "problem": problem}


def _read_code(value: object) -> tuple[str | None, str | None]:
    """Return the code, or None and its problem."""
    if value is None:
        return None, "nn_code is missing"
    if not isinstance(value, bytes | str):
        return None, f"nn_code is not a string ({type(value).__name__})"
    if len(value) > MAX_RECORD_BYTES:
        return None, f"nn_code has more than {MAX_RECORD_BYTES >> 20} MiB"
    try:
        code = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        return None, f"invalid UTF-8 at byte {error.start}"
    if not is_unicode(code):
        return None, "nn_code has a lone surrogate, not valid Unicode"
    return (None, "nn_code is empty") if not code or code.isspace() else (code, None)


def read_text(value: object) -> str | None:
    """Return text as it is (with invalid Unicode escaped), and anything else as JSON with sorted keys."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bytes | str):
        return _decode(value)
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted, a cycle, thousands of levels
        return None


def _decode(value: object) -> str:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def read_number(value: object) -> float | None:
    """Return a finite number, also from its digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, numbers.Real, Decimal)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_integer(value: Any) -> int | None:
    """Return a 64-bit integer, also from its digits or a float such as 3.0; None for anything else."""
    number = read_number(value)
    if number is None or not number.is_integer():
        return None
    try:
        exact = int(value)  # a float has 53 bits
    except ValueError:  # the digits of 3.0
        exact = int(number)
    return exact if -(2**63) <= exact < 2**63 else None


_NUMBERS = {"epoch": _read_integer, "accuracy": read_number, "duration": read_number}


class MeasuredFacts(NamedTuple):
    """One measurement of the network `nn`: `kind` is the folder or table that holds it, `place` the entry there.

    What measurements state differs between LEMUR's versions, so all of it stays as JSON.
    """

    nn: str
    kind: str
    place: str
    facts: Mapping[str, Any]


#: Rows per batch: enough to amortize calls, few enough to stay far from the memory limit.
BATCH_ROWS = 2_000
#: Maximum text in one batch, unless a single row is larger: bounds memory for huge codes.
BATCH_CHARACTERS = 32 << 20


class RecordSource(ABC):
    """A source of rows. `name` identifies it in the manifest, `where` in messages."""

    def __init__(self, name: str, where: str = "") -> None:
        self.name = name
        self.where = where or name

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of ROW_SCHEMA, at most BATCH_ROWS rows each, in input order; the same each time."""

    def coded_batches(self) -> Iterator[tuple[pa.RecordBatch, list[tuple[bytes, str]], npt.NDArray[np.int64]]]:
        """Yield each batch, its distinct codes with their SHA-256, and for each row the place of its code among them.

        The place of a row without code is the number of codes.
        """
        for batch in self.batches():
            encoded = batch.column("nn_code").dictionary_encode()
            codes = [(hashlib.sha256(code.encode()).digest(), code) for code in encoded.dictionary.to_pylist()]
            yield batch, codes, encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False).astype(np.int64)

    @abstractmethod
    def inputs(self) -> list[Input]:
        """Return the inputs with digests and without absolute paths; complete once `batches` has been consumed."""

    def measurements(self) -> Iterator[MeasuredFacts]:
        """Yield what else was measured of the networks, such as latencies on devices; nothing where none is stored."""
        return iter(())

    def files(self) -> list[Path]:
        """Return every file that is read, sorted; empty for rows from elsewhere."""
        return []

    def license(self, stated: str | None) -> str:
        """Return the SPDX expression of the rows; if they state none, what the user has stated, else NOASSERTION."""
        return stated or NOASSERTION


def to_batch(rows: list[SourceRow]) -> pa.RecordBatch:
    """Build one record batch of ROW_SCHEMA from dictionaries; missing keys become nulls."""
    return pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


class RowSource(RecordSource):
    """A source whose rows are read one by one, as dictionaries of ROW_SCHEMA."""

    _told = False

    @abstractmethod
    def read_rows(self) -> Iterator[SourceRow]:
        """Read the rows again, in their order. Raises: UserError if they cannot be read, or the Hub fails."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, cut at BATCH_ROWS rows and before BATCH_CHARACTERS.

        The first value that is no number where one belongs, and how many there are, are told when all rows are read.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        held: list[SourceRow] = []
        characters = unread = 0
        first = ""
        for number, row in enumerate(self.read_rows()):
            for column, value in row.pop(_UNREAD, {}).items():
                first = first or f"row {number}, column {column}: {value[:40]!r} is no number, so null is read"
                unread += 1
            size = sum(len(value) for value in row.values() if isinstance(value, str))
            if held and (len(held) == BATCH_ROWS or characters + size > BATCH_CHARACTERS):
                batch = to_batch(held)
                held, characters = [], 0  # free the texts before the consumer works on the batch
                yield batch
            held.append(row)
            characters += size
        if not held:
            raise UserError(f"{self.where}: holds no rows; name a SOURCE that does")
        if unread and not self._told:
            self._told = True
            note(f"{self.where}: {first}" + (f"; {unread - 1:,} more values are none" if unread > 1 else ""))
        yield to_batch(held)
