"""Sources as written on the command line or in a corpus, opened: packages, git commits, and folders in place."""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from extract.sources.contents import (
    DEFAULT_PRIORITY,
    PackageSource,
    SourceFile,
    check_bounds,
    keep_paths,
    make_source,
)
from extract.sources.git import find_commit
from extract.sources.metadata import is_text, read_facts
from extract.sources.package import PACKAGE_RE, find_package
from lemur_core.files.atomic import is_ours
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import check_name, locate_inside
from lemur_core.files.markdown import escape_controls
from lemur_core.files.progress import note

if TYPE_CHECKING:  # Pydantic and Arrow load more slowly than most sources
    from manifests.records.corpus import Alternative, Corpus, CorpusSource

__all__ = ["PackageSource", "SourceFile", "name_apart", "open_available", "open_source", "read_folder", "walk"]

_FORMS = "a source is NAME or NAME@VERSION of a package, git+URL[@REVISION], or a folder (./NAME)"
#: Folders without source code, in addition to hidden ones and environments.
_NOT_CODE = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
#: Sources fetched in parallel: most of the time is spent waiting for servers.
_AT_ONCE = 4


def open_source(
    spec: str,
    *,
    name: str | None = None,
    digest: str | Collection[str] | None = None,
    priority: int = DEFAULT_PRIORITY,
    paths: Collection[str] = (),
    exclude: Collection[str] = (),
) -> PackageSource:
    """Open the source that `spec` names; fetched if it is not in the cache, never executed.

    A word without a path separator is a package, even if a folder of that name exists: write `./NAME` for the folder.

    Args:
        name: replaces the package's or repository's own name before `@VERSION` in the source's name.
        digest: pinned digests of the files (`Source.digest`); several if builds differ by platform.
    Raises: UsageError if `spec` has none of these forms; UserError if there is no such source, or it differs from
        the pinned digest; RetryableError if the index or repository cannot be reached.
    """
    digests = () if digest is None else (digest,) if isinstance(digest, str) else tuple(digest)
    separators = {"/", os.sep, os.altsep or os.sep}
    is_path = bool(separators.intersection(spec)) or spec.startswith((".", "~"))
    is_package = PACKAGE_RE.fullmatch(spec) is not None
    if spec.startswith("git+"):
        source = find_commit(spec, digests)
    elif is_path or (spec and not is_package and Path(spec).is_dir()):
        source = read_folder(spec)
        if digests and source.digest not in digests:
            raise UserError(f"{spec}: its Python files have the digest {source.digest}, not the pinned one")
    elif is_package:
        # A folder of a package's name in the working folder is common, as `timm` next to a script.
        if Path(spec).is_dir():
            note(f"{spec}: taken for the package of that name; for the folder that is here, write ./{spec}")
        source = find_package(spec, digests)
    else:
        raise UsageError(f"{spec!r}: not a source; {_FORMS}")
    if name is not None:
        source = replace(source, name=f"{name}@{source.version}" if source.version else name)
    if source.name != escape_controls(source.name):
        raise UserError(f"{escape_controls(source.name)}: a source's name holds no control characters; rename it")
    return replace(source, priority=priority, paths=tuple(paths), exclude=tuple(exclude))


def name_apart(sources: Iterable[PackageSource]) -> list[PackageSource]:
    """Return the sources without repetitions; folders of one name are called by those above them, too: `one-net`."""
    unique = list({(source.name, source.root): source for source in sources}.values())
    roots = {source.root.parts for source in unique if source.kind == "folder"}
    named = []
    for source in unique:
        parts, count = source.root.parts, 1
        while source.kind == "folder" and sum(root[-count:] == parts[-count:] for root in roots) > 1:
            count += 1
        named.append(replace(source, name="-".join(parts[-count:])) if count > 1 else source)
    return named


# --- local folders ----------------------------------------------------------------------------------------------------


