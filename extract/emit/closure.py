"""Closure of a class: the statements behind each name, those that fill its containers, and lookups by string."""

import ast
import importlib.util
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from extract.emit.order import NodeKey, Order, Unit
from extract.resolve.configurations import SUFFIX
from extract.resolve.dependencies import Graph, Links, list_kept_blocks
from extract.resolve.discover import Found
from extract.resolve.modules import Definition, Module
from extract.resolve.standins import AUTO_CLASS, MODULES, SOURCE_NAME, auto_models
from extract.resolve.strings import PossibleValues, Scope, StringAnalysis
from extract.resolve.symbols import Entry, Finder, Imported, Namespace, Node, Problem, Reason, Registered, Symbol
from lemur_core.files.markdown import plural
from lemur_core.source.changes import Sought, pattern_of
from lemur_core.source.facts import CLASS

MOST_STATEMENTS = 3_000
_SURE_LETTERS = 3  # minimum of known letters and digits in a computed string for all names that match it to be included
_SEARCHES = {
    "globals": "looks a name of its file up by a computed string",
    "eval": "evaluates a computed string",
    "import": "imports a module by a computed name",
    "subclasses": "asks for all classes that derive from one",
}

Entries = dict[tuple[Registered, str], Entry]


@dataclass
class Closure:
    """A class with everything it needs. `problems` lists why it cannot become a block; empty if it can."""

    root: Found
    graph: Graph
    units: list[Unit] = field(default_factory=list)
    symbols: dict[Symbol, None] = field(default_factory=dict)  # all linked symbols, in order of first use
    problems: dict[Problem, None] = field(default_factory=dict)
    requires: set[str] = field(default_factory=set)
    entries: Entries = field(default_factory=dict)  # entries of its registries, by the strings in it
    dynamic: dict[str, None] = field(default_factory=dict)  # lookups at run time whose results cannot be known
    found: dict[Symbol, str] = field(default_factory=dict)  # symbols that it looks up by strings, under these names
    modules_by_name: dict[Finder, dict[str, Namespace]] = field(default_factory=dict)  # imported by strings
    #: By statement: the replacement of `importlib.import_module`, by start and end offset.
    finders: dict[NodeKey, dict[tuple[int, int], Finder]] = field(default_factory=dict)

    @property
    def nodes(self) -> Iterator[Node]:
        """Yield all statements."""
        for unit in self.units:
            yield from unit.nodes

    @property
    def linked(self) -> Iterator[tuple[Node, Links]]:
        """Yield all statements with their links, including those of the blocks kept around each."""
        return ((node, links) for node in self.nodes for links in self.graph.iter_links(node))

    @property
    def modules(self) -> list[Module]:
        """The files that contribute to the closure, the block's own first."""
        others = {id(unit.module): unit.module for unit in self.units if unit.module is not self.root.module}
        return [self.root.module, *sorted(others.values(), key=lambda m: (m.source.name, m.file.path))]


def find_closure(root: Found, graph: Graph) -> Closure:
    """Return the closure of a class."""
    growth = _ClosureBuilder(root, graph)
    growth.take([root.root])
    growth.find_by_configurations()
    growth.find_by_strings()
    growth.fill_containers()
    growth.find_by_strings()
    closure = growth.closure
    if len(growth.nodes) > MOST_STATEMENTS:
        problem = Problem(Reason.TOO_LARGE, f"needs more than {MOST_STATEMENTS} statements of its source")
        closure.problems[problem] = None
    order = graph.fillings.order(root.module) if growth.fillings else {}
    closure.units = Order(root, graph, list(growth.nodes.values()), growth.fillings, order).units_in_order()
    return closure


