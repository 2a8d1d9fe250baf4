"""What publishing would change: the local files against those of the repository."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file here, with both of the digests by which the Hub may know it."""

    size: int
    sha256: str
    blob: str  # the SHA-1 that git gives it


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the repository: a large one by its SHA-256, another by the SHA-1 that git gives it."""

    size: int
    blob: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths, sorted; `same` are left as they are."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    same: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed, "same": self.same}
        return ", ".join(f"{len(names):,} {label}" for label, names in counts.items())


def local_file(path: Path) -> LocalFile:
    """Size and digests of a file, read once."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            blob.update(chunk)
    return LocalFile(size, sha256.hexdigest(), blob.hexdigest())


def compare(local: Mapping[str, LocalFile], remote: Mapping[str, RemoteFile]) -> Changes:
    """What makes the repository's files those that are here.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
    https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (which digest names which file)
    """
    both = sorted(local.keys() & remote.keys())
    same = {name for name in both if is_same(local[name], remote[name])}
    return Changes(
        added=tuple(sorted(local.keys() - remote.keys())),
        changed=tuple(name for name in both if name not in same),
        removed=tuple(sorted(remote.keys() - local.keys())),
        same=tuple(name for name in both if name in same),
    )


def is_same(local: LocalFile, remote: RemoteFile) -> bool:
    """Whether both are the same bytes."""
    digest = local.blob == remote.blob if remote.sha256 is None else local.sha256 == remote.sha256
    return digest and local.size == remote.size
