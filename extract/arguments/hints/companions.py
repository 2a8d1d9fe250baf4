"""The classes that a class's parameters want, as closed files of their own."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from extract.arguments.hints.model import Companion, Parameter, dotted
from extract.arguments.hints.usage import Ancestor, Usage
from extract.emit.emit import Emitted, Emitter
from extract.resolve.discover import Found, class_of, follow
from extract.resolve.modules import Definition, Module

_TRANSPARENT = frozenset({"Optional", "Union", "Annotated", "Final"})
_CLASS_OF = frozenset({"type", "Type"})
_MOST_TOLD = 2  # classes for a parameter without an annotation
_CONTAINERS = frozenset({"list", "List", "dict", "Dict", "tuple", "Tuple", "Callable", "Literal"})


class Wanted(NamedTuple):
    """A class that an annotation names."""

    module: Module
    name: str
    wants_class: bool


class Companions:
    """Finds and emits them; each class once."""

    def __init__(self, usage: Usage, emitter: Emitter) -> None:
        self._usage = usage
        self._emitter = emitter
        self._emitted: dict[tuple[int, str], str | None] = {}

    def of(self, module: Module, name: str) -> Iterator[Companion]:
        """The companions of a class, in the order of its parameters."""
        for method in ("__init__", "forward"):
            found = self._usage.definer(module, name, method)
            for parameter in found[1] if found is not None else ():
                assert found is not None
                untold = method == "__init__" and parameter.annotation is None and parameter.default is None
                told = self._told(module, name, parameter.name) if untold else []
                for wanted in told or self._wanted(module, name, found[0], parameter):
                    yield from self._companion(wanted, parameter.name, method)

    def named(self, places: Iterable[tuple[Module, Sequence[str]]], found: Found) -> Iterator[Companion]:
        """The classes that expressions name, by the file that the names are from; they have no parameter."""
        seen: set[tuple[int, str]] = {(id(found.module), found.name)}
        for place, names in places:
            for name in names:
                wanted = self._class(place, (name,), True)
                if wanted is not None and wanted.name == name and (id(wanted.module), name) not in seen:
                    seen.add((id(wanted.module), name))
                    yield from self._companion(wanted, "", "__init__")

    def _companion(self, wanted: Wanted, parameter: str, method: str) -> Iterator[Companion]:
        key = (id(wanted.module), wanted.name)
        found = Found(wanted.module, wanted.name, False)
        if key not in self._emitted:
            outcome = self._emitter.emit(found)
            closed = isinstance(outcome, Emitted) and not outcome.fault and not outcome.undefined
            self._emitted[key] = outcome.code if isinstance(outcome, Emitted) and closed else None
        code = self._emitted[key]
        if code is not None:
            yield Companion(parameter, method, wanted.name, found.qualname, code, wanted.wants_class)

    def _wanted(self, module: Module, name: str, definer: Ancestor, parameter: Parameter) -> list[Wanted]:
        chains = list(class_names(parameter.annotation))
        named = [self._class(definer.module, chain, wants_class) for chain, wants_class in chains]
        found = dict.fromkeys(item for item in named if item is not None)
        return [item for item in found if not (item.module is module and item.name == name)]

    def _told(self, module: Module, name: str, parameter: str) -> list[Wanted]:
        """What the bases of a class and the classes of its file say of a parameter, or an attribute, of that name.

        The classes whose names begin most like that of the class come first.
        """
        lineage = [(item.module, item.usage) for item in self._usage.lineage(module, name)]
        places = [*lineage, *((module, usage) for usage in self._usage.of(module).classes.values())]
        named: dict[Wanted, None] = {}
        for place, usage in places:
            annotations = [text for field, text in usage.fields if field == parameter]
            annotations += [item.annotation or "" for item in usage.init or () if item.name == parameter]
            for text in annotations:
                found = [self._class(place, chain, wants_class) for chain, wants_class in class_names(text)]
                named |= dict.fromkeys(item for item in found if item is not None)
        alike = sorted(named, key=lambda item: -_shared(item.name, name))
        return [item for item in alike if not (item.module is module and item.name == name)][:_MOST_TOLD]

    def _class(self, module: Module, chain: tuple[str, ...], wants_class: bool) -> Wanted | None:
        """The class behind a name, or the stand-in that takes its place in every file."""
        target = follow(self._usage.library, module, chain)
        if not isinstance(target, Definition) or class_of(target) is None:
            return None
        symbol = self._emitter.graph.symbol(target)
        return Wanted(symbol.module, symbol.name, wants_class) if isinstance(symbol, Definition) else None


def _shared(one: str, other: str) -> int:
    """With how many letters both begin."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def class_names(annotation: str | None) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The dotted names in an annotation that a value may be of, and whether the class itself is meant."""
    try:
        waiting: list[tuple[ast.expr, bool]] = [(ast.parse((annotation or "").strip(), mode="eval").body, False)]
    except (SyntaxError, ValueError):
        return
    while waiting:
        node, wants_class = waiting.pop(0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for chain, inner in class_names(node.value):
                yield chain, inner or wants_class
        elif isinstance(node, ast.BinOp):
            waiting[:0] = [(node.left, wants_class), (node.right, wants_class)]
        elif isinstance(node, ast.Subscript):
            outer = dotted(node.value).rpartition(".")[2]
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in _TRANSPARENT | _CLASS_OF:
                waiting[:0] = [(item, wants_class or outer in _CLASS_OF) for item in items]
            elif outer not in _CONTAINERS:
                waiting[:0] = [(node.value, wants_class)]  # a generic class of the corpus
        elif name := dotted(node):
            yield tuple(name.split(".")), wants_class
