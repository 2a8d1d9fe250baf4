"""The classes that parameters are annotated with, as closed files of their own."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from extract.discover import Found, Hierarchy, class_of, follow
from extract.emit import Emitted, Emitter
from extract.hints.calls import Rated, free_names
from extract.hints.configs import config_candidates, is_config_parameter, rank_by_prefix
from extract.hints.model import Companion
from extract.hints.records import Inherited, Records
from extract.hints.signature import Parameter
from extract.modules import Definition, Module
from extract.symbols import Own

_TRANSPARENT = frozenset({"Optional", "Union", "Annotated", "Final"})
_CLASS_OF = frozenset({"type", "Type"})
_MOST_CALLS = 4  # whose names are looked up
_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})
_GENERIC_CONFIGS = frozenset({"PreTrainedConfig", "PretrainedConfig"})


class Wanted(NamedTuple):
    """A class that an annotation names."""

    module: Module
    name: str
    wants_class: bool


class Companions:
    """Finds and emits them; each class once."""

    def __init__(self, records: Records, hierarchy: Hierarchy, emitter: Emitter) -> None:
        self._records = records
        self._hierarchy = hierarchy
        self._emitter = emitter
        self._emitted: dict[tuple[int, str], str | None] = {}
        self._modules: dict[int, frozenset[str]] = {}

    def of(self, module: Module, name: str) -> Iterator[Companion]:
        """The companions of a class, in the order of its parameters."""
        for method in ("__init__", "forward"):
            found = self._records.definer(module, name, method)
            if found is None:
                continue
            definer, signature = found
            for parameter in signature:
                for wanted in self._wanted(module, name, definer, parameter):
                    yield from self._companion(wanted, parameter.name, method)

    def named_by(self, rated: Sequence[Rated], found: Found) -> Iterator[Companion]:
        """The classes that the expressions of the best calls name; they have no parameter."""
        seen: set[tuple[int, str]] = {(id(found.module), found.name)}
        for item in [item for item in rated if item.place is not None][:_MOST_CALLS]:
            for name in free_names(item.texts):
                assert item.place is not None
                target = follow(self._records.library, item.place, (name,))
                if not isinstance(target, Definition) or class_of(target) is None:
                    continue
                wanted = self._stood_for(target, True)
                if wanted is not None and wanted.name == name and (id(wanted.module), name) not in seen:
                    seen.add((id(wanted.module), name))
                    yield from self._companion(wanted, "", "__init__")

    def _companion(self, wanted: Wanted, parameter: str, method: str) -> Iterator[Companion]:
        code = self._code(wanted)
        if code is not None:
            qualname = Found(wanted.module, wanted.name, False).qualname
            kind = self._kind(wanted)
            yield Companion(parameter, method, wanted.name, qualname, code, kind, wanted.wants_class)

    # -- which ---------------------------------------------------------------------------------------------------

    def _wanted(self, module: Module, name: str, definer: Inherited, parameter: Parameter) -> list[Wanted]:
        named: dict[tuple[int, str, bool], Wanted] = {}
        for chain, wants_class in _names(parameter.annotation):
            target = follow(self._records.library, definer.module, chain)
            if isinstance(target, Definition) and class_of(target) is not None:
                wanted = self._stood_for(target, wants_class)
                if wanted is not None:
                    named[id(wanted.module), wanted.name, wants_class] = wanted
        found = list(named.values())
        if is_config_parameter(parameter.name) and all(item.name in _GENERIC_CONFIGS for item in found):
            targets = config_candidates(self._records, module, name, definer, parameter.name)
            return [Wanted(target.module, target.name, False) for target in targets] or found
        if is_config_parameter(parameter.name):
            found = rank_by_prefix(found, name, parameter.name)
        return [item for item in found if not (item.module is module and item.name == name)]

    def _stood_for(self, target: Definition, wants_class: bool) -> Wanted | None:
        """The class, or the stand-in that takes its place in every file."""
        symbol = self._emitter.collector.graph.symbol(target)
        return Wanted(symbol.module, symbol.name, wants_class) if isinstance(symbol, Own) else None

    # -- what ----------------------------------------------------------------------------------------------------

    def _code(self, wanted: Wanted) -> str | None:
        key = (id(wanted.module), wanted.name)
        if key not in self._emitted:
            outcome = self._emitter.emit(Found(wanted.module, wanted.name, False))
            closed = isinstance(outcome, Emitted) and not outcome.fault and not outcome.undefined
            self._emitted[key] = outcome.code if isinstance(outcome, Emitted) and closed else None
        return self._emitted[key]

    def _kind(self, wanted: Wanted) -> str:
        lineage = self._records.lineage(wanted.module, wanted.name)
        bases = {base[-1] for item in lineage for base in self._bases(item) if base}
        names = {item.record.name for item in lineage} | bases
        if bases & _ENUMS:
            return "enum"
        if wanted.name.endswith(("Config", "Configuration")) or names & _GENERIC_CONFIGS:
            return "config"
        if "NamedTuple" in bases or any(item.record.dataclass for item in lineage):
            return "dataclass"
        return "module" if wanted.name in self._modules_in(wanted.module) else "class"

    def _bases(self, item: Inherited) -> tuple[tuple[str, ...], ...]:
        facts = class_of(Definition(item.module, item.record.name))
        return facts.bases if facts is not None else ()

    def _modules_in(self, module: Module) -> frozenset[str]:
        if id(module) not in self._modules:
            self._modules[id(module)] = frozenset(found.name for found in self._hierarchy.modules_of(module))
        return self._modules[id(module)]


def _names(annotation: str | None) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The dotted names in an annotation that a value may be of, and whether the class itself is meant."""
    if annotation is None:
        return
    try:
        waiting: list[tuple[ast.expr, bool]] = [(ast.parse(annotation.strip(), mode="eval").body, False)]
    except (SyntaxError, ValueError):
        return
    while waiting:
        node, wants_class = waiting.pop(0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for chain, inner in _names(node.value):
                yield chain, inner or wants_class
        elif isinstance(node, ast.BinOp):
            waiting[:0] = [(node.left, wants_class), (node.right, wants_class)]
        elif isinstance(node, ast.Subscript):
            outer = _dotted(node.value)[-1:]
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer and outer[0] in _TRANSPARENT | _CLASS_OF:
                waiting[:0] = [(item, wants_class or outer[0] in _CLASS_OF) for item in items]
            elif outer and outer[0] not in {"list", "List", "dict", "Dict", "tuple", "Tuple", "Callable", "Literal"}:
                waiting[:0] = [(node.value, wants_class)]  # a generic class of the corpus
        elif chain := _dotted(node):
            yield chain, wants_class


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return (*before, node.attr) if before else ()
    return ()
