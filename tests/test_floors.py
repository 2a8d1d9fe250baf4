"""The floors of the house: `lemur_core <- manifests <- extract | curate | train <- lemur`; no import runs up or across."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.house_source import Graph, Source, count_floors, find_circles, import_graph, merge_nodes, read_product
from tests.builders.suites import read_table, table

ROOT = Path(__file__).parents[1]
PACKAGES = ("lemur_core", "manifests", "extract", "curate", "train", "lemur")
#: What each may import of ours, beside itself.
FLOORS = read_table(__file__, "floors.md", "Floors", globals())
#: Inside the ground: `files <- source, similarity, sandbox <- graphs <- rebuild, describe`.
GROUND = read_table(__file__, "floors.md", "Ground", globals())
_NAMED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def product() -> tuple[Sequence[Source], Graph]:
    """The files of the product, and who imports whom."""
    sources = read_product(ROOT)
    return sources, import_graph(sources)


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """The dotted names that a file imports, also inside functions and for types alone."""
    return tuple(list_imported(path))


def list_imported(path: Path) -> Iterator[str]:
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


#: What a command line imports at its top: options, and what parses, shows and reports them.
_COMMAND_LINE = re.compile(
    r"(?:\w+\.)+(?:cli|options)\.\w+|manifests\.options\.(?:colors|parameters|help)\.\w+|lemur_core\.files\.\w+\.\w+|"
    + "|".join(PACKAGES)
)


@pytest.mark.parametrize("path", ["curate/cli.py"])
def test_a_command_line_imports_no_machinery(path: str) -> None:
    """What a command does is a function of its package, which `package.commands` loads when the command runs."""
    own = [name for name in imported(ROOT / path) if name.partition(".")[0] in PACKAGES]
    assert [name for name in own if not _COMMAND_LINE.fullmatch(name)] == []
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late = [
        node for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert late == []


def test_no_circles() -> None:
    """Imports inside functions count: a reader has to follow them too."""
    assert [sorted(circle) for circle in find_circles(product()[1])] == []


def test_no_circles_between_folders() -> None:
    sources, graph = product()
    folders = {source.module: source.path.parent.as_posix() for source in sources}
    circles = find_circles(merge_nodes(graph, folders.__getitem__))
    assert [sorted(circle) for circle in circles] == []


def test_a_folder_holds_one_idea() -> None:
    """At most twelve modules: with more, a reader does not see the way through it."""
    full = Counter(source.path.parent.as_posix() for source in product()[0])
    assert {folder: number for folder, number in full.items() if number > 12} == {}


@pytest.mark.parametrize("package", ["extract", "curate", "train"])
def test_the_way_through_a_package_is_short(package: str) -> None:
    own = {
        name: {other for other in others if other.startswith(f"{package}.")} for name, others in product()[1].items()
    }
    parts = merge_nodes(
        {name: others for name, others in own.items() if name.partition(".")[0] == package},
        lambda module: ".".join(module.split(".")[:2]),
    )
    assert count_floors(parts) <= 10


@table(__file__, "floors.md", "What counts for a circle", globals())
def test_what_counts_for_a_circle(tmp_path: Path, statement: str, is_circle: bool) -> None:
    """Module b imports a; is there a circle when a holds the statement?"""
    folder = tmp_path / "house"
    folder.mkdir()
    for name, text in {"__init__": "", "a": statement, "b": "import house.a", "c": ""}.items():
        (folder / f"{name}.py").write_text(text)
    circles = find_circles(import_graph(read_product(tmp_path, ["house"])))
    assert circles == ({frozenset({"house.a", "house.b"})} if is_circle else set())


@table(__file__, "floors.md", "Circles and floors of small graphs", globals())
def test_circles_and_floors_of_small_graphs(arrows: str, circles: list[str], floors: int) -> None:
    graph = {node: {arrow[1] for arrow in arrows.split() if arrow[0] == node} for node in "abcde"}
    assert find_circles(graph) == {frozenset(circle) for circle in circles}
    assert count_floors(graph) == floors
