"""Digests of what goes into a stage and of what came out of it."""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from lemur_core.files.atomic import sha256_file
from manifests.manifest import package_versions

#: Packages whose releases may change results, beside those of every manifest.
_MORE_VERSIONS = ("torch", "torchvision", "sandlock")
_CODE = frozenset({".py", ".json", ".toml"})


def digest_outputs(out: Path, outputs: Sequence[str]) -> str | None:
    """The digest of every byte of a stage's outputs; None if one of them is missing, or cannot be read.

    Of a folder that is made again it is another one, since manifests tell seconds; so must be what is made from the
    folder, whose manifest names that manifest as its parent.
    """
    listed: dict[str, str] = {}
    try:
        for name in outputs:
            path = out / name
            if path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.is_file())
                listed |= {file.relative_to(out).as_posix(): sha256_file(file) for file in files}
            else:
                listed[name] = sha256_file(path)
    except OSError:
        return None
    return digest_json(listed)


def digest_json(value: object) -> str:
    """SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digest_code(packages: Sequence[str]) -> str:
    """Of our packages' own files: Python, and the data that they read."""
    return digest_json({name: _package_digest(name) for name in packages})


def digest_versions() -> str:
    """Of the versions of Python and of the packages that decide results."""
    return digest_json(_versions())


@cache
def _versions() -> Mapping[str, str]:
    found = package_versions()
    for name in _MORE_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def _package_digest(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    assert spec.submodule_search_locations is not None, name
    (root,) = spec.submodule_search_locations
    return digest_json({path.relative_to(root).as_posix(): sha256_file(path) for path in _code_files(Path(root))})


def _code_files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.suffix in _CODE and path.is_file())