class _ClosureBuilder:
    """A closure under construction."""

    def __init__(self, root: Found, graph: Graph) -> None:
        self.closure = Closure(root, graph)
        self.nodes: dict[NodeKey, Node] = {}
        self.fillings: dict[Definition, list[Node]] = {}  # by container, in execution order
        self._graph = graph
        self._strings = StringAnalysis(graph, root, self.nodes)

    def take(self, symbols: Iterable[Symbol], nodes: Iterable[Node] = ()) -> None:
        """Add symbols and statements with everything they need; stop when that is too much."""
        closure, graph = self.closure, self._graph
        waiting: deque[Symbol] = deque(symbols)
        fresh: deque[Node] = deque(nodes)
        while len(self.nodes) <= MOST_STATEMENTS:
            if fresh:
                node = fresh.popleft()
                before = self.nodes.get(node.key)
                if before is not None and node.decorators <= before.decorators:
                    continue
                self.nodes[node.key] = node
                for links in graph.iter_links(node):
                    closure.problems.update(dict.fromkeys(links.problems))
                    closure.requires |= links.requires
                    waiting += [link.symbol for link in links.links]
                    waiting += links.glue
                    waiting += [target for target in links.alias_links if target is not None]
                fresh += _whole_try(node)
            elif waiting:
                symbol = waiting.popleft()
                if symbol in closure.symbols:
                    continue
                closure.symbols[symbol] = None
                if isinstance(symbol, Namespace):
                    waiting += graph.items(symbol).values()
                if isinstance(symbol, Definition):
                    fresh += graph.members(symbol)
            else:
                registered = _list_new_entries(closure, list(self.nodes.values()))
                waiting += [entry.symbol for entry in registered if entry.symbol is not None]
                fresh += [entry.node for entry in registered if entry.symbol is None and entry.node is not None]
                if not registered:
                    break

    def fill_containers(self) -> None:
        """Add the statements that fill the containers of the closure, and of what those need.

        An entry that cannot be added is left out and noted in `dynamic` of the closure.
        """
        done: set[Symbol] = set()
        while not self.closure.problems and (symbols := [s for s in self.closure.symbols if s not in done]):
            done.update(symbols)
            for symbol in symbols:
                if isinstance(symbol, Definition) and symbol.module.source.name != SOURCE_NAME:
                    self._fill(symbol)

    def find_by_configurations(self) -> None:
        """Add the configurations referred to by model type, and the models that are looked up by configuration."""
        nodes, seen = list(self.nodes.values()), 0
        while len(self.nodes) > seen and not self.closure.problems:
            fresh, seen = list(self.nodes.values())[seen:], len(self.nodes)
            for config in [config for node in fresh for config in self._configurations_inside(node)]:
                self._try([config])
        looking = [endings for kind, endings in auto_models().items() if self._graph.ours(kind) in self.closure.symbols]
        if not looking or self.closure.problems:
            return
        noted = [target for node in nodes for links in self._graph.iter_links(node) for _, target in links.notes]
        waiting = [target for target in noted if isinstance(target, Definition)]
        known: set[Definition] = set()
        while waiting:
            config = waiting.pop(0)
            if config not in known and config.name.endswith(SUFFIX):
                known.add(config)
                waiting += [
                    inner for node in self._graph.members(config) for inner in self._configurations_inside(node)
                ]
                for endings in looking:
                    model = self._graph.configurations.find_model(config, endings, self.closure.root.module)
                    if model is not None and not self._try([self._graph.symbol(model)]):
                        self.closure.found[self._graph.symbol(model)] = model.name

    def _configurations_inside(self, node: Node) -> Iterator[Definition]:
        """Yield the configurations that a class names, directly or by model type where it looks them up by type."""
        links = [link.symbol for links in self._graph.iter_links(node) for link in links.links]
        if node.statement.kind == CLASS:
            yield from (
                definition
                for definition in links
                if isinstance(definition, Definition) and definition.name.endswith(SUFFIX)
            )
            if self._graph.ours(AUTO_CLASS) in links:
                known = self._graph.configurations.by_type(node.module.source)
                yield from (known[word] for word in dict.fromkeys(self._graph.words(node)) if word in known)

    def find_by_strings(self) -> None:
        """Add the symbols that strings refer to: by the strings' possible values, else by the closure's words."""
        searching = [node for node in self.nodes.values() if node.statement.searches]
        searching = [node for node in searching if node.module.source.name != SOURCE_NAME]
        if not searching or self.closure.problems:
            return
        words = sorted({word for node in self.nodes.values() for word in self._graph.words(node)})
        for node in searching:
            for sought, scope in self._strings.searches(node):
                known = self._strings.values(sought.asked, scope)
                if sought.kind == "import":
                    self._find_modules(node, sought, scope, known)
                elif sought.kind == "subclasses":
                    self._note_search(node, sought, [], [], whole=False)
                else:
                    self._find_names(node, sought, known, words)

    def _find_names(self, node: Node, sought: Sought, known: PossibleValues, words: Sequence[str]) -> None:
        """Resolve `globals()[name]` and `eval(name)`: names of the file."""
        pattern = pattern_of(sought.asked)
        sure = len(re.sub(r"\W|_", "", pattern)) >= _SURE_LETTERS
        wanted = [name for text in known.texts for name in ([text] if sought.kind == "globals" else _names_in(text))]
        if not known.whole:
            candidates = sorted(node.module.bound()) if sure else words
            wanted += [name for name in candidates if re.fullmatch(pattern, name)]
        present, lacking = [], []
        for name in dict.fromkeys(wanted):
            target = self._graph.library.lookup(node.module, name)
            if not isinstance(target, Definition) or (sought.kind == "eval" and name in node.statement.shadows):
                continue
            symbol = self._graph.symbol(target)
            why = "" if symbol in self.closure.symbols else self._try([symbol])
            if why:
                lacking.append(f"{name}: {why}")
            else:
                self.closure.found[symbol] = name
                present.append(name)
        self._note_search(node, sought, present, lacking if known.whole else [], whole=known.whole or sure)

    def _find_modules(self, node: Node, sought: Sought, scope: Scope, known: PossibleValues) -> None:
        """Resolve `import_module(name)`: modules of the corpus with the attributes in use; other imports are kept."""
        library, module = self._graph.library, node.module
        assert isinstance(sought.node, ast.Call)
        package_node = _find_package(sought.node)
        package = (
            self._strings.values(package_node, scope) if package_node is not None else PossibleValues((None,), True)
        )
        present, lacking = [], []
        for name in known.texts:
            dotted = _absolute(name, package)
            inner = library.find_module(module.source, dotted) if dotted else None
            if inner is None:
                if not dotted or library.knows(module.source, dotted):
                    lacking.append(f"{name}: {'its package is not known' if not dotted else f'no module {dotted}'}")
                continue
            finder = Finder(module)
            offered = Namespace(inner, self._strings.attributes(sought.node, scope))
            why = _unusual(sought.node, scope, offered)
            why = why or self._try([offered, finder, self._graph.ours(MODULES), Imported("types", "", False, "types")])
            if why:
                lacking.append(f"{dotted}: {why}")
                continue
            present.append(dotted)
            self.closure.modules_by_name.setdefault(finder, {})[dotted] = offered
            places = self.closure.finders.setdefault(node.key, {})
            places[self._strings.span(module, sought.node.func)] = finder
        self._note_search(node, sought, present, lacking, whole=known.whole)

    def _note_search(
        self, node: Node, sought: Sought, present: Sequence[str], lacking: Sequence[str], *, whole: bool
    ) -> None:
        """Note the names that a lookup may need but the closure lacks; replaces the earlier note about this lookup."""
        location = f"{node.module.source.name} {node.module.file.path}:{sought.node.lineno}"
        note = f"{location} {_SEARCHES[sought.kind]}"
        before = next((text for text in self.closure.dynamic if text.startswith(note)), "")
        self.closure.dynamic.pop(before, None)
        note += f"; it has {', '.join(present)}" if present else ""
        note += f"; it lacks {'; '.join(lacking)}" if lacking else ""
        if not whole or lacking:
            self.closure.dynamic[note] = None

    def _fill(self, container: Definition) -> None:
        missing: dict[str, int] = {}
        for filling in self._graph.fillings.of(container, self.closure.root.module):
            key = Node(filling.module, filling.statement).key
            before = self.nodes[key].decorators if key in self.nodes else frozenset()
            why = self._try([], [Node(filling.module, filling.statement, filling.decorators | before)])
            if why:
                missing[why] = missing.get(why, 0) + 1
            else:
                self.fillings.setdefault(container, []).append(self.nodes[key])
        for why, number in missing.items():
            self.closure.dynamic[f"{container.name} lacks {plural(number, 'entry', 'entries')}: {why}"] = None

    def _try(self, symbols: Sequence[Symbol], nodes: Sequence[Node] = ()) -> str:
        """Add symbols and statements, or undo everything; return the reason for that, else an empty string."""
        closure = self.closure
        before = len(self.nodes), len(closure.symbols), len(closure.entries)
        held = {node.key: self.nodes[node.key] for node in nodes if node.key in self.nodes}
        requires = set(closure.requires)
        self.take(symbols, nodes)
        problem = next(iter(closure.problems), None)
        if problem is None and len(self.nodes) <= MOST_STATEMENTS:
            return ""
        tables: tuple[dict[Any, Any], ...] = (self.nodes, closure.symbols, closure.entries)
        for table, size in zip(tables, before, strict=True):
            for key in list(table)[size:]:
                del table[key]
        self.nodes.update(held)
        closure.requires = requires
        closure.problems.clear()
        return problem.detail if problem else f"with them it needs more than {MOST_STATEMENTS} statements"


