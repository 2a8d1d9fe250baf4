"""The source of the product as data: its files, each parsed once, and the graph of their imports."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGES = ("lemur", "extract", "curate", "train", "manifests", "lemur_core")
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:|ruff:|mypy:)")  # a comment for a tool, not for a reader

Graph = Mapping[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file of the product, parsed once."""

    path: Path  # relative to the checkout
    text: str

    @cached_property
    def module(self) -> str:
        """The dotted name; the file `__init__.py` has the name of its package."""
        return self.path.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")

    @property
    def package(self) -> str:
        """The one of the six packages that holds the file."""
        return self.path.parts[0]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        """All functions, methods and nested functions included."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def body_lines(self) -> set[int]:
        """The numbers of the lines that are in the body of a function."""
        return {line for node in self.functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}

    @cached_property
    def comments(self) -> list[tokenize.TokenInfo]:
        """All comments, directives to tools left out."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token for token in tokens if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string)]

    @cached_property
    def import_statements(self) -> list[ast.Import | ast.ImportFrom]:
        """All import statements."""
        return [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """The absolute name and the local name of each import, imports for types alone left out."""
        type_checks = [n for n in self.nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        for_types = {inner for check in type_checks for statement in check.body for inner in ast.walk(statement)}
        statements = [statement for statement in self.import_statements if statement not in for_types]
        return [names for statement in statements for names in self.names_of_import(statement)]

    def names_of_import(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the absolute name and the local name of each name that one statement imports."""
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = self.path.parent.parts
            start = folder[: len(folder) - node.level + 1] if node.level else ()
            base = ".".join([*start, *filter(None, [node.module])])
            yield from ((f"{base}.{alias.name}", alias.asname or alias.name) for alias in node.names)


def read_product(root: Path, packages: Iterable[str] = PACKAGES) -> list[Source]:
    """Return the files of the packages of a checkout, sorted by path."""
    paths = sorted(path for package in packages for path in (root / package).rglob("*.py"))
    return [Source(path.relative_to(root), path.read_text(encoding="utf-8")) for path in paths]


def import_graph(sources: Sequence[Source]) -> dict[str, set[str]]:
    """Return module -> other modules of the product that it imports, also inside functions, but not for types alone."""
    modules = {source.module for source in sources}

    def enclosing_module(name: str) -> str:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    return {
        source.module: {enclosing_module(name) for name, _ in source.imports} - {source.module, ""}
        for source in sources
    }


def merge_nodes(graph: Graph, group_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the graph between groups of nodes."""
    merged: dict[str, set[str]] = {group_of(node): set() for node in graph}
    for node, targets in graph.items():
        merged[group_of(node)] |= {group_of(target) for target in targets} - {group_of(node)}
    return merged


def find_circles(graph: Graph) -> set[frozenset[str]]:
    """Return the groups of two nodes or more, each of which can be reached from each other of its group."""
    reached: dict[str, set[str]] = {}
    for node in graph:
        reached[node], waiting = set(), [*graph[node]]
        while waiting:
            target = waiting.pop()
            if target not in reached[node]:
                reached[node].add(target)
                waiting += graph[target]
    # A node that reaches itself lies on a circle.
    on_circle = [node for node in graph if node in reached[node]]
    return {frozenset(other for other in reached[node] if node in reached[other]) for node in on_circle}


def count_floors(graph: Graph) -> int:
    """Return the number of nodes on the longest chain, where a circle counts as one node."""
    circle_names = {node: min(circle) for circle in find_circles(graph) for node in circle}
    acyclic = merge_nodes(graph, lambda node: circle_names.get(node, node))

    @cache
    def floor(node: str) -> int:
        return 1 + max((floor(target) for target in acyclic[node]), default=0)

    return max(map(floor, acyclic), default=0)
