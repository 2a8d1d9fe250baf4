"""Inside the sandbox: which definitions of a package reach a class, by the names that their code reads.

    class Gate(nn.Module): ...
    class Stage(nn.Module):
        def __init__(self, dim): self.gate = Gate(dim)
    def stage_small(): return Stage(16)
    REGISTRY = {"small": stage_small}
    def create(name): return REGISTRY[name]()

`Stage`, `stage_small` and `create` reach `Gate`, in this order.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

_CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
_DEPTH = 3  # of containers
_MAX_ITEMS = 5_000  # of one container


class UseGraph:
    """The classes and functions of some packages, in the order of their modules and lines, and who uses whom.

    Args: packages: the top-level packages; only what is imported counts.
    """

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages
        self.definitions: list[Any] = []
        self._users: dict[int, list[Any]] = {}
        for name in sorted(name for name in sys.modules if name.partition(".")[0] in packages):
            space = getattr(sys.modules[name], "__dict__", {})
            self.definitions += [value for value in list(space.values()) if self._is_defined_in(value, name)]
        for user in self.definitions:
            for used in {id(item): item for item in self._list_used(user)}.values():
                if used is not user:
                    self._users.setdefault(id(used), []).append(user)

    def list_reaching(self, definition: Any) -> list[Any]:
        """Return the definitions that reach one, the nearest first."""
        reaching = {id(definition): definition}
        waiting = deque([definition])
        while waiting:
            new = {id(user): user for user in self._users.get(id(waiting.popleft()), ()) if id(user) not in reaching}
            reaching |= new
            waiting += new.values()
        return list(reaching.values())[1:]

    def _is_defined_in(self, value: Any, module: str) -> bool:
        kinds = isinstance(value, type | types.FunctionType)
        return kinds and getattr(value, "__module__", None) == module and "<" not in value.__qualname__

    def _is_own(self, value: Any) -> bool:
        return isinstance(value, type | types.FunctionType) and is_of(value, self._packages)

    def _list_used(self, user: Any) -> Iterator[Any]:
        is_class = isinstance(user, type)
        yield from filter(self._is_own, user.__bases__ if is_class else ())
        for value in list(vars(user).values()) if is_class else [user]:
            if is_class:
                yield from self._list_held(value)
            for function in _list_functions(value):
                yield from self._list_read(function)

    def _list_read(self, function: types.FunctionType) -> Iterator[Any]:
        """Yield what a function reads: globals, attributes of modules, items of tables, defaults."""
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from self._list_held(value)
        names = list(dict.fromkeys(read_names(function.__code__)))
        space = function.__globals__
        for name in names:
            value = space.get(name)
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


def list_stored(value: Any) -> list[Any]:
    """Return the items of a container as it stores them: a class of its own may import or refuse when it is asked."""
    base: Any = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return list(base.values(value) if issubclass(base, dict | types.MappingProxyType) else base.__iter__(value))


def is_of(value: Any, packages: frozenset[str]) -> bool:
    """Return whether some packages define a class or function; classes that code generates may state no module."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in packages


def read_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names in the code of a function and of those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from read_names(constant)


def _list_functions(value: Any) -> list[types.FunctionType]:
    """Return the functions behind a definition or member: unwrapped, and of properties and static methods."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property | functools.cached_property):
        value = value.fget if isinstance(value, property) else value.func
    functions: list[types.FunctionType] = []
    while isinstance(value, types.FunctionType) and value not in functions:
        functions.append(value)
        value = vars(value).get("__wrapped__")
    return functions
