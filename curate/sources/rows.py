"""The common shape of all sources' rows: Arrow batches with the columns of the LEMUR API, and foreign records as rows.

An invalid value of a record becomes null, or a problem.
"""

import json
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pyarrow as pa

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import is_unicode, make_visible
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


class SourceRow(TypedDict, total=False):
    """A row before it is part of a batch: the columns of ROW_SCHEMA; one that is missing is null."""

    nn: str
    nn_code: str | None
    task: str | None
    dataset: str | None
    metric: str | None
    epoch: int | None
    accuracy: float | None
    duration: float | None
    prm: str | None
    arch_uid: str | None
    outcomes: str | None
    license: str | None
    problem: str | None


#: The columns that a source reads. `problem` is ours to fill: a column of that name in an input is ignored.
COLUMNS = tuple(name for name in ROW_SCHEMA.names if name != "problem")
REQUIRED = ("nn", "nn_code")

#: Maximum bytes of one record: a code of a million lines, somewhat more than a batch holds.
MAX_RECORD_BYTES = 40 << 20

MISSING = "nn_code is missing"
EMPTY = "nn_code is empty"
TOO_LARGE = f"nn_code has more than {MAX_RECORD_BYTES >> 20} MiB"
SURROGATE = "nn_code has a lone surrogate, not valid Unicode"


def check_columns(where: str, columns: Collection[str], required: Collection[str] = REQUIRED) -> None:
    """Raise UserError unless rows can be read from a table of these columns.

    Raises: UserError if a required column is missing, or a column to read occurs twice.
    """
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
    code, problem = read_code(record.get("nn_code"))
    prm, outcomes = split_outcomes(read_text(record.get("prm")))
    return {
        "nn": read_text(record.get("nn")) or "",
        "nn_code": code,
        "task": read_text(record.get("task")),
        "dataset": read_text(record.get("dataset")),
        "metric": read_text(record.get("metric")),
        "epoch": read_integer(record.get("epoch")),
        "accuracy": read_number(record.get("accuracy")),
        "duration": read_number(record.get("duration")),
        "prm": prm,
        "arch_uid": read_text(record.get("arch_uid")),
        "outcomes": outcomes or read_text(record.get("outcomes")),
        "license": read_license(record.get("license")),
        "problem": problem,
    }


def build_broken_row(problem: str, nn: str = "") -> SourceRow:
    """Return the row of a record that cannot be read."""
    return {"nn": nn, "problem": problem}


def read_code(value: object) -> tuple[str | None, str | None]:
    """Return the code, or None and its problem."""
    if value is None:
        return None, MISSING
    if isinstance(value, bytes | str) and len(value) > MAX_RECORD_BYTES:
        return None, TOO_LARGE
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            return None, f"invalid UTF-8 at byte {error.start}"
    if not isinstance(value, str):
        return None, not_a_string(type(value).__name__)
    if not is_unicode(value):
        return None, SURROGATE
    return (None, EMPTY) if not value or value.isspace() else (value, None)


def not_a_string(kind: str) -> str:
    """Return the problem of code of another type."""
    return f"nn_code is not a string ({kind})"


def read_text(value: object) -> str | None:
    """Return text as it is (with invalid Unicode escaped), and anything else as JSON with sorted keys."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value if is_unicode(value) else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted, a cycle, thousands of levels
        return None


def read_license(value: object) -> str | None:
    """Return the SPDX expression for a text, NOASSERTION if unknown; None if there is no text."""
    text = read_text(value)
    return license_of_fields(text, "", ()) if text and text.strip() else None


def read_number(value: object) -> float | None:
    """Return a finite number, also from its digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, numbers.Real, Decimal)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_integer(value: object) -> int | None:
    """Return a 64-bit integer, also from its digits or a float such as 3.0; None for anything else."""
    number = _exact_integer(value)
    if number is None:
        real = read_number(value)
        number = int(real) if real is not None and real.is_integer() else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _exact_integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (str, bytes, numbers.Integral)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


#: Rows per batch: enough to amortize calls, few enough to stay far from the memory limit.
BATCH_ROWS = 2_000


class MeasuredFacts(NamedTuple):
    """One measurement of the network `nn`: `kind` is the folder or table that holds it, `place` the entry there."""

    nn: str
    kind: str
    place: str
    facts: Mapping[str, Any]


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
        """Return the inputs with digests and without absolute paths; complete once `batches` has been consumed."""

    def digests(self) -> dict[str, str]:
        """Return the identity of the rows, if possible without reading them: digests of the inputs, by name.

        A source that can change at any time reads from then on what these identify.
        """
        return {item.name: item.sha256 for item in self.inputs()}

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


#: Maximum text in one batch, unless a single row is larger: bounds memory for huge codes.
BATCH_CHARACTERS = 32 << 20


class RowSource(RecordSource):
    """A source whose rows are read one by one, as dictionaries of ROW_SCHEMA."""

    @abstractmethod
    def read_rows(self) -> Iterator[SourceRow]:
        """Read the rows again, in their order."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, cut at BATCH_ROWS rows and before BATCH_CHARACTERS.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        held: list[SourceRow] = []
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
