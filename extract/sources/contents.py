"""Sources, their contents, and the cache of both.

A source is a named, licensed, immutable list of Python files. This file decides which files of an archive, a commit or
a folder belong to it, and what their module names are; `extract.sources.metadata` reads the texts that describe it.

In the cache, trees of files have their digest as address, and short records say which lookup led to which. Both are
written in a workspace, then renamed. A killed run leaves at most a workspace, which the next run removes, and
concurrent processes write the same contents.
"""

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from extract.sources.metadata import PackageFacts, Roots
from lemur_core.files.atomic import scratch_folder, write_text
from lemur_core.files.cache import cache_folder, drop_damaged, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import may_hold_secrets
from lemur_core.source.text import normalise
from manifests.provenance.swhid import blob_sha1, directory_swhid

Kind = Literal["package", "git", "folder"]

#: Priority unless the corpus sets one.
DEFAULT_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file of a source."""

    path: str  # relative to the root of the source, with forward slashes
    module: str  # dotted name that code inside the source imports it by; for a package's __init__, the package
    is_package: bool
    blob: str  # git's SHA-1 of its bytes, also its `swh:1:cnt:`


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A released package, a commit of a git repository, or a local folder."""

    name: str  # as in block ids: timm@1.0.20, detr@29901c51d7fe, or the name of a local folder
    kind: Kind
    version: str  # of a package; the first 12 digits of a commit; "" for a folder
    origin: str  # pkg:pypi/timm@1.0.20, the URL of the git repository, "" for a folder
    license: str  # SPDX expression, or NOASSERTION
    root: Path
    files: tuple[SourceFile, ...]  # sorted by path
    digest: str  # of all files, however they were obtained: `tree_digest`
    swhid: str  # swh:1:rev:… of a commit, else swh:1:dir:… of the files
    requires: tuple[str, ...]  # PEP 508; () when unknown
    roots: Roots = ()  # folders for `sys.path`, and folders that are renamed packages
    priority: int = DEFAULT_PRIORITY  # bare class names are looked up in sources with smaller numbers first
    paths: tuple[str, ...] = ()  # prefixes or globs that a corpus selects; () is everything
    exclude: tuple[str, ...] = ()  # prefixes or globs that it excludes from those
    symbols: tuple[str, ...] = ()  # patterns of class names that it selects; () is all
    instead_of: str = ""  # the unreachable source that it replaces, as written in the corpus
    left_out: tuple[str, ...] = ()  # notes about files of a folder that could not be read, or are elsewhere

    def read(self, file: SourceFile) -> bytes:
        """Return the bytes of one file.

        Raises: UserError if they differ from the listing.
        """
        path = self.root / file.path
        try:
            with read_cached(self.root.parent):
                data = path.read_bytes()
                if blob_sha1(data) != file.blob:
                    raise ValueError("changed since the source was opened")
        except (OSError, ValueError) as error:
            reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
            raise UserError(f"{self.name} {file.path}: {reason} ({path}); run again") from error
        return data

    def read_text(self, file: SourceFile) -> bytes:
        """Return the text of one file, as `normalise` does; empty if it is none: such a file has no facts either.

        Raises: as `read`.
        """
        try:
            return normalise(self.read(file))
        except SyntaxError:
            return b""

    def describe(self) -> list[Any]:
        """Return all that results depend on: all fields but the folder, and the files, which the digest covers."""
        aside = ("root", "files", "left_out")
        return [getattr(self, field.name) for field in fields(self) if field.name not in aside]

    def in_scope(self, path: str) -> bool:
        """Return whether `paths` and `exclude` select the file of this path."""
        return not matches(self.exclude, path) and (not self.paths or matches(self.paths, path))

    def asks_for(self, *names: str) -> bool:
        """Return whether `symbols` select a class with one of these names."""
        return not self.symbols or any(fnmatchcase(name, pattern) for pattern in self.symbols for name in names)


