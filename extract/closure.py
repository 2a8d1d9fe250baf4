"""Everything that one class needs, in an order in which it can run.

What a statement reads as it runs must stand before it. What its functions read when they are called only has to be
somewhere in the file; it is put before all the same, where no cycle forbids it.
"""

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from extract.discover import Found, class_of
from extract.graph import Graph, Links, kept_blocks
from extract.modules import Definition, Module
from extract.standins import SOURCE_NAME
from extract.symbols import Entry, Namespace, Node, Problem, Reason, Registered, Symbol
from lemur_core.files.markdown import plural
from lemur_core.source.facts import AT_DEFINITION, CLASS, Search

MOST_STATEMENTS = 3_000
_SURE_LETTERS = 3  # letters and digits that a computed string has for sure, when all names that it fits are meant
_SEARCHES = {
    "globals": "looks a name of its file up by a computed string",
    "eval": "evaluates a computed string",
    "import": "imports a module by a computed name",
    "subclasses": "asks for all classes that derive from one",
}

NodeKey = tuple[str, str, int]  # source, path, number of the statement
UnitKey = tuple[int, int, int]  # module, outermost kept block or -1, statement or -1
Needs = Callable[[UnitKey], Iterable[UnitKey]]
Entries = dict[tuple[Registered, str], Entry]


@dataclass
class Unit:
    """What is emitted in one piece: a statement, or an `if` or `try` with the statements needed in it."""

    module: Module
    block: int  # -1 for a statement
    nodes: list[Node] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Offset in the file."""
        return self.module.facts.blocks[self.block].start if self.block >= 0 else self.nodes[0].statement.start


@dataclass
class Closure:
    """A class with all that it needs. Its problems say why it cannot become a block; there are none if it can."""

    root: Found
    graph: Graph
    units: list[Unit] = field(default_factory=list)
    symbols: dict[Symbol, None] = field(default_factory=dict)  # all that are linked, in order of first use
    problems: dict[Problem, None] = field(default_factory=dict)
    requires: set[str] = field(default_factory=set)
    entries: Entries = field(default_factory=dict)  # what its registries hold, by the strings in it
    dynamic: dict[str, None] = field(default_factory=dict)  # what it finds as it runs and cannot be known
    found: dict[Symbol, str] = field(default_factory=dict)  # what it finds by strings, under these names

    @property
    def nodes(self) -> Iterator[Node]:
        """All statements."""
        for unit in self.units:
            yield from unit.nodes

    @property
    def linked(self) -> Iterator[tuple[Node, Links]]:
        """All statements, each with its links, and with those of each block kept around it."""
        return ((node, links) for node in self.nodes for links in self.graph.links_of(node))

    @property
    def modules(self) -> list[Module]:
        """The files that take part, the block's own first."""
        others = {id(unit.module): unit.module for unit in self.units if unit.module is not self.root.module}
        return [self.root.module, *sorted(others.values(), key=lambda m: (m.source.name, m.file.path))]


def closure_of(root: Found, graph: Graph) -> Closure:
    """The closure of a class."""
    growth = _Growth(root, graph)
    growth.take([Definition(root.module, root.name)])
    growth.find_by_strings()
    growth.fill_containers()
    growth.find_by_strings()
    closure = growth.closure
    if len(growth.nodes) > MOST_STATEMENTS:
        problem = Problem(Reason.TOO_LARGE, f"needs more than {MOST_STATEMENTS} statements of its source")
        closure.problems[problem] = None
    order = graph.fillings.order(root.module) if growth.fillings else {}
    closure.units = _Order(root, graph, list(growth.nodes.values()), growth.fillings, order).units_in_order()
    return closure


