"""One name for each symbol of a block's file, so that no two collide and no local variable hides one.

Everybody keeps its own name where that is possible: the block's class always, then what its own file uses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extract.closure import Closure, Collector
from extract.modules import Definition, Module
from extract.symbols import Imported, Link, Node, Optional, Own, Registered, Symbol
from lemur_core.source.naming import fresh_name
from lemur_core.source.scopes import BUILTINS


@dataclass
class Names:
    """The names of a block's file."""

    of: dict[Symbol, str]
    annotations: list[str]  # names that only annotations use and nothing defines
    notes: list[Imported]  # imports that only annotations use

    def renamed(self) -> Iterable[tuple[Symbol, str, str]]:
        """Definitions that are not called what they were."""
        for symbol, name in self.of.items():
            if isinstance(symbol, Own | Registered) and symbol.name != name:
                yield symbol, symbol.name, name


def natural_name(symbol: Symbol) -> str:
    """What a symbol is called where it comes from."""
    return symbol.bound if isinstance(symbol, Imported | Optional) else symbol.name


def choose_names(closure: Closure, collector: Collector) -> Names:
    """The name of every symbol of a closure."""
    nodes = list(closure.nodes)
    links = [(node, link) for node in nodes for found in collector.links_of(node) for link in found.links]
    symbols = _all_symbols(closure, nodes)
    hidden = _hidden(links)
    pinned = {link.symbol for _, link in links if link.use.start < 0}
    taken_words = _words(nodes)
    several = len({id(node.module) for node in nodes}) > 1
    root = closure.root
    own_first = sorted(
        symbols, key=lambda s: (s != Own(root.module, root.name), s not in pinned, not _of(s, root.module))
    )
    names: dict[Symbol, str] = {}
    used: set[str] = set()
    shared: dict[tuple[str, str], str] = {}  # `import torch.nn as nn` and `from torch import nn` are one thing
    for symbol in own_first:
        wanted = natural_name(symbol)
        if isinstance(symbol, Imported):
            same = shared.get(_identity(symbol))
            if same is not None:
                names[symbol] = same
                continue
        shadows_builtin = wanted in BUILTINS and several and symbol not in pinned
        if wanted in used or wanted in hidden.get(symbol, ()) or shadows_builtin:
            names[symbol] = fresh_name(wanted, used | taken_words)
        else:
            names[symbol] = wanted
        used.add(names[symbol])
        if isinstance(symbol, Imported):
            shared[_identity(symbol)] = names[symbol]
    annotations, notes = _annotation_names(closure, collector, names, used)
    return Names(names, annotations, notes)


def _all_symbols(closure: Closure, nodes: Iterable[Node]) -> list[Symbol]:
    """The linked symbols, and every other name that the copied statements bind."""
    found = dict.fromkeys(closure.symbols)
    for node in nodes:
        for store in node.statement.stores:
            found[Own(node.module, store.name)] = None
        if node.statement.aliases:
            for alias in node.statement.aliases:
                found[Own(node.module, alias.bound)] = None
    return list(found)


def _identity(symbol: Imported) -> tuple[str, str]:
    """What an import binds, however it is written, and the name that it binds it to."""
    if symbol.name:
        return f"{symbol.package}.{symbol.name}", symbol.bound
    return (symbol.package if symbol.whole else symbol.package.split(".")[0]), symbol.bound


def _of(symbol: Symbol, module: Module) -> bool:
    return not isinstance(symbol, Own) or symbol.module is module


def _hidden(links: Iterable[tuple[Node, Link]]) -> Mapping[Symbol, set[str]]:
    """For symbols whose uses are rewritten: the local names that would capture the rewritten name."""
    result: dict[Symbol, set[str]] = {}
    for node, link in links:
        as_written = ".".join((link.use.name, *link.use.attributes[: link.consumed]))
        if as_written != natural_name(link.symbol):
            result.setdefault(link.symbol, set()).update(node.statement.shadows)
    return result


def _words(nodes: Iterable[Node]) -> set[str]:
    words = set(BUILTINS)
    for node in nodes:
        words.update(node.statement.shadows, node.statement.binds, (use.name for use in node.statement.uses))
    return words


def _annotation_names(
    closure: Closure, collector: Collector, names: dict[Symbol, str], used: set[str]
) -> tuple[list[str], list[Imported]]:
    """Names that annotations use: imports of the runtime are cheap and stay; classes of the corpus are not copied."""
    unknown: dict[str, None] = {}
    notes: dict[Imported, None] = {}
    for node in closure.nodes:
        for links in collector.links_of(node):
            for use, target in links.notes:
                imported = collector.graph.note_import(node.module, use, target)
                for symbol in imported:
                    if symbol not in names and symbol.bound not in used:
                        notes[symbol] = None
                        names[symbol] = symbol.bound
                        used.add(symbol.bound)
                if not imported:
                    unknown[annotation_name(use.name, use.attributes, target, names)] = None
    return [name for name in unknown if name not in used and name not in BUILTINS], list(notes)


def annotation_name(name: str, attributes: tuple[str, ...], target: object, names: Mapping[Symbol, str]) -> str:
    """What an annotation calls a class of the corpus: its name in this file if it is here, else its bare name."""
    if isinstance(target, Definition):
        if Own(*target) in names:
            return names[Own(*target)]
        return target.name if attributes and name != target.name else name
    return name
