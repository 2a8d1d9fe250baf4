"""The common shape of all sources' rows: Arrow batches with the columns of the LEMUR API, and foreign records as rows.

An invalid value of a record becomes null, or a problem. Every record of a JSON, JSONL, CSV or Parquet file is a row,
whatever it holds.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import json
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import BoundedStream
from lemur_core.files.markdown import escape_controls, is_unicode, make_visible, plural
from lemur_core.files.progress import note
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.records import split_outcomes

#: The tasks of LEMUR's networks, each with the dataset that is taken where a record states none.
DEFAULT_TASK = "img-classification"
TASK_DATASETS = {
    DEFAULT_TASK: "cifar-10",
    "img-segmentation": "coco",
    "obj-detection": "coco",
    "img-captioning": "coco",
    "txt-image": "coco",
    "txt-generation": "wikitext",
}


def check_task(task: str, option: str = "--task") -> None:
    """Raise UsageError for a task that no network of LEMUR has."""
    if task not in TASK_DATASETS:
        raise UsageError(f"{option} {task}: not known; one of {', '.join(TASK_DATASETS)}")


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

#: Of a row, the values of number columns that cannot be read, by column; `RowSource` tells of them.
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

        The first value that is not read as a number, and how many there are, are told when all rows are read.

        Raises: UserError if there are none, or as `read_rows` does.
        """
        held: list[SourceRow] = []
        characters = unread = 0
        first = ""
        for number, row in enumerate(self.read_rows()):
            for column, value in row.pop(_UNREAD, {}).items():
                kind = "a whole number of 64 bits" if column == "epoch" else "a finite number"
                first = first or f"row {number}, column {column}: {value[:40]!r} is not {kind}, so null is read"
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
            more = f"; {plural(unread - 1, 'more value')} cannot be read either" if unread > 1 else ""
            note(f"{self.where}: {first}{more}")
        yield to_batch(held)


# --- tables -----------------------------------------------------------------------------------------------------------

#: A record, or why there is none.
_Record = Mapping[str, object] | str
_Reader = Callable[[Path, str, Collection[str]], Iterator[_Record]]

#: Read through a buffer of this size, and nothing ahead: else a column of a whole row group is held in memory.
_READ_BYTES = 1 << 20


