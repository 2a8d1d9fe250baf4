"""The floors of the house: `lemur_core <- manifests <- extract | curate | train <- lemur`; no import runs up or across."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("lemur_core", "manifests", "extract", "curate", "train", "lemur")
#: What each may import of ours, beside itself.
FLOORS = {
    "lemur_core": set(),
    "manifests": {"lemur_core"},
    "extract": {"lemur_core", "manifests"},
    "curate": {"lemur_core", "manifests"},
    "train": {"lemur_core", "manifests"},
    "lemur": {"lemur_core", "manifests", "extract", "curate", "train"},
}
#: Inside the ground: `files <- source, similarity, sandbox <- graphs`.
GROUND = {
    "files": set(),
    "source": {"files"},
    "similarity": {"files"},
    "sandbox": {"files"},
    "graphs": {"files", "source", "similarity", "sandbox"},
}
_NAMED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, also inside functions and for types alone."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (start, node.module)))
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_runs_upward_or_across(package: str) -> None:
    allowed = FLOORS[package] | {package}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(package)
        for name in imported(path)
        if name.partition(".")[0] in PACKAGES and name.partition(".")[0] not in allowed
    ]
    assert found == []


@pytest.mark.parametrize("room", GROUND)
def test_the_ground_has_floors_too(room: str) -> None:
    allowed = GROUND[room] | {room}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(f"lemur_core/{room}")
        for name in imported(path)
        if name.startswith("lemur_core.") and name.split(".")[1] not in allowed
    ]
    assert found == []


def test_no_package_of_ours_is_imported_by_a_string() -> None:
    """The entry of a job in the sandbox, `package.module:function`, is a name of the caller's own package."""
    found = []
    for package in PACKAGES:
        for path in files(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if name in {"import_module", "__import__"} and any(map(_NAMED.match, texts)):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def module_graph() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports as it is imported itself (not inside functions, not for types)."""
    every = {
        path: path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in PACKAGES for path in files(p)
    }
    names = {path: name.removesuffix(".__init__") for path, name in every.items()}
    known = set(names.values())

    def parents(name: str) -> str | None:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name or None

    return {name: {p for i in _at_import(path) if (p := parents(i)) and p != name} for path, name in names.items()}


def _at_import(path: Path) -> Iterator[str]:
    stack: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        stack.extend(ast.iter_child_nodes(node))


def test_no_circles() -> None:
    graph, done = module_graph(), set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*way, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())
