"""Inside the sandbox: expressions that give the values of a call again.

`Gate(8, act=nn.ReLU, sizes=torch.Size((2, 3)))` is written as `8`, `act=nn.ReLU` and `sizes=(2, 3)`.
"""

import contextlib
import copyreg
import enum
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from extract.arguments.messages import MOST_CHARACTERS, RECORD, join_arguments
from extract.arguments.values import read_parameters
from extract.recording.configured import read_settings
from extract.recording.messages import Way
from extract.recording.users import is_of

_DEPTH = 8  # of nested values
_RUNTIME = frozenset({"torch", "numpy", "math", "builtins"})
_EXACT = 16  # elements of a tensor of integers whose values are kept: sizes, offsets
#: Where expressions find functions and classes of the runtime, shortest name first.
_NAMESPACES: Mapping[str, Any] = {"nn": nn, "F": nn.functional, "torch": torch, "math": math, "np": np}
_AS_THEY_ARE = (type(None), bool, int, str, range, slice, torch.dtype)
_UNSET = object()


class UnwritableError(Exception):
    """No expression gives a value."""


class Description(NamedTuple):
    """The arguments of a call as expressions.

    Attributes:
        names: by each name of a source in the expressions, the module that defines it.
        way: how the arguments were found.
    """

    args: list[str]
    kwargs: dict[str, str]
    names: dict[str, str]
    way: Way

    def as_json(self) -> dict[str, Any]:
        """Return the arguments as JSON values."""
        return {"args": self.args, "kwargs": self.kwargs}


