"""What the sources that read one file share: opening it, naming it, saying why it cannot be read."""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from curate.rows import InputFile
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError


def open_bytes(path: Path) -> BinaryIO:
    """The file's content as a stream; that of a .gz file decompressed."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.lower().endswith(".gz") else path.open("rb")


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Failures to read a file, as one line.

    Raises: UserError instead of what the system or the decompressor raised.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not a whole gzip file: {error}; write or fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}; check the file") from error


def describe_file(path: Path) -> InputFile:
    """A file for the manifest.

    Raises: UserError if it cannot be read any more.
    """
    with read_errors(path):
        return InputFile(path.name, sha256_file(path), path.stat().st_size)
