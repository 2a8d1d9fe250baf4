"""What a source is to all that comes after: a named, licensed list of Python files that never changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from lemur_core.files.errors import UserError
from manifests.swhid import blob_sha1

Kind = Literal["package", "git", "folder"]

#: Where no corpus says otherwise.
DEFAULT_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file of a source."""

    path: str  # relative to the root of the source, with forward slashes
    module: str  # dotted name under which code inside that source imports it; a package's __init__ is the package
    is_package: bool
    blob: str  # git's SHA-1 of its bytes, which is also its `swh:1:cnt:`


@dataclass(frozen=True, slots=True)
class Source:
    """A released package, a commit of a git repository, or a local folder."""

    name: str  # as in block ids: timm@1.0.20, detr@29901c51d7fe, or the name of a local folder
    kind: Kind
    version: str  # of a package; the first 12 digits of a commit; "" for a folder
    origin: str  # pkg:pypi/timm@1.0.20, the URL of the git repository, "" for a folder
    license: str  # SPDX expression, or NOASSERTION
    root: Path
    files: tuple[SourceFile, ...]  # sorted by path
    digest: str  # of all files, however they were had: `tree_digest`
    swhid: str  # swh:1:rev:… of a commit, else swh:1:dir:… of the files
    requires: tuple[str, ...]  # PEP 508; () when unknown
    priority: int = DEFAULT_PRIORITY  # the smaller, the earlier a bare class name is looked up here
    paths: tuple[str, ...] = ()  # what a corpus asks for, as prefixes or globs; () is everything
    exclude: tuple[str, ...] = ()  # what it leaves out of that

    def read(self, file: SourceFile) -> bytes:
        """The bytes of one file.

        Raises: UserError if they are not those that were listed.
        """
        path = self.root / file.path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{self.name} {file.path}: cannot be read: {error.strerror} ({path}); run again") from error
        if blob_sha1(data) != file.blob:
            mend = "run again" if self.kind == "folder" else f"delete {self.root.parent} and run again"
            raise UserError(f"{self.name} {file.path}: changed since the source was opened ({path}); {mend}")
        return data

    def in_scope(self, path: str) -> bool:
        """Whether `paths` and `exclude` ask for the file of this path."""
        return not matches(self.exclude, path) and (not self.paths or matches(self.paths, path))


def matches(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the patterns asks for a path with forward slashes.

    A pattern is a file or a folder with all below it (`timm/layers`); `.py` may be left out (`models_mae`). It may hold
    `*`, `?` and `[seq]` or `[!seq]` (within one name) and `**` (any number of folders).
    """
    parts = path.split("/")
    return any(_matches([name for name in pattern.split("/") if name not in ("", ".")], parts) for pattern in patterns)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return True
    name, rest = pattern[0], pattern[1:]
    if name == "**":
        return any(_matches(rest, parts[skipped:]) for skipped in range(len(parts)))
    if not parts:
        return False
    is_module = len(parts) == 1 and parts[0].endswith(".py")
    fits = fnmatchcase(parts[0], name) or (is_module and fnmatchcase(parts[0].removesuffix(".py"), name))
    return fits and _matches(rest, parts[1:])
