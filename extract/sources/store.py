"""Cache of sources: file trees addressed by their digest, and short records of the lookups.

Nothing changes once it has its final name: trees and records are written in a workspace, then renamed. A killed run
leaves at most a workspace, which the next run removes, and concurrent processes write the same contents.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.sources.contents import (
    Contents,
    Kind,
    PackageSource,
    SourceFile,
    apply_roots,
    list_files,
    make_source,
    tree_digest,
)
from extract.sources.metadata import PackageFacts
from lemur_core.files.atomic import scratch_folder
from lemur_core.files.cache import cache_folder, drop_damaged
from lemur_core.files.errors import UserError

#: Part of the cache's path: changes in which files are kept, how modules are named or licenses are read must not
#: mix with entries of older versions.
FORMAT = 5
#: Recorded fields of a package or a commit; its files are stored under the digest.
_RECORDED = ("name", "kind", "version", "origin", "license", "digest", "swhid", "requires", "roots")


def store_folder(*parts: str) -> Path:
    """Return the folder of all sources, or one below it; create it if missing."""
    return cache_folder("sources", f"v{FORMAT}", *parts)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder on the cache's file system; those of dead processes are removed first."""
    with scratch_folder("source", parent=store_folder("work")) as folder:
        yield folder


def keep_tree(contents: Contents, where: str) -> tuple[str, tuple[SourceFile, ...]]:
    """Store the Python files in the cache, unless they are there; return their digest and listing.

    Raises: UserError if there are none, or one cannot be written.
    """
    if not contents.python:
        raise UserError(f"{where}: holds no Python code (tests, docs, examples and benchmarks aside)")
    files = list_files(contents.python)
    digest = tree_digest(files)
    if read_listing(digest) is None:
        with workspace() as work:
            for path, data in contents.python.items():
                _write(work / digest / "files" / path, data, where)
            listing = [[file.path, file.module, file.is_package, file.blob] for file in files]
            _write(work / digest / "listing.json", json.dumps(listing).encode(), where, sync=True)
            place(work / digest, tree_root(digest).parent, lambda: read_listing(digest) is not None)
    return digest, files


def keep_files(files: Mapping[str, bytes], target: Path, where: str) -> None:
    """Store files in a folder of the cache, unless it is there. Raises: UserError if one cannot be written."""
    if not is_whole(target):
        with workspace() as work:
            (work / target.name).mkdir()
            for path, data in files.items():
                _write(work / target.name / path, data, where)
            place(work / target.name, target)


def place(folder: Path, target: Path, is_there: Callable[[], bool] | None = None) -> None:
    """Move a finished folder to its final name in the cache, unless another process was faster.

    Args: is_there: returns whether the target holds the same; by default, its files are listed for `is_whole`.
    Raises: UserError if that fails.
    """
    if is_there is None:
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        record(_sizes_file(target), sizes)
        is_there = partial(is_whole, target)
    try:
        if not is_there() and os.path.lexists(target):
            drop_damaged(target)
        # Fails if another process has put the same there meanwhile.
        folder.rename(target)
    except OSError as error:
        if not is_there():
            raise UserError(f"{target}: cannot be written: {error.strerror}; run again") from error


def is_whole(folder: Path) -> bool:
    """Return whether a folder of the cache has all its files, as long as they were; one that has not is dropped."""
    sizes = read_record(_sizes_file(folder))  # earlier versions wrote none
    try:
        if folder.is_dir() and all((folder / path).stat().st_size == size for path, size in (sizes or {}).items()):
            return True
    except (OSError, AttributeError):
        pass  # a file is missing, or the list is damaged
    if os.path.lexists(folder):
        drop_damaged(folder)
    return False


def _sizes_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.sizes")


def _write(path: Path, data: bytes, where: str, *, sync: bool = False) -> None:
    """Write one file. Files of a tree are not synced individually: `Source.read` checks them against the listing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{where}: {path.name} cannot be put into the cache {path.parent}: {error.strerror}") from error


def tree_root(digest: str) -> Path:
    """Return the folder with the files of a tree."""
    return store_folder("trees") / digest / "files"


def read_listing(digest: str) -> tuple[SourceFile, ...] | None:
    """Return the listing of a tree without reading its files; None if it is not in the cache."""
    listing = read_record(tree_root(digest).parent / "listing.json")
    return None if listing is None else tuple(SourceFile(*entry) for entry in listing)


def read_record(path: Path) -> Any:
    """Return the contents of a JSON file in the cache; None if it is missing or was damaged by a system crash."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def record(path: Path, value: object) -> None:
    """Write a JSON record atomically; the later of two processes wins."""
    with workspace() as work:
        part = work / "record"
        _write(part, json.dumps(value, indent=1).encode(), path.name, sync=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            drop_damaged(path)
        part.replace(path)


def keep_source(
    contents: Contents,
    facts: PackageFacts,
    folder: Path,
    where: str,
    *,
    name: str,
    kind: Kind,
    version: str,
    origin: str,
    revision: str = "",
) -> PackageSource:
    """Store a package or a commit in the cache, with a record in `folder` under its revision, else its digest.

    Raises: The same as `keep_tree`.
    """
    digest, files = keep_tree(contents, where)
    source = make_source(tree_root(digest), files, facts, name=name, kind=kind, version=version, origin=origin)
    if revision:
        source = replace(source, swhid=f"swh:1:rev:{revision}")
    fields = {field: getattr(source, field) for field in _RECORDED} | {"name": name.rpartition("@")[0]}
    record(folder / f"{revision or digest}.json", fields)
    return source


def read_source(path: Path) -> PackageSource | None:
    """Return a recorded source; None if there is no record, or its tree was removed."""
    facts = read_record(path)
    files = None if facts is None else read_listing(facts["digest"])
    if files is None:
        return None
    roots = tuple((folder, package) for folder, package in facts["roots"])
    facts |= {"name": f"{facts['name']}@{facts['version']}", "requires": tuple(facts["requires"]), "roots": roots}
    return PackageSource(**facts, root=tree_root(facts["digest"]), files=apply_roots(files, roots))
