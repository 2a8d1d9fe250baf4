"""Companions: the classes that a class's parameters expect, each as a self-contained file."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from extract.arguments.hints.model import Companion, read_dotted_name
from extract.arguments.hints.usage import Usage
from extract.arguments.messages import CompanionCode
from extract.emit.emit import Emitted, Emitter
from extract.resolve.discover import TargetClass, find_class_facts, follow
from extract.resolve.modules import Definition, Module
from lemur_core.source.facts import CLASS, FUNCTION
from lemur_core.source.text import parse_expression

_TRANSPARENT = frozenset({"Optional", "Union", "Annotated", "Final"})
_CLASS_OF = frozenset({"type", "Type"})
_CONTAINERS = frozenset({"list", "List", "dict", "Dict", "tuple", "Tuple", "Callable", "Literal"})


class Wanted(NamedTuple):
    """A class named by an annotation."""

    module: Module
    name: str
    wants_class: bool


class Companions:
    """Find companions and emit each class once."""

    def __init__(self, usage: Usage, emitter: Emitter) -> None:
        self._usage = usage
        self._emitter = emitter
        self._emitted: dict[tuple[int, str], Emitted | None] = {}
        self._definitions: dict[tuple[str, str], Definition] = {}  # by name and qualified name

    def list_for(self, module: Module, name: str) -> Iterator[Companion]:
        """Yield the companions of a class, in the order of its parameters; then those of its forward."""
        for method in ("__init__", "forward"):
            definer = self._usage.find_definer(module, name, method)
            for parameter in definer[1] if definer is not None else ():
                assert definer is not None
                for chain, wants_class in class_names(parameter.annotation):
                    wanted = self._resolve_class(definer[0].module, chain, wants_class)
                    if wanted is not None and not (wanted.module is module and wanted.name == name):
                        yield from self._emit_companion(wanted, parameter.name)

    def emit_for(self, block: TargetClass) -> Iterator[Emitted]:
        """Yield the files of the companions of a class, which need packages of their own."""
        for companion in self.list_for(block.module, block.name):
            definition = self._definitions[companion.name, companion.qualname]
            emitted = self._emitted[id(definition.module), definition.name]
            assert emitted is not None
            yield emitted

    def list_named(self, places: Iterable[tuple[Module, Sequence[str]]], block: TargetClass) -> Iterator[Companion]:
        """Yield the classes that expressions name, as companions without a parameter.

        Args:
            places: modules, each with the names that expressions from it use.
            block: the class itself, which is not its own companion.
        """
        seen: set[tuple[int, str]] = {(id(block.module), block.name)}
        for module, names in places:
            for name in names:
                wanted = self._resolve_class(module, (name,), True)
                if wanted is not None and wanted.name == name and (id(wanted.module), name) not in seen:
                    seen.add((id(wanted.module), name))
                    yield from self._emit_companion(wanted, "")

    def list_defined(self, places: Iterable[tuple[Module, str]], block: TargetClass) -> Iterator[Companion]:
        """Yield the classes and functions that these files define under these names, without the block itself."""
        for module, name in places:
            own = module is block.module and name == block.name
            if not own and any(item.kind in (CLASS, FUNCTION) for item in module.find_binders(name)):
                yield from self._emit_companion(Wanted(module, name, True), "")

    def emit_with(self, block: TargetClass, companions: Iterable[CompanionCode]) -> Emitted | None:
        """Return the closed file of a class that also defines these companions of it; None if it cannot."""
        also = [self._definitions[item["name"], item["qualname"]] for item in companions]
        return self._emit_closed(block, also)

    def _emit_closed(self, block: TargetClass, also: Sequence[Definition] = ()) -> Emitted | None:
        outcome = self._emitter.emit(block, also)
        closed = isinstance(outcome, Emitted) and not outcome.fault and not outcome.undefined
        return outcome if isinstance(outcome, Emitted) and closed else None

    def _emit_companion(self, wanted: Wanted, parameter: str) -> Iterator[Companion]:
        key = (id(wanted.module), wanted.name)
        block = TargetClass(wanted.module, wanted.name, False)
        if key not in self._emitted:
            # A companion that is not closed would fail where the block itself is right.
            self._emitted[key] = self._emit_closed(block)
        emitted = self._emitted[key]
        if emitted is not None:
            self._definitions[wanted.name, block.qualname] = Definition(wanted.module, wanted.name)
            yield Companion(parameter, wanted.name, block.qualname, emitted.code, wanted.wants_class)

    def _resolve_class(self, module: Module, chain: tuple[str, ...], wants_class: bool) -> Wanted | None:
        """Return the class behind a name, or the stub that replaces it in emitted files."""
        target = follow(self._usage.library, module, chain)
        if not isinstance(target, Definition) or find_class_facts(target) is None:
            return None
        symbol = self._emitter.graph.symbol(target)
        return Wanted(symbol.module, symbol.name, wants_class) if isinstance(symbol, Definition) else None


def class_names(annotation: str | None) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the dotted class names in an annotation, and whether each means the class itself (`type[X]`)."""
    try:
        waiting: list[tuple[ast.expr, bool]] = [(parse_expression(annotation or ""), False)]
    except SyntaxError:
        return
    while waiting:
        node, wants_class = waiting.pop(0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for chain, inner in class_names(node.value):
                yield chain, inner or wants_class
        elif isinstance(node, ast.BinOp):
            waiting[:0] = [(node.left, wants_class), (node.right, wants_class)]
        elif isinstance(node, ast.Subscript):
            outer = read_dotted_name(node.value).rpartition(".")[2]
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in _TRANSPARENT | _CLASS_OF:
                waiting[:0] = [(item, wants_class or outer in _CLASS_OF) for item in items]
            elif outer not in _CONTAINERS:
                waiting[:0] = [(node.value, wants_class)]  # a generic class of the corpus
        elif name := read_dotted_name(node):
            yield tuple(name.split(".")), wants_class
