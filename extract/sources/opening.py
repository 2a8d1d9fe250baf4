"""A source as written on the command line or in a corpus, opened."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from extract.sources.folder import read_folder
from extract.sources.git import find_commit
from extract.sources.model import DEFAULT_PRIORITY, Source
from extract.sources.package import PACKAGE_RE, find_package
from extract.sources.store import Found, read_listing, tree_root
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note

_FORMS = "a source is NAME or NAME@VERSION of a package, git+URL[@REVISION], or a folder (./NAME)"


def open_source(
    spec: str,
    *,
    name: str | None = None,
    digest: str | Collection[str] | None = None,
    priority: int = DEFAULT_PRIORITY,
    paths: Collection[str] = (),
    exclude: Collection[str] = (),
) -> Source:
    """The source that `spec` names; fetched when it is not in the cache, never executed.

    A word without a path separator is a package, also where a folder of that name lies: write `./NAME` for the folder.

    Args:
        name: what stands before `@VERSION` in the source's name, instead of the package's or repository's own.
        digest: of the files (`Source.digest`), if they are pinned; several where builds for platforms differ.
    Raises: UserError if there is no such source, or its files differ from the pinned digest; RetryableError if the
        index or repository cannot be reached.
    """
    digests = () if digest is None else (digest,) if isinstance(digest, str) else tuple(digest)
    scope = {"priority": priority, "paths": tuple(paths), "exclude": tuple(exclude)}
    if spec.startswith("git+"):
        return replace(_from_cache(find_commit(spec, digests), name), **scope)  # type: ignore[arg-type]
    if _is_path(spec):
        source = read_folder(spec)
        if digests and source.digest not in digests:
            raise UserError(f"{spec}: its Python files have the digest {source.digest}, not the pinned one")
        return replace(source, name=name or source.name, **scope)  # type: ignore[arg-type]
    if not PACKAGE_RE.fullmatch(spec):
        raise UserError(f"{spec!r}: not a source; {_FORMS}")
    if Path(spec).is_dir():
        note(f"{spec}: taken for the package of that name; for the folder that is here, write ./{spec}")
    return replace(_from_cache(find_package(spec, digests), name), **scope)  # type: ignore[arg-type]


def _is_path(spec: str) -> bool:
    separators = {"/", os.sep, os.altsep or os.sep}
    if any(separator in spec for separator in separators) or spec.startswith((".", "~")):
        return True
    return bool(spec) and not PACKAGE_RE.fullmatch(spec) and Path(spec).is_dir()


def _from_cache(found: Found, name: str | None) -> Source:
    files = read_listing(found.digest)
    assert files is not None, found.digest
    return Source(
        name=f"{name or found.name}@{found.version}",
        kind=found.kind,
        version=found.version,
        origin=found.origin,
        license=found.license,
        root=tree_root(found.digest),
        files=files,
        digest=found.digest,
        swhid=found.swhid,
        requires=found.requires,
    )
