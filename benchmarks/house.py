"""How large the house is, and how far a reader has to walk in it.

    python -m benchmarks.house [CHECKOUT]

Lines and files by package; then the static closure of each way through it: how many files of ours can be reached from
the command that walks it, by imports, also inside functions, and by the entries of jobs in the sandbox.
"""

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

_PACKAGES = ("lemur", "extract", "curate", "train", "manifests", "lemur_core", "sandbox")
_OUTSIDE = ("benchmarks", "tests")
_ENTRY = re.compile(r"\w+(?:\.\w+)+:\w+")  # of a job
#: A way, and the modules that it begins at.
_WAYS = {
    "one LEMUR row through curate": "curate.cli",
    "one class through extract": "extract.cli",
    "a recipe through train run": "train.cli",
}


def main(root: Path) -> None:
    """Print both tables."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")) if _is_ours(path, root)}
    lines = {path: text.count("\n") for path, text in texts.items()}
    print(f"{'':<14}{'lines':>8}{'files':>7}{'median':>8}")
    for name in (*_PACKAGES, *_OUTSIDE):
        found = [lines[path] for path in texts if path.relative_to(root).parts[0] in (name, f"{name}.py")]
        if found:
            print(f"{name:<14}{sum(found):>8,}{len(found):>7}{statistics.median(found):>8.0f}")
    product = [lines[path] for path in texts if _package(path, root) in _PACKAGES]
    print(f"{'product':<14}{sum(product):>8,}{len(product):>7}{statistics.median(product):>8.0f}")
    modules = {_module(path, root): path for path in texts if _package(path, root) in _PACKAGES}
    graph = {name: set(_imports(ast.parse(texts[path]), modules)) for name, path in modules.items()}
    for way, start in _WAYS.items():
        print(f"{way}: {len(_reachable(start, graph))} files")


def _is_ours(path: Path, root: Path) -> bool:
    return _package(path, root) in (*_PACKAGES, *_OUTSIDE)


def _package(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def _module(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _imports(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _ENTRY.fullmatch(node.value):
            names = [node.value.partition(":")[0]]
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            while name:  # a package's own file is read on the way to what is in it
                if name in modules:
                    yield name
                name = name.rpartition(".")[0]


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