class _Growth:
    """A closure as it grows."""

    def __init__(self, root: Found, graph: Graph) -> None:
        self.closure = Closure(root, graph)
        self.nodes: dict[NodeKey, Node] = {}
        self.fillings: dict[Definition, list[Node]] = {}  # of each container, in the order in which they run
        self._graph = graph

    def take(self, symbols: Iterable[Symbol], nodes: Iterable[Node] = ()) -> None:
        """Take in symbols and statements with all that they need; stops where that is too much."""
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
                for links in graph.links_of(node):
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
                registered = _registered(closure, list(self.nodes.values()))
                waiting += [entry.symbol for entry in registered if entry.symbol is not None]
                fresh += [entry.node for entry in registered if entry.symbol is None and entry.node is not None]
                if not registered:
                    break

    def fill_containers(self) -> None:
        """Take in what fills the containers of the closure, and those of what that needs.

        An entry that cannot be taken in is left out, and `dynamic` of the closure says so.
        """
        done: set[Symbol] = set()
        while not self.closure.problems and (symbols := [s for s in self.closure.symbols if s not in done]):
            done.update(symbols)
            for symbol in symbols:
                if isinstance(symbol, Definition) and symbol.module.source.name != SOURCE_NAME:
                    self._fill(symbol)

    def find_by_strings(self) -> None:
        """Take in what computed strings may name, as far as the closure's own strings and their constant parts tell."""
        searching = [node for node in self.nodes.values() if node.statement.searches]
        searching = [node for node in searching if node.module.source.name != SOURCE_NAME]
        if not searching or self.closure.problems:
            return
        words = sorted({word for node in self.nodes.values() for word in self._graph.words(node)})
        for node in searching:
            for search in node.statement.searches:
                self._find(node.module, search, words)

    def _find(self, module: Module, search: Search, words: Sequence[str]) -> None:
        pattern = re.compile(search.pattern)
        sure = len(re.sub(r"\W|_", "", search.pattern)) >= _SURE_LETTERS
        names = sorted(module.bound()) if sure else words
        found = []
        for name in names if search.kind in {"globals", "eval"} else ():
            target = self._graph.library.lookup(module, name) if pattern.fullmatch(name) else None
            if not isinstance(target, Definition):
                continue
            symbol = self._graph.symbol(target)
            if symbol in self.closure.symbols or not self._try([symbol]):
                self.closure.found[symbol] = name
                found.append(name)
        if not sure or search.kind not in {"globals", "eval"}:
            told = f"{module.source.name} {module.file.path}:{search.line} {_SEARCHES[search.kind]}"
            before = next((text for text in self.closure.dynamic if text.startswith(told)), "")  # of the first round
            self.closure.dynamic.pop(before, None)
            self.closure.dynamic[f"{told}; it has {', '.join(found)}" if found else told] = None

    def _fill(self, container: Definition) -> None:
        missing: dict[str, int] = {}
        for found in self._graph.fillings.of(container, self.closure.root.module):
            key = Node(found.module, found.statement).key
            before = self.nodes[key].decorators if key in self.nodes else frozenset()
            why = self._try([], [Node(found.module, found.statement, found.decorators | before)])
            if why:
                missing[why] = missing.get(why, 0) + 1
            else:
                self.fillings.setdefault(container, []).append(self.nodes[key])
        for why, number in missing.items():
            self.closure.dynamic[f"{container.name} lacks {plural(number, 'entry', 'entries')}: {why}"] = None

    def _try(self, symbols: Sequence[Symbol], nodes: Sequence[Node] = ()) -> str:
        """Take in symbols and statements, or leave everything as it was; why that, else empty."""
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


def _registered(closure: Closure, nodes: Sequence[Node]) -> list[Entry]:
    """What the closure's registries hold under the strings that the closure names, as far as it is new."""
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
    """All statements of a kept `try`: what fails in its body decides what its handlers bind."""
    for number in kept_blocks(node.module, node.statement):
        if node.module.facts.blocks[number].kind == "try":
            for other in node.module.facts.statements:
                if any(block == number for block, _ in other.path) and node.module.taken(other):
                    yield Node(node.module, other)


# -- order -------------------------------------------------------------------------------------------------------------


