"""Symbols that a block's file can contain, and reasons why a class cannot become a block.

Two kinds of symbols are looked up by a text: entries of registries, and configurations by model type (`GateConfig`,
model type "gate").
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from extract.resolve.discover import find_class_facts, follow
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex, Definition, External, Missing, Module
from extract.sources import PackageSource
from lemur_core.source.facts import ASSIGN, AT_DEFINITION, OTHER, Statement, Use
from lemur_core.source.text import Import


class RegistrySymbol(NamedTuple):
    """A registry object; the file gets a small replacement that holds the classes it names."""

    module: Module
    name: str


class OptionalPackage(NamedTuple):
    """An optional package, treated as not installed."""

    package: str
    bound: str


class Undefined(NamedTuple):
    """A name that the file reads but nothing binds: the code fails as soon as it uses the name."""

    bound: str


class ModuleValue(NamedTuple):
    """A module of the corpus that is used as a value when code is called: `getattr(layers, name)`, `vars(layers)`."""

    module: Module

    @property
    def name(self) -> str:
        """Last part of the module's name."""
        return self.module.name.rpartition(".")[2]


class FileName(NamedTuple):
    """The `__name__` of a module, which its definitions have as their `__module__`: in a block that of the file."""

    name: str = "__name__"


Symbol = Definition | Import | RegistrySymbol | OptionalPackage | Undefined | ModuleValue | FileName


class Reason(StrEnum):
    """Reasons why a class cannot become a block."""

    UNRESOLVED_NAME = "unresolved_name"
    UNRESOLVED_IMPORT = "unresolved_import"
    NATIVE_OP = "native_op"
    DYNAMIC_MODULE = "dynamic_module"
    TOO_LARGE = "too_large"
    NEWER_PYTHON = "newer_python"
    NESTED_CLASS = "nested_class"


class Problem(NamedTuple):
    """One thing in a statement that cannot be resolved."""

    reason: Reason
    detail: str


class How(StrEnum):
    """How a name was resolved, with the confidence of that; the most certain first."""

    SAME_FILE = "same file", 1.0
    DIRECT_IMPORT = "direct import", 1.0
    RE_EXPORT = "re-export", 1.0
    QUALIFIED = "qualified name", 1.0
    STAR = "star import", 0.95
    COMPUTED_STAR = "star import of a computed __all__", 0.8
    LAZY_PACKAGE = "lazy package", 0.9
    STAND_IN = "stand-in", 0.9
    REGISTRY = "registry", 0.8
    HEURISTIC = "heuristic", 0.5

    confidence: float

    def __new__(cls, name: str, confidence: float) -> "How":
        """Create a member with its confidence."""
        way = str.__new__(cls, name)
        way._value_, way.confidence = name, confidence
        return way


class NameLink(NamedTuple):
    """A read of a name and its target: the symbol represents the name and `consumed` attributes after it."""

    use: Use
    symbol: Symbol
    consumed: int
    how: How


NodeKey = tuple[str, str, int]  # source, path, number of the statement


class StatementNode(NamedTuple):
    """A statement of the corpus with its links."""

    module: Module
    statement: Statement
    decorators: frozenset[int] = frozenset()  # indices of those kept because they fill a container

    @property
    def key(self) -> NodeKey:
        """Identity of the statement; sorts in file order."""
        return self.module.source.name, self.module.file.path, self.statement.number


_REGISTERING = ("register_module", "register")
_METHODS = {"register_module", "get"}
_MARKS = (b".register_module(", b".register(")


class RegistryEntry(NamedTuple):
    """Entry of a registry under one key: a class or function, or the statement that registers it."""

    symbol: Definition | None
    node: StatementNode | None
    module: Module