def read_folder(spec: str) -> PackageSource:
    """Return the Python files of a folder as a source; links to folders, or to files outside of it, are not followed.

    Raises: UserError if it is not a folder, cannot be read, or contains no Python code.
    """
    root = Path(spec).expanduser()
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "no such folder"
        raise UserError(f"{spec}: {what}; name a folder of Python code, a package or git+URL")
    root = root.resolve()
    check_name(root)
    try:
        left_out: list[str] = []
        paths = list(walk(root, lambda *told: left_out.append(_note_left_out(*told))))
        kept, described = keep_paths(paths), [path for path in paths if is_text(path)]
        check_bounds(spec, ((root / path).stat().st_size for path in (*kept, *described)))
        python, texts = ({path: (root / path).read_bytes() for path in group} for group in (kept, described))
    except OSError as error:
        advice = "make it readable, or name another folder"
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}; {advice}") from error
    if not python:
        raise UserError(f"{spec}: holds no Python code (tests, docs, examples and benchmarks aside)")
    within = root.name if "__init__.py" in python else ""
    about = {"root": root, "name": root.name or "root", "kind": "folder", "version": "", "origin": ""}
    return make_source(python, read_facts(texts), within=within, **about, left_out=tuple(left_out))


def _note_left_out(root: Path, path: str, error: OSError) -> str:
    advice = "; make it readable if it is needed" if error.errno == errno.EACCES else ""
    note(text := f"{root.name}: {path} is left out: {error.strerror}{advice}")
    return text


def walk(root: Path, tell: Callable[[Path, str, OSError], object] = _note_left_out) -> Iterator[str]:
    """Yield the files below a folder, as paths with forward slashes, without hidden folders and environments.

    Links to folders are not followed. Links to files outside are left out, and what cannot be read, and folders that
    lemur wrote.

    Args: tell: is called with the folder, what is left out of it, if that may be missed, and the reason.
    Raises: OSError if the folder itself cannot be read.
    """

    def fail(error: OSError) -> None:
        if Path(error.filename) == root:
            raise error
        tell(root, Path(error.filename).relative_to(root).as_posix(), error)

    ours: list[str] = []
    for folder, below, names in os.walk(root, onerror=fail):
        # In place: `os.walk` descends into what is left.
        code = (name for name in below if name[0] != "." and name not in _NOT_CODE and not name.endswith(".egg-info"))
        below[:] = sorted(code)
        if Path(folder) != root and ("pyvenv.cfg" in names or is_ours(Path(folder))):
            ours += [] if "pyvenv.cfg" in names else [Path(folder).relative_to(root).as_posix()]
            below[:] = names[:] = []
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            try:
                if not os.access(locate_inside(root, path), os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EACCES) and (name.endswith(".py") or is_text(relative)):
                    tell(root, relative, error)
                continue
            yield relative
    if ours:
        tell(root, ", ".join(ours), OSError(errno.EEXIST, "lemur wrote it"))


# --- corpora ----------------------------------------------------------------------------------------------------------


def open_available(corpus: "Corpus") -> tuple[tuple[PackageSource, ...], tuple[tuple[str, str], ...]]:
    """Open the sources of a corpus, or their alternatives; also return the (name, reason) of unavailable ones."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_try_open, corpus.sources))
    opened = tuple(result for result in results if isinstance(result, PackageSource))
    failed = zip(corpus.sources, results, strict=True)
    return opened, tuple((entry.name, str(result)) for entry, result in failed if isinstance(result, UserError))


def _try_open(entry: "CorpusSource") -> PackageSource | UserError:
    try:
        return _open_at(entry, entry)
    except UserError as error:
        failed = error
    if entry.alternative is None:
        return failed
    note(f"{failed}; taking {entry.alternative.source} instead")
    try:
        return replace(_open_at(entry, entry.alternative), instead_of=entry.source)
    except UserError as second:
        return UserError(f"{entry.name}: neither of its sources can be opened: {failed}; {second}")


def _open_at(entry: "CorpusSource", location: "CorpusSource | Alternative") -> PackageSource:
    paths = entry.paths if location.paths is None else location.paths
    opened = open_source(
        location.source,
        name=entry.name,
        digest=location.digest,
        priority=entry.priority,
        paths=paths,
        exclude=entry.exclude,
    )
    return replace(opened, symbols=entry.symbols)
