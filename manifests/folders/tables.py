"""Files of a finished folder: texts, JSON, and Parquet tables under fixed names, written and read row by row.

A folder may be foreign or damaged. A pipe would be waited for without end, and a device would be read without end:
neither is opened.
"""

import contextlib
import fnmatch
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError, create_model

from lemur_core.files import Json
from lemur_core.files.errors import MissingNameError, UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import make_visible
from manifests.records import Record, arrow_schema, first_fault

if TYPE_CHECKING:
    import pandas

R = TypeVar("R", bound=Record)

#: The description of the tables for dataset catalogs, next to the card.
CROISSANT = "croissant.json"
#: The folder of the tables of conversations, and the table of those that were not made.
CHAT, CHAT_DROPS = "data/chat", "chat_drops.parquet"

#: Rows per file, so that no column of code exceeds the 2 GiB limit of Arrow strings.
ROWS_PER_FILE = 50_000
_ROWS_PER_GROUP = 2_000
_ROWS_READ = 500  # per batch


@dataclass(frozen=True, slots=True)
class Named:
    """How the rows of a table are listed, and found by name.

    Attributes:
        what: a row, in one word.
        names: the fields that name it, the best first.
        fields: what is shown of it.
        own: the field with the SHA-256 of its code.
        origin: the field with the SHA-256 of the code that it comes from, which parents may hold; else its own code.
    """

    what: str
    names: tuple[str, ...]
    fields: tuple[str, ...]
    own: str = "code_sha256"
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a folder, which is a configuration of the data set.

    Attributes:
        name: the table, and the configuration.
        record: the type of its rows; the first line of its docstring says what they are.
        files: one path per split, relative to the folder, or a pattern `SOME/FOLDER/SPLIT-*.parquet`.
        named: for a table whose rows people look up.
    """

    name: str
    record: type[Record]
    files: Mapping[str, str]
    named: Named | None = None

    @property
    def about(self) -> str:
        """Return in one line what its rows are."""
        return (inspect.getdoc(self.record) or "").partition("\n")[0]

    def paths(self, folder: Path) -> list[Path]:
        """Return its files, split by split."""
        return [path for pattern in self.files.values() for path in sorted(folder.glob(pattern))]


def select_tables(tables: Iterable[Table], rows: Mapping[str, int]) -> list[Table]:
    """Return the tables that have rows, with the splits that have some: `datasets` rejects empty ones.

    Args: tables: all that the kind of folder may have. rows: rows by path of every table of the folder.
    """
    filled = [path for path, count in rows.items() if count]
    chosen = (
        replace(table, files={split: path for split, path in table.files.items() if fnmatch.filter(filled, path)})
        for table in tables
    )
    return [table for table in chosen if table.files]


def read_rows(
    files: Iterable[Path], record: type[R], columns: Sequence[str] = (), *, ids: Collection[str] | None = None
) -> Iterator[R]:
    """Yield the rows of tables as records, some rows in memory at a time; every value is checked.

    Args:
        files: tables of this record type.
        record: the type of the records.
        columns: the fields to read; all by default. Reading is fast without code. Any other field then has no value.
        ids: only the rows with one of these values in column `id`.
    Returns: an iterator over the rows in the order of the files.
    Raises: OSError or pyarrow.ArrowException if a table cannot be read, lacks a column, or holds what does not fit one.
    """
    names = list(columns or record.model_fields)
    needed = names if ids is None else list(dict.fromkeys(("id", *names)))
    wanted = None if ids is None else pa.array(sorted(ids), pa.string())
    for path in files:
        with open_table(path, record, needed) as file:
            for group in range(file.num_row_groups):
                # The ids alone first: codes are large, and few rows may be wanted.
                if wanted is not None:
                    found = pc.is_in(file.read_row_group(group, columns=["id"])["id"], value_set=wanted)
                    if not pc.any(found, min_count=0).as_py():
                        continue
                for batch in file.iter_batches(batch_size=_ROWS_READ, row_groups=[group], columns=needed):
                    chosen = batch if wanted is None else batch.filter(pc.is_in(batch["id"], value_set=wanted))
                    yield from as_records(chosen.select(names), record)


def read_table(files: Iterable[Path], record: type[Record], columns: Sequence[str] = ()) -> pa.Table:
    """Read columns of tables whole; as `check_table`, but without the values of texts and numbers.

    Args: files, record, columns: as in `read_rows`.
    Returns: one table of the columns, in the order of `columns`; null only where a field may be None.
    Raises: as `read_rows`.
    """
    whole = arrow_schema(record)
    schema = pa.schema([whole.field(name) for name in columns or record.model_fields])
    tables = []
    for path in files:
        with open_table(path, record, schema.names) as file:
            table = file.read(schema.names).select(schema.names)
        for field in schema:
            if table[field.name].null_count and not field.nullable:
                raise pa.ArrowInvalid(f"{path}: column {field.name} has a row without a value")
        tables.append(table)
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_frame(files: Iterable[Path]) -> "pandas.DataFrame":
    """Read tables whole as a data frame, with all their columns. Raises: as `read_rows`."""
    frame: pandas.DataFrame = pa.concat_tables([pq.read_table(path) for path in files]).to_pandas()
    return frame


@contextlib.contextmanager
def open_table(path: Path, record: type[Record], columns: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a table whose columns are those of a record type; more may follow them.

    Args: path, record, columns: the file, the type of its rows, and the fields that are needed; all by default.
    Returns: a context manager of the file.
    Raises: OSError or pyarrow.ArrowException if it cannot be read, a column is missing, or of another type.
    """
    check_plain(path)
    try:
        with pq.ParquetFile(path) as file:
            schema, expected = file.schema_arrow, arrow_schema(record)
            for name in columns or record.model_fields:
                if (number := schema.names.count(name)) != 1:
                    raise pa.ArrowInvalid(f"{path}: {f'{number} columns' if number else 'no column'} {name}")
                if (kind := schema.field(name).type) != expected.field(name).type:
                    raise pa.ArrowInvalid(f"{path}: column {name} is {kind}, not {expected.field(name).type}")
            yield file
    except (OSError, pa.ArrowException) as error:
        # The messages of pyarrow do not name the file.
        text = str(error)
        raise error if str(path) in text else pa.ArrowInvalid(f"{path}: {text}") from error


