"""Rows of a folder: Python files, Parquet files, or the blocks of an extraction."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from curate.sources.files import ParquetFile, broken_row, describe_file, read_row
from curate.sources.rows import RowSource
from lemur_core.files.errors import UserError
from manifests.folders.manifest import Input
from manifests.provenance import REQUIREMENTS, TABLE, Parts, barred, read_parts
from manifests.provenance.licenses import all_of
from manifests.records import LEVELS


class FolderSource(RowSource):
    """What the sources of a folder share: the files with one suffix, by their relative paths."""

    suffix: str

    def __init__(self, folder: Path, name: str | None = None) -> None:
        super().__init__(name or folder.resolve().name, str(folder))
        self._folder = folder

    def inputs(self) -> list[Input]:
        """The folder as one input: its digest is that of the sorted relative paths, each with that of its content."""
        digest, size = hashlib.sha256(), 0
        for path in self.files():
            content, length = self._describe(path)
            relative = os.fsencode(path.relative_to(self._folder).as_posix())
            digest.update(relative + b"\0" + content.encode() + b"\n")
            size += length
        return [Input(name=self.name, sha256=digest.hexdigest(), bytes=size)]

    def files(self) -> list[Path]:
        """The files, sorted by path; hidden folders and __pycache__ are passed over.

        Links to files are listed, links to folders are not followed: what lies inside the folder is met anyway.

        Raises: UserError if a folder cannot be listed.
        """

        def refuse(error: OSError) -> None:
            raise UserError(f"{error.filename}: cannot be listed: {error.strerror}; check its permissions") from error

        found = []
        for inside, folders, names in os.walk(self._folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
            found += [Path(inside, name) for name in names if name.endswith(self.suffix)]
        return sorted(found, key=Path.as_posix)

    def _describe(self, path: Path) -> tuple[str, int]:
        """SHA-256 and size of a file."""
        found = describe_file(path)
        return found.sha256, found.bytes


class PythonFolder(FolderSource):
    """A folder of .py files: each is one row, named by its relative path without the suffix.

    Code is text as Python reads it: without a byte order mark, every newline as "\\n".
    """

    suffix = ".py"

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each file.

        Raises: UserError if a folder cannot be listed.
        """
        for path in self.files():
            relative = path.relative_to(self._folder).as_posix().removesuffix(".py")
            name = os.fsencode(relative).decode("utf-8", "backslashreplace")
            try:
                yield _read_file(name, self._read(path))
            except (OSError, _OutsideError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                yield broken_row(f"cannot be read: {reason}", name)

    def _describe(self, path: Path) -> tuple[str, int]:
        try:
            content = self._read(path)
        except (OSError, _OutsideError):
            return "unread", 0
        return hashlib.sha256(content).hexdigest(), len(content)

    def _read(self, file: Path) -> bytes:
        target = Path(os.path.realpath(file, strict=True)) if file.is_symlink() else file  # resolve() hides loops
        if target is not file and not target.is_relative_to(self._folder.resolve()):
            raise _OutsideError("a link that leaves the folder is not followed")
        if not target.is_file():
            raise _OutsideError("it is no file, nor a link to one")
        return target.read_bytes()


class ParquetFolder(FolderSource):
    """All .parquet files of a folder, in the order of their relative paths."""

    suffix = ".parquet"

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """The files' rows, each file in its order.

        Raises: UserError if a file cannot be read or lacks a required column.
        """
        for path in self.files():
            yield from ParquetFile(path).read_rows()


class _OutsideError(Exception):
    """A link that would lead out of the folder."""


def _read_file(name: str, content: bytes) -> dict[str, Any]:
    row = read_row({"nn": name, "nn_code": content})
    code = row["nn_code"]
    if code is not None:
        row["nn_code"] = code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return row


T = TypeVar("T")

#: What stands before the id of a block in the name of its record, so that `--include block` means all of them.
PREFIX = "block"

_COLUMNS = ("block", "level", "error_kind", "license", "lean_license", "code", "lean_code")
_TEXTS = ("code", "lean_code")
_RUNS = LEVELS.index("executed")
_ROWS = 500  # read at a time


class ExtractionFolder(RowSource):
    """The blocks of one extraction folder, in the order of its table: lean forms, where there are, else closed files.

    A snapshot is published with all its code, so a block of which any part has a licence that is unknown or not
    permissive hands over no code; nor does one that does not execute. Both keep their row, which says so.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.resolve().name, str(folder))
        self._folder = folder

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each block.

        Raises: UserError if a table cannot be read.
        """
        return self._blocks(list(_COLUMNS), _row_of)

    def inputs(self) -> list[Input]:
        """The two files that are read."""
        found = [describe_file(path) for path in self.files()]
        return [Input(name=f"{self.name}/{item.name}", sha256=item.sha256, bytes=item.bytes) for item in found]

    def files(self) -> list[Path]:
        """The two files that are read."""
        return [self._folder / name for name in (TABLE, REQUIREMENTS)]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (blocks state theirs)
        """That of all parts of the blocks that hand over their code, together.

        Raises: UserError if a table cannot be read.
        """
        about = [name for name in _COLUMNS if name not in _TEXTS]
        found = self._blocks(
            about, lambda block, parts: set() if _problem_of(block, parts) else _licenses(block, parts)
        )
        return all_of(set().union(*found))

    def _blocks(self, columns: list[str], read: Callable[[dict[str, Any], Parts], T]) -> Iterator[T]:
        """What `read` makes of each block, in the order of the table."""
        parts = read_parts(self._folder)
        path = self._folder / TABLE
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=columns):
                    for block in batch.to_pylist():
                        yield read(block, parts)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{path}: cannot be read as blocks: {reason}; extract it again") from error


def is_extraction(folder: Path) -> bool:
    """Whether a folder is one that `lemur extract` wrote."""
    return (folder / TABLE).is_file() and (folder / REQUIREMENTS).is_file()


def _row_of(block: dict[str, Any], parts: Parts) -> dict[str, Any]:
    name = f"{PREFIX}-{block['block']}"
    if problem := _problem_of(block, parts):
        return broken_row(problem, name)
    license_ = all_of(_licenses(block, parts))
    return read_row({"nn": name, "nn_code": block["lean_code"] or block["code"], "license": license_})


def _licenses(block: dict[str, Any], parts: Parts) -> set[str]:
    """Those of what a block hands over."""
    return parts.licenses(block) if block["lean_license"] is None else {block["lean_license"]}


def _problem_of(block: dict[str, Any], parts: Parts) -> str | None:
    """Why a block hands over no code."""
    if LEVELS.index(block["level"]) < _RUNS:
        return f"the block came to {block['level']} only: {block['error_kind'] or 'not asked further'}"
    if block["block"] not in parts.made_from:
        raise ValueError(f"{REQUIREMENTS} says nothing of {block['block']}")
    if wrong := barred(_licenses(block, parts)):
        return f"the licence of the block does not let its code be passed on: {', '.join(wrong)}"
    return None