class _Order:
    """The units of a closure, and what must stand before what."""

    def __init__(
        self,
        root: Found,
        graph: Graph,
        nodes: Sequence[Node],
        fillings: Mapping[Definition, Sequence[Node]],
        order: Mapping[Module, int],
    ) -> None:
        self._graph = graph
        self._fillings = fillings
        self._order = order
        self._fills: dict[NodeKey, list[Definition]] = {}
        for container, found in fillings.items():
            for node in found:
                self._fills.setdefault(node.key, []).append(container)
        #: The statements that read a filled container as they run.
        self._looking: dict[Definition, list[Node]] = {container: [] for container in fillings}
        for node in nodes if fillings else ():
            for links in graph.links_of(node):
                for link in links.links:
                    held = link.symbol if isinstance(link.symbol, Definition) else None
                    now = link.use.when == AT_DEFINITION
                    if now and held in self._looking and held not in self._fills.get(node.key, ()):
                        self._looking[held].append(node)
        self._root = Definition(root.module, root.name)
        self._units: dict[UnitKey, Unit] = {}
        self._of_node: dict[NodeKey, UnitKey] = {}
        for node in sorted(nodes, key=lambda n: (n.module is not root.module, n.key)):
            kept = kept_blocks(node.module, node.statement)
            key = (id(node.module), kept[0] if kept else -1, -1 if kept else node.statement.number)
            self._units.setdefault(key, Unit(node.module, key[1])).nodes.append(node)
            self._of_node[node.key] = key
        #: The statements that read a name of their own file as they run: before it is bound again.
        self._readers: dict[tuple[int, str], list[NodeKey]] = {}
        for node in nodes:
            for use in node.statement.uses:
                if use.when == AT_DEFINITION and use.local < 0:
                    self._readers.setdefault((id(node.module), use.name), []).append(node.key)

    def units_in_order(self) -> list[Unit]:
        """What a unit reads as it runs before it; the class itself last, unless something changes it afterwards."""
        hard: dict[UnitKey, list[UnitKey]] = {}
        soft: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in self._units.items():
            before, later = self._needs(unit)
            hard[key] = [k for k in dict.fromkeys(before) if k != key]
            soft[key] = [k for k in dict.fromkeys(later) if k != key]
        root_key = next(self._of_node[node.key] for node in self._graph.members(self._root))
        preferred = _post_order([root_key, *self._units], lambda k: [*hard[k], *soft[k]])
        return [self._units[key] for key in _hard_order(preferred, hard, self._called())]

    def _needs(self, unit: Unit) -> tuple[list[UnitKey], list[UnitKey]]:
        before: list[UnitKey] = []
        later: list[UnitKey] = []
        for node in unit.nodes:
            for links in self._graph.links_of(node):
                for link in links.links:
                    if isinstance(link.symbol, Definition):
                        keys = self._keys(node, link.symbol, link.use.when == AT_DEFINITION)
                        (before if link.use.when == AT_DEFINITION else later).extend(keys)
                for target in links.alias_links:
                    if isinstance(target, Definition):
                        before.extend(self._keys(node, target, True))
            for container in self._fills.get(node.key, ()):
                before += self._keys(node, container, True)
                before += [self._of_node[r.key] for r in self._looking[container] if self._place(r) < self._place(node)]
            # Statements that bind or change one name stay in their order.
            for name in (*node.statement.binds, *node.statement.touches):
                before += [self._of_node[k] for k in self._readers.get((id(node.module), name), ()) if k < node.key]
                before += [
                    self._of_node[other.key]
                    for other in self._graph.members(Definition(node.module, name))
                    if other.statement.number < node.statement.number and other.key in self._of_node
                ]
        return before, later

    def _keys(self, node: Node, symbol: Definition, now: bool) -> list[UnitKey]:
        members = [m for m in self._graph.members(symbol) if m.key in self._of_node]
        fillings = self._fillings.get(symbol, ())
        if now:
            if symbol.module is node.module:
                earlier = [m for m in members if m.statement.number < node.statement.number]
                members = earlier or [m for m in members if m.statement.number != node.statement.number]
            fillings = [m for m in fillings if self._place(m) < self._place(node)]
        return [self._of_node[m.key] for m in (*members, *fillings)]

    def _place(self, node: Node) -> tuple[int, int]:
        """When a statement runs as the block's own file is imported."""
        return self._order.get(node.module, len(self._order)), node.statement.number

    def _called(self) -> dict[UnitKey, list[UnitKey]]:
        """What the functions read that may be called while a unit runs, and those that they call in turn."""
        reads: dict[UnitKey, list[UnitKey]] = {}
        calls: dict[UnitKey, list[UnitKey]] = {}
        starts: dict[UnitKey, list[UnitKey]] = {}
        noted: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in self._units.items():
            reads[key], calls[key], starts[key], noted[key] = [], [], [], []
            for node in unit.nodes:
                hook = self._subclass_hook(node)
                for links in self._graph.links_of(node):
                    for use, target in links.notes:  # evaluated as the function is defined, if that can be
                        if use.start >= 0 and isinstance(target, Definition):
                            noted[key] += self._keys(node, target, True)
                    for link in links.links:
                        if not isinstance(link.symbol, Definition):
                            continue
                        now = link.use.when == AT_DEFINITION
                        members = self._keys(node, link.symbol, now)
                        if now and (link.use.called or hook):
                            starts[key] += members
                        elif not now:
                            reads[key] += members
                            if link.use.called:
                                calls[key] += members
        result: dict[UnitKey, list[UnitKey]] = {}
        for key in self._units:
            reached = _post_order(starts[key], lambda k: [*calls[k], *starts[k]])
            needed = dict.fromkeys([*(r for c in reached for r in reads[c]), *noted[key]])
            result[key] = [k for k in needed if k != key]
        return result

    def _subclass_hook(self, node: Node) -> bool:
        """Whether a class has a base whose `__init_subclass__` runs as it is defined."""
        if node.statement.kind != CLASS:
            return False
        for link in self._graph.links(node.module, node.statement).links:
            if link.use.when == AT_DEFINITION and isinstance(link.symbol, Definition):
                facts = class_of(link.symbol)
                if facts is not None and "__init_subclass__" in facts.methods:
                    return True
        return False