def as_records(rows: pa.Table | pa.RecordBatch, record: type[R]) -> list[R]:
    """Return rows in memory as records.

    Args: rows, record: rows with any of the record's fields as columns, and the type of the records.
    Returns: records in the order of the rows. A field without a column has its default; without a default, no value.
    Raises: pyarrow.ArrowInvalid if a value does not fit its field.
    """
    names = tuple(name for name in record.model_fields if name in rows.schema.names)
    # Validated by a smaller type: what was not read is not a fault.
    part = _make_partial(record, names)
    try:
        return [record.model_construct(**part.model_validate(row).__dict__) for row in rows.select(names).to_pylist()]
    except ValidationError as error:
        raise pa.ArrowInvalid(first_fault(error)) from error


@lru_cache(maxsize=256)
def _make_partial(record: type[Record], names: tuple[str, ...]) -> type[Record]:
    """Return a record type with some of the fields of another."""
    fields: Json = {name: (info.annotation, info) for name, info in record.model_fields.items() if name in names}
    return (
        record if len(fields) == len(record.model_fields) else create_model(record.__name__, __base__=Record, **fields)
    )


def iterate_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Json]:
    """Yield the rows of any table as they are, some in memory at a time.

    Args: path, columns: the file, and the columns to read; all by default.
    Returns: an iterator over the values by column.
    Raises: OSError or pyarrow.ArrowException if the table cannot be read, or lacks a column.
    """
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_READ, columns=columns):
            yield from batch.to_pylist()


