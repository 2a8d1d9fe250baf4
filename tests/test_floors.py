"""The floors of the project: `lemur_core <- manifests <- extract | curate | train <- lemur`; no import runs up or across."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
#: What each package may import of ours, besides itself.
FLOORS: dict[str, set[str]] = {
    "lemur_core": set(),
    "manifests": {"lemur_core"},
    **{name: {"lemur_core", "manifests"} for name in ("extract", "curate", "train")},
    "lemur": {"lemur_core", "manifests", "extract", "curate", "train"},
}
#: The same for the rooms of the ground.
GROUND: dict[str, set[str]] = {
    "files": set(),
    **{name: {"files"} for name in ("source", "similarity", "sandbox")},
    "graphs": {"files", "source", "similarity", "sandbox"},
    **{name: {"files", "graphs"} for name in ("rebuild", "describe")},
}
_NAMED = re.compile(rf"(?:{'|'.join(FLOORS)})(?:\.\w+)+")


@functools.cache
def read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def list_imports(tree: ast.AST, package: tuple[str, ...], *, types: bool = True) -> Iterator[str]:
    """Yield the absolute dotted names that a file imports, also in functions. Args: types: also for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            yield from list_imports(ast.Module(node.orelse, []), package, types=False)
        else:
            yield from list_imports(node, package, types=types)


def imports_of(path: Path) -> list[str]:
    return list(list_imports(read(path), path.relative_to(ROOT).parent.parts))


def draw(files: dict[str, Iterable[str]], name_of: Callable[[str], str] = str) -> "nx.DiGraph[str]":
    """The graph of imports. Args: files: module -> what it imports. name_of: of a module, the name of its node."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, names in files.items():
        for name in names:
            while name and name not in files:
                name = name.rpartition(".")[0]
            if name and name_of(name) != name_of(module):
                graph.add_edge(name_of(module), name_of(name))
    return graph


def find_circles(graph: "nx.DiGraph[str]") -> list[list[str]]:
    return [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


@functools.cache
def product() -> dict[str, Iterable[str]]:
    """Module -> what it imports, imports for types alone left out."""
    modules = {}
    for path in list_files(*FLOORS):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = list(list_imports(read(path), parts[:-1], types=False))
    return modules


@pytest.mark.parametrize("package", FLOORS)
def test_no_import_runs_upward_or_across(package: str) -> None:
    barred = FLOORS.keys() - FLOORS[package] - {package}
    found = [f"{path}: {name}" for path in list_files(package) for name in imports_of(path)]
    assert [line for line in found if line.partition(": ")[2].partition(".")[0] in barred] == []


@pytest.mark.parametrize("room", GROUND)
def test_the_ground_has_floors_too(room: str) -> None:
    allowed = GROUND[room] | {room}
    found = [(path, name.split(".")) for path in list_files(f"lemur_core/{room}") for name in imports_of(path)]
    assert [(path, name) for path, name in found if name[0] == "lemur_core" and name[1] not in allowed] == []


def test_no_package_of_ours_is_imported_by_a_string() -> None:
    """The entry of a job in the sandbox, `package.module:function`, is a name of the caller's own package."""
    found = []
    for path in list_files(*FLOORS):
        for node in ast.walk(read(path)):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if name in {"import_module", "__import__"} and any(map(_NAMED.match, texts)):
                    found.append(f"{path}:{node.lineno}")
    assert found == []


def test_no_circles() -> None:
    """Imports inside functions count: a reader has to follow them too."""
    assert len(product()) > 100
    assert find_circles(draw(product())) == []
    folders = {path.relative_to(ROOT).parent.as_posix().replace("/", ".") for path in list_files(*FLOORS)}
    assert find_circles(draw(product(), lambda name: name if name in folders else name.rpartition(".")[0])) == []


def test_a_folder_holds_one_idea() -> None:
    """At most twelve modules: with more, a reader does not see the way through it."""
    full = Counter(path.parent for path in list_files(*FLOORS))
    assert {folder: number for folder, number in full.items() if number > 12} == {}


_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
CIRCLES = ("import a.b", "from a import b", "from a.b import name", "from . import b", "from .b import name")
CIRCLES += ("def function():\n    from a.b import name", f"{_TYPES}pass\nelse:\n    import a.b")
NONE = ("from a.c import name", "from elsewhere.b import name", "text = 'import a.b'", f"{_TYPES}from a.b import name")


@pytest.mark.parametrize("statement", [*CIRCLES, *NONE])
def test_what_counts_for_a_circle(statement: str) -> None:
    """Module a.b imports a.x; is there a circle when a.x holds the statement?"""
    seen = list(list_imports(ast.parse(statement), ("a",), types=False))
    circles = find_circles(draw({"a.b": ["a.x"], "a.c": [], "a.x": seen}))
    assert circles == ([["a.b", "a.x"]] if statement in CIRCLES else [])