def matches(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the patterns matches a path with forward slashes.

    A pattern is a file or a folder with everything below it (`timm/layers`); `.py` may be omitted (`models_mae`). It
    may contain `*`, `?` and `[seq]` or `[!seq]` (within one name) and `**` (any number of folders).
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


# --- limits on contents --------------------------------------------------------------------------------------------

#: Limits on the contents; the largest known source, transformers, has 3,000 files and 60 MB.
MAX_FILES = 100_000
MAX_FILE_BYTES = 32 << 20
MAX_TOTAL_BYTES = 1 << 30

#: Folders of supporting code: at any depth, but not inside packages (`torch.utils.benchmark` is part of torch).
_ASIDE = frozenset({"test", "tests", "node_modules"})
_ASIDE_OUTSIDE = frozenset({"docs", "doc", "examples", "example", "benchmarks", "benchmark"})
_FILES_ASIDE = frozenset({"setup.py", "conftest.py"})
_INIT = "__init__.py"
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(\w+\.[\w.]+)", re.MULTILINE)
#: Folders of tests, whatever is in them.
TESTS = frozenset({"test", "tests", "testing"})
_TEXTS = frozenset({".md", ".rst", ".yaml", ".yml"})
_DATA = frozenset({".cfg", ".csv", ".ini", ".json", ".toml", ".tsv", ".txt"})


def make_source(python: Mapping[str, bytes], facts: PackageFacts, *, within: str = "", **about: Any) -> PackageSource:
    """Return the source of these Python files.

    Args: within: as for `module_names`. about: `name`, `kind`, `version`, `origin` and `root` of the source.
    """
    packages = package_folders(python)
    roots = tuple(root for root in facts.roots if not _is_ordinary(*root, packages))
    files = _apply_roots(list_files(python, within), roots)
    swhid = directory_swhid((file.path, file.blob) for file in files)
    return PackageSource(
        **about,
        license=facts.license,
        files=files,
        digest=tree_digest(files),
        swhid=swhid,
        requires=facts.requires,
        roots=roots,
    )


def check_bounds(where: str, sizes: Iterable[int]) -> None:
    """Raise UserError unless files of these sizes are within the limits."""
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
    """Return the files sorted by path, with module names and hashes."""
    modules = module_names(
        python, within, {name.decode() for data in python.values() for name in _IMPORTED.findall(data)}
    )
    return tuple(
        SourceFile(path, modules[path], is_package(path), blob_sha1(data)) for path, data in sorted(python.items())
    )


def tree_digest(files: Iterable[SourceFile]) -> str:
    """Return the SHA-256 over the lines `PATH BLOB`, sorted by path: the same however a source was obtained."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        digest.update(f"{file.path} {file.blob}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_safe(name: str) -> bool:
    """Return whether a path is relative, does not leave its folder and means the same on every system."""
    # Without its folder, a path must not begin with a slash.
    plain = bool(name) and not name.startswith("/") and "//" not in name and name[1:2] != ":"
    return plain and ".." not in PurePosixPath(name).parts and not re.search(r"[\x00-\x1f\\]", name)


# --- which files are code, and their module names ------------------------------------------------------------------


def keep_paths(paths: Iterable[str]) -> list[str]:
    """Return the Python files among the paths that belong to the code itself, sorted.

    Left out: tests, hidden folders, setup.py, conftest.py; outside of packages also documentation, examples, benchmarks
    and `test_*.py` (`mmengine.model.test_time_aug` is not a test); and files that cannot be imported: a
    module hidden by a package of the same name, a name that cannot be printed.
    """
    python = [path for path in paths if path.endswith(".py")]
    packages = package_folders(python)

    def is_kept(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        parts = folder.split("/") if folder else []
        for depth, part in enumerate(parts):
            outside = "/".join(parts[:depth]) not in packages
            if part in _ASIDE or part.startswith(".") or (outside and part in _ASIDE_OUTSIDE):
                return False
        if name in _FILES_ASIDE or name.startswith(".") or path.removesuffix(".py") in packages:
            return False
        return path.isprintable() and not (name.startswith("test_") and folder not in packages)

    return sorted({path for path in python if is_kept(path)})


def is_about_code(path: str, packages: Collection[str] = ()) -> bool:
    """Return whether a file says how the code of a source is used: a test, a document, a configuration.

    For example, of `net/anchors.json`, `configs/small.yaml`, `configs/classes.txt`, `docs/usage.md` and
    `tests/test_net.py`, all but the third one, if `net` is a package.

    Args: path: relative to the root of the source. packages: their folders; data files in them count.
    """
    place = PurePosixPath(path)
    parents = place.parts[:-1]
    if may_hold_secrets(place.name) or any(part.startswith(".") or part == "node_modules" for part in parents):
        return False
    if place.suffix in _TEXTS or is_of_tests(path):
        return True
    return place.suffix in _DATA and not (TESTS.isdisjoint(parents) and _list_parents(path).isdisjoint(packages))


def is_test(name: str) -> bool:
    """Return whether a file of this name holds tests."""
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def is_of_tests(path: str) -> bool:
    """Return whether a file holds tests, or helpers in a folder of tests."""
    folder, _, name = path.rpartition("/")
    return name.endswith(".py") and (is_test(name) or name == "conftest.py" or not TESTS.isdisjoint(folder.split("/")))


def module_names(paths: Iterable[str], within: str = "", imported: Collection[str] = ()) -> dict[str, str]:
    """Return dotted module names by path, for kept paths; no two are equal.

    A name starts at the outermost folder that is a package (`src/timm/…` and `projects/PointRend/point_rend/…` are
    imported as `timm` and `point_rend`), unless another module has that package's name; else at the root. Where the
    files import the package by a longer name (`acme/nets/…` as `acme.nets`), the folders around it are namespaces, and
    part of the name (PEP 420).

    Args:
        within: name of the package if the root itself is one, else "".
        imported: dotted names of modules that the files import.
    """
    ordered = list(paths)
    if within:
        return {path: module_name(f"{within}/{path}") for path in ordered}
    packages = package_folders(ordered)
    tops = {folder for folder in packages if not _list_parents(folder) & packages}
    # Two packages of one name, such as examples that are copies, keep their paths as names.
    names = Counter(top.rpartition("/")[2] for top in tops if "/" in top)
    names.update({path.partition("/")[0].removesuffix(".py") for path in ordered})
    start = {top: top.rfind("/") + 1 for top in tops if names[top.rpartition("/")[2]] == 1}
    known = {".".join(name.split(".")[:depth]) for name in imported for depth in range(2, name.count(".") + 2)}
    spaces = {top: _start_of_namespace(top, known, last) for top, last in start.items()}

    def name_from(starts: Mapping[str, int]) -> dict[str, str]:
        folders = {path: max((starts.get(folder, 0) for folder in _list_parents(path)), default=0) for path in ordered}
        return {path: module_name(path[first:]) for path, first in folders.items()}

    named = name_from(spaces)
    return named if len(set(named.values())) == len(named) else name_from(start)


def _start_of_namespace(top: str, known: Collection[str], last: int) -> int:
    """Return where the longest of the known names of a package begins in its path, else `last`."""
    starts = [0, *(at + 1 for at, char in enumerate(top) if char == "/")]
    return next((start for start in starts if top[start:].replace("/", ".") in known), last)


def is_package(path: str) -> bool:
    """Return whether the file is the `__init__` of a package."""
    return PurePosixPath(path).name == _INIT


def _apply_roots(files: tuple[SourceFile, ...], roots: Roots) -> tuple[SourceFile, ...]:
    """Return the files with the module names that the build settings state, where no two would be equal."""
    names = {file.path: file.module for file in files}
    for folder, package in roots:
        above = f"{folder}/" if folder else ""
        start = package.replace(".", "/") + "/" if package else ""
        renamed = {path: module_name(start + path.removeprefix(above)) for path in names if path.startswith(above)}
        others = {name for path, name in names.items() if path not in renamed}
        if len(set(renamed.values())) == len(renamed) and others.isdisjoint(renamed.values()):
            names |= renamed
    return tuple(replace(file, module=names[file.path]) for file in files)


def _is_ordinary(folder: str, package: str, packages: Set[str]) -> bool:
    """Return whether a root is inside a package, so that its files are imported as parts of that."""
    top = folder.removesuffix(package.replace(".", "/")) + package.partition(".")[0]
    return folder.endswith(package.replace(".", "/")) and not packages.isdisjoint({top, *_list_parents(top)})


def package_folders(paths: Iterable[str]) -> set[str]:
    """Return the folders that are packages, but for the root."""
    return {path.rpartition("/")[0] for path in paths if is_package(path)} - {""}


def _list_parents(path: str) -> set[str]:
    """Return all folders above a path, without the root."""
    parts = path.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}


def module_name(path: str) -> str:
    """Return the dotted name of the module in a file, relative to the folder that it is imported from."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


# --- the cache: nothing changes once it has its final name -----------------------------------------------------------

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
                file = work / target.name / path
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with file.open("xb") as out:  # not synced: what reads it compares it with its listing
                        out.write(data)
                except OSError as error:
                    raise UserError(f"{where}: {path} cannot be put into the cache: {error.strerror}") from error
            place(work / target.name, target)


def place(folder: Path, target: Path) -> None:
    """Move a finished folder to its final name in the cache, unless another process was faster; list it for `is_whole`.

    Raises: UserError if that fails.
    """
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    record(_sizes_file(target), sizes)
    try:
        is_whole(target)  # drops one that is not
        # Fails if another process has put the same there meanwhile.
        folder.rename(target)
    except OSError as error:
        if not is_whole(target):
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


def read_record(path: Path) -> Any:
    """Return the contents of a JSON file in the cache; None if it is missing or was damaged by a system crash."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def record(path: Path, value: object) -> None:
    """Write a JSON record atomically; the later of two processes wins."""
    write_text(path, json.dumps(value, indent=1))


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
