"""Closure of a class, in three passes. The first: the statements behind every name, collected until none is missing.

Example: `Gate` of gate.py shall become a block.

    # gate.py                                   # layers.py
    from torch import nn                        EPS = 1e-5
    from .layers import Norm                    class Norm(nn.Module): ...  # reads EPS when it is called
    RATE = 0.1                                  class Pool(nn.Module): ...
    class Gate(nn.Module): ...  # calls Norm, reads RATE

In: the definition `Gate`. Out: the statements that bind `Gate`, `Norm`, `RATE` and `EPS`, and the symbol `nn`, an
import that stays. `Pool` is left out, since no chain of reads leads to it. The line `from .layers import Norm` is not
copied: its link leads to the statement behind it, wherever that is. If one name cannot be resolved, the closure holds
the problem, and there is no block: a file that fails as soon as it reads the name would be worse.

`resolve_lookups` adds what only strings name or fill; `order_statements` sorts the statements.
"""

import ast
import functools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from extract.resolve.dependencies import (
    DependencyGraph,
    Problem,
    Reason,
    RegistrySymbol,
    StatementLinks,
    Symbol,
    list_kept_blocks,
)
from extract.resolve.discover import TargetClass, find_class_facts
from extract.resolve.modules import Definition, Module
from extract.resolve.registrations import Entry, NodeKey, StatementNode, post_order
from extract.resolve.standins import SOURCE_NAME
from extract.sources import PackageSource
from lemur_core.files.markdown import plural
from lemur_core.source.changes import DynamicLookup, build_pattern
from lemur_core.source.facts import AT_DEFINITION, CLASS
from lemur_core.source.text import parse_expression

MOST_STATEMENTS = 3_000
_TOO_MANY = f"needs more than {MOST_STATEMENTS} statements"


@dataclass(slots=True)
class StatementGroup:
    """A piece that is emitted as a whole: a statement, or an `if` or `try` with the statements needed in it."""

    module: Module
    block: int  # -1 for a statement
    nodes: list[StatementNode] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Offset in the file."""
        return self.module.facts.blocks[self.block].start if self.block >= 0 else self.nodes[0].statement.start


@dataclass(slots=True)
class Closure:
    """A class with everything it needs: what the three passes have found so far.

    `problems` lists why it cannot become a block; empty if it can.
    """

    root: TargetClass
    # Pass 1, and again for everything that pass 2 adds.
    nodes: dict[NodeKey, StatementNode] = field(default_factory=dict)
    symbols: dict[Symbol, None] = field(default_factory=dict)  # all linked symbols, in order of first use
    entries: dict[tuple[RegistrySymbol, str], Entry] = field(default_factory=dict)  # of registries, by string
    keys: Sequence[tuple[str, PackageSource]] = ()  # further strings that registries may be asked for
    requires: set[str] = field(default_factory=set)
    problems: dict[Problem, None] = field(default_factory=dict)
    # Pass 2.
    fillings: dict[Definition, list[StatementNode]] = field(default_factory=dict)  # by container, in execution order
    dynamic: dict[str, None] = field(default_factory=dict)  # lookups at run time whose results cannot be known
    named: dict[Symbol, str] = field(default_factory=dict)  # symbols that it looks up by strings, under these names
    # Pass 3.
    groups: list[StatementGroup] = field(default_factory=list)
    #: In order; also the links of the blocks kept around each statement.
    linked: list[tuple[StatementNode, StatementLinks]] = field(default_factory=list)

    @property
    def nodes_in_order(self) -> Iterator[StatementNode]:
        """Yield the statements in the order of the groups."""
        for group in self.groups:
            yield from group.nodes

    @property
    def modules(self) -> list[Module]:
        """The files that contribute to the closure, the block's own first."""
        others = {node.module for node in self.nodes.values()} - {self.root.module}
        return [self.root.module, *sorted(others, key=lambda module: (module.source.name, module.file.path))]


def collect(
    closure: Closure, graph: DependencyGraph, symbols: Iterable[Symbol], nodes: Iterable[StatementNode] = ()
) -> None:
    """Add symbols and statements with everything they need; note a problem if that is too much."""
    waiting, fresh = deque(symbols), deque(nodes)
    while len(closure.nodes) <= MOST_STATEMENTS:
        if fresh:
            node = fresh.popleft()
            before = closure.nodes.get(node.key)
            # A statement comes again if it must keep more decorators than before.
            if before is None or not node.decorators <= before.decorators:
                closure.nodes[node.key] = node
                waiting += _link(closure, graph, node)
                fresh += _whole_try(node)
        elif waiting:
            symbol = waiting.popleft()
            if symbol not in closure.symbols:
                closure.symbols[symbol] = None
                waiting += graph.parts(symbol)
                if isinstance(symbol, Definition):
                    fresh += graph.members(symbol)
        # Registries last: their entries depend on the strings in all statements.
        elif entries := _list_new_entries(closure, graph):
            waiting += [entry for entry in entries if isinstance(entry, Definition)]
            fresh += [entry for entry in entries if isinstance(entry, StatementNode)]
        else:
            return
    closure.problems[Problem(Reason.TOO_LARGE, f"{_TOO_MANY} of its source")] = None


