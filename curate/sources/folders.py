"""Rows of a folder: Python files, Parquet files, or the blocks of an extraction."""

import errno
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from curate.sources.rows import (
    COLUMNS,
    DEFAULT_TASK,
    MAX_RECORD_BYTES,
    RowSource,
    SourceRow,
    build_broken_row,
    check_task,
    describe_file,
    open_table,
    read_row,
)
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import decode_python, locate_inside
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import Input
from manifests.folders.tables import READ_ERRORS, describe, read_rows
from manifests.provenance import REQUIREMENTS, TABLE, find_blocking_licenses
from manifests.provenance.licenses import combine_licenses
from manifests.provenance.parts import Parts, read_parts
from manifests.records import LEVELS, Block


class FolderSource(RowSource):
    """Base class of the sources that read the files of a folder with one suffix, in the order of their paths."""

    suffix: ClassVar[str]

    def __init__(self, folder: Path, name: str | None = None) -> None:
        super().__init__(name or folder.resolve().name, str(folder))
        self._folder = folder

    def inputs(self) -> list[Input]:
        """Return the folder as one input: its digest covers the sorted relative paths and their contents."""
        digest, size = hashlib.sha256(), 0
        for path in self.files():
            try:
                target = locate_inside(self._folder, path)
                content, length = sha256_file(target), target.stat().st_size
            except OSError:  # its row says so
                content, length = "unread", 0
            digest.update(os.fsencode(self._relative(path)) + b"\0" + content.encode() + b"\n")
            size += length
        return [Input(name=self.name, sha256=digest.hexdigest(), bytes=size)]

    def files(self) -> list[Path]:
        """Return the files, sorted by path, without hidden folders and __pycache__.

        Links to files are listed; links to folders are not followed: what lies inside the folder is listed anyway.

        Raises: UserError if a folder cannot be listed.
        """

        def refuse(error: OSError) -> None:
            raise UserError(f"{error.filename}: cannot be listed: {error.strerror}; check its permissions") from error

        paths = []
        for inside, folders, names in os.walk(self._folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
            paths += [Path(inside, name) for name in names if name.endswith(self.suffix)]
        return sorted(paths, key=Path.as_posix)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _open_table(self, path: Path, *required: str) -> RowSource:
        """Open a table of the folder. Raises: UserError if it is a link that leaves the folder, or no file."""
        try:
            table = open_table(locate_inside(self._folder, path), str(path), required)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}; copy the file, or name it itself") from error
        assert table is not None
        return table


class ParquetFolder(FolderSource):
    """All .parquet files of a folder, in the order of their relative paths."""

    suffix = ".parquet"

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of all files, each in its order.

        Raises: UserError if a file cannot be read, is a link that leaves the folder, or lacks a required column.
        """
        for path in self.files():
            yield from self._open_table(path, "nn", "nn_code").read_rows()


#: The table of a folder of Python files that states the columns of its rows.
TABLES = tuple(f"networks{suffix}" for suffix in (".csv", ".json", ".jsonl", ".parquet"))


class PythonFolder(FolderSource):
    """A folder of .py files: each is one row, named by its relative path without the suffix.

    Code is text as Python reads it: without a byte order mark, every newline as "\\n". The other columns are those of
    the rows with this name in the folder's table, if it has one (`TABLES`); a file has as many rows as the table has.

    Args: stated: columns of the files for which the table states none.
    """

    suffix = ".py"

    def __init__(self, folder: Path, stated: Mapping[str, str] = {}) -> None:
        super().__init__(folder)
        self._stated = stated

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield a row for each file, or for each evaluation of it that the table states.

        Raises: UserError if a folder cannot be listed, or the table cannot be read; UsageError if there is none, and
            the stated task is not known.
        """
        evaluations: dict[str, list[SourceRow]] = defaultdict(list)
        if (table := self._find_table()) is not None:
            for batch in self._open_table(table, "nn").batches():
                for row in batch.select([name for name in COLUMNS if name != "nn_code"]).to_pylist():
                    name = row.pop("nn").removesuffix(".py")
                    evaluations[name].append({name: value for name, value in row.items() if value is not None})
        else:
            check_task(self._stated.get("task", DEFAULT_TASK))
        for path in self.files():
            row = self._read_file(path)
            for evaluation in evaluations.pop(row["nn"], None) or [{}]:
                yield {**row, **self._stated, **evaluation}
        if evaluations and table:
            count, name = plural(len(evaluations), "name"), next(iter(evaluations))
            note(f"{self.where}: {count} of its table {table.name} without a file, for example {name}")

    def inputs(self) -> list[Input]:
        """Return the folder as one input, and its table as another."""
        table = self._find_table()
        return super().inputs() + ([describe_file(table, f"{self.name}/{table.name}")] if table else [])

    def _find_table(self) -> Path | None:
        tables = [self._folder / name for name in TABLES if (self._folder / name).is_file()]
        if len(tables) > 1:
            raise UserError(f"{self.where}: has two tables, {tables[0].name} and {tables[1].name}; keep one of them")
        return tables[0] if tables else None

    def _read_file(self, path: Path) -> SourceRow:
        name = os.fsencode(self._relative(path).removesuffix(".py")).decode("utf-8", "backslashreplace")
        try:
            target = locate_inside(self._folder, path)
            if target.stat().st_size > MAX_RECORD_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_RECORD_BYTES >> 20} MiB")
            return read_row({"nn": name, "nn_code": decode_python(target.read_bytes())})
        except OSError as error:
            return build_broken_row(f"cannot be read: {error.strerror}", name)
        except SyntaxError as error:
            return build_broken_row(str(error.msg), name)


