"""Rows of a folder: Python files, Parquet files, or the blocks of an extraction; and how folders are walked."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from curate.rows import InputFile, batch_rows, require_rows
from curate.sources.cells import broken_row, read_row
from curate.sources.files import describe_file, gather_batches, read_parquet
from lemur_core.files.errors import UserError
from manifests.provenance import REQUIREMENTS, TABLE, Parts, barred, read_parts
from manifests.records import LEVELS


def find_files(folder: Path, suffix: str) -> Iterator[str]:
    """POSIX relative paths of the files with this suffix, sorted; hidden folders and __pycache__ are passed over.

    Links to files are listed, links to folders are not followed: what lies inside `folder` is met anyway.

    Raises: UserError if a folder cannot be listed.
    """
    yield from _walk(folder, "", suffix)


def _walk(folder: Path, inside: str, suffix: str) -> Iterator[str]:
    try:
        with os.scandir(folder / inside) as entries:
            # A folder sorts as its name with "/": then depth first is the order of the whole paths.
            keys = sorted(key for entry in entries if (key := _sort_key(entry, suffix)) is not None)
    except OSError as error:
        raise UserError(f"{folder / inside}: cannot be listed: {error.strerror}; check its permissions") from error
    for key in keys:
        if key.endswith("/"):
            yield from _walk(folder, inside + key, suffix)
        else:
            yield inside + key


def _sort_key(entry: os.DirEntry[str], suffix: str) -> str | None:
    if entry.is_dir(follow_symlinks=False):
        return None if entry.name.startswith(".") or entry.name == "__pycache__" else entry.name + "/"
    is_file = entry.is_file(follow_symlinks=False) or (entry.is_symlink() and not Path(entry.path).is_dir())
    return entry.name if is_file and entry.name.endswith(suffix) else None


class FolderDigest:
    """Digest of a folder: of the sorted relative paths, each with the digest of its content."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def add(self, relative: str, sha256: str, size: int) -> None:
        """Count one file in."""
        self._sha256.update(os.fsencode(relative) + b"\0" + sha256.encode() + b"\n")
        self._bytes += size

    def as_input(self, name: str) -> InputFile:
        """What the manifest says of the files added so far."""
        return InputFile(name, self._sha256.hexdigest(), self._bytes)


class PythonFolder:
    """A folder of .py files: each is one row, named by its relative path without the suffix.

    Code is text as Python reads it: without a byte order mark, every newline as "\\n".
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder
        self._inputs: list[InputFile] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in the order of their relative paths.

        Raises: UserError if a folder cannot be listed, or there is no file.
        """
        return require_rows(str(self._folder), batch_rows(self._rows()))

    def inputs(self) -> list[InputFile]:
        """The folder as one input."""
        if not self._inputs:
            deque(self._rows(), maxlen=0)
        return list(self._inputs)

    def files(self) -> list[Path]:
        """The files, by their relative paths."""
        return [self._folder / relative for relative in find_files(self._folder, ".py")]

    def _rows(self) -> Iterator[dict[str, Any]]:
        root, digest = self._folder.resolve(), FolderDigest()
        for relative in find_files(self._folder, ".py"):
            name = os.fsencode(relative.removesuffix(".py")).decode("utf-8", "backslashreplace")
            try:
                content = _read_inside(root, self._folder / relative)
            except (OSError, _OutsideError) as error:
                digest.add(relative, "unread", 0)
                reason = error.strerror if isinstance(error, OSError) else error
                yield broken_row(f"cannot be read: {reason}", name)
                continue
            digest.add(relative, hashlib.sha256(content).hexdigest(), len(content))
            yield _read_file(name, content)
        self._inputs = [digest.as_input(self.name)]


class ParquetFolder:
    """All .parquet files of a folder, in the order of their relative paths."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files' rows, each file in its order.

        Raises: UserError if a file cannot be read or lacks a required column, or none holds rows.
        """
        parts = (part for path in self.files() for part in read_parquet(path))
        return require_rows(str(self._folder), gather_batches(parts))

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


class _OutsideError(Exception):
    """A link that would lead out of the folder."""


def _read_inside(root: Path, file: Path) -> bytes:
    target = Path(os.path.realpath(file, strict=True)) if file.is_symlink() else file  # resolve() hides a loop's errno
    if target is not file and not target.is_relative_to(root):
        raise _OutsideError("a link that leaves the folder is not followed")
    if not target.is_file():
        raise _OutsideError("a link to something that is not a file")
    return target.read_bytes()


def _read_file(name: str, content: bytes) -> dict[str, Any]:
    row = read_row({"nn": name, "nn_code": content})
    code = row["nn_code"]
    if code is not None:
        row["nn_code"] = code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return row


T = TypeVar("T")

#: What stands before the id of a block in the name of its record, so that `--include block` means all of them.
PREFIX = "block"

_COLUMNS = ("block", "level", "error_kind", "license", "code")
_RUNS = LEVELS.index("executed")
_ROWS = 500  # read at a time


class ExtractionFolder:
    """The blocks of one extraction folder, in the order of its table.

    A snapshot is published with all its code, so a block of which any part has a licence that is unknown or not
    permissive hands over no code; nor does one that does not execute. Both keep their row, which says so.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder

    def batches(self) -> Iterator[pa.RecordBatch]:
        """A row for each block.

        Raises: UserError if a table cannot be read, or holds no blocks.
        """
        return require_rows(str(self._folder), batch_rows(self._rows()))

    def inputs(self) -> list[InputFile]:
        """The two files that are read."""
        found = [describe_file(path) for path in self.files()]
        return [InputFile(f"{self.name}/{item.name}", item.sha256, item.bytes) for item in found]

    def files(self) -> list[Path]:
        """The two files that are read."""
        return [self._folder / name for name in (TABLE, REQUIREMENTS)]

    def licenses(self) -> set[str]:
        """The licences of all parts of the blocks that hand over their code.

        Raises: UserError if a table cannot be read.
        """
        about = [name for name in _COLUMNS if name != "code"]
        found = self._blocks(about, lambda block, parts: set() if _problem_of(block, parts) else parts.licenses(block))
        return set().union(*found)

    def _rows(self) -> Iterator[dict[str, Any]]:
        return self._blocks(list(_COLUMNS), _row_of)

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
    return read_row({"nn": name, "nn_code": block["code"]})


def _problem_of(block: dict[str, Any], parts: Parts) -> str | None:
    """Why a block hands over no code."""
    if LEVELS.index(block["level"]) < _RUNS:
        return f"the block came to {block['level']} only: {block['error_kind'] or 'not asked further'}"
    if block["block"] not in parts.made_from:
        raise ValueError(f"{REQUIREMENTS} says nothing of {block['block']}")
    if wrong := barred(parts.licenses(block)):
        return f"the licence of the block does not let its code be passed on: {', '.join(wrong)}"
    return None
