"""Everything that one class needs, in an order in which it can run.

What a statement reads as it runs must stand before it. What its functions read when they are called only has to be
somewhere in the file; it is put before all the same, where no cycle forbids it.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from extract.discover import Found, class_of
from extract.graph import Graph, Links, kept_blocks
from extract.modules import Definition, Module
from extract.symbols import Entry, Namespace, Node, Problem, Reason, Registered, Symbol
from lemur_core.source.facts import AT_DEFINITION, CLASS

MOST_STATEMENTS = 3_000

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
    closure = Closure(root, graph)
    nodes: dict[NodeKey, Node] = {}
    waiting: deque[Symbol] = deque([Definition(root.module, root.name)])
    fresh: deque[Node] = deque()
    while len(nodes) <= MOST_STATEMENTS:
        if fresh:
            node = fresh.popleft()
            if node.key in nodes:
                continue
            nodes[node.key] = node
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
            registered = _registered(closure, list(nodes.values()))
            waiting += [entry.symbol for entry in registered if entry.symbol is not None]
            fresh += [entry.node for entry in registered if entry.symbol is None and entry.node is not None]
            if not registered:
                break
    else:
        problem = Problem(Reason.TOO_LARGE, f"needs more than {MOST_STATEMENTS} statements of its source")
        closure.problems[problem] = None
    closure.units = _Order(root, graph, list(nodes.values())).units_in_order()
    return closure


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

    def __init__(self, root: Found, graph: Graph, nodes: Sequence[Node]) -> None:
        self._graph = graph
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
        if now and symbol.module is node.module:
            earlier = [m for m in members if m.statement.number < node.statement.number]
            members = earlier or [m for m in members if m.statement.number != node.statement.number]
        return [self._of_node[m.key] for m in members]

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