class Registries:
    """The registries of a library and their entries."""

    def __init__(self, library: CorpusIndex, index: FactsIndex) -> None:
        self._library = library
        self._index = index
        self._entries: dict[Definition, dict[str, list[RegistryEntry]]] | None = None
        self._objects: dict[Definition, bool] = {}
        self._kinds: dict[Definition, bool] = {}  # of classes

    def canonical(self, target: Definition) -> Definition:
        """Return the registry at the root of a registry's parents."""
        seen: set[Definition] = set()
        parent: Definition | None = target
        while parent is not None:
            target = parent
            seen.add(target)
            uses = target.module.find_binders(target.name)[0].uses
            read = [use for use in uses if use.when == AT_DEFINITION and use.start >= 0]
            # Registries of one family have a parent; all are one table here.
            parents = (self._target(target.module, (use.name, *use.attributes)) for use in read)
            parent = next((registry for registry in parents if registry is not None and registry not in seen), None)
        return target

    def entry(self, registry: Definition, key: str, near: PackageSource) -> RegistryEntry | None:
        """Return the entry of a registry under a key: from the same source if available, else by priority."""
        scope, _, bare = key.rpartition(".")
        entries = self._read_entries().get(registry, {}).get(bare, [])
        if not entries:
            return None
        # `mmdet.ResNet` names its library: that one is preferred to the block's own source.
        scoped = [e for e in entries if scope and e.module.name.split(".")[0] == scope]
        own = [e for e in entries if e.module.source.name == near.name]
        return (scoped or own or entries)[0]

    def _read_entries(self) -> dict[Definition, dict[str, list[RegistryEntry]]]:
        if self._entries is None:
            self._entries = {}
            for module in self._modules():
                for registry, keys, entry in self._registrations(module):
                    table = self._entries.setdefault(registry, {})
                    for key in keys:
                        table.setdefault(key, []).append(entry)
        return self._entries

    def _modules(self) -> Iterator[Module]:
        """Yield the files that register something; they are recognized by their text, so that only they are parsed."""
        for source in self._library.sources:
            key = f"registering:{source.name}:{source.digest}"
            stored = self._index.recall(key)
            if stored is None:
                paths = [f.path for f in source.files if any(mark in source.read(f) for mark in _MARKS)]
                self._index.remember(key, json.dumps(paths).encode())
            else:
                paths = json.loads(stored)
            modules = [self._library.by_path[source.name, path] for path in paths]
            self._index.add([(source, module.file) for module in modules])
            yield from modules

    def _registrations(self, module: Module) -> Iterator[tuple[Definition, Iterable[str], RegistryEntry]]:
        for statement in module.facts.statements:
            if not module.is_taken(statement):
                continue
            for decorator in statement.decorators:
                *holder, method = decorator.chain or ("",)
                if decorator.column == statement.column and method in _REGISTERING and holder:
                    registry = self._target(module, holder)
                    if registry is not None and statement.binds:
                        name = statement.binds[0]
                        entry = RegistryEntry(Definition(module, name), None, module)
                        yield self.canonical(registry), decorator.keys or (name,), entry
            # `NAME.register_module("BN", module=nn.BatchNorm2d)`, also in a loop over classes.
            calls = (not statement.decorators and not statement.binds) or statement.kind == OTHER
            for use in statement.uses if calls else ():
                if use.attributes[-1:] and use.attributes[-1] in _REGISTERING and use.when == AT_DEFINITION:
                    registry = self._target(module, (use.name, *use.attributes[:-1]))
                    if registry is not None:
                        named = [(u.name, *u.attributes)[-1] for u in statement.uses]
                        entry = RegistryEntry(None, StatementNode(module, statement), module)
                        yield self.canonical(registry), dict.fromkeys([*statement.types, *named]), entry

    def _target(self, module: Module, chain: Sequence[str]) -> Definition | None:
        target, rest = self._library.follow(module, chain)
        return target if not rest and isinstance(target, Definition) and self.contains(target) else None

    def contains(self, target: Definition) -> bool:
        """Return whether a name holds a registry of OpenMMLab's kind, or one whose class the library does not have.

        Any other registry is Python like the rest: it is copied, with what fills it.
        """
        if target not in self._objects:
            self._objects[target] = self._is_registry(target)
        return self._objects[target]

    def _is_registry(self, target: Definition) -> bool:
        binders = target.module.find_binders(target.name)
        if len(binders) != 1 or binders[0].kind != ASSIGN or not binders[0].calls:
            return False
        reads = [use for use in binders[0].uses if use.when == AT_DEFINITION and use.start >= 0]
        first = min(reads, key=lambda use: use.start, default=None)
        return first is not None and self._is_class((first.name, *first.attributes), target.module)

    def _is_class(self, chain: tuple[str, ...], module: Module) -> bool:
        """Return whether a dotted name is the class of such a registry; of an absent one, only the name is known."""
        target = follow(self._library, module, chain)
        if isinstance(target, Definition):
            return self.is_class(target)
        absent = isinstance(target, Missing) or (isinstance(target, External) and not target.runtime)
        return absent and chain[-1].endswith("Registry")

    def is_class(self, target: Definition) -> bool:
        """Return whether a class is one of OpenMMLab's registries, by its methods or those of its bases."""
        if target not in self._kinds:
            self._kinds[target] = False  # classes that inherit from each other
            self._kinds[target] = self._has_methods(target)
        return self._kinds[target]

    def _has_methods(self, target: Definition) -> bool:
        facts = find_class_facts(target)
        if facts is None:
            return False
        return set(facts.methods) >= _METHODS or any(
            self._is_class(tuple(base), target.module) for base in facts.bases if base and tuple(base) != (target.name,)
        )


# -- configurations ----------------------------------------------------------------------------------------------------

#: End of the names of configuration classes.
SUFFIX = "Config"
_TYPED = re.compile(rb'^class (\w+)|^    model_type(?:\s*:[^=\n]*)?\s*=\s*"(\w+)"', re.MULTILINE)


class ConfigResolver:
    """Finder of configurations by model type in a library; each source is read once, on first use."""

    def __init__(self, library: CorpusIndex) -> None:
        self._library = library
        self._typed: dict[str, dict[str, Definition]] = {}

    def by_type(self, source: PackageSource) -> Mapping[str, Definition]:
        """Return the configurations of a source that have a model type, by model type; the first by path wins."""
        if source.name not in self._typed:
            configurations: dict[str, Definition] = {}
            for module in [module for module in self._library.by_path.values() if module.source is source]:
                name = ""
                for kind, typed in _TYPED.findall(source.read_text(module.file)):
                    name = kind.decode() or name
                    if typed and name.endswith(SUFFIX):
                        configurations.setdefault(typed.decode(), Definition(module, name))
            self._typed[source.name] = configurations
        return self._typed[source.name]