class FileSource(RowSource):
    """The rows of one file, which `read(path, where)` yields; `where` is its name in messages."""

    def __init__(self, path: Path, read: Callable[[Path, str], Iterator[SourceRow]], where: str = "") -> None:
        super().__init__(path.name, where or str(path))
        self._path, self._read = path, read

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the file. Raises: UserError if it cannot be read, or lacks a required column."""
        return self._read(self._path, self.where)

    def inputs(self) -> list[Input]:
        """Return the file. Raises: UserError if it can no longer be read."""
        return [describe_file(self._path, self.name)]

    def files(self) -> list[Path]:
        """Return the file."""
        return [self._path]


def describe_file(path: Path, name: str) -> Input:
    """Describe a file for the manifest. Raises: UserError if it can no longer be read."""
    with read_errors(path):
        return Input(name=name, sha256=sha256_file(path), bytes=path.stat().st_size)


def open_table(path: Path, where: str = "", required: Collection[str] = REQUIRED) -> FileSource | None:
    """Open a table by the suffix of its name; None if that is not known.

    Args: where: its name in messages. required: the columns that it must have.
    """
    name = path.name.lower()
    read = None if name.endswith(".parquet.gz") else _READERS.get(Path(name.removesuffix(".gz")).suffix)

    def read_records(path: Path, where: str) -> Iterator[SourceRow]:
        assert read is not None
        with read_errors(where):
            for record in read(path, where, required):
                yield build_broken_row(record) if isinstance(record, str) else read_row(record)

    return FileSource(path, read_records, where) if read else None


@contextlib.contextmanager
def read_errors(where: Path | str) -> Iterator[None]:
    """Raise UserError, as one line, instead of the errors of the system, the decompressor or the reader of a format."""
    try:
        yield
    except (OSError, pa.ArrowException, csv.Error) as error:
        reason = getattr(error, "strerror", None) or (str(error).strip() or type(error).__name__).splitlines()[0]
        if "field limit" in reason:
            reason = f"a field has more than {MAX_RECORD_BYTES >> 20} MiB, or a quote is not closed"
        raise UserError(f"{where}: cannot be read: {reason}; write or fetch it again") from error


def open_compressed(path: Path, where: str, codec: str | None) -> BinaryIO:
    """Open the content of a file that is compressed with `gzip` or `zstd`, within bounds, or of a plain one."""
    packed = path.open("rb", buffering=_READ_BYTES)
    if codec is None:
        return packed
    content = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), codec)
    return cast(BinaryIO, io.BufferedReader(BoundedStream(where, packed, content), _READ_BYTES))


def _open_text(path: Path, where: str) -> io.BufferedReader:
    return cast(io.BufferedReader, open_compressed(path, where, "gzip" if path.name.lower().endswith(".gz") else None))


_BOM = b"\xef\xbb\xbf"


def _read_json(path: Path, where: str, required: Collection[str]) -> Iterator[_Record]:
    """Yield each element of the array in a .json file; of other files each line that is not blank.

    Some object of the first batch must have each required column, since these files have no header.

    Source: https://jsonlines.org
    """
    with _open_text(path, where) as file:
        name = path.name.lower().removesuffix(".gz")
        is_array = name.endswith(".json") and file.peek(1).removeprefix(_BOM).lstrip().startswith(b"[")
        records = _read_array(file, where) if is_array else _read_lines(file)
        first = list(itertools.islice(records, BATCH_ROWS))
        names = dict.fromkeys(name for record in first if isinstance(record, dict) for name in record)
        if names:
            check_columns(where, names, required)
        yield from first
        yield from records


def _read_lines(file: BinaryIO) -> Iterator[_Record]:
    for number in itertools.count(1):
        line = file.readline(MAX_RECORD_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_RECORD_BYTES)
            yield f"line {number}: longer than {MAX_RECORD_BYTES >> 20} MiB"
        elif (content := line.removeprefix(_BOM) if number == 1 else line).strip():
            try:
                yield _check_object(f"line {number}", json.loads(content.decode()))
            except UnicodeDecodeError as error:
                yield f"invalid UTF-8 at byte {error.start}"
            except (ValueError, RecursionError) as error:
                yield f"line {number}: not a JSON object: {_describe_fault(error)}"


def _read_array(file: BinaryIO, where: str) -> Iterator[_Record]:
    try:
        # Bytes that are not UTF-8 must spoil their own row only.
        records = json.loads(file.read().removeprefix(_BOM).decode(errors="surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a JSON array: {_describe_fault(error)}; write or fetch it again") from error
    for number, record in enumerate(records, start=1):
        yield _check_object(f"element {number}", record)


def _check_object(where: str, record: Any) -> _Record:
    return record if isinstance(record, dict) else f"{where}: not a JSON object: it is a {type(record).__name__}"


def _describe_fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.pos}"
    # the interpreter's limit on the digits of an integer is a ValueError
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def _read_csv(path: Path, where: str, required: Collection[str]) -> Iterator[_Record]:
    """Yield the records of a .csv file: commas, doubled quotes, newlines inside quotes; every column is text.

    An empty field is null, except an empty nn_code. A blank line is no record. Bytes that are not UTF-8 spoil their own
    field only.

    Source: https://www.rfc-editor.org/rfc/rfc4180
    """
    before = csv.field_size_limit(MAX_RECORD_BYTES)  # of the whole process
    try:
        with io.TextIOWrapper(_open_text(path, where), "utf-8-sig", "surrogateescape", newline="") as lines:
            ended: list[bool] = []  # filled when a line behind the last one is asked for
            records = filter(None, csv.reader(itertools.chain(lines, iter(lambda: ended.append(True), None))))
            header = [escape_controls(name.strip()) for name in next(records, ())]
            if header:
                check_columns(where, header, required)
            for fields in records:
                if ended:  # within quotes: a whole record needs no further line
                    yield "a quote is not closed"
                    continue
                if len(fields) != len(header):
                    yield f"{len(fields)} fields, the header names {len(header)}"
                    continue
                named = zip(header, fields, strict=True)
                yield {
                    name: field.encode("utf-8", "surrogateescape")
                    for name, field in named
                    if name in COLUMNS and (field or name == "nn_code")
                }
    finally:
        csv.field_size_limit(before)


def _read_parquet(path: Path, where: str, required: Collection[str]) -> Iterator[_Record]:
    """Yield the rows of a Parquet file, a few at a time, by the sizes that it states.

    Codes are read with their dictionary: a repeated one of a megabyte costs next to nothing in the file, and would cost
    a megabyte each time here.
    """
    schema = pq.read_schema(path)
    check_columns(where, schema.names, required)
    wanted = [name for name in COLUMNS if name in schema.names]
    large = [name for name in wanted if name == "nn_code" and _is_text(schema.field(name).type)]
    with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False, read_dictionary=large) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        largest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
        for batch in file.iter_batches(max(1, min(250, BATCH_CHARACTERS // (largest + 1))), columns=wanted):
            columns = [_python_values(batch.column(name)) for name in wanted]
            yield from (dict(zip(wanted, values, strict=True)) for values in zip(*columns, strict=True))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(has(kind) for has in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _python_values(values: pa.Array) -> list[object]:
    """Return a column as Python values; text as bytes, since a file may claim falsely that it is UTF-8."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        distinct = _python_values(values.dictionary)
        return [None if index is None else distinct[index] for index in values.indices.to_pylist()]
    if _is_text(values.type) or pa.types.is_fixed_size_binary(values.type):
        text: list[object] = values.cast(pa.large_binary()).to_pylist()
        return text
    return [_python(value) for value in values]


def _python(value: pa.Scalar) -> object:
    """Return a Python value; a map as a dictionary; None for what Python cannot hold (a time in the year 300000)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    return dict(plain) if pa.types.is_map(value.type) and plain is not None else plain


_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
