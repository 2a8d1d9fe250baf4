"""Distributions without a wheel: the modules of an sdist, where setuptools lists them and nothing has to be compiled.

Nothing of an sdist is run. Setuptools writes the names of its top-level modules into each, next to the modules:
`NAME.egg-info/top_level.txt`. Their files are what a wheel would hold.
"""

import contextlib
import email.parser
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import Version

from extract.sources.contents import (
    PackageSource,
    is_about_code,
    is_test,
    is_whole,
    keep_files,
    read_record,
    record,
    workspace,
)
from extract.sources.git import fetch_files
from extract.sources.metadata import PackageFacts, is_text, read_facts
from extract.sources.package import read_archive
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import AbsentError, download
from lemur_core.files.progress import note
from lemur_core.sandbox.runtime import DECLARED

_COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cxx", ".f", ".f90", ".pyx", ".rs"})
_MAX_SDIST_BYTES = 40 << 20
_MAX_SECONDS = 120.0
_FEW_TESTS = 8  # files: an sdist may have those of one folder, without what they import from another
#: In metadata, such as `repository, https://…/OWNER/NAME.git`; pages of a repository, such as its issues, count, too.
_REPOSITORY = re.compile(r"(https://(?:github\.com|gitlab\.com|codeberg\.org)/[\w.-]+/[\w.-]+?(?:\.git)?)(?=[/\s#?]|$)")
_ABSENT_SECONDS = 24 * 3600.0
_ABSENT = "there is no wheel of it for this Python and platform, and its sdist"


def read_sdist(archive: Path, *, incomplete: bool = False) -> tuple[PackageFacts, dict[str, bytes]]:
    """Return what an sdist states, and the files of its modules by their path in `site-packages`.

    Args: incomplete: of modules that would have to be compiled, leave out those that are not Python.
    Raises: AbsentError if it does not list its modules, or would have to be compiled; UserError if it is not readable.
    """
    # Each name begins with the folder of the release: `fvcore-0.1.5/fvcore/nn/flop_count.py`.
    files = {name.partition("/")[2]: data for name, data in read_archive(archive, list).items()}
    modules: dict[str, bytes] = {}
    for path, data in files.items():
        folder = PurePosixPath(path).parent
        if path.endswith(".egg-info/top_level.txt"):
            for name in data.decode("utf-8", "replace").split():
                modules |= _list_module(files, folder.parent, name)
    if not modules:
        raise AbsentError(f"{_ABSENT} does not list its modules")
    sources = {path for path in modules if PurePosixPath(path).suffix in _COMPILED}
    if sources and not incomplete:
        raise AbsentError(f"{_ABSENT} has to be compiled")
    modules = {path: data for path, data in modules.items() if path not in sources}
    return read_facts({path: data for path, data in files.items() if path and is_text(path)}), modules


def _list_module(files: dict[str, bytes], root: PurePosixPath, name: str) -> dict[str, bytes]:
    start = len(f"{root}/") if root.parts else 0
    own = f"{root / name}.py", f"{root / name}/"
    return {path[start:]: data for path, data in files.items() if path == own[0] or path.startswith(own[1])}


def fetch_tests(source: PackageSource, folders: Sequence[Path], tell: Callable[[str], None] = note) -> Path | None:
    """Return a folder with the tests, documents and configurations of a release; wheels mostly lack them.

    They are in its sdist or, if that has few tests, in the repository that its metadata states.

    Args:
        folders: from which the source can be imported.
        tell: takes a line that says why there are no tests.
    Returns: the folder, laid out as in the sdist, in the cache; None if there is none, or it is out of reach.
    """
    name, _, version = source.name.partition("@")
    if source.kind != "package" or name in DECLARED:
        return None
    target = cache_folder("runtime", "v1", "beside") / f"{name}-{version}"
    repository = target.with_name(f"{target.name}-repository")
    lacks = "without the tests of its sdist"
    try:
        if not is_whole(target):
            try:
                with remembering_absence(target):
                    keep_files(_read_tests(name, version), target, name)
            except RetryableError:
                raise
            except UserError as error:
                tell(f"{source.name}: {lacks}: {error}")
        lacks = "few or no tests in its sdist, and without those of its repository"
        if not is_whole(repository) and sum(is_test(path.name) for path in target.rglob("*.py")) < _FEW_TESTS:
            url = next(filter(None, (_find_repository(folder, name) for folder in folders)), None)
            files = fetch_files(url, Version(version), _choose_tests) if url is not None else {}
            keep_files({path.removeprefix("src/"): data for path, data in files.items()}, repository, name)
    except UserError as error:  # out of reach, or a repository that is gone
        tell(f"{source.name}: {lacks}: {error}")
    return next((folder for folder in (repository, target) if folder.is_dir() and any(folder.iterdir())), None)


def _read_tests(name: str, version: str) -> dict[str, bytes]:
    """Return the tests in the sdist of a release, by path. Raises: as `download`."""
    note(f"fetching the tests of {name}=={version} with pip download")
    limits: Any = {"max_bytes": _MAX_SDIST_BYTES, "max_seconds": _MAX_SECONDS, "retries": 1}
    with workspace() as work:
        archive = download(name, f"=={version}", work, sdists="only", **limits)
        files = read_archive(archive, lambda names: _choose_tests(names, 1))
    return {path.partition("/")[2].removeprefix("src/"): data for path, data in files.items()}


@contextlib.contextmanager
def remembering_absence(file: Path) -> Iterator[None]:
    """Remember for a day only that the index does not have what a block fetches: it may be published later.

    Args: file: of what is fetched; the reason is stored in one of the same name, with the suffix `.absent`.
    Raises: AbsentError if the block does, or did within a day; it is not run then.
    """
    absent = file.with_name(f"{file.name.removesuffix('.json')}.absent")
    if absent.is_file() and time.time() - absent.stat().st_mtime < _ABSENT_SECONDS:
        raise AbsentError(str(read_record(absent)))
    try:
        yield
    except AbsentError as error:
        record(absent, str(error))
        raise


def list_metadata(folder: Path, name: str) -> list[Path]:
    """Return the files with the metadata of a distribution that is installed in a folder: one, or none."""
    wanted = f"{name.replace('-', '_').lower()}-"
    return [path for path in sorted(folder.glob("*.dist-info/METADATA")) if path.parent.name.lower().startswith(wanted)]


def _find_repository(folder: Path, name: str) -> str | None:
    """Return the address of the repository that the metadata of an installed release states."""
    for file in list_metadata(folder, name):
        fields = email.parser.Parser().parsestr(file.read_text("utf-8", "replace"), headersonly=True)
        stated = [*fields.get_all("Project-URL", []), *fields.get_all("Home-page", [])]
        return next((match[1] for match in map(_REPOSITORY.search, stated) if match), None)
    return None


def _choose_tests(names: list[str], depth: int = 0) -> Iterable[str]:
    """Yield the names of what is about code. Args: depth: of the project in the archive."""
    return (name for name in names if is_about_code(str(PurePosixPath(*PurePosixPath(name).parts[depth:]))))
