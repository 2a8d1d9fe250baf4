"""Distributions without a wheel: the modules of an sdist, where setuptools lists them and nothing has to be compiled.

Nothing of an sdist is run. Setuptools writes the names of its top-level modules into each, next to the modules:
`NAME.egg-info/top_level.txt`. Their files are what a wheel would hold.
"""

from pathlib import Path, PurePosixPath

from extract.sources.metadata import PackageFacts, is_text, read_facts
from extract.sources.package import read_archive
from lemur_core.files.pip import AbsentError

_COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cxx", ".f", ".f90", ".pyx", ".rs"})
_ABSENT = "there is no wheel of it for this Python and platform, and its sdist"


def read_sdist(archive: Path) -> tuple[PackageFacts, dict[str, bytes]]:
    """Return what an sdist states, and the files of its modules by their path in `site-packages`.

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
    if any(PurePosixPath(path).suffix in _COMPILED for path in modules):
        raise AbsentError(f"{_ABSENT} has to be compiled")
    return read_facts({path: data for path, data in files.items() if path and is_text(path)}), modules


def _list_module(files: dict[str, bytes], root: PurePosixPath, name: str) -> dict[str, bytes]:
    start = len(f"{root}/") if root.parts else 0
    own = f"{root / name}.py", f"{root / name}/"
    return {path[start:]: data for path, data in files.items() if path == own[0] or path.startswith(own[1])}
