"""Everything that one class needs, in an order in which it can run.

What a statement reads as it runs must stand before it. What its functions read when they are called only has to be
somewhere in the file; it is put before all the same, where no cycle forbids it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from extract.discover import Found, class_of
from extract.graph import Graph, Links
from extract.modules import Definition, Module
from extract.symbols import Entry, Namespace, Node, Own, Problem, Reason, Registered, Symbol
from lemur_core.source.facts import AT_DEFINITION, CLASS, Statement

MOST_STATEMENTS = 3_000

UnitKey = tuple[int, int, int]  # module, outermost kept block or -1, statement or -1
Needs = Callable[[UnitKey], Iterable[UnitKey]]
Entries = dict[tuple[Registered, str], Entry]
Readers = dict[tuple[int, str], list[tuple[str, str, int]]]


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
    """A class with all that it needs."""

    root: Found
    units: list[Unit]
    symbols: list[Symbol]  # all that are linked, in order of first use
    problems: list[Problem]
    requires: set[str]
    entries: Entries  # what its registries hold, by the strings in it
    graph: Graph

    def links(self, node: Node) -> Links:
        """The links of one of its statements."""
        return self.graph.links(node.module, node.statement)

    @property
    def nodes(self) -> Iterator[Node]:
        """All statements."""
        for unit in self.units:
            yield from unit.nodes

    @property
    def modules(self) -> list[Module]:
        """The files that take part, the block's own first."""
        others = {id(unit.module): unit.module for unit in self.units if unit.module is not self.root.module}
        return [self.root.module, *sorted(others.values(), key=lambda m: (m.source.name, m.file.path))]


def kept_blocks(module: Module, statement: Statement) -> tuple[int, ...]:
    """The `if` and `try` blocks around a statement that stay in the file; the others are decided statically."""
    return tuple(number for number, _ in statement.path if not module.facts.blocks[number].static)