def try_to_collect(
    closure: Closure, graph: DependencyGraph, symbols: Sequence[Symbol], nodes: Sequence[StatementNode] = ()
) -> str:
    """Add symbols and statements, or undo everything; return the reason for that, else an empty string."""
    tables: tuple[dict[Any, Any], ...] = (closure.nodes, closure.symbols, closure.entries)
    sizes = [len(table) for table in tables]
    # Statements that are already there may be replaced by versions with more decorators.
    held = {node.key: closure.nodes[node.key] for node in nodes if node.key in closure.nodes}
    requires = set(closure.requires)
    collect(closure, graph, symbols, nodes)
    problem = next(iter(closure.problems), None)
    if problem is None:
        return ""
    # Additions are at the end of each table, which is cheaper than copying all tables for every attempt.
    for table, size in zip(tables, sizes, strict=True):
        for key in list(table)[size:]:
            del table[key]
    closure.nodes.update(held)
    closure.requires = requires
    closure.problems.clear()
    return f"with them it {_TOO_MANY}" if problem.reason is Reason.TOO_LARGE else problem.detail


def _link(closure: Closure, graph: DependencyGraph, node: StatementNode) -> Iterator[Symbol]:
    """Yield the symbols that a statement reads; note its problems and the packages that it requires."""
    for links in graph.iter_links(node):
        closure.problems.update(dict.fromkeys(links.problems))
        closure.requires |= links.requires
        yield from (link.symbol for link in links.links)
        yield from links.glue
        yield from (target for target in links.alias_links if target is not None)


def _whole_try(node: StatementNode) -> Iterator[StatementNode]:
    """Yield all statements of a kept `try`: a failure in its body decides which names its handlers bind."""
    for number in list_kept_blocks(node.module, node.statement):
        if node.module.facts.blocks[number].kind == "try":
            for other in node.module.facts.statements:
                if any(block == number for block, _ in other.path) and node.module.is_taken(other):
                    yield StatementNode(node.module, other)


def _list_new_entries(closure: Closure, graph: DependencyGraph) -> list[Entry]:
    """Return the new entries of the closure's registries under the strings that the closure contains."""
    new = []
    for registry in [symbol for symbol in closure.symbols if isinstance(symbol, RegistrySymbol)]:
        stated = ((key, node.module.source) for node in closure.nodes.values() for key in node.statement.types)
        for key, source in (*closure.keys, *stated):
            if (registry, key) not in closure.entries:
                entry = graph.registries.entry(Definition(*registry), key, source)
                if entry is not None:
                    closure.entries[registry, key] = entry
                    new.append(entry)
    return new


# --- pass 2 -----------------------------------------------------------------------------------------------------------

# What is looked up by string or configuration, and what fills its containers.
#
# Example: `Net` chooses its activation by name.
#
#     ACTS = {}                                          class Net(nn.Module):
#     def register(f): ACTS[f.__name__] = f; return f        def __init__(self, act="relu6"):
#     @register                                                  self.act = ACTS[act]
#     def relu6(x): ...                                          self.pool = globals()["Pool" + "2d"]()
#
# In: the statements of `Net` and `ACTS`, from pass 1. Out: `relu6` with its decorator, since the copy of `ACTS`
# would be
# empty without it, and `Pool2d`, the only value of the computed string. A name that cannot be added (another entry of
# `ACTS` needs a compiled operator) does not make the block fail, because no run may ever ask for it: it is left out,
# and
# `dynamic` says so.

_SURE_LETTERS = 3  # minimum of known letters and digits in a computed string for all names that match it to be included
_SEARCHES = {
    "globals": "looks a name of its file up by a computed string",
    "eval": "evaluates a computed string",
    "import": "imports a module by a computed name",
    "subclasses": "asks for all classes that derive from one",
}


def resolve_lookups(closure: Closure, graph: DependencyGraph) -> None:
    """Add the definitions that the statements of a closure without problems look up as they run."""
    _add_by_strings(closure, graph)
    _fill_containers(closure, graph)
    _add_by_strings(closure, graph)  # the fillings may look names up, too, and bring further strings


# -- strings -----------------------------------------------------------------------------------------------------------


def _add_by_strings(closure: Closure, graph: DependencyGraph) -> None:
    """Add the names that strings refer to: those that match their constant parts, else the words of the closure."""
    searching = [
        node for node in closure.nodes.values() if node.statement.searches and node.module.source.name != SOURCE_NAME
    ]
    if not searching:
        return
    words = sorted({word for node in closure.nodes.values() for word in graph.words(node)})
    for node in searching:
        for at, lookup in sorted(node.module.lookups.items()):
            if node.statement.start <= at < node.statement.end:
                if lookup.kind in {"globals", "eval"}:
                    _add_names(closure, graph, node, lookup, words)
                elif not _is_of_runtime(graph, node, lookup):
                    _note_search(closure, node, lookup, [], [], whole=False)


