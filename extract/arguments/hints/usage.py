"""The facts of each file of a library: calls of classes, and signatures of its own classes."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from pydantic import TypeAdapter

from extract.arguments.hints.sites import CallSite, ClassUsage, FileUsage, Signature, read_tree
from extract.resolve.discover import find_class_facts, follow
from extract.resolve.index import UNREADABLE, FactsIndex
from extract.resolve.modules import CorpusIndex, Definition, Module
from extract.sources import PackageSource, SourceFile
from lemur_core.source.text import parse_code

USAGE_VERSION = 21
_CLASS, _WORD = re.compile(rb"\bclass\s+(\w+)"), re.compile(rb"[^\W\d]\w+")
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
            found = ((module, site) for module in self.list_naming(name) for site in self.read(module).sites)
            self._sites[name] = [(module, site) for module, site in found if site.name == name]
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
            self._lineage[key] = tuple(
                {(id(item.module), item.usage.name): item for item in self._walk(module, name)}.values()
            )
        return self._lineage[key]

    def _walk(self, module: Module, name: str) -> Iterator[Ancestor]:
        usage, facts = self.read(module).classes.get(name), find_class_facts(Definition(module, name))
        if usage is None or facts is None:
            return
        yield Ancestor(module, usage)
        for base in facts.bases:
            target = follow(self.library, module, base) if base else None
            if isinstance(target, Definition):
                yield from self.lineage(target.module, target.name)

    def find_definer(self, module: Module, name: str, method: str) -> tuple[Ancestor, Signature] | None:
        """Return the class that defines a method, and the method's signature."""
        for item in self.lineage(module, name):
            signature = item.usage.init if method == "__init__" else item.usage.forward
            if signature is not None:
                return item, signature
        return None


def read_usage(index: FactsIndex, source: PackageSource, file: SourceFile) -> FileUsage:
    """Return the calls and classes in a file, cached in the index by the file's content; none of a syntax error."""
    key = f"hints:{USAGE_VERSION}:{file.blob}"
    stored = index.recall(key)
    if stored is not None:
        return _STORED.validate_json(stored)
    usage = FileUsage((), {})
    # A file that a worker could not parse is not parsed here, where it could end the run.
    if index.facts(source, file) is not UNREADABLE:
        with suppress(SyntaxError):
            usage = read_tree(parse_code(source.read(file)))
    index.remember(key, _STORED.dump_json(usage))
    return usage
