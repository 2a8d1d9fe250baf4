"""The copy of a package that is installed in the running interpreter, when it is the released one, file by file."""

import base64
import hashlib
import importlib.metadata

from packaging.version import InvalidVersion, Version

from extract.sources.contents import Contents
from extract.sources.layout import keep_paths
from extract.sources.metadata import is_text


def read_installed(name: str, version: str) -> Contents | None:
    """The files of an installed release.

    Returns: None if another version or none is installed, it was not installed from an index (editable, from a folder
        or a repository) or rebuilt (conda), or a kept file is missing or differs from the hash in its RECORD.
    """
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    listed = distribution.files if _is_release(distribution, version) else None
    if listed is None:
        return None
    hashes = {
        file.as_posix(): file.hash.value if file.hash is not None and file.hash.mode == "sha256" else ""
        for file in listed
    }
    python: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    plain = [path for path in hashes if not path.startswith(("/", "../"))]
    for path in [*keep_paths(plain), *filter(is_text, plain)]:
        try:
            data = distribution.locate_file(path).read_bytes()  # type: ignore[attr-defined]
        except OSError:
            return None
        if hashes[path] != _record_hash(data):
            return None
        (python if path.endswith(".py") else texts)[path] = data
    return Contents(python, texts) if python else None


def _is_release(distribution: importlib.metadata.Distribution, version: str) -> bool:
    try:
        same = Version(distribution.version) == Version(version)
    except InvalidVersion:
        return False
    rebuilt = (distribution.read_text("INSTALLER") or "").strip() == "conda"
    return same and not rebuilt and not distribution.read_text("direct_url.json")


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
