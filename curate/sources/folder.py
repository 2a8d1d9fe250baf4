"""Rows of a folder of Python files, and how folders are walked."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.rows import InputFile
from curate.sources.batching import batch_rows, require_rows
from curate.sources.cells import broken_row, read_row
from lemur_core.files.errors import UserError


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
