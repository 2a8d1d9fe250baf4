"""Read hints from each file of a library: calls of classes, and signatures of its own classes."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from pydantic import TypeAdapter

from extract.arguments.hints.model import Signature, find_method, read_signature
from extract.arguments.hints.sites import CallSite, call_sites
from extract.resolve.discover import find_class_facts, follow
from extract.resolve.index import UNREADABLE, FactsIndex
from extract.resolve.modules import CorpusIndex, Definition, Module
from extract.sources import PackageSource, SourceFile
from lemur_core.source.text import parse_code

USAGE_VERSION = 20
_CLASS, _WORD = re.compile(rb"\bclass\s+(\w+)"), re.compile(rb"[^\W\d]\w+")


class ClassUsage(NamedTuple):
    """The facts that a file states about one of its classes."""

    name: str
    init: Signature | None  # None: inherited
    forward: Signature | None


class FileUsage(NamedTuple):
    """The calls and classes in one file."""

    sites: tuple[CallSite, ...]
    classes: dict[str, ClassUsage]


_STORED = TypeAdapter(FileUsage)


class Ancestor(NamedTuple):
    """A class of the corpus, or one of its bases."""

    module: Module
    usage: ClassUsage


class Usage:
    """Read each file of a library once, on first use."""

    def __init__(self, library: CorpusIndex, index: FactsIndex) -> None:
        self.library = library
        self._index = index
        self._files: dict[int, FileUsage] = {}
        self._sites: dict[str, list[tuple[Module, CallSite]]] = {}
        self._lineage: dict[tuple[int, str], tuple[Ancestor, ...]] = {}

    def read(self, module: Module) -> FileUsage:
        """Return the calls and classes in one file."""
        if id(module) not in self._files:
            self._files[id(module)] = read_usage(self._index, module.source, module.file)
        return self._files[id(module)]

    def sites(self, name: str) -> list[tuple[Module, CallSite]]:
        """Return the calls of classes of that name, in order of sources and paths."""
        if name not in self._sites:
            self._sites[name] = [
                (module, site)
                for module in self.list_naming(name)
                for site in self.read(module).sites
                if site.name == name
            ]
        return self._sites[name]

    def list_naming(self, name: str) -> list[Module]:
        """Return the files whose text has the name of a class, in order of sources and paths."""
        return self._modules_by_name.get(name.encode(), [])

    @cached_property
    def _modules_by_name(self) -> dict[bytes, list[Module]]:
        """The files whose text has the name of a class. A call may be anywhere, but only these are parsed for it."""
        by_path = self.library.by_path
        modules = [by_path[s.name, f.path] for s in self.library.sources for f in s.files if s.in_scope(f.path)]
        classes = {name for module in modules for name in _CLASS.findall(module.text)}
        by_name: dict[bytes, list[Module]] = {}
        for module in modules:
            for name in classes.intersection(_WORD.findall(module.text)):
                by_name.setdefault(name, []).append(module)
        return by_name

    def lineage(self, module: Module, name: str) -> tuple[Ancestor, ...]:
        """Return a class and its bases in the corpus, depth first."""
        key = (id(module), name)
        if key not in self._lineage:
            self._lineage[key] = ()  # a class is not its own base
            self._lineage[key] = tuple(self._walk(module, name))
        return self._lineage[key]

    def _walk(self, module: Module, name: str) -> Iterable[Ancestor]:
        usage = self.read(module).classes.get(name)
        facts = find_class_facts(Definition(module, name))
        if usage is None or facts is None:
            return
        seen = {(id(module), name)}
        yield Ancestor(module, usage)
        for base in facts.bases:
            target = follow(self.library, module, base) if base else None
            if isinstance(target, Definition):
                for item in self.lineage(target.module, target.name):
                    if (id(item.module), item.usage.name) not in seen:
                        seen.add((id(item.module), item.usage.name))
                        yield item

    def find_definer(self, module: Module, name: str, method: str) -> tuple[Ancestor, Signature] | None:
        """Return the class that defines a method, and the method's signature."""
        for item in self.lineage(module, name):
            signature = item.usage.init if method == "__init__" else item.usage.forward
            if signature is not None:
                return item, signature
        return None


# -- one file --------------------------------------------------------------------------------------------------------


def read_usage(index: FactsIndex, source: PackageSource, file: SourceFile) -> FileUsage:
    """Return the calls and classes in a file, cached in the index by the file's content."""
    key = f"hints:{USAGE_VERSION}:{file.blob}"
    stored = index.recall(key)
    if stored is not None:
        return _STORED.validate_json(stored)
    # A file that a worker could not parse is not parsed here, where it could end the run.
    usage = FileUsage((), {}) if index.facts(source, file) is UNREADABLE else read_file(source.read(file))
    index.remember(key, _STORED.dump_json(usage))
    return usage


def read_file(raw: bytes) -> FileUsage:
    """Parse a file; the result is empty if it has a syntax error."""
    try:
        tree = parse_code(raw)
        classes = {node.name: _read_class(node) for node in _walk_classes(tree.body)}
        return FileUsage(tuple(call_sites(tree)), classes)
    except SyntaxError:
        return FileUsage((), {})


def _walk_classes(body: list[ast.stmt]) -> Iterator[ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _walk_classes([*node.body, *node.orelse])


def _read_class(node: ast.ClassDef) -> ClassUsage:
    init, forward = find_method(node, "__init__"), find_method(node, "forward")
    return ClassUsage(
        node.name,
        read_signature(init) if init is not None else None,
        read_signature(forward) if forward is not None else None,
    )
