"""Lookup of configuration classes by model type (`GateConfig`, model type "gate"), and of models by configuration."""

import re
from collections.abc import Iterable, Mapping

from extract.resolve.discover import find_class_facts
from extract.resolve.modules import CorpusIndex, Definition, Module
from extract.sources import PackageSource
from lemur_core.source.text import normalise

SUFFIX = "Config"
_TYPED = re.compile(rb'^class (\w+)|^    model_type(?:\s*:[^=\n]*)?\s*=\s*"(\w+)"', re.MULTILINE)


class ConfigResolver:
    """Finder of configurations by name in a library; each source is read once, on first use."""

    def __init__(self, library: CorpusIndex) -> None:
        self._library = library
        self._typed: dict[str, dict[str, Definition]] = {}

    def by_type(self, source: PackageSource) -> Mapping[str, Definition]:
        """Return the configurations of a source that have a model type, by model type; the first by path wins."""
        if source.name not in self._typed:
            configurations: dict[str, Definition] = {}
            for module in self._files(source):
                name = ""
                for kind, typed in _TYPED.findall(normalise(source.read(module.file))):
                    name = kind.decode() or name
                    if typed and name.endswith(SUFFIX):
                        configurations.setdefault(typed.decode(), Definition(module, name))
            self._typed[source.name] = configurations
        return self._typed[source.name]

    def find_model(self, config: Definition, endings: Iterable[str], near: Module) -> Definition | None:
        """Return the model that a configuration is named after, by the first of these endings that matches a class.

        A name visible in the file `near` is preferred to one in a file next to the configuration.
        """
        stem = config.name.removesuffix(SUFFIX)
        neighbours = [item for item in self._files(config.module.source) if item.package == config.module.package]
        candidates = (
            self._library.lookup(module, stem + ending) for ending in endings for module in (near, *neighbours)
        )
        return next(
            (item for item in candidates if isinstance(item, Definition) and find_class_facts(item) is not None), None
        )

    def _files(self, source: PackageSource) -> list[Module]:
        return [module for module in self._library.by_path.values() if module.source is source]
