"""Which configuration a model type names (`GateConfig`, of model type "gate"), and which model a configuration."""

import re
from collections.abc import Iterable, Mapping

from extract.resolve.discover import class_of
from extract.resolve.modules import Definition, Library, Module
from extract.sources import Source
from lemur_core.source.text import normalise

SUFFIX = "Config"
_TYPED = re.compile(rb'^class (\w+)|^    model_type(?:\s*:[^=\n]*)?\s*=\s*"(\w+)"', re.MULTILINE)


class Configurations:
    """Finds them by name in a library; reads each source once, when it is first asked for."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._typed: dict[str, dict[str, Definition]] = {}

    def by_type(self, source: Source) -> Mapping[str, Definition]:
        """The configurations of a source that have a model type, by it; the first of several by path."""
        if source.name not in self._typed:
            found: dict[str, Definition] = {}
            for module in self._files(source):
                name = ""
                for kind, typed in _TYPED.findall(normalise(source.read(module.file))):
                    name = kind.decode() or name
                    if typed and name.endswith(SUFFIX):
                        found.setdefault(typed.decode(), Definition(module, name))
            self._typed[source.name] = found
        return self._typed[source.name]

    def model_of(self, config: Definition, endings: Iterable[str], near: Module) -> Definition | None:
        """The model that a configuration is named after, by the first of these endings that leads to one.

        What a file knows by that name, else a file beside the configuration does.
        """
        stem = config.name.removesuffix(SUFFIX)
        beside = [one for one in self._files(config.module.source) if one.package == config.module.package]
        found = (self._library.lookup(place, stem + ending) for ending in endings for place in (near, *beside))
        return next((one for one in found if isinstance(one, Definition) and class_of(one) is not None), None)

    def _files(self, source: Source) -> list[Module]:
        return [module for module in self._library.by_path.values() if module.source is source]
