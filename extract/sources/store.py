"""Cache of sources: file trees addressed by their digest, and short records of the lookups.

Nothing changes once it has its final name: trees and records are written in a workspace, then renamed. A killed run
leaves at most a workspace, which the next run removes, and concurrent processes write the same contents.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.sources.contents import PackageSource, SourceFile, make_source
from extract.sources.metadata import PackageFacts
from lemur_core.files.atomic import scratch_folder
from lemur_core.files.cache import cache_folder, drop_damaged
from lemur_core.files.errors import UserError

#: Part of the cache's path: changes in which files are kept, how modules are named or licenses are read must not
#: mix with entries of older versions.
FORMAT = 6
#: Recorded fields of a package or a commit, besides the list of its files, which are stored under the digest.
_RECORDED = ("name", "kind", "version", "origin", "license", "digest", "swhid", "requires", "roots")


def store_folder(*parts: str) -> Path:
    """Return the folder of all sources, or one below it; create it if missing."""
    return cache_folder("sources", f"v{FORMAT}", *parts)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder on the cache's file system; those of dead processes are removed first."""
    with scratch_folder("source", parent=store_folder("work")) as folder:
        yield folder


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
    python: Mapping[str, bytes], facts: PackageFacts, folder: Path, where: str, *, revision: str = "", **about: str
) -> PackageSource:
    """Store a package or a commit in the cache, with a record in `folder` under its revision, else its digest.

    Args: python: its Python files. about: its `name`, `kind`, `version` and `origin`.
    Raises: UserError if there are no files, they cannot be in one folder, or one cannot be written.
    """
    if not python:
        raise UserError(f"{where}: holds no Python code (tests, docs, examples and benchmarks aside)")
    try:
        source = make_source(python, facts, root=Path(), **about)
    except ValueError as error:  # a file that is also a folder
        raise UserError(f"{where}: holds {error}; do not use it") from error
    swhid = f"swh:1:rev:{revision}" if revision else source.swhid
    source = replace(source, root=_tree(source.digest), swhid=swhid)
    keep_files(python, source.root, where)
    facts_of = {name: getattr(source, name) for name in _RECORDED}
    record(folder / f"{revision or source.digest}.json", facts_of | {"files": list(map(astuple, source.files))})
    return source


def _tree(digest: str) -> Path:
    """Return the folder of the files with a digest: sources with equal files share it."""
    return store_folder("trees") / digest / "files"


def read_source(path: Path) -> PackageSource | None:
    """Return a recorded source; None if there is no record, or its tree was removed."""
    about = read_record(path)
    if about is None or not (root := _tree(about["digest"])).is_dir():
        return None
    files = tuple(SourceFile(*file) for file in about.pop("files"))
    about |= {"requires": tuple(about["requires"]), "roots": tuple(map(tuple, about["roots"]))}
    return PackageSource(**about, root=root, files=files)
