"""torch's compiler, imported when a job compiles something.

It takes longer to import than all the rest of torch, and 150 MB. Yet torchvision imports it for a decorator, and so
does the first optimiser of a process, to keep out of what is compiled: where nothing is, that is nothing to do.
"""

import importlib
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_COMPILER, _UTILS = "torch._dynamo", "torch._dynamo.utils"
_KEPT = "__dynamo_disable"  # where torch keeps what `disable` gave for a function
_exempt: list[Callable[..., Any]] = []


def defer_compiler() -> None:
    """Put stand-ins in the place of `torch._dynamo`, unless it is there; torch must have been imported."""
    if _COMPILER in sys.modules:
        return
    compiler, utils = _StandIn(_COMPILER), _StandIn(_UTILS)
    compiler.__path__ = [str(Path(str(sys.modules["torch"].__file__)).with_name("_dynamo"))]
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
    while _exempt:  # asked again, torch exempts them in earnest
        vars(_exempt.pop()).pop(_KEPT, None)
    return importlib.import_module(name)


def _disable(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
    """`torch._dynamo.disable`, as a function and as a decorator with options."""
    if function is None:
        return _disable
    _exempt.append(function)
    return function


def _graph_break(*_: object, **__: object) -> None:
    """`torch._dynamo.graph_break` outside of what is compiled."""


def _is_compile_supported(device: str) -> Any:
    """What torchvision asks where an operator has no deterministic form of its own."""
    return _real(_UTILS).is_compile_supported(device)