def _post_order(starts: Iterable[UnitKey], needs: Needs) -> list[UnitKey]:
    """Depth-first post-order: what is needed before what needs it, cycles cut where they close."""
    seen: set[UnitKey] = set()
    result: list[UnitKey] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack: list[tuple[UnitKey, Iterator[UnitKey]]] = [(start, iter(needs(start)))]
        while stack:
            key, waiting = stack[-1]
            following = next((k for k in waiting if k not in seen), None)
            if following is None:
                stack.pop()
                result.append(key)
            else:
                seen.add(following)
                stack.append((following, iter(needs(following))))
    return result


def _hard_order(
    preferred: Sequence[UnitKey],
    hard: dict[UnitKey, list[UnitKey]],
    called: dict[UnitKey, list[UnitKey]],
) -> list[UnitKey]:
    """The preferred order, mended so that what a unit needs as it runs stands before it."""

    @functools.cache
    def reach(key: UnitKey) -> frozenset[UnitKey]:
        """What a unit needs, directly or not, before it runs."""
        return frozenset(_post_order([key], lambda k: hard[k]))

    def place(key: UnitKey) -> None:
        running.add(key)
        stack.append((key, iter([*hard[key], *called[key]])))

    def can_stand_before(candidate: UnitKey, key: UnitKey) -> bool:
        if candidate in done or candidate in running:
            return False
        # What is only perhaps called, and needs what is being placed, stands where it can.
        return candidate in hard[key] or not reach(candidate) & running

    stack: list[tuple[UnitKey, Iterator[UnitKey]]] = []
    done: set[UnitKey] = set()
    running: set[UnitKey] = set()
    result: list[UnitKey] = []
    for start in preferred:
        if start not in done:
            place(start)
        while stack:
            key, waiting = stack[-1]
            following = next((k for k in waiting if can_stand_before(k, key)), None)
            if following is not None:
                place(following)
                continue
            stack.pop()
            running.discard(key)
            done.add(key)
            result.append(key)
    return result
