"""One foreign record, or an Arrow batch of them, as rows of ROW_SCHEMA: what does not fit is null or a problem."""

import json
import math
import numbers
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from curate.rows import ROW_SCHEMA
from lemur_core.files.errors import UserError

#: What a source reads. `problem` is ours to fill: a column of that name in an input is ignored.
COLUMNS = tuple(name for name in ROW_SCHEMA.names if name != "problem")
REQUIRED = ("nn", "nn_code")

MISSING = "nn_code is missing"
EMPTY = "nn_code is empty"
SURROGATE = "nn_code has a lone surrogate, not valid Unicode"


def check_columns(where: str, columns: Collection[str]) -> None:
    """Nothing, if rows can be read from a table of these columns.

    Raises: UserError if a required column is not there, or one that would be read is there twice.
    """
    known = list(columns)
    there = ", ".join(map(str, known[:30])) + (", …" if len(known) > 30 else "") if known else "none"
    for name in REQUIRED:
        if name not in known:
            raise UserError(f"{where}: no column {name!r}; it has {there}; rename the column that holds it to {name!r}")
    for name in COLUMNS:
        if known.count(name) > 1:
            raise UserError(f"{where}: column {name!r} is there {known.count(name)} times; keep one of them")


def read_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """The row of ROW_SCHEMA that a record of Python values stands for."""
    code, problem = read_code(record.get("nn_code"))
    return {
        "nn": read_text(record.get("nn")) or "",
        "nn_code": code,
        "task": read_text(record.get("task")),
        "dataset": read_text(record.get("dataset")),
        "metric": read_text(record.get("metric")),
        "epoch": read_integer(record.get("epoch")),
        "accuracy": read_number(record.get("accuracy")),
        "duration": read_number(record.get("duration")),
        "prm": read_text(record.get("prm")),
        "problem": problem,
    }


def broken_row(problem: str, nn: str = "") -> dict[str, Any]:
    """The row that stands for a record that cannot be read."""
    return {"nn": nn, "problem": problem}


def read_code(value: object) -> tuple[str | None, str | None]:
    """The code, or None and the problem with it."""
    if value is None:
        return None, MISSING
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
    """The problem of code of another type."""
    return f"nn_code is not a string ({kind})"


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(value: object) -> str | None:
    """Text as it is (what is not valid Unicode in it as an escape), anything else as JSON with sorted keys."""
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


def read_number(value: object) -> float | None:
    """A finite number, also from its digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, numbers.Real, Decimal)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_integer(value: object) -> int | None:
    """A whole number of 64 bits, also from its digits or a float such as 3.0; None for anything else."""
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


def read_batch(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch of any columns."""
    columns = {name: _values(batch.column(name)) for name in COLUMNS if name in batch.schema.names}
    kind = _storage(batch.column("nn_code")).type
    for record in zip(*columns.values(), strict=True):
        row = read_row(dict(zip(columns, record, strict=True)))
        if not _is_text(kind) and row["problem"] != MISSING:
            row["problem"] = not_a_string(str(kind))
        yield row


def _storage(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _values(values: pa.Array) -> list[object]:
    """A column as Python values; text as bytes, since a file may claim falsely that it is UTF-8."""
    values = _storage(values)
    if not _is_text(values.type):
        return [_python(value) for value in values]
    found: list[object] = values.cast(pa.large_binary()).to_pylist()
    return found


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _python(value: pa.Scalar) -> object:
    """A Python value; a map as a dictionary; None for what Python cannot hold (a time in the year 300000)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    return dict(plain) if pa.types.is_map(value.type) and plain is not None else plain
