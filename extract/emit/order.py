"""The order of a closure's statements: what each reads as it runs stands before it.

What its functions read when they are called only has to be somewhere in the file; it is put before all the same, where
no cycle forbids it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from extract.resolve.dependencies import Graph, kept_blocks
from extract.resolve.discover import Found, class_of
from extract.resolve.modules import Definition, Module
from extract.resolve.symbols import Node
from lemur_core.source.facts import AT_DEFINITION, CLASS

NodeKey = tuple[str, str, int]  # source, path, number of the statement
UnitKey = tuple[int, int, int]  # module, outermost kept block or -1, statement or -1
Needs = Callable[[UnitKey], Iterable[UnitKey]]


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


class Order:
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
        self._root = root.root
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
