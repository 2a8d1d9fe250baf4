"""The common shape of all sources' rows: Arrow batches with the columns of the LEMUR API, and foreign records as rows.

An invalid value of a record becomes null, or a problem.
"""

import json
import math
import numbers
import re
import sqlite3
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from lemur_core.files import Json
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
    numbers = {name: read(record.get(name)) for name, read in _NUMBERS.items()}
    unread = {name: record[name] for name, number in numbers.items() if number is None and _is_stated(record.get(name))}
    return {
        "nn": escape_controls(read_text(record.get("nn")) or ""),
        "nn_code": code,
        "task": read_text(record.get("task")),
        "dataset": read_text(record.get("dataset")),
        "metric": read_text(record.get("metric")),
        **numbers,
        "prm": prm,
        "arch_uid": read_text(record.get("arch_uid")),
        "outcomes": outcomes or read_text(record.get("outcomes")),
        "license": read_license(record.get("license")),
        "problem": problem,
        **({_UNREAD: unread} if unread else {}),
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


_NUMBERS = {"epoch": read_integer, "accuracy": read_number, "duration": read_number}
#: Of a row, the values of number columns that are no numbers, by column; `RowSource` tells of them.
_UNREAD = "unread"


def _is_stated(value: object) -> bool:
    """Return whether a value says something: it is neither null, nor NaN, nor a text for these."""
    return str(_plain(value)).strip().lower() not in ("", "nan", "none", "null")


def _plain(value: object) -> object:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


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

    _told = False

    @abstractmethod
    def read_rows(self) -> Iterator[SourceRow]:
        """Read the rows again, in their order."""

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
                first = (
                    first or f"row {number}, column {column}: {str(_plain(value))[:40]!r} is no number, so null is read"
                )
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


# Measurements of networks besides training, in releases and databases of LEMUR: latencies, layers, pruning.
# nn-dataset 2.1.0 has 2,476 files `ab/nn/stat/run/TASK_NN/DEVICE.json`; later ones a folder for each format. What they
# state changes, so that only what all state has columns, and all of it stays as JSON.
# Source: `ab/nn/stat` and `ab/nn/util/db/Init.py` of https://github.com/ABrain-One/nn-dataset

_STAT = "ab/nn/stat/"
#: Statistics of training, which are rows of networks. Up to release 2.0.6 the folders were in `stat/` itself.
TRAINING = re.compile(rf"{_STAT}(?:train/)?([^/_]+)_([^/_]+)_([^/_]+)_([^/_]+)/(\d+)\.json")
#: The tables of a database that hold measurements, by the column that names the network or a training run of it.
_TABLES = {
    "run": "model_name",
    "tflite": "model_name",
    "prun": "model_name",
    "nn_stat": "nn_name",
    **dict.fromkeys(("train_stat", "layer_stat", "per_layer_stat"), "stat_id"),
}


def read_release(wheel: Path) -> Iterator[MeasuredFacts]:
    """Yield the measurements in a wheel of nn-dataset, by the names of their files."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not (name.startswith(_STAT) and name.endswith(".json")) or TRAINING.fullmatch(name):
                continue
            path = PurePosixPath(name.removeprefix(_STAT))
            of_folder = "_" in path.parent.name  # else the file is named by the network
            folder, network = (path.parent.parent, path.parent.name) if of_folder else (path.parent, path.stem)
            kind, place = folder.as_posix(), path.relative_to(folder).as_posix()
            for number, facts in enumerate(_read_facts(archive.read(name))):
                stated = facts.get("model_name")
                nn = stated if isinstance(stated, str) else network.rpartition("_")[2]
                yield MeasuredFacts(nn, kind, place + (f"#{number}" if number else ""), facts)


def _read_facts(data: bytes) -> list[Json]:
    """Return the objects in a file; anything else as one object that holds it."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        value = {"unreadable": data.decode("utf-8", "backslashreplace")}
    values = value if isinstance(value, list) else [value]
    return [item if isinstance(item, dict) else {"value": item} for item in values]


def read_tables(path: Path) -> Iterator[MeasuredFacts]:
    """Yield the measurements in a LEMUR database, table by table. Raises: sqlite3.Error if it cannot be read."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda value: value.decode("utf-8", "backslashreplace")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, column in _TABLES.items():
            columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            if table not in tables or column not in columns:
                continue
            nn = f"own.{column}" if column != "stat_id" else "(SELECT nn FROM stat WHERE stat.id = own.stat_id)"
            order = ", ".join(f"own.{name}" for name in ("id", "stat_id") if name in columns) or "own.rowid"
            for name, *values in connection.execute(f"SELECT {nn}, own.* FROM {table} AS own ORDER BY {order}"):
                facts = {key: value for key, value in zip(columns, values, strict=True) if value is not None}
                place = "/".join(str(facts[key]) for key in ("stat_id", "id") if key in facts)
                yield MeasuredFacts(str(name or ""), table, place, facts)
