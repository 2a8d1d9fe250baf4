"""Closure of a class, pass 3 of 3: an order in which each statement follows those that it reads when it runs.

Example: three files become one.

    a.py   TABLE = {}                       in:  the statements of the closure, in any order
    b.py   def scale(x): return x * GAIN    out: TABLE, GAIN, scale, TABLE["s"] = scale, Net
    b.py   GAIN = 2
    b.py   TABLE["s"] = scale
    net.py class Net(nn.Module): ... TABLE["s"](x) ...

`TABLE["s"] = scale` runs on import, so it must follow `TABLE` and `scale`: a hard need. `scale` reads `GAIN` only when
it is called, so `GAIN` may come anywhere: a soft need, honoured unless a cycle forbids it. It weighs more if a
statement may call `scale` as the file is imported. An `if` or `try` that stays moves as a whole. The class comes last
unless it is changed afterwards.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from extract.emit.closure import Closure, StatementGroup
from extract.resolve.dependencies import DependencyGraph, StatementLinks, list_kept_blocks
from extract.resolve.discover import find_class_facts
from extract.resolve.modules import Definition, Module
from extract.resolve.registrations import post_order
from extract.resolve.symbols import ModuleValue, NodeKey, StatementNode
from lemur_core.source.facts import AT_DEFINITION, CLASS

GroupKey = tuple[int, int, int]  # module, outermost kept block or -1, statement or -1
Groups = dict[GroupKey, None]  # a set in order of insertion


def order_statements(closure: Closure, graph: DependencyGraph) -> None:
    """Set the groups of a closure, each after those it reads when it runs, and the links of their statements."""
    run_order = graph.registrations.order(closure.root.module) if closure.fillings else {}
    ordering = _Ordering(closure, graph, run_order)
    root = next(ordering.group_of[node.key] for node in graph.members(closure.root.root))
    needs = {key: ordering.needs(group) for key, group in ordering.groups.items()}
    preferred = post_order([root, *needs], lambda key: [*needs[key].hard, *needs[key].soft])
    closure.groups = [ordering.groups[key] for key in _hard_order(preferred, needs)]
    closure.linked = [(node, links) for node in closure.nodes_in_order for links in graph.iter_links(node)]


@dataclass(slots=True)
class _Needs:
    """The groups that one group needs."""

    hard: Groups = field(default_factory=dict)  # read when it runs
    soft: Groups = field(default_factory=dict)  # read when its functions are called
    started: Groups = field(default_factory=dict)  # with functions that may be called while it runs
    called: Groups = field(default_factory=dict)  # with functions that its own functions call
    noted: Groups = field(default_factory=dict)  # in annotations and modules that it reads: first if that is possible
    fills: bool = False  # whether the group changes containers of others
    runs: tuple[int, int] = (0, 0)  # position in an import of the block's own file


class _Ordering:
    """The groups of a closure and what each needs.

    Args: run_order: modules by their position in an import of the block's own file; empty if nothing is filled.
    """

    def __init__(self, closure: Closure, graph: DependencyGraph, run_order: Mapping[Module, int]) -> None:
        self._graph = graph
        self._fillings = closure.fillings
        self._run_order = run_order
        self.groups: dict[GroupKey, StatementGroup] = {}
        self.group_of: dict[NodeKey, GroupKey] = {}
        #: The statements that read a name of their own file when they run: they come before it is rebound.
        self._readers: dict[tuple[Module, str], list[NodeKey]] = {}
        # The block's own file first: ties are broken in its favor.
        for node in sorted(closure.nodes.values(), key=lambda node: (node.module is not closure.root.module, node.key)):
            kept = list_kept_blocks(node.module, node.statement)
            key = (id(node.module), kept[0] if kept else -1, -1 if kept else node.statement.number)
            self.groups.setdefault(key, StatementGroup(node.module, key[1])).nodes.append(node)
            self.group_of[node.key] = key
        for node in closure.nodes.values():
            for use in node.statement.uses:
                if use.when == AT_DEFINITION and use.local < 0:
                    self._readers.setdefault((node.module, use.name), []).append(node.key)
        self._fills: dict[NodeKey, list[Definition]] = {}
        for container, nodes in closure.fillings.items():
            for node in nodes:
                self._fills.setdefault(node.key, []).append(container)
        #: The statements that read a filled container when they run.
        self._looking: dict[Definition, list[StatementNode]] = {container: [] for container in closure.fillings}
        for node in closure.nodes.values() if closure.fillings else ():
            for symbol, _, now in (read for links in graph.iter_links(node) for read in _list_reads(links)):
                if now and symbol in self._looking and symbol not in self._fills.get(node.key, ()):
                    self._looking[symbol].append(node)

    def needs(self, group: StatementGroup) -> _Needs:
        """Return the groups that a group needs."""
        needs = _Needs(fills=any(node.key in self._fills for node in group.nodes))
        needs.runs = max(self._run_index(node) for node in group.nodes)
        for node in group.nodes:
            hooked = self._runs_hook(node)
            for links in self._graph.iter_links(node):
                for symbol, called, now in _list_reads(links):
                    keys = self._list_groups(node, symbol, now)
                    (needs.hard if now else needs.soft).update(keys)
                    if called or (now and hooked):
                        (needs.started if now else needs.called).update(keys)
                for target in links.alias_links:
                    if isinstance(target, Definition):
                        needs.hard.update(self._list_groups(node, target, True))
                for link in links.links:
                    if isinstance(link.symbol, ModuleValue) and link.symbol.early:
                        for item in self._graph.items(link.symbol).values():
                            if isinstance(item, Definition):
                                needs.noted.update(self._list_groups(node, item, True))
                for use, noted in links.notes:
                    named = self._graph.symbol(noted) if isinstance(noted, Definition) else None
                    if use.start >= 0 and isinstance(named, Definition):
                        needs.noted.update(self._list_groups(node, named, True))
            needs.hard.update(self._list_earlier(node))
        return needs

    def _list_groups(self, node: StatementNode, symbol: Definition, now: bool) -> Groups:
        """Return the groups that bind and fill a definition: with `now`, those that have done so as `node` runs."""
        members = [member for member in self._graph.members(symbol) if member.key in self.group_of]
        fillings = self._fillings.get(symbol, ())
        if now:
            if symbol.module is node.module:
                # In its own file a statement reads the binding above it, if there is one.
                earlier = [member for member in members if member.statement.number < node.statement.number]
                members = earlier or [m for m in members if m.statement.number != node.statement.number]
            fillings = [filling for filling in fillings if self._run_index(filling) < self._run_index(node)]
        return {self.group_of[member.key]: None for member in (*members, *fillings)}

    def _list_earlier(self, node: StatementNode) -> Groups:
        """Return the groups that a statement which fills, binds or changes something must not overtake."""
        earlier: Groups = {}
        for container in self._fills.get(node.key, ()):
            earlier.update(self._list_groups(node, container, True))
            readers = (reader for reader in self._looking[container] if self._run_index(reader) < self._run_index(node))
            earlier.update((self.group_of[reader.key], None) for reader in readers)
        for name in (*node.statement.binds, *node.statement.touches):
            keys = [key for key in self._readers.get((node.module, name), ()) if key < node.key]
            others = self._graph.members(Definition(node.module, name))
            keys += [other.key for other in others if other.statement.number < node.statement.number]
            earlier.update((self.group_of[key], None) for key in keys if key in self.group_of)
        return earlier

    def _run_index(self, node: StatementNode) -> tuple[int, int]:
        """Return the position of a statement in the execution order of an import of the block's own file."""
        return self._run_order.get(node.module, len(self._run_order)), node.statement.number

    def _runs_hook(self, node: StatementNode) -> bool:
        """Return whether a class has a base whose `__init_subclass__` runs when it is defined."""
        if node.statement.kind != CLASS:
            return False
        links = self._graph.links(node._replace(decorators=frozenset()))
        bases = [find_class_facts(symbol) for symbol, _, now in _list_reads(links) if now]
        return any(facts is not None and "__init_subclass__" in facts.methods for facts in bases)