def write_tables(folder: Path, stem: str, record: type[Record], rows: Iterable[dict[str, object]], count: int) -> None:
    """Write `count` rows as `STEM-00000-of-0000N.parquet` in `folder`; at least one file, even without rows.

    Args:
        folder: created if needed.
        stem: the beginning of the names of the files, usually a split.
        record: the type of the rows.
        rows: exactly `count` rows, taken one by one.
        count: known beforehand, because every name states the number of files.
    """
    schema = arrow_schema(record)
    files = max(1, -(-count // ROWS_PER_FILE))
    folder.mkdir(parents=True, exist_ok=True)
    iterator = iter(rows)
    for number in range(files):
        name = f"{stem}-{number:05d}-of-{files:05d}.parquet"
        size = min(ROWS_PER_FILE, count - number * ROWS_PER_FILE)
        write_table(folder / name, schema, islice(iterator, size))


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file to write, so that versions of a table share storage and readers can skip pages.

    Pages end where the content says so: rows that are inserted change the pages around them, and no others. The Hub
    stores equal parts of files once.

    Args: path, schema: the file, which is replaced, and its columns.
    Returns: a context manager that writes the end of the file.
    Source: https://huggingface.co/blog/parquet-cdc
    """
    return pq.ParquetWriter(path, schema, compression="zstd", use_content_defined_chunking=True, write_page_index=True)


def write_table(path: Path, schema: pa.Schema, rows: Iterator[dict[str, object]]) -> None:
    """Write rows as one Parquet file, one row group at a time.

    Args:
        path: the file; an older one is replaced.
        schema: the columns, from `arrow_schema`.
        rows: values by column; a column without a value is null.
    """
    with open_writer(path, schema) as writer:
        # `datasets` reads files without row groups, but not files with an empty row group.
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


# --- texts and JSON, and what is wrong with a file --------------------------------------------------------------------

#: Files of text or JSON beyond this size are not read.
_MOST_BYTES = 2 << 30

#: What the readers of a folder raise where its contents are not what they should be.
READ_ERRORS = (OSError, ValueError, LookupError, RecursionError, pa.ArrowException)

#: What a check, or the page, of such a folder may raise in addition: values that fit their columns but not each other.
CHECK_ERRORS = (*READ_ERRORS, TypeError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def reading(folder: Path, kind: str) -> Iterator[None]:
    """Report what cannot be read in a folder as one line.

    Args: folder, kind: the folder, and its kind for the message.
    Returns: a context manager.
    Raises: UserError instead of `CHECK_ERRORS`.
    """
    try:
        yield
    except MissingNameError:
        raise
    except PermissionError as error:
        raise UserError(f"{folder}: cannot be read: {describe(error)}") from error
    except CHECK_ERRORS as error:
        again = "run `lemur verify`, or create the folder again"
        raise UserError(f"{folder}: damaged {kind}: {describe(error)}; {again}") from error


def describe(error: BaseException, path: Path | None = None) -> str:
    """Describe in one line what is wrong with a file.

    Args: error: one of `CHECK_ERRORS`. path: a file that the message names already.
    Returns: its message, visible and not too long; its type too where the message alone says little.
    """
    if isinstance(error, ValidationError):
        return make_visible(first_fault(error), 300)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename not in (None, path, str(path)) else ""
        advice = "; make it readable" if isinstance(error, PermissionError) else ""
        return make_visible(f"{where}{error.strerror}", 300) + advice
    lines = str(error).splitlines() or [""]
    bare = isinstance(error, (LookupError, TypeError, AttributeError, ArithmeticError)) or not lines[0]
    bare = bare and not isinstance(error, pa.ArrowException)
    return make_visible(f"{type(error).__name__}: {lines[0]}" if bare else lines[0], 300)


def read_bytes(path: Path) -> bytes:
    """Read a file whole.

    Args: path: a file of a finished folder.
    Returns: its bytes.
    Raises: OSError if it is not a file, or too large.
    """
    check_plain(path)
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(f"{path}: has more than {_MOST_BYTES >> 30} GiB")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text whole.

    Args: path: a file of a finished folder.
    Returns: its text, with unchanged line endings.
    Raises: OSError as `read_bytes`; ValueError if it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")
