"""Defer the import of torch's compiler until a job uses it for more than excluding functions from compilation.

Importing it takes longer than importing the rest of torch, and 150 MB. Yet torchvision imports it for a decorator, and
the first optimizer of a process imports it, only to exclude functions: without compilation, that has no effect.
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
_RESULT = "__dynamo_disable"  # where torch stores the result of `disable` for a function
_exempt: weakref.WeakSet[FunctionType] = weakref.WeakSet()


def defer_compiler() -> None:
    """Replace `torch._dynamo` with placeholders, unless it is loaded already; torch must have been imported."""
    if _COMPILER in sys.modules:
        return
    compiler, utils = _Placeholder(_COMPILER), _Placeholder(_UTILS)
    compiler.__spec__ = PathFinder.find_spec(_COMPILER, sys.modules["torch"].__path__)
    compiler.__path__ = list(compiler.__spec__.submodule_search_locations or []) if compiler.__spec__ else []
    vars(compiler).update(disable=_disable, graph_break=_graph_break, utils=utils)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    sys.modules.update({_COMPILER: compiler, _UTILS: utils})
    sys.meta_path.insert(0, _Submodules())


class _Placeholder(ModuleType):
    """A placeholder module that is replaced by the real one at the first access to any other attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes that the import system looks up
            raise AttributeError(name)
        return getattr(_import_real(self.__name__), name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import the submodules of a placeholder from the real module."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return the spec of a submodule while the placeholder is in place."""
        if not fullname.startswith(f"{_COMPILER}.") or not isinstance(sys.modules.get(_COMPILER), _Placeholder):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the real module, which is fully loaded by then."""
        self._spec = (module := _import_real(spec.name)).__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; the module has been executed already."""
        vars(module)["__spec__"] = self._spec  # the import system set ours; some modules refuse attribute assignment


def _import_real(name: str) -> ModuleType:
    """Import the real module in place of the placeholders."""
    for placeholder in (_COMPILER, _UTILS):
        if isinstance(sys.modules.get(placeholder), _Placeholder):
            del sys.modules[placeholder]
    module = importlib.import_module(name)
    exempt = list(_exempt)
    _exempt.clear()
    for function in exempt:
        if vars(function).pop(_RESULT, None) is None:  # otherwise torch calls `disable` again, for real
            sys.modules[_COMPILER].decorators.skip(function)
    return module


def _disable(fn: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Callable[..., Any]:
    """Replace `torch._dynamo.disable`, as a function and as a decorator with options, for plain functions."""
    if fn is None:
        return functools.partial(_disable, **options)
    if isinstance(fn, FunctionType):
        _exempt.add(fn)
    elif not isinstance(fn, MethodType):  # `disable` changes the type of a module
        exempted: Callable[..., Any] = _import_real(_COMPILER).disable(fn, *args, **options)
        return exempted
    return fn


def _graph_break(*_: object, **__: object) -> None:
    """Replace `torch._dynamo.graph_break` outside of compiled code."""


def _is_compile_supported(device: str) -> Any:
    """Load the compiler to find out; torchvision calls this if an operator has no deterministic form."""
    return _import_real(_UTILS).is_compile_supported(device)
