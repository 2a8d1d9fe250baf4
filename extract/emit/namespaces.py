"""Modules that are used as values in a block's file: objects with the module's public names as attributes."""

from collections import Counter
from collections.abc import Iterator, Mapping

from extract.emit.closure import Closure, StatementGroup
from extract.emit.render import BlockNames
from extract.resolve.dependencies import DependencyGraph
from extract.resolve.modules import Definition
from extract.resolve.standins import SOURCE_NAME
from extract.resolve.symbols import ModuleValue, Symbol
from lemur_core.source.text import Import


class Namespaces:
    """The lines for modules that are used as values: most are created at the end of the file, where all names exist.

    One that is read on import is created at the start, and filled before each statement that reads it and at the end.
    """

    def __init__(self, closure: Closure, graph: DependencyGraph, names: BlockNames) -> None:
        self._graph = graph
        self._names = names
        self._symbols = sorted((s for s in names.of if isinstance(s, ModuleValue)), key=lambda s: names.of[s])
        self._early = [symbol for symbol in self._symbols if symbol.early]
        items = {symbol: graph.items(symbol).items() for symbol in self._symbols}
        self._left = {s: dict(items[s] if s.early else sorted(items[s])) for s in self._symbols}
        #: Definitions whose statements are still to come.
        theirs = (node for node in closure.nodes_in_order if node.module.source.name != SOURCE_NAME)
        self._missing: Counter[Symbol] = Counter(
            Definition(node.module, name) for node in theirs for name in node.statement.binds
        )

    def create(self) -> list[str]:
        """Return the lines that create those that are read on import."""
        of = self._names.of
        lines = [f"{of[symbol]} = {self._types}.ModuleType({symbol.name!r})" for symbol in self._early]
        # Functions that read it later see the same object.
        return lines + [f"{of[symbol]} = {of[early]}" for symbol, early in self._twins() if early in of]

    def fill_before(self, group: StatementGroup) -> list[str]:
        """Return the lines that precede a group; groups are to be given in their order."""
        if not self._early:
            return []
        read = {link.symbol for node in group.nodes for links in self._graph.iter_links(node) for link in links.links}
        texts = []
        for symbol in (symbol for symbol in self._early if symbol in read):
            there = [name for name, item in self._left[symbol].items() if not self._missing[item]]
            texts += self._fill(symbol, {name: self._left[symbol].pop(name) for name in there})
        for node in group.nodes:
            self._missing.subtract(Definition(node.module, name) for name in node.statement.binds)
        return texts

    def complete(self) -> list[str]:
        """Return the lines at the end of the file."""
        of = self._names.of
        whole = [symbol for symbol, early in self._twins() if early not in of]
        texts = [self._write(f"{of[symbol]} = {self._types}.SimpleNamespace", self._left[symbol]) for symbol in whole]
        return texts + [text for symbol in self._early for text in self._fill(symbol, self._left[symbol])]

    def _twins(self) -> Iterator[tuple[ModuleValue, ModuleValue]]:
        """Yield those that only functions read, each with the symbol that it would be if it were read on import."""
        yield from ((symbol, symbol._replace(early=True)) for symbol in self._symbols if not symbol.early)

    @property
    def _types(self) -> str:
        return self._names.of[Import("types", "", False, "types")]

    def _fill(self, symbol: ModuleValue, items: Mapping[str, Symbol]) -> list[str]:
        return [self._write(f"vars({self._names.of[symbol]}).update", items)] if items else []

    def _write(self, call: str, items: Mapping[str, Symbol]) -> str:
        lines = "".join(f"    {name}={self._names.of[item]},\n" for name, item in items.items())
        return f"{call}(\n{lines})"