def _list_reads(links: StatementLinks) -> Iterator[tuple[Definition, bool, bool]]:
    """Yield the definitions that a statement reads, whether it calls them, and whether it does so when it runs."""
    for link in links.links:
        if isinstance(link.symbol, Definition):
            yield link.symbol, link.use.called, link.use.when == AT_DEFINITION


def _hard_order(preferred: Sequence[GroupKey], needs: Mapping[GroupKey, _Needs]) -> list[GroupKey]:
    """Return the preferred order, corrected so that each group follows what it needs when it runs."""

    @functools.cache
    def reach(key: GroupKey) -> frozenset[GroupKey]:
        """Return everything that a group needs, directly or indirectly, before it runs."""
        return frozenset(post_order([key], lambda k: needs[k].hard))

    def read_when_called(key: GroupKey) -> Groups:
        """Return the groups read by functions that may be called while a group runs, and by those that these call."""
        callees = post_order(needs[key].started, lambda k: [*needs[k].called, *needs[k].started])
        reads = (read for callee in callees for read in needs[callee].soft)
        # What fills a container after this group ran in the original was not there yet when these functions read it.
        there = (read for read in reads if not (needs[read].fills and needs[read].runs > needs[key].runs))
        return dict.fromkeys(there) | needs[key].noted

    def can_stand_before(candidate: GroupKey, key: GroupKey, running: Set[GroupKey]) -> bool:
        # Functions that are only possibly called, and depend on the current group, go wherever they can.
        return candidate in needs[key].hard or not reach(candidate) & running

    return post_order(preferred, lambda key: [*needs[key].hard, *read_when_called(key)], can_stand_before)
