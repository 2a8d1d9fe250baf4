"""Which files of a source are code to look at, and under which names its code imports them."""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

#: Folders of code about the code: at any depth, and outside of packages (`torch.utils.benchmark` is a part of torch).
_ASIDE = frozenset({"test", "tests", "node_modules"})
_ASIDE_OUTSIDE = frozenset({"docs", "doc", "examples", "example", "benchmarks", "benchmark"})
_FILES_ASIDE = frozenset({"setup.py", "conftest.py"})
_INIT = "__init__.py"


def keep_paths(paths: Iterable[str]) -> list[str]:
    """The Python files among the paths that belong to the code itself, sorted.

    Left out: tests, hidden folders, setup.py, conftest.py; outside of packages also documentation, examples, benchmarks
    and `test_*.py` (`mmengine.model.test_time_aug` is no test); and what nobody can import: a
    module that a package of the same name hides, a name that cannot be printed.
    """
    python = [path for path in paths if path.endswith(".py")]
    packages = _package_folders(python)
    return sorted({path for path in python if path.isprintable() and _is_kept(path, packages)})


def _is_kept(path: str, packages: set[str]) -> bool:
    folder, _, name = path.rpartition("/")
    parts = folder.split("/") if folder else []
    for depth, part in enumerate(parts):
        outside = "/".join(parts[:depth]) not in packages
        if part in _ASIDE or part.startswith(".") or (outside and part in _ASIDE_OUTSIDE):
            return False
    if name in _FILES_ASIDE or name.startswith(".") or path.removesuffix(".py") in packages:
        return False
    return not (name.startswith("test_") and folder not in packages)


def module_names(paths: Iterable[str], within: str = "") -> dict[str, str]:
    """Path to dotted module name, for kept paths; no two are equal.

    A name starts at the outermost folder that is a package (`src/timm/…` and `projects/PointRend/point_rend/…` are
    imported as `timm` and `point_rend`), unless something else has that package's name; else at the root.

    Args: within: name of the package that the root itself is, or "".
    """
    ordered = list(paths)
    if within:
        return {path: _dotted(f"{within}/{path}") for path in ordered}
    packages = _package_folders(ordered)
    tops = {folder for folder in packages if not _above(folder) & packages}
    names = Counter(top.rpartition("/")[2] for top in tops if "/" in top)
    names.update({path.partition("/")[0].removesuffix(".py") for path in ordered})
    start = {top: top.rfind("/") + 1 for top in tops if names[top.rpartition("/")[2]] == 1}
    return {
        path: _dotted(path[max((start.get(folder, 0) for folder in _above(path)), default=0) :]) for path in ordered
    }


def is_package(path: str) -> bool:
    """Whether the file is the `__init__` of a package."""
    return PurePosixPath(path).name == _INIT


def _package_folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths if is_package(path)} - {""}


def _above(path: str) -> set[str]:
    """All folders above a path, the root aside."""
    parts = path.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}


def _dotted(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)
