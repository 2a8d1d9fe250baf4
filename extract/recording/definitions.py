"""Inside the sandbox: which definitions of a package reach a class, and what their parameters and tables take.

    class Gate(nn.Module): ...
    class Stage(nn.Module):
        def __init__(self, dim): self.gate = Gate(dim)
    def stage_small(): return Stage(16)
    REGISTRY = {"small": stage_small}
    def create(name): return REGISTRY[name]()

`Stage`, `stage_small` and `create` reach `Gate`, in this order: by the names that their code reads.

    class Encoder(nn.Module):
        def __init__(self, config: EncoderConfig): ...      # takes a configuration, by its annotation
    class Tagger(nn.Module):
        settings_class = EncoderConfig
        def __init__(self, settings): ...                   # by an attribute of the class
        def __init__(self, encoder): ...                    # by its name: there is an `Encoder` in the module
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import nn

from extract.arguments.trials import AttemptError, attempt
from extract.arguments.values import is_variadic, list_required, read_parameters

_CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
_DEPTH = 3  # of containers
_MAX_ITEMS = 5_000  # of one container
_MOST_CLASSES = 4  # for one parameter
_LEAST_LETTERS = 3  # of a parameter that is named after a class


def is_of(value: Any, packages: frozenset[str]) -> bool:
    """Return whether some packages define a class or function; classes that code generates may state no module."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in packages


