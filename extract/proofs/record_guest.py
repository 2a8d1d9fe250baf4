"""Inside the sandbox: run a block, and record how it constructs and calls the other classes of its file.

What a working model passes to its parts are true arguments: widths that fit each other, tensors of the rank that the
author means, classes and functions where a name says nothing.

    class Stage(nn.Module):                     # the file of `Stage` has `Gate`, too
        def __init__(self, dim=32):
            self.gate = Gate(dim, act=nn.SiLU)
        def forward(self, x):
            return self.gate(x, x.mean((2, 3)))

Running `Stage()` on an image records of `Gate` the constructor call `(32, act=nn.SiLU)` and the forward call
`(torch.randn((2, 32, 16, 16)), torch.randn((2, 32)))`, as expressions.
"""

import dataclasses
import enum
import functools
import inspect
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from extract.arguments.messages import BlockRun
from extract.arguments.probe import MODULE_NAME
from extract.arguments.target import Target, prepare
from extract.arguments.trials import attempt

MOST_CALLS = 3  # distinct, of a class
_DEPTH = 8  # of nested values
_CHARACTERS = 2_000  # of one argument
_EXACT = 16  # elements of a tensor of integers whose values are kept: sizes, offsets
_SECONDS = 30.0  # of CPU time
#: Where expressions find functions and classes of the runtime, shortest name first.
_NAMESPACES: Mapping[str, Any] = {"nn": nn, "F": nn.functional, "torch": torch, "math": math, "np": np}


@dataclass(frozen=True, slots=True)
class BlockRecording(BlockRun):
    """A block to run. Args: classes: the classes of its file whose calls are recorded."""

    classes: Sequence[str]


class _UnnamedError(Exception):
    """A value that no expression gives."""


def record_calls(request: BlockRecording) -> dict[str, list[dict[str, Any]]]:
    """Return the constructor and forward calls of each class, in the order of the calls.

    Raises: AttemptError if the block does not run.
    """
    prepare(request.folders, request.origin)
    target = Target(request)
    recorder = ArgumentRecorder(vars(target.file), frozenset(request.classes))
    with recorder:
        module = target.build().eval()
        args, kwargs = target.inputs()
        with torch.no_grad():
            attempt(functools.partial(module, *args, **kwargs), _SECONDS)
    return recorder.calls


class ArgumentRecorder:
    """Record the calls of some classes of a file. A context manager; the records are in `calls`.

    Args:
        file: the names of the file.
        classes: the names of the classes.
    """

    def __init__(self, file: Mapping[str, Any], classes: frozenset[str]) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self._file = file
        self._classes = classes
        # The modules are held, since the id of one that is gone would be given again.
        self._constructed: dict[int, tuple[nn.Module, dict[str, Any] | None]] = {}
        self._call = nn.Module.__call__

    def __enter__(self) -> None:
        recorder = self

        def new(cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
            module: nn.Module = object.__new__(cls)
            recorder._constructed[id(module)] = (module, recorder._describe(args, kwargs))
            return module

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Described before the call, which may write to its inputs; kept after it, since only what works counts.
            record = recorder._describe_both(module, args, kwargs)
            output = recorder._call(module, *args, **kwargs)
            kept = recorder.calls.setdefault(type(module).__name__, []) if record is not None else []
            if record is not None and record not in kept and len(kept) < MOST_CALLS:
                kept.append(record)
            return output

        nn.Module.__new__ = staticmethod(new)  # type: ignore[method-assign,assignment]
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        # Not deleted: a class that once had a `__new__` passes arguments on to that of `object`, which takes none.
        nn.Module.__new__ = staticmethod(lambda cls, *_args, **_kwargs: object.__new__(cls))  # type: ignore[method-assign]
        nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def _describe_both(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        cls = type(module)
        if cls.__name__ not in self._classes or cls.__module__ != MODULE_NAME:
            return None
        init, forward = self._constructed.get(id(module), (None, None))[1], self._describe(args, kwargs)
        return None if init is None or forward is None else {"init": init, "forward": forward}

    def _describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a call as expressions; None if there is none for one of its arguments."""
        try:
            texts = [self._text(value) for value in args]
            named = {name: self._text(value) for name, value in kwargs.items()}
        except _UnnamedError:
            return None
        return {"args": texts, "kwargs": named}

    def _text(self, value: object) -> str:
        text = self._expression(value, 0)
        if len(text) > _CHARACTERS:
            raise _UnnamedError
        return text

    def _expression(self, value: Any, depth: int) -> str:
        """Return an expression for a value of the same kind. Raises: _UnnamedError."""
        if depth > _DEPTH:
            raise _UnnamedError
        write = functools.partial(self._expression, depth=depth + 1)
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return repr(value)
        if kind is float:
            return f"float('{value}')"
        if isinstance(value, nn.Module):
            init = self._constructed.get(id(value), (None, None))[1]
            if init is None:
                raise _UnnamedError
            return f"{self._name(kind)}({_join(init['args'], init['kwargs'])})"
        if isinstance(value, torch.Tensor):
            text = _tensor(value)
            return f"nn.Parameter({text})" if isinstance(value, nn.Parameter) else text
        if isinstance(value, torch.Size):
            return repr(tuple(value))
        if isinstance(value, torch.dtype):
            return repr(value)
        if isinstance(value, torch.device):
            return "torch.device('cpu')"
        if isinstance(value, np.generic):
            return repr(value.item())
        if isinstance(value, enum.Enum):
            return f"{self._name(kind)}.{value.name}"
        if isinstance(value, functools.partial):
            inner = _join([write(value.func), *map(write, value.args)], _write_all(write, value.keywords))
            return f"functools.partial({inner})"
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._name(value)
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return f"{self._name(kind)}({_join([], _write_all(write, fields))})"
        if isinstance(value, types.SimpleNamespace):
            return f"types.SimpleNamespace({_join([], _write_all(write, vars(value)))})"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._name(kind)}({', '.join(map(write, value))})"
        if kind is tuple:
            return f"({', '.join(map(write, value))}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(write, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"
        if kind is range or kind is slice:
            return repr(value)
        raise _UnnamedError

    def _name(self, value: Any) -> str:
        """Return the name of a class or function: of the file, or of the runtime."""
        name = getattr(value, "__name__", "")
        if self._file.get(name) is value:
            return str(name)
        for prefix, namespace in _NAMESPACES.items():
            if inspect.getattr_static(namespace, name, None) is value:
                return f"{prefix}.{name}"
        raise _UnnamedError


def _write_all(write: functools.partial[str], values: Mapping[str, Any]) -> dict[str, str]:
    return {name: write(value) for name, value in values.items()}


def _join(args: Sequence[str], kwargs: Mapping[str, str]) -> str:
    return ", ".join([*args, *(f"{name}={text}" for name, text in kwargs.items())])


def _tensor(value: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and type, and of the same range if it holds integers."""
    shape, dtype = tuple(value.shape), value.dtype
    if value.layout is not torch.strided:
        raise _UnnamedError
    if dtype is torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    if dtype.is_floating_point or dtype.is_complex:
        return f"torch.randn({shape})" if dtype is torch.float32 else f"torch.randn({shape}, dtype={dtype})"
    if value.is_meta or not value.numel():
        return f"torch.zeros({shape}, dtype={dtype})"
    if value.numel() <= _EXACT:
        return f"torch.tensor({value.tolist()}, dtype={dtype})"
    return f"torch.randint({int(value.min())}, {int(value.max()) + 1}, {shape}, dtype={dtype})"