#: Where finished folders hold their networks.
RECORDS = "data/records"

#: The prefix of a block's record name, so that `--include block` selects all of them.
PREFIX = "block"

_ABOUT = ("block", "level", "error_kind", "license", "lean_license")
_CODES = ("code", "lean_code")


class ExtractionFolder(RowSource):
    """The blocks of one extraction folder, in the order of its table: minimized if possible, else self-contained.

    A snapshot is published with all its code, so a block with a part under an unknown or non-permissive license gets no
    code, nor does one that does not execute. Both keep their row, which says why.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.resolve().name, str(folder))
        self._folder = folder

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield a row for each block. Raises: UserError if a table cannot be read."""
        for block, licenses, problem in self._blocks((*_ABOUT, *_CODES)):
            name = f"{PREFIX}-{block.block}"
            record = {"nn": name, "nn_code": block.lean_code or block.code, "license": combine_licenses(licenses)}
            yield build_broken_row(problem, name) if problem else read_row(record)

    def inputs(self) -> list[Input]:
        """Return the two files that are read."""
        return [describe_file(path, f"{self.name}/{path.name}") for path in self.files()]

    def files(self) -> list[Path]:
        """Return the two files that are read."""
        return [self._folder / name for name in (TABLE, REQUIREMENTS)]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (blocks state theirs)
        """Return the combined license of all parts of the blocks with code.

        Raises: UserError if a table cannot be read.
        """
        return combine_licenses(set().union(*(own for _, own, problem in self._blocks(_ABOUT) if not problem)))

    def _blocks(self, columns: Sequence[str]) -> Iterator[tuple[Block, set[str], str | None]]:
        """Yield each block with the licenses of its parts, and why it gets no code."""
        parts, path = read_parts(self._folder), self._folder / TABLE
        try:
            for block in read_rows([path], Block, columns):
                own = parts.licenses(block.block, block.license) if block.lean_license is None else {block.lean_license}
                yield block, own, _find_problem(block, own, parts)
        except READ_ERRORS as error:
            raise UserError(f"{path}: cannot be read as blocks: {describe(error)}; extract it again") from error


def is_extraction(folder: Path) -> bool:
    """Return True if a folder was written by `lemur extract`."""
    return (folder / TABLE).is_file() and (folder / REQUIREMENTS).is_file()


def _find_problem(block: Block, licenses: set[str], parts: Parts) -> str | None:
    if LEVELS.index(block.level) < LEVELS.index("executed"):
        return f"the block came to {block.level} only: {block.error_kind or 'not asked further'}"
    if block.block not in parts.block_sources:
        raise ValueError(f"{REQUIREMENTS} says nothing of {block.block}")
    if wrong := find_blocking_licenses(licenses):
        return f"the license of the block does not permit redistribution: {', '.join(wrong)}"
    return None