def _list_values(packages: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield what the imported modules of some packages hold, with the name of each module, in their order."""
    for name in sorted(name for name in sys.modules if name.partition(".")[0] in packages):
        yield from ((name, value) for value in list(getattr(sys.modules[name], "__dict__", {}).values()))


# -- who uses whom ---------------------------------------------------------------------------------------------------


class UseGraph:
    """The classes and functions of some packages, in the order of their modules and lines, and who uses whom.

    Args: packages: the top-level packages; only what is imported counts.
    """

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages
        self.definitions: list[Any] = [
            value
            for module, value in _list_values(packages)
            if self._is_own(value) and value.__module__ == module and "<" not in value.__qualname__
        ]
        self._users: dict[int, list[Any]] = {}
        for user in self.definitions:
            for used in {id(item): item for item in self._list_used(user)}.values():
                if used is not user:
                    self._users.setdefault(id(used), []).append(user)

    def list_reaching(self, definition: Any) -> list[Any]:
        """Return the definitions that reach one, the nearest first."""
        reaching = [definition]
        known = {id(definition)}
        for used in reaching:  # which grows
            for user in self._users.get(id(used), ()):
                if id(user) not in known:
                    known.add(id(user))
                    reaching.append(user)
        return reaching[1:]

    def _is_own(self, value: Any) -> bool:
        return isinstance(value, type | types.FunctionType) and is_of(value, self._packages)

    def _list_used(self, user: Any) -> Iterator[Any]:
        if not isinstance(user, type):
            yield from self._list_read(user)
            return
        yield from filter(self._is_own, user.__bases__)
        for value in list(vars(user).values()):
            yield from self._list_held(value)
            yield from self._list_read(value)

    def _list_read(self, value: Any) -> Iterator[Any]:
        """Yield what the functions behind a member read: globals, attributes of modules, items of tables, defaults."""
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property | functools.cached_property):
            value = value.fget if isinstance(value, property) else value.func
        functions: list[types.FunctionType] = []
        while isinstance(value, types.FunctionType) and value not in functions:
            functions.append(value)
            value = vars(value).get("__wrapped__")
        for function in functions:
            for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
                yield from self._list_held(value)
            names = list(dict.fromkeys(_read_names(function.__code__)))
            space = function.__globals__
            for value in [space[name] if name in space else _find_module(function, name) for name in names]:
                if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in self._packages:
                    for attribute in names:
                        yield from self._list_held(vars(value).get(attribute))
                elif value is not None:
                    yield from self._list_held(value)
                    if is_of(type(value), self._packages):  # such as a registry
                        yield from self._list_held(list(getattr(value, "__dict__", {}).values()))

    def _list_held(self, value: Any, depth: int = _DEPTH) -> Iterator[Any]:
        if self._is_own(value):
            yield value
        elif isinstance(value, functools.partial):
            yield from self._list_held([value.func, *value.args, *value.keywords.values()], depth)
        elif depth and isinstance(value, _CONTAINERS):
            stored = list_stored(value)
            for item in stored if len(stored) <= _MAX_ITEMS else ():
                yield from self._list_held(item, depth - 1)


def _find_module(function: types.FunctionType, name: str) -> types.ModuleType | None:
    """Return the module that a name of an import inside a function means: a whole name, or one relative to its own."""
    parts = str(function.__module__).split(".")[:-1]  # code that is generated may state no module
    above = (".".join([*parts[:depth], name]) for depth in range(len(parts), -1, -1))
    return next((sys.modules[whole] for whole in above if whole in sys.modules), None)


def list_stored(value: Any) -> list[Any]:
    """Return the items of a container as it stores them: a class of its own may import or refuse when it is asked."""
    base: Any = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return list(base.values(value) if issubclass(base, dict | types.MappingProxyType) else base.__iter__(value))


def _read_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names in the code of a function and of those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _read_names(constant)


# -- configurations --------------------------------------------------------------------------------------------------


@functools.cache
def list_accepted(cls: Any) -> list[tuple[str, type]]:
    """Return the parameters without default that take an instance of a class of the same package, with the class.

    The likeliest classes come first, where there are several. The search for arguments makes them: configurations with
    small values first, `EncoderConfig(width=32, layers=2)`.
    """
    parameters = read_parameters(cls)
    return [
        (name, accepted)
        for name in list_required(parameters)
        for accepted in islice(dict.fromkeys(_list_classes(cls, name, parameters[name].annotation)), _MOST_CLASSES)
    ]


def _list_classes(cls: Any, name: str, annotation: Any) -> Iterator[type]:
    """Yield the classes that a parameter may take: annotated, in an attribute of the class, named alike."""
    space, package = vars(sys.modules[cls.__module__]), frozenset({cls.__module__.partition(".")[0]})
    if isinstance(annotation, str):
        with contextlib.suppress(Exception):  # it may name what exists for a type checker alone
            annotation = eval(annotation, dict(space))
    word = name.replace("_", "").lower()
    held = [value for key, value in inspect.getmembers_static(cls) if key.lower().startswith(name.lower())]
    named = [
        value
        for value in list(space.values())
        if isinstance(value, type) and len(word) >= _LEAST_LETTERS and value.__name__.lower().endswith(word)
    ]
    for value in (annotation, *typing.get_args(annotation), *held, *named):
        if isinstance(value, type) and value is not cls and is_of(value, package) and _can_be_constructed(value):
            yield value


def _can_be_constructed(value: type) -> bool:
    """Return whether a class is a model, or gives an object with settings without arguments."""
    if issubclass(value, nn.Module):
        return True
    if issubclass(value, int | str | tuple | Mapping) or list_required(read_parameters(value)):
        return False
    try:
        return bool(vars(attempt(value)))
    except (AttemptError, TypeError):
        return False


def read_settings(value: Any) -> dict[str, Any] | None:
    """Return the arguments that give an object, by name; None if its attributes do not tell them."""
    kind: Any = type(value)
    if dataclasses.is_dataclass(value):  # it may have slots, or no fields
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return fields if fields.keys() >= set(list_required(read_parameters(kind))) else None
    names = _list_settings(kind)
    known = getattr(value, "__dict__", {})
    return {name: known[name] for name in names} if names and all(name in known for name in names) else None


@functools.cache
def _list_settings(kind: Any) -> list[str]:
    return [name for name, parameter in read_parameters(kind).items() if not is_variadic(parameter)]


def make_type_finder(packages: frozenset[str]) -> Callable[[str], type | None]:
    """Return a function that gives the class that a registry of some packages finds by its own name, or None.

    Args: packages: the top-level packages; only what is imported counts.
    """
    registries = list({id(value): value for _, value in _list_values(packages) if _is_registry(value)}.values())

    @functools.cache
    def find_type(name: str) -> type | None:
        for registry in registries:
            with contextlib.suppress(Exception):  # it may import what is not installed
                kind = registry.get(name)
                if isinstance(kind, type) and kind.__name__ == name:
                    return kind
        return None

    return find_type


def _is_registry(value: Any) -> bool:
    kind = type(value)
    return not issubclass(kind, type | types.ModuleType) and all(
        isinstance(inspect.getattr_static(kind, name, None), types.FunctionType) for name in ("build", "get")
    )
