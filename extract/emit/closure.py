"""Closure of a class, pass 1 of 3: the statements behind every name, collected until none is missing.

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

Pass 2 (`lookups`) adds what only strings name or fill; pass 3 (`order`) sorts the statements.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from extract.resolve.dependencies import DependencyGraph, StatementLinks, list_kept_blocks
from extract.resolve.discover import TargetClass
from extract.resolve.modules import Definition, Module
from extract.resolve.symbols import (
    How,
    ModuleValue,
    NodeKey,
    Problem,
    Reason,
    RegistryEntry,
    RegistrySymbol,
    StatementNode,
    Symbol,
)
from extract.sources import PackageSource

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
    entries: dict[tuple[RegistrySymbol, str], RegistryEntry] = field(default_factory=dict)  # of registries, by string
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
                if isinstance(symbol, ModuleValue):
                    waiting += graph.items(symbol).values()
                elif isinstance(symbol, Definition):
                    fresh += graph.members(symbol)
        # Registries last: their entries depend on the strings in all statements.
        elif entries := _list_new_entries(closure, graph):
            waiting += [entry.symbol for entry in entries if entry.symbol is not None]
            fresh += [entry.node for entry in entries if entry.symbol is None and entry.node is not None]
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
        closure.dynamic |= {
            f"{node.module.source.name} {node.module.file.path}: {link.use.name} comes with `import *`, if the"
            " `__all__` there, which is computed, has it": None
            for link in links.links
            if link.how is How.COMPUTED_STAR
        }
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


def _list_new_entries(closure: Closure, graph: DependencyGraph) -> list[RegistryEntry]:
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
