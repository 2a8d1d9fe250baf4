"""Rows of Parquet files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.rows import BATCH_ROWS, ROW_SCHEMA, InputFile
from curate.sources.arrow_cells import read_batch
from curate.sources.batching import BATCH_CHARACTERS, require_rows
from curate.sources.cells import COLUMNS, check_columns
from curate.sources.files import describe_file
from curate.sources.folder import FolderDigest, find_files
from lemur_core.files.errors import UserError

#: Read through a buffer of this size, and nothing ahead: else a column of a whole row group is held in memory.
_READ_BYTES = 1 << 20
#: Rows decoded at a time at most. The sizes that a file states are those before its dictionaries are unfolded: a
#: repeated code of a megabyte costs next to nothing there, and a megabyte each time here.
_READ_ROWS = 250


class ParquetFile:
    """One .parquet file."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The file's rows in its order.

        Raises: UserError if the file cannot be read, holds no rows, or lacks a required column.
        """
        return require_rows(str(self._path), _gather(_read_file(self._path)))

    def inputs(self) -> list[InputFile]:
        """The file."""
        return [describe_file(self._path)]

    def files(self) -> list[Path]:
        """The file."""
        return [self._path]


class ParquetFolder:
    """All .parquet files of a folder, in the order of their relative paths."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files' rows, each file in its order.

        Raises: UserError if a file cannot be read or lacks a required column, or none holds rows.
        """
        parts = (part for path in self.files() for part in _read_file(path))
        return require_rows(str(self._folder), _gather(parts))

    def inputs(self) -> list[InputFile]:
        """The folder as one input."""
        digest = FolderDigest()
        for path in self.files():
            file = describe_file(path)
            digest.add(path.relative_to(self._folder).as_posix(), file.sha256, file.bytes)
        return [digest.as_input(self.name)]

    def files(self) -> list[Path]:
        """The files, by their relative paths."""
        return [self._folder / relative for relative in find_files(self._folder, ".parquet")]


def _read_file(path: Path) -> Iterator[pa.RecordBatch]:
    with _parquet_errors(path), pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        names = file.schema_arrow.names
        check_columns(str(path), names)
        wanted = [name for name in COLUMNS if name in names]
        for batch in file.iter_batches(_rows_at_a_time(file.metadata, wanted), columns=wanted):
            yield from _cut(read_batch(batch))


def _gather(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in as few batches as BATCH_ROWS and BATCH_CHARACTERS allow."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        if held and (rows + part.num_rows > BATCH_ROWS or size + part.nbytes > BATCH_CHARACTERS):
            yield _join(held)
            held, rows, size = [], 0, 0
        held.append(part)
        rows += part.num_rows
        size += part.nbytes
    if held:
        yield _join(held)


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    columns = [pa.concat_arrays([part.column(name) for part in parts]) for name in ROW_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


@contextlib.contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: cannot be read as Parquet: {reason}; write or fetch it again") from error


def _rows_at_a_time(metadata: pq.FileMetaData, wanted: list[str]) -> int:
    """As many rows as fit a batch where they are largest, by the sizes that the file states."""
    largest = 1
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        columns = (group.column(i) for i in range(group.num_columns))
        size = sum(part.total_uncompressed_size for part in columns if part.path_in_schema.split(".")[0] in wanted)
        largest = max(largest, size // max(group.num_rows, 1))
    return max(1, min(_READ_ROWS, BATCH_CHARACTERS // largest))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most BATCH_CHARACTERS bytes of code, unless a single code is larger."""
    codes = batch.column("nn_code")
    if codes.nbytes <= BATCH_CHARACTERS:
        yield batch
        return
    start = held = 0
    for place, size in enumerate(pc.binary_length(codes).fill_null(0).to_pylist()):
        if place > start and held + size > BATCH_CHARACTERS:
            yield batch.slice(start, place - start)
            start, held = place, 0
        held += size
    yield batch.slice(start)
