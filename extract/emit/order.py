"""Order of a closure's statements: each statement comes after those that it reads when it runs.

Names that functions read only when they are called may be defined anywhere in the file; their definitions still come
first unless a cycle forbids it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from extract.resolve.dependencies import Graph, list_kept_blocks
from extract.resolve.discover import Found, class_of
from extract.resolve.modules import Definition, Module
from extract.resolve.symbols import Node
from lemur_core.source.facts import AT_DEFINITION, CLASS

NodeKey = tuple[str, str, int]  # source, path, number of the statement
UnitKey = tuple[int, int, int]  # module, outermost kept block or -1, statement or -1
Needs = Callable[[UnitKey], Iterable[UnitKey]]


@dataclass
class Unit:
    """A piece that is emitted as a whole: a statement, or an `if` or `try` with the statements needed in it."""

    module: Module
    block: int  # -1 for a statement
    nodes: list[Node] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Offset in the file."""
        return self.module.facts.blocks[self.block].start if self.block >= 0 else self.nodes[0].statement.start


class Order:
    """The units of a closure with their ordering constraints."""

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
        for container, nodes_of_container in fillings.items():
            for node in nodes_of_container:
                self._fills.setdefault(node.key, []).append(container)
        #: The statements that read a filled container when they run.
        self._looking: dict[Definition, list[Node]] = {container: [] for container in fillings}
        for node in nodes if fillings else ():
            for links in graph.iter_links(node):
                for link in links.links:
                    held = link.symbol if isinstance(link.symbol, Definition) else None
                    now = link.use.when == AT_DEFINITION
                    if now and held in self._looking and held not in self._fills.get(node.key, ()):
                        self._looking[held].append(node)
        self._root = root.root
        self._units: dict[UnitKey, Unit] = {}
        self._of_node: dict[NodeKey, UnitKey] = {}
        for node in sorted(nodes, key=lambda n: (n.module is not root.module, n.key)):
            kept = list_kept_blocks(node.module, node.statement)
            key = (id(node.module), kept[0] if kept else -1, -1 if kept else node.statement.number)
            self._units.setdefault(key, Unit(node.module, key[1])).nodes.append(node)
            self._of_node[node.key] = key
        #: The statements that read a name of their own file when they run: they come before it is rebound.
        self._readers: dict[tuple[int, str], list[NodeKey]] = {}
        for node in nodes:
            for use in node.statement.uses:
                if use.when == AT_DEFINITION and use.local < 0:
                    self._readers.setdefault((id(node.module), use.name), []).append(node.key)

    def units_in_order(self) -> list[Unit]:
        """Return the units, each after those it reads when it runs; the class comes last unless it is changed later."""
        hard: dict[UnitKey, list[UnitKey]] = {}
        soft: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in self._units.items():
            before, later = self._needs(unit)
            hard[key] = [k for k in dict.fromkeys(before) if k != key]
            soft[key] = [k for k in dict.fromkeys(later) if k != key]
        root_key = next(self._of_node[node.key] for node in self._graph.members(self._root))
        preferred = _post_order([root_key, *self._units], lambda k: [*hard[k], *soft[k]])
        return [self._units[key] for key in _hard_order(preferred, hard, self._reads_when_called())]

    def _needs(self, unit: Unit) -> tuple[list[UnitKey], list[UnitKey]]:
        before: list[UnitKey] = []
        later: list[UnitKey] = []
        for node in unit.nodes:
            for links in self._graph.iter_links(node):
                for link in links.links:
                    if isinstance(link.symbol, Definition):
                        keys = self._keys(node, link.symbol, link.use.when == AT_DEFINITION)
                        (before if link.use.when == AT_DEFINITION else later).extend(keys)
                for target in links.alias_links:
                    if isinstance(target, Definition):
                        before.extend(self._keys(node, target, True))
            for container in self._fills.get(node.key, ()):
                before += self._keys(node, container, True)
                before += [
                    self._of_node[r.key]
                    for r in self._looking[container]
                    if self._execution_index(r) < self._execution_index(node)
                ]
            # Statements that bind or change the same name keep their order.
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
            fillings = [m for m in fillings if self._execution_index(m) < self._execution_index(node)]
        return [self._of_node[m.key] for m in (*members, *fillings)]

    def _execution_index(self, node: Node) -> tuple[int, int]:
        """Return the position of a statement in the execution order of an import of the block's own file."""
        return self._order.get(node.module, len(self._order)), node.statement.number

    def _reads_when_called(self) -> dict[UnitKey, list[UnitKey]]:
        """Return the units read by functions that may be called while a unit runs, and by the functions those call."""
        reads: dict[UnitKey, list[UnitKey]] = {}
        calls: dict[UnitKey, list[UnitKey]] = {}
        starts: dict[UnitKey, list[UnitKey]] = {}
        noted: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in self._units.items():
            reads[key], calls[key], starts[key], noted[key] = [], [], [], []
            for node in unit.nodes:
                hook = self._subclass_hook(node)
                for links in self._graph.iter_links(node):
                    for use, target in links.notes:  # evaluated when the function is defined, if possible
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
        """Return whether a class has a base whose `__init_subclass__` runs when it is defined."""
        if node.statement.kind != CLASS:
            return False
        for link in self._graph.links(node.module, node.statement).links:
            if link.use.when == AT_DEFINITION and isinstance(link.symbol, Definition):
                facts = class_of(link.symbol)
                if facts is not None and "__init_subclass__" in facts.methods:
                    return True
        return False


def _post_order(starts: Iterable[UnitKey], needs: Needs) -> list[UnitKey]:
    """Return depth-first post-order: dependencies first; a cycle is cut at the edge that closes it."""
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
    """Return the preferred order, corrected so that each unit follows what it needs when it runs."""

    @functools.cache
    def reach(key: UnitKey) -> frozenset[UnitKey]:
        """Return everything that a unit needs, directly or indirectly, before it runs."""
        return frozenset(_post_order([key], lambda k: hard[k]))

    def place(key: UnitKey) -> None:
        running.add(key)
        stack.append((key, iter([*hard[key], *called[key]])))

    def can_stand_before(candidate: UnitKey, key: UnitKey) -> bool:
        if candidate in done or candidate in running:
            return False
        # Functions that are only possibly called, and depend on the current unit, go wherever they can.
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
