"""torch's compiler, imported when a job asks it for more than to be left out of what is compiled.

It takes longer to import than all the rest of torch, and 150 MB. Yet torchvision imports it for a decorator, and so
does the first optimiser of a process, to keep functions out of what is compiled: where nothing is, that is nothing to
do.
"""

import functools
import importlib
import importlib.abc
import sys
import weakref
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, MethodType, ModuleType
from typing import Any

_COMPILER, _UTILS = "torch._dynamo", "torch._dynamo.utils"
_KEPT = "__dynamo_disable"  # where torch keeps what `disable` gave for a function
_exempt: weakref.WeakSet[FunctionType] = weakref.WeakSet()


def defer_compiler() -> None:
    """Put stand-ins in the place of `torch._dynamo`, unless it is there; torch must have been imported."""
    if _COMPILER in sys.modules:
        return
    compiler, utils = _StandIn(_COMPILER), _StandIn(_UTILS)
    compiler.__spec__ = PathFinder.find_spec(_COMPILER, sys.modules["torch"].__path__)
    compiler.__path__ = list(compiler.__spec__.submodule_search_locations or []) if compiler.__spec__ else []
    vars(compiler).update(disable=_disable, graph_break=_graph_break, utils=utils)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    sys.modules.update({_COMPILER: compiler, _UTILS: utils})
    sys.meta_path.insert(0, _Submodules())


class _StandIn(ModuleType):
    """A module that makes way for the real one as soon as it is asked for anything that it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A submodule of a stand-in's is one of the real module's."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """The spec of a submodule, as long as the stand-in is there."""
        if not fullname.startswith(f"{_COMPILER}.") or not isinstance(sys.modules.get(_COMPILER), _StandIn):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The real one, which is whole then."""
        self._spec = (module := _real(spec.name)).__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing more to execute."""
        vars(module)["__spec__"] = self._spec  # what was made above has ours; some modules refuse to be assigned to


def _real(name: str) -> ModuleType:
    """The compiler's own module."""
    for standing in (_COMPILER, _UTILS):
        if isinstance(sys.modules.get(standing), _StandIn):
            del sys.modules[standing]
    module = importlib.import_module(name)
    exempt = list(_exempt)
    _exempt.clear()
    for function in exempt:
        if vars(function).pop(_KEPT, None) is None:  # with it, torch asks again, and exempts it in earnest
            sys.modules[_COMPILER].decorators.skip(function)
    return module


def _disable(fn: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Callable[..., Any]:
    """`torch._dynamo.disable`, as a function and as a decorator with options, of plain functions."""
    if fn is None:
        return functools.partial(_disable, **options)
    if isinstance(fn, FunctionType):
        _exempt.add(fn)
    elif not isinstance(fn, MethodType):  # a module gets another type
        exempted: Callable[..., Any] = _real(_COMPILER).disable(fn, *args, **options)
        return exempted
    return fn


def _graph_break(*_: object, **__: object) -> None:
    """`torch._dynamo.graph_break` outside of what is compiled."""


def _is_compile_supported(device: str) -> Any:
    """What torchvision asks where an operator has no deterministic form of its own."""
    return _real(_UTILS).is_compile_supported(device)
