"""What was taken out of an archive, a commit or a folder: the Python files, and the few texts that describe them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extract.sources.layout import is_package, module_names
from extract.sources.model import SourceFile
from lemur_core.files.errors import UserError
from manifests.swhid import blob_sha1

#: Bounds on what is taken; the largest source known, transformers, has 3,000 files and 60 MB.
MAX_FILES = 100_000
MAX_FILE_BYTES = 32 << 20
MAX_TOTAL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Contents:
    """Files by path, relative to the root of the source."""

    python: Mapping[str, bytes]
    texts: Mapping[str, bytes]  # licence files and metadata


def check_bounds(where: str, sizes: Iterable[int]) -> None:
    """Nothing, if files of these sizes may be taken.

    Raises: UserError if they are too many or too large.
    """
    total = 0
    for count, size in enumerate(sizes, start=1):
        total += size
        if size > MAX_FILE_BYTES:
            raise UserError(f"{where}: a file of {size:,} bytes, the limit is {MAX_FILE_BYTES:,}; not a source of code")
        if count > MAX_FILES or total > MAX_TOTAL_BYTES:
            raise UserError(
                f"{where}: more than {MAX_FILES:,} files or {MAX_TOTAL_BYTES:,} bytes; name a smaller source"
            )


def list_files(python: Mapping[str, bytes], within: str = "") -> tuple[SourceFile, ...]:
    """The files in order of their paths, with module names and hashes."""
    modules = module_names(python, within)
    return tuple(
        SourceFile(path, modules[path], is_package(path), blob_sha1(data)) for path, data in sorted(python.items())
    )


def tree_digest(files: Iterable[SourceFile]) -> str:
    """SHA-256 over the lines `PATH BLOB`, sorted by path: the same however a source was had."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        digest.update(f"{file.path} {file.blob}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