def _is_of_runtime(graph: DependencyGraph, node: StatementNode, lookup: DynamicLookup) -> bool:
    """Return whether a lookup imports a module that the corpus does not have, by its name."""
    name = lookup.argument.value if isinstance(lookup.argument, ast.Constant) else None
    return isinstance(name, str) and not name.startswith(".") and not graph.library.knows(node.module, name)


def _add_names(
    closure: Closure, graph: DependencyGraph, node: StatementNode, lookup: DynamicLookup, words: Sequence[str]
) -> None:
    """Resolve `globals()[name]` and `eval(name)`: names of the file."""
    argument = lookup.argument
    stated = argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
    pattern = build_pattern(argument)
    sure = len(re.sub(r"\W|_", "", pattern)) >= _SURE_LETTERS
    if stated is not None:
        wanted = [stated] if lookup.kind == "globals" else _names_in(stated)
    else:
        # A pattern of few letters matches almost every name: then only words of the closure count.
        candidates = sorted(node.module.list_bound()) if sure else words
        wanted = [name for name in candidates if re.fullmatch(pattern, name)]
    present, lacking = [], []
    for name in dict.fromkeys(wanted):
        target = graph.library.lookup(node.module, name)
        if not isinstance(target, Definition) or (lookup.kind == "eval" and name in node.statement.shadows):
            continue
        symbol = graph.symbol(target)
        why = "" if symbol in closure.symbols else try_to_collect(closure, graph, [symbol])
        if why:
            lacking.append(f"{name}: {why}")
        else:
            closure.named[symbol] = name
            present.append(name)
    whole = stated is not None
    _note_search(closure, node, lookup, present, lacking if whole else [], whole=whole or sure)


def _note_search(
    closure: Closure,
    node: StatementNode,
    lookup: DynamicLookup,
    present: Sequence[str],
    lacking: Sequence[str],
    *,
    whole: bool,
) -> None:
    """Note the names that a lookup may need but the closure lacks; replaces the earlier note about this lookup."""
    note = f"{node.module.source.name} {node.module.file.path}:{lookup.node.lineno} {_SEARCHES[lookup.kind]}"
    closure.dynamic.pop(next((text for text in closure.dynamic if text.startswith(note)), ""), None)
    note += f"; it has {', '.join(present)}" if present else ""
    note += f"; it lacks {'; '.join(lacking)}" if lacking else ""
    if not whole or lacking:
        closure.dynamic[note] = None


def _names_in(text: str) -> list[str]:
    """Return the names that an evaluated string reads."""
    try:
        return [item.id for item in ast.walk(parse_expression(text)) if isinstance(item, ast.Name)]
    except SyntaxError:
        return []


# -- containers --------------------------------------------------------------------------------------------------------


def _fill_containers(closure: Closure, graph: DependencyGraph) -> None:
    """Add the statements that fill the containers of the closure, and of what those need.

    An entry that cannot be added is left out and noted in `dynamic` of the closure.
    """
    done: set[Symbol] = set()
    while symbols := [symbol for symbol in closure.symbols if symbol not in done]:
        done.update(symbols)
        for container in symbols:
            if not isinstance(container, Definition) or container.module.source.name == SOURCE_NAME:
                continue
            missing: Counter[str] = Counter()
            for filling in graph.registrations.list_fillings(container, closure.root.module):
                before = closure.nodes.get(filling.key, filling)
                node = filling._replace(decorators=filling.decorators | before.decorators)
                if why := try_to_collect(closure, graph, [], [node]):
                    missing[why] += 1
                else:
                    closure.fillings.setdefault(container, []).append(closure.nodes[filling.key])
            for why, number in missing.items():
                closure.dynamic[f"{container.name} lacks {plural(number, 'entry', 'entries')}: {why}"] = None


def shorten(names: Collection[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    shown, more = list(names)[:most], len(names) - most
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


# --- pass 3 -----------------------------------------------------------------------------------------------------------

# An order in which each statement follows those that it reads when it runs.
#
# Example: three files become one.
#
#     a.py   TABLE = {}                       in:  the statements of the closure, in any order
#     b.py   def scale(x): return x * GAIN    out: TABLE, GAIN, scale, TABLE["s"] = scale, Net
#     b.py   GAIN = 2
#     b.py   TABLE["s"] = scale
#     net.py class Net(nn.Module): ... TABLE["s"](x) ...
#
# `TABLE["s"] = scale` runs on import, so it must follow `TABLE` and `scale`: a hard need. `scale` reads `GAIN` only
# when
# it is called, so `GAIN` may come anywhere: a soft need, honoured unless a cycle forbids it. It weighs more if a
# statement may call `scale` as the file is imported. An `if` or `try` that stays moves as a whole. The class comes last
# unless it is changed afterwards.

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
    noted: Groups = field(default_factory=dict)  # in annotations: first if that is possible
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