class Collector:
    """Collects closures over one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def collect(self, root: Found, extra: Sequence[Symbol] = ()) -> Closure:
        """The closure of a class. Its problems say why it cannot become a block; there are none if it can."""
        symbols: dict[Symbol, None] = {}
        nodes: dict[tuple[str, str, int], Node] = {}
        problems: dict[Problem, None] = {}
        requires: set[str] = set()
        waiting: list[Symbol] = [Own(root.module, root.name), *extra]
        entries: Entries = {}
        fresh: list[Node] = []
        while (waiting or fresh or self._registered(symbols, nodes, entries, waiting, fresh)) and len(
            nodes
        ) <= MOST_STATEMENTS:
            symbol = waiting.pop(0) if waiting and not fresh else None
            if symbol is not None:
                if symbol in symbols:
                    continue
                symbols[symbol] = None
                if isinstance(symbol, Namespace):
                    waiting += self.graph.items(symbol).values()
                if not isinstance(symbol, Own):
                    continue
                fresh = [node for node in self.graph.members(symbol) if node.key not in nodes]
            while fresh:
                node = fresh.pop(0)
                if node.key in nodes:
                    continue
                nodes[node.key] = node
                for links in self.links_of(node):
                    problems.update(dict.fromkeys(links.problems))
                    requires |= links.requires
                    waiting += [link.symbol for link in links.links]
                    waiting += links.glue
                    waiting += [target for target in links.alias_links if target is not None]
                fresh += self._whole_try(node)
        if len(nodes) > MOST_STATEMENTS:
            problems[Problem(Reason.TOO_LARGE, f"needs more than {MOST_STATEMENTS} statements of its source")] = None
        units = self._order(root, list(nodes.values()))
        return Closure(root, units, list(symbols), list(problems), requires, entries, self.graph)

    def _registered(
        self,
        symbols: Iterable[Symbol],
        nodes: dict[tuple[str, str, int], Node],
        entries: Entries,
        waiting: list[Symbol],
        fresh: list[Node],
    ) -> bool:
        """Add what the closure's registries hold under the strings that the closure names; whether that is new."""
        registries = [symbol for symbol in symbols if isinstance(symbol, Registered)]
        before = len(entries)
        for registry in registries:
            for node in list(nodes.values()):
                for key in node.statement.types:
                    if (registry, key) in entries:
                        continue
                    entry = self.graph.registries.entry(Definition(*registry), key, node.module.source)
                    if entry is None:
                        continue
                    entries[registry, key] = entry
                    if entry.symbol is not None:
                        waiting.append(entry.symbol)
                    elif entry.node is not None:
                        fresh.append(entry.node)
        return len(entries) > before

    def links_of(self, node: Node) -> Iterator[Links]:
        """The links of a statement and of the blocks kept around it."""
        yield self.graph.links(node.module, node.statement)
        for number in kept_blocks(node.module, node.statement):
            yield self.graph.block_links(node.module, number)

    def _whole_try(self, node: Node) -> list[Node]:
        """All statements of a kept `try`: what fails in its body decides what its handlers bind."""
        result = []
        for number in kept_blocks(node.module, node.statement):
            if node.module.facts.blocks[number].kind == "try":
                result += [
                    Node(node.module, other)
                    for other in node.module.facts.statements
                    if any(block == number for block, _ in other.path) and node.module.taken(other)
                ]
        return result

    # -- order ---------------------------------------------------------------------------------------------------

    def _order(self, root: Found, nodes: Sequence[Node]) -> list[Unit]:
        units: dict[UnitKey, Unit] = {}
        of_node: dict[tuple[str, str, int], UnitKey] = {}
        for node in sorted(nodes, key=lambda n: (n.module is not root.module, n.key)):
            kept = kept_blocks(node.module, node.statement)
            key = (id(node.module), kept[0] if kept else -1, -1 if kept else node.statement.number)
            units.setdefault(key, Unit(node.module, key[1])).nodes.append(node)
            of_node[node.key] = key
        readers = self._readers(nodes)
        hard: dict[UnitKey, list[UnitKey]] = {}
        soft: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in units.items():
            before, later = self._needs(unit, of_node, readers)
            hard[key] = [k for k in dict.fromkeys(before) if k != key]
            soft[key] = [k for k in dict.fromkeys(later) if k != key]
        root_key = next(of_node[n.key] for n in self.graph.members(Own(root.module, root.name)))
        preferred = _post_order([root_key, *units], lambda k: [*hard[k], *soft[k]])
        called = self._called(units, of_node)
        # The class itself comes last, unless something else changes it afterwards.
        return [units[key] for key in _hard_order(preferred, hard, called)]

    def _readers(self, nodes: Sequence[Node]) -> Readers:
        """The statements that read a name of their own file as they run: before it is bound again."""
        found: Readers = {}
        for node in nodes:
            for use in node.statement.uses:
                if use.when == AT_DEFINITION and use.local < 0:
                    found.setdefault((id(node.module), use.name), []).append(node.key)
        return found

    def _needs(
        self, unit: Unit, of_node: dict[tuple[str, str, int], UnitKey], readers: Readers
    ) -> tuple[list[UnitKey], list[UnitKey]]:
        before: list[UnitKey] = []
        later: list[UnitKey] = []
        for node in unit.nodes:
            for links in self.links_of(node):
                for link in links.links:
                    if isinstance(link.symbol, Own):
                        keys = self._keys(node, link.symbol, link.use.when == AT_DEFINITION, of_node)
                        (before if link.use.when == AT_DEFINITION else later).extend(keys)
                for target in links.alias_links:
                    if isinstance(target, Own):
                        before.extend(self._keys(node, target, True, of_node))
            # Statements that bind or change one name stay in their order.
            for name in (*node.statement.binds, *node.statement.touches):
                before += [of_node[k] for k in readers.get((id(node.module), name), ()) if k < node.key]
                before += [
                    of_node[other.key]
                    for other in self.graph.members(Own(node.module, name))
                    if other.statement.number < node.statement.number and other.key in of_node
                ]
        return before, later

    def _keys(self, node: Node, symbol: Own, now: bool, of_node: dict[tuple[str, str, int], UnitKey]) -> list[UnitKey]:
        members = [m for m in self.graph.members(symbol) if m.key in of_node]
        if now and symbol.module is node.module:
            earlier = [m for m in members if m.statement.number < node.statement.number]
            members = earlier or [m for m in members if m.statement.number != node.statement.number]
        return [of_node[m.key] for m in members]

    def _called(
        self, units: dict[UnitKey, Unit], of_node: dict[tuple[str, str, int], UnitKey]
    ) -> dict[UnitKey, list[UnitKey]]:
        """What the functions read that may be called while a unit runs, and those that they call in turn."""
        reads: dict[UnitKey, list[UnitKey]] = {}
        calls: dict[UnitKey, list[UnitKey]] = {}
        starts: dict[UnitKey, list[UnitKey]] = {}
        noted: dict[UnitKey, list[UnitKey]] = {}
        for key, unit in units.items():
            reads[key], calls[key], starts[key], noted[key] = [], [], [], []
            for node in unit.nodes:
                hook = self._subclass_hook(node)
                for links in self.links_of(node):
                    for use, target in links.notes:  # evaluated as the function is defined, if that can be
                        if use.start >= 0 and isinstance(target, Definition):
                            noted[key] += self._keys(node, Own(*target), True, of_node)
                    for link in links.links:
                        if not isinstance(link.symbol, Own):
                            continue
                        now = link.use.when == AT_DEFINITION
                        members = self._keys(node, link.symbol, now, of_node)
                        if now and (link.use.called or hook):
                            starts[key] += members
                        elif not now:
                            reads[key] += members
                            if link.use.called:
                                calls[key] += members
        result: dict[UnitKey, list[UnitKey]] = {}
        for key in units:
            reached = _post_order(starts[key], lambda k: [*calls[k], *starts[k]])
            needed = dict.fromkeys([*(r for c in reached for r in reads[c]), *noted[key]])
            result[key] = [k for k in needed if k != key]
        return result

    def _subclass_hook(self, node: Node) -> bool:
        """Whether a class has a base whose `__init_subclass__` runs as it is defined."""
        if node.statement.kind != CLASS:
            return False
        for link in self.graph.links(node.module, node.statement).links:
            if link.use.when == AT_DEFINITION and isinstance(link.symbol, Own):
                facts = class_of(Definition(*link.symbol))
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
