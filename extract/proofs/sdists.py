"""Distributions without a wheel: the modules of an sdist, where setuptools lists them and nothing has to be compiled.

Nothing of an sdist is run. Setuptools writes the names of its top-level modules into each, next to the modules:
`NAME.egg-info/top_level.txt`. Their files are what a wheel would hold.
"""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from extract.sources.contents import PackageSource, is_about_code
from extract.sources.metadata import PackageFacts, is_text, read_facts
from extract.sources.package import read_archive
from extract.sources.store import place, workspace
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import AbsentError, download
from lemur_core.files.progress import note
from lemur_core.sandbox.runtime import DECLARED

_COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cxx", ".f", ".f90", ".pyx", ".rs"})
_MAX_SDIST_BYTES = 40 << 20
_MAX_SECONDS = 120.0
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


def fetch_tests(source: PackageSource) -> Path | None:
    """Return a folder with the tests, documents and configurations in the sdist of a release; wheels mostly lack them.

    Returns: the folder, laid out as in the sdist, in the cache; None if the index does not have it or is out of reach.
    """
    name, _, version = source.name.partition("@")
    if source.kind != "package" or name in DECLARED:
        return None
    target = cache_folder("runtime", "v1", "beside") / f"{name}-{version}"
    if target.is_dir():
        return target
    note(f"fetching the tests of {name}=={version} with pip download")
    files: dict[str, bytes] = {}
    with workspace() as work:
        try:
            archive = download(
                name,
                f"=={version}",
                work,
                sdists="only",
                max_bytes=_MAX_SDIST_BYTES,
                max_seconds=_MAX_SECONDS,
                retries=1,
            )
            files = {path.partition("/")[2]: data for path, data in read_archive(archive, _choose_tests).items()}
        except RetryableError:
            return None
        except UserError as error:
            note(f"{name}=={version}: without its tests: {error}")
        for path, data in files.items():
            file = work / "tests" / path.removeprefix("src/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        (work / "tests").mkdir(exist_ok=True)
        place(work / "tests", target)
    return target


def _choose_tests(names: list[str]) -> Iterable[str]:
    return (name for name in names if is_about_code(name.partition("/")[2]))