@dataclass
class Writer:
    """Writes the values of one call.

    Args:
        packages: the top-level packages whose classes and functions have names.
        find_init: returns how a module was constructed; None if nobody saw that.
        find_type: returns the class that a registry finds by a name.
        space: the names of the module whose class is called.
        names: by each name that the expressions use, the module that defines it.
    """

    packages: frozenset[str]
    find_init: Callable[[nn.Module], Description | None]
    find_type: Callable[[str], type | None] = lambda _: None
    space: Mapping[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    _optional: bool = False  # whether the argument that is written can be left out

    def write_named(self, kwargs: Mapping[str, Any], called: Any) -> dict[str, str]:
        """Return arguments by name, without those that are defaults, or can be left out and have no expression.

        Raises: UnwritableError.
        """
        named = {}
        defaults = _read_defaults(called) if kwargs else {}
        for name, value in kwargs.items():
            if not name.isidentifier():
                raise UnwritableError
            default = defaults.get(name, _UNSET)
            if type(value) is type(default) and isinstance(value, (*_AS_THEY_ARE, float)) and value == default:
                continue
            self._optional = defaults.get(name) is not inspect.Parameter.empty
            try:
                named[name] = self.write(value)
            except UnwritableError:  # such as a cache of a decoder
                if not self._optional:
                    raise
        return named

    def write(self, value: Any) -> str:
        """Return an expression for a value of the same kind. Raises: UnwritableError."""
        text = self._write(value, 0)
        if len(text) > MOST_CHARACTERS:
            raise UnwritableError
        return text

    def _write(self, value: Any, depth: int) -> str:
        if depth > _DEPTH:
            raise UnwritableError
        write = functools.partial(self._write, depth=depth + 1)
        kind: Any = type(value)
        if kind is str and value.startswith("/") and Path(value).exists():
            raise UnwritableError  # a file of this machine
        if kind in _AS_THEY_ARE:
            return repr(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if isinstance(value, nn.Module):
            return self._write_module(value, write)
        if isinstance(value, torch.Tensor):
            text = write_tensor(value)
            return f"nn.Parameter({text})" if isinstance(value, nn.Parameter) else text
        if isinstance(value, torch.device):
            return "torch.device('cpu')"
        if kind is torch.Generator:
            return "torch.Generator().manual_seed(0)"
        if isinstance(value, np.generic):
            return write(value.item())
        if isinstance(value, np.dtype):
            return f"np.dtype('{value}')"
        if isinstance(value, np.ndarray) and value.dtype != object and value.size:
            if value.size <= _EXACT:
                return f"np.array({write(value.tolist())}, dtype='{value.dtype}')"
            if (value == value.flat[0]).all():
                return f"np.full({value.shape}, {write(value.flat[0])}, dtype='{value.dtype}')"
        if isinstance(value, enum.Enum):
            return f"{self._name(kind)}.{value.name}"
        if isinstance(value, functools.partial):
            inner = join_arguments([write(value.func), *map(write, value.args)], _write_all(write, value.keywords))
            return f"functools.partial({inner})"
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._name(value)
        settings = read_settings(value)
        if settings is not None:
            usual = _read_usual(kind)
            texts = _write_all(write, {n: v for n, v in settings.items() if n not in usual or v is not usual[n]})
            changed = {n: text for n, text in texts.items() if n not in usual or text != write(usual[n])}
            return f"{self._name(kind)}({join_arguments([], changed)})"
        if isinstance(value, types.SimpleNamespace):
            return f"types.SimpleNamespace({join_arguments([], _write_all(write, vars(value)))})"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._name(kind)}({', '.join(map(write, value))})"
        if kind in (tuple, torch.Size):
            return f"({', '.join(map(write, value))}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(write, value))}]"
        if isinstance(value, dict):
            registered = self.find_type(value["type"]) if isinstance(value.get("type"), str) else None
            if registered is not None:
                self.find_name(registered)  # noted
            return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"
        if isinstance(value, int | str):  # a constant with a name of its own
            return repr(int(value) if isinstance(value, int) else str(value))
        return self._write_fields(value, write)

    def _write_module(self, module: nn.Module, write: Callable[[Any], str]) -> str:
        init = self.find_init(module)
        if init is None:
            raise UnwritableError
        kind = type(module)
        if kind in (nn.ModuleList, nn.Sequential) and not init.args:  # filled later
            inside = ", ".join(map(write, module._modules.values()))
            return f"nn.ModuleList([{inside}])" if kind is nn.ModuleList else f"nn.Sequential({inside})"
        for name, defining in init.names.items():
            self._use(name, defining)
        return f"{self._name(kind)}({join_arguments(init.args, init.kwargs)})"

    def _write_fields(self, value: Any, write: Callable[[Any], str]) -> str:
        """Return an expression for what holds tensors by name, such as a batch of graphs, without its class.

        Raises: UnwritableError if it has none that can be expressed, or can be left out.
        """
        texts = {}
        for name, held in _read_fields(value).items():
            with contextlib.suppress(UnwritableError):
                texts[name] = write(held)
        if self._optional or not any("torch." in text for text in texts.values()):
            raise UnwritableError
        kind = RECORD if callable(getattr(type(value), "__getitem__", None)) else "types.SimpleNamespace"
        return f"{kind}({join_arguments([], texts)})"

    def _name(self, value: Any) -> str:
        """Return the name of a class or function: of the file, or of the runtime. Raises: UnwritableError."""
        own = self.find_name(value)
        if own is not None:
            return own
        name = getattr(value, "__name__", "")
        for prefix, namespace in _NAMESPACES.items():
            if inspect.getattr_static(namespace, name, None) is value:
                return f"{prefix}.{name}"
        raise UnwritableError

    def find_name(self, value: Any) -> str | None:
        """Return the name of a definition at module level, and note its module; None if it has none."""
        name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
        if not isinstance(name, str) or not isinstance(module, str) or module.partition(".")[0] in _RUNTIME:
            return None
        if not is_of(value, self.packages):
            for alias, item in self.space.items():
                if item is value:
                    return alias
                if isinstance(item, types.ModuleType) and vars(item).get(name) is value:
                    return f"{alias}.{name}"
        return self._use(name, module) if vars(sys.modules.get(module, object)).get(name) is value else None

    def _use(self, name: str, module: str) -> str:
        """Note that a name of a module is used. Raises: UnwritableError if it has two meanings in one call."""
        if self.names.setdefault(name, module) != module:
            raise UnwritableError
        return name


def write_tensor(value: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and type, of the same range if it holds whole numbers.

    None is negative if none of the tensor is. Raises: UnwritableError if it is sparse.
    """
    shape, dtype = tuple(value.shape), value.dtype
    if value.layout is not torch.strided:
        raise UnwritableError
    if dtype is torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    if dtype.is_floating_point or dtype.is_complex:
        dtype = torch.float32 if dtype is torch.get_default_dtype() else dtype
        kind = "" if dtype is torch.float32 else f", dtype={dtype}"
        if value.is_meta or dtype.is_complex or not value.numel() or not 0 <= (least := value.min()) < value.max():
            return f"torch.randn({shape}{kind})"
        if (value == value.round()).all() and value.max() < 2**31:
            return f"torch.randint({int(least)}, {int(value.max()) + 1}, {shape}, dtype={dtype})"
        return f"torch.rand({shape}{kind})"
    if value.is_meta or not value.numel():
        return f"torch.zeros({shape}, dtype={dtype})"
    if value.numel() <= _EXACT:
        return f"torch.tensor({value.tolist()}, dtype={dtype})"
    return f"torch.randint({int(value.min())}, {int(value.max()) + 1}, {shape}, dtype={dtype})"


def _read_fields(value: Any) -> dict[str, Any]:
    """Return the values that an object holds by name: its items if its keys are names, else its attributes."""
    try:
        fields = {key: value[key] for key in value.keys()}  # noqa: SIM118 (it need not be a mapping)
    except Exception:  # noqa: BLE001 (what is foreign raises anything)
        slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
        fields = {name: getattr(value, name, None) for name in slots} | dict(getattr(value, "__dict__", {}))
    return {name: held for name, held in fields.items() if isinstance(name, str) and name.isidentifier()}


@functools.cache
def _read_defaults(called: Any) -> Mapping[str, Any]:
    return {name: parameter.default for name, parameter in read_parameters(called).items()}


@functools.cache
def _read_usual(kind: Any) -> Mapping[str, Any]:
    """Return the settings of an object that is made without arguments; none if it cannot be."""
    try:
        return read_settings(kind()) or {}
    except Exception:  # noqa: BLE001 (what is foreign raises anything)
        return {}


def _write_all(write: Callable[[Any], str], values: Mapping[str, Any]) -> dict[str, str]:
    return {name: write(value) for name, value in values.items()}
