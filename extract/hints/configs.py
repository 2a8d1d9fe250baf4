"""Which configuration class a parameter `config` without annotation wants."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from extract.discover import class_of, follow
from extract.hints.records import Inherited, Records
from extract.modules import Definition, Module

_NAMES = frozenset({"config", "cfg", "configuration"})
_SUFFIXES = ("Config", "Configuration")
_GENERIC = frozenset({"PreTrainedConfig", "PretrainedConfig", "Config", "AutoConfig", "GenerationConfig"})


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


T = TypeVar("T", bound=Named)


def is_config_parameter(name: str) -> bool:
    """Whether a parameter's name says that it wants a configuration."""
    return name in _NAMES or name.endswith(("_config", "_cfg"))


def config_candidates(
    records: Records, module: Module, name: str, definer: Inherited, parameter: str
) -> list[Definition]:
    """The configuration class that fits best: what the class says, else its file; empty where there is none."""
    for item in records.lineage(module, name):
        said = _classes(records, item.module, item.record.config)
        if said:
            return rank_by_prefix(said, name, parameter)[:1]
    for place in dict.fromkeys((module, definer.module)):
        siblings = [config for record in records.of(place).classes.values() for config in record.config]
        siblings += [
            word
            for record in records.of(place).classes.values()
            for signature in (record.init, record.forward)
            for item in signature or ()
            if is_config_parameter(item.name) and item.annotation
            for word in (item.annotation,)
            if word.isidentifier()
        ]
        bound = [word for word in place.bound() if word.endswith(_SUFFIXES)]
        found = _classes(records, place, [*siblings, *bound])
        if found:
            return rank_by_prefix(found, name, parameter)[:1]
    return []


def rank_by_prefix(found: Sequence[T], name: str, parameter: str) -> list[T]:
    """Those whose names begin most like the class's name first; `text_config` prefers a `…TextConfig`."""
    part = parameter.removesuffix("_config").removesuffix("_cfg").replace("_", "").lower()
    wanted = part if part not in _NAMES else ""

    def key(item: T) -> tuple[bool, int, int]:
        return wanted not in item.name.lower(), -_common(item.name, name), len(item.name)

    return sorted(found, key=key)


def _classes(records: Records, module: Module, names: Iterable[str]) -> list[Definition]:
    found: dict[tuple[int, str], Definition] = {}
    for name in dict.fromkeys(names):
        target = follow(records.library, module, (name,))
        if isinstance(target, Definition) and class_of(target) is not None and target.name not in _GENERIC:
            found[id(target.module), target.name] = target
    return list(found.values())


def _common(a: str, b: str) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