def _names_in(text: str) -> list[str]:
    """Return the names that an evaluated string reads."""
    try:
        return [item.id for item in ast.walk(ast.parse(text, mode="eval")) if isinstance(item, ast.Name)]
    except (SyntaxError, ValueError, RecursionError):
        return []


def _find_package(call: ast.Call) -> ast.expr | None:
    """Return the package that a relative module name starts from."""
    named = [word.value for word in call.keywords if word.arg == "package"]
    plain = [] if _is_statement(call) else call.args[1:2]
    return next(iter([*named, *plain]), None)


def _is_statement(call: ast.Call) -> bool:
    """Return whether it calls the function behind the import statement, which returns only the top package."""
    return isinstance(call.func, ast.Name) and call.func.id == "__import__"


def _unusual(call: ast.Call, scope: Scope, offered: Namespace) -> str:
    """Return why our replacement for `import_module` does not fit this call; empty if it does."""
    if not scope.functions:
        return "the file runs it as it is imported"
    if not offered.only:
        return "the whole module is asked for"
    listed = len(call.args) > 3 or any(word.arg == "fromlist" for word in call.keywords)
    return "" if not _is_statement(call) or listed else "__import__ gives its first package"


def _absolute(name: str, package: PossibleValues) -> str:
    """Return the dotted name of a module; empty if it is relative to an unknown package."""
    if not name.startswith("."):
        return name
    (base,) = package.values if package.whole and len(package.values) == 1 else (None,)
    try:
        return importlib.util.resolve_name(name, base) if isinstance(base, str) else ""
    except ImportError:  # beyond the top
        return ""


def _list_new_entries(closure: Closure, nodes: Sequence[Node]) -> list[Entry]:
    """Return the new entries of the closure's registries under the strings that the closure contains."""
    new = []
    for registry in [symbol for symbol in closure.symbols if isinstance(symbol, Registered)]:
        for node in nodes:
            for key in node.statement.types:
                if (registry, key) not in closure.entries:
                    entry = closure.graph.registries.entry(Definition(*registry), key, node.module.source)
                    if entry is not None:
                        closure.entries[registry, key] = entry
                        new.append(entry)
    return new


def _whole_try(node: Node) -> Iterator[Node]:
    """Yield all statements of a kept `try`: a failure in its body decides which names its handlers bind."""
    for number in list_kept_blocks(node.module, node.statement):
        if node.module.facts.blocks[number].kind == "try":
            for other in node.module.facts.statements:
                if any(block == number for block, _ in other.path) and node.module.taken(other):
                    yield Node(node.module, other)
