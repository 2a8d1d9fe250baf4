"""The records of a library's files, the sites in them by class name, and what a class inherits."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from extract.discover import class_of, follow
from extract.hints.record import ClassRecord, FileRecord, record_of
from extract.hints.signature import Signature
from extract.hints.sites import Site
from extract.index import Index
from extract.modules import Definition, Library, Module


class Inherited(NamedTuple):
    """A class of the corpus with its record: the class itself or one of its bases."""

    module: Module
    record: ClassRecord


class Records:
    """Reads each file once, when it is first asked for."""

    def __init__(self, library: Library, index: Index) -> None:
        self.library = library
        self._index = index
        self._files: dict[int, FileRecord] = {}
        self._sites: dict[str, list[tuple[Module, Site]]] | None = None
        self._lineage: dict[tuple[int, str], tuple[Inherited, ...]] = {}

    def of(self, module: Module) -> FileRecord:
        """The record of one file."""
        if id(module) not in self._files:
            self._files[id(module)] = record_of(self._index, module.source, module.file)
        return self._files[id(module)]

    def sites(self, name: str) -> list[tuple[Module, Site]]:
        """The places that make an object of a class of that name, in order of sources and paths."""
        if self._sites is None:
            self._sites = {}
            for module in self._scope():
                for site in self.of(module).sites:
                    self._sites.setdefault(site.name, []).append((module, site))
        return self._sites.get(name, [])

    def _scope(self) -> Iterator[Module]:
        """The files in scope, and configurations written in Python wherever they are."""
        for source in self.library.sources:
            for file in source.files:
                if source.in_scope(file.path) or "/configs/" in f"/{file.path}":
                    yield self.library.by_path[source.name, file.path]

    def lineage(self, module: Module, name: str) -> tuple[Inherited, ...]:
        """A class and its bases in the corpus, depth first."""
        key = (id(module), name)
        if key not in self._lineage:
            self._lineage[key] = ()  # a class is not its own base
            self._lineage[key] = tuple(self._walk(module, name))
        return self._lineage[key]

    def _walk(self, module: Module, name: str) -> Iterable[Inherited]:
        record = self.of(module).classes.get(name)
        facts = class_of(Definition(module, name))
        if record is None or facts is None:
            return
        seen = {(id(module), name)}
        yield Inherited(module, record)
        for base in facts.bases:
            target = follow(self.library, module, base) if base else None
            if isinstance(target, Definition):
                for item in self.lineage(target.module, target.name):
                    if (id(item.module), item.record.name) not in seen:
                        seen.add((id(item.module), item.record.name))
                        yield item

    def definer(self, module: Module, name: str, method: str) -> tuple[Inherited, Signature] | None:
        """The class that a method comes from, and its signature."""
        for item in self.lineage(module, name):
            signature = item.record.init if method == "__init__" else item.record.forward
            if signature is not None:
                return item, signature
        return None
