"""Inside the sandbox: record the constructor and forward calls of modules, as expressions that give them again.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from extract.arguments.messages import MOST_CHARACTERS, RECORD, CallTexts, Way, join_arguments
from extract.arguments.values import flatten, has_shape, read_parameters
from extract.recording.definitions import is_of, read_settings

MOST_CALLS = 3  # distinct, of a class
_MOST_ELEMENTS = 100_000_000  # of parameters and inputs: what is larger takes minutes to prove
_DEPTH = 8  # of nested values
_RUNTIME = frozenset({"torch", "numpy", "math", "builtins"})
_EXACT = 16  # elements of a tensor of integers whose values are kept: sizes, offsets
#: Where expressions find functions and classes of the runtime, shortest name first.
_NAMESPACES: Mapping[str, Any] = {"nn": nn, "F": nn.functional, "torch": torch, "math": math, "np": np}
_AS_THEY_ARE = (type(None), bool, int, str, range, slice, torch.dtype)
_UNSET = object()


class StepsError(Exception):
    """More modules were constructed and called than allowed."""


class Description(NamedTuple):
    """A call as expressions.

    Attributes:
        names: by each name of a source in the expressions, the module that defines it.
        way: how the arguments were found.
    """

    call: CallTexts
    names: dict[str, str]
    way: Way


class RecordedCall(NamedTuple):
    """The calls of one module.

    Attributes:
        calls: `init` and, if it was called, `forward`, as expressions.
        names: by each name of a source in the expressions, the module that defines it.
        size: the number of elements of its parameters and inputs.
        worked: whether the call returned.
        way: how the arguments of its constructor were found.
    """

    calls: dict[str, Any]
    names: dict[str, str]
    size: int
    worked: bool = True
    way: Way = "recorded"


_GUESSED: list[type] = []  # that are constructed with guessed arguments now


@contextlib.contextmanager
def guessing(cls: type) -> Iterator[None]:
    """Note of all that is constructed meanwhile that the arguments of a class were guessed."""
    _GUESSED.append(cls)
    try:
        yield
    finally:
        _GUESSED.pop()


class SourceRecorder:
    """Record the calls of all classes of some packages while they run; a context manager.

    `calls` has those nearest to the defaults, by `MODULE:QUALNAME` of the class.

    Args:
        packages: the top-level packages.
        most_steps: modules that may be constructed and called, so that what runs ends after the same work everywhere.
        find_type: returns the class that a registry finds by a name.
        bases: classes whose calls those of their subclasses show, which may be all that is ever constructed.
        wanted: the keys of the classes whose calls are described; None for all.
    """

    def __init__(
        self,
        packages: frozenset[str],
        most_steps: int,
        find_type: Callable[[str], type | None] = lambda _: None,
        bases: Sequence[type[nn.Module]] = (),
        wanted: Collection[str] | None = None,
    ) -> None:
        self.calls: dict[str, list[RecordedCall]] = {}
        self.steps = 0
        self.ran = False  # whether a module of the packages returned something
        self._wanted = wanted
        self._packages = packages
        self._most_steps = most_steps
        self._find_type = find_type
        self._depth = 0  # of calls inside each other
        # The modules are held, since the id of one that is gone would be given again.
        self._constructed: dict[int, tuple[nn.Module, Description | None]] = {}
        self._inits: dict[tuple[int, type], Description | None] = {}  # what a subclass passes to a base
        self._bases: Mapping[Any, Callable[..., None]] = {cls: cls.__init__ for cls in bases}
        self._call = nn.Module.__call__

    def __enter__(self) -> None:
        recorder = self

        def new(cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
            recorder._step()
            module: nn.Module = object.__new__(cls)
            caller = sys._getframe(1)
            description = None
            if caller.f_code is copyreg.__newobj__.__code__ and caller.f_back is not None:  # type: ignore[attr-defined]
                # `copy` makes a copy of `x`, which is not constructed.
                description = recorder._find_init(caller.f_back.f_locals.get("x"))
            elif args or kwargs or caller.f_code.co_name != "__new__":  # one of its own may not pass its arguments on
                description = recorder.describe(args, kwargs, cls)
            recorder._constructed[id(module)] = (module, description)
            return module

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            recorder._step()
            # Described before the call, which may write to its inputs; kept after it, since what works counts most.
            records = dict(recorder._list_records(module, args, kwargs))
            is_inner, worked = recorder._depth > 0, False
            recorder._depth += 1
            try:
                output = recorder._call(module, *args, **kwargs)
                worked = True
                recorder.ran = recorder.ran or is_of(type(module), recorder._packages)
            finally:
                recorder._depth -= 1
                # A call from outside that fails may be a guess.
                for key, record in records.items() if worked or is_inner else ():
                    recorder.keep(key, record._replace(worked=worked))
            return output

        nn.Module.__new__ = staticmethod(new)  # type: ignore[method-assign,assignment]
        nn.Module.__call__ = call  # type: ignore[method-assign]
        for base, init in self._bases.items():
            base.__init__ = self._noting(base, init)

    def __exit__(self, *_: object) -> None:
        # Not deleted: a class that once had a `__new__` passes arguments on to that of `object`, which takes none.
        nn.Module.__new__ = staticmethod(lambda cls, *_args, **_kwargs: object.__new__(cls))  # type: ignore[method-assign]
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        for base, init in self._bases.items():
            base.__init__ = init

    def holds(self, classes: Iterable[type[nn.Module]]) -> bool:
        """Return whether an instance of one of these classes was constructed."""
        kinds = tuple(classes)
        return any(isinstance(module, kinds) for module, _ in self._constructed.values())

    def forget(self) -> None:
        """Let go of the modules that were constructed so far; keep how those were whose class was never called."""
        called = set(self.calls)
        for module, init in self._constructed.values():
            key = self._key(type(module))
            if key is not None and init is not None and key not in called:
                # One whose constructor failed may have no parameters at all.
                size = _count(module) if {"_parameters", "_modules"} <= vars(module).keys() else 0
                self.keep(key, RecordedCall({"init": init.call}, init.names, size, way=init.way))
        self._constructed.clear()

    def keep(self, key: str, record: RecordedCall) -> None:
        """Keep calls that differ: those with the fewest settings that are no defaults, the smallest of them.

        What a setting such as `apply_act=False` switches off would not be seen. Calls that failed come last, one of
        each constructor call: they may lack a compiled operator, or values on the meta device.
        """
        kept = self.calls.setdefault(key, [])
        same = [other for other in kept if other.calls["init"] == record.calls["init"]]
        is_known = any(other.calls == record.calls for other in same) if record.worked else bool(same)
        if record.size <= _MOST_ELEMENTS and not is_known:
            kept.append(record)
            kept.sort(key=lambda r: (not r.worked, r.way != "recorded", len(r.calls["init"]["kwargs"]), r.size))
            del kept[MOST_CALLS:]

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any], called: Any) -> Description | None:
        """Return a call as expressions, without defaults by name; None if there is none for one of its arguments."""
        space = vars(sys.modules.get(getattr(called, "__module__", ""), object))
        writer = _Writer(self._packages, self._find_init, self._find_type, space)
        way: Way = "search" if called in _GUESSED else "guessed above" if _GUESSED else "recorded"
        try:
            call: CallTexts = {"args": list(map(writer.write, args)), "kwargs": writer.write_named(kwargs, called)}
            return Description(call, writer.names, way)
        except _UnwritableError:
            return None

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._most_steps:
            raise StepsError("constructs and calls too many modules")

    def _find_init(self, module: object) -> Description | None:
        return self._constructed.get(id(module), (None, None))[1]

    def _key(self, cls: type) -> str | None:
        key = f"{cls.__module__}:{cls.__qualname__}" if is_of(cls, self._packages) else None
        return key if self._wanted is None or key in self._wanted else None

    def _list_records(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, RecordedCall]]:
        """Yield the record of a call by its key, and of the same for the bases whose `forward` runs."""
        kind = type(module)
        inits = [(kind, self._find_init(module))]
        above = [base for base in self._bases if base is not kind and base.forward is kind.forward]
        inits += [(base, self._inits.get((id(module), base))) for base in above]
        known = [(key, init) for cls, init in inits if init is not None and (key := self._key(cls)) is not None]
        forward = self.describe(args, kwargs, kind.forward) if known else None
        for key, init in known:
            if forward is not None and all(forward.names.get(n, m) == m for n, m in init.names.items()):
                calls = {"init": init.call, "forward": forward.call}
                yield key, RecordedCall(calls, init.names | forward.names, _count(module, [args, kwargs]), way=init.way)

    def _noting(self, cls: type[nn.Module], init: Callable[..., None]) -> Callable[..., None]:
        """Return a constructor that notes what a subclass passes to it."""

        @functools.wraps(init)
        def note(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(module) is not cls:
                self._inits[id(module), cls] = self.describe(args, kwargs, cls)
            init(module, *args, **kwargs)

        return note


def _count(module: nn.Module, inputs: object = ()) -> int:
    """Return the number of elements of a module's parameters and of its inputs."""
    # Classes override `parameters`.
    tensors = [*nn.Module.parameters(module), *flatten(inputs)]
    return sum(tensor.numel() for tensor in tensors if has_shape(tensor))


# -- expressions -------------------------------------------------------------------------------------------------------


class _UnwritableError(Exception):
    """No expression gives a value."""


@dataclass
class _Writer:
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
    find_type: Callable[[str], type | None]
    space: Mapping[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    _optional: bool = False  # whether the argument that is written can be left out

    def write_named(self, kwargs: Mapping[str, Any], called: Any) -> dict[str, str]:
        """Return arguments by name, without those that are defaults, or can be left out and have no expression.

        Raises: _UnwritableError.
        """
        named = {}
        parameters = _read_cached(called) if kwargs else {}
        for name, value in kwargs.items():
            if not name.isidentifier():
                raise _UnwritableError
            default = parameters[name].default if name in parameters else _UNSET  # which can be left out, too
            if type(value) is type(default) and isinstance(value, (*_AS_THEY_ARE, float)) and value == default:
                continue
            self._optional = default is not inspect.Parameter.empty
            try:
                named[name] = self.write(value)
            except _UnwritableError:  # such as a cache of a decoder
                if not self._optional:
                    raise
        return named

    def write(self, value: Any) -> str:
        """Return an expression for a value of the same kind. Raises: _UnwritableError."""
        text = self._write(value, 0)
        if len(text) > MOST_CHARACTERS:
            raise _UnwritableError
        return text

    def _write(self, value: Any, depth: int) -> str:
        if depth > _DEPTH:
            raise _UnwritableError
        kind: Any = type(value)

        def write(inner: Any) -> str:
            return self._write(inner, depth + 1)

        def write_all(values: Mapping[str, Any]) -> dict[str, str]:
            return {name: write(inner) for name, inner in values.items()}

        if kind is str and value.startswith("/") and Path(value).exists():
            raise _UnwritableError  # a file of this machine
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
            function, args = write(value.func), map(write, value.args)
            return f"functools.partial({join_arguments([function, *args], write_all(value.keywords))})"
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._name(value)
        settings = read_settings(value)
        if settings is not None:
            usual = _read_usual(kind)
            texts = write_all({n: v for n, v in settings.items() if n not in usual or v is not usual[n]})
            changed = {n: text for n, text in texts.items() if n not in usual or text != write(usual[n])}
            return f"{self._name(kind)}({join_arguments([], changed)})"
        if isinstance(value, types.SimpleNamespace):
            return f"types.SimpleNamespace({join_arguments([], write_all(vars(value)))})"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._name(kind)}({', '.join(map(write, value))})"
        if kind in (tuple, torch.Size):
            return f"({', '.join(map(write, value))}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(write, value))}]"
        if isinstance(value, dict):
            registered = self.find_type(value["type"]) if isinstance(value.get("type"), str) else None
            if registered is not None:
                self._find_name(registered)  # noted
            texts = {write(key): write(item) for key, item in value.items()}
            start = f"{RECORD}("
            if offering := _offers_attributes(value):  # as the dicts in it then do
                texts = {key: t[len(start) : -1] if t.startswith(start + "{") else t for key, t in texts.items()}
            text = "{" + ", ".join(f"{key}: {item}" for key, item in texts.items()) + "}"
            return f"{start}{text})" if offering else text
        if isinstance(value, int | str):  # a constant with a name of its own
            return repr(int(value) if isinstance(value, int) else str(value))
        return self._write_fields(value, write)

    def _write_module(self, module: nn.Module, write: Callable[[Any], str]) -> str:
        init = self.find_init(module)
        if init is None:
            raise _UnwritableError
        kind = type(module)
        if kind in (nn.ModuleList, nn.Sequential) and not init.call["args"]:  # filled later
            inside = ", ".join(map(write, module._modules.values()))
            return f"nn.ModuleList([{inside}])" if kind is nn.ModuleList else f"nn.Sequential({inside})"
        for name, defining in init.names.items():
            self._use(name, defining)
        return f"{self._name(kind)}({join_arguments(**init.call)})"

    def _write_fields(self, value: Any, write: Callable[[Any], str]) -> str:
        """Return an expression for what holds tensors by name, such as a batch of graphs, without its class.

        Its items count if their keys are names, else its attributes.

        Raises: _UnwritableError if it has none that can be expressed, or can be left out.
        """
        try:
            fields = {key: value[key] for key in value.keys()}  # noqa: SIM118 (it need not be a mapping)
        except Exception:  # noqa: BLE001 (what is foreign raises anything)
            slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
            fields = {name: getattr(value, name, None) for name in slots} | dict(getattr(value, "__dict__", {}))
        texts = {}
        for name, held in fields.items():
            if isinstance(name, str) and name.isidentifier():
                with contextlib.suppress(_UnwritableError):
                    texts[name] = write(held)
        if self._optional or not any("torch." in text for text in texts.values()):
            raise _UnwritableError
        kind = RECORD if callable(getattr(type(value), "__getitem__", None)) else "types.SimpleNamespace"
        return f"{kind}({join_arguments([], texts)})"

    def _name(self, value: Any) -> str:
        """Return the name of a class or function: of the file, or of the runtime. Raises: _UnwritableError."""
        own = self._find_name(value)
        if own is not None:
            return own
        name = getattr(value, "__name__", "")
        for prefix, namespace in _NAMESPACES.items():
            if inspect.getattr_static(namespace, name, None) is value:
                return f"{prefix}.{name}"
        raise _UnwritableError

    def _find_name(self, value: Any) -> str | None:
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
        """Note that a name of a module is used. Raises: _UnwritableError if it has two meanings in one call."""
        if self.names.setdefault(name, module) != module:
            raise _UnwritableError
        return name


def _offers_attributes(value: dict[Any, Any]) -> bool:
    """Return whether the items of a dict are attributes, too, as those of settings often are."""
    names = (key for key in value if isinstance(key, str))
    return any(hasattr(value, name) and not hasattr(type(value), name) for name in names)


def write_tensor(value: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and type, of the same range if it holds whole numbers.

    None is negative if none of the tensor is. Raises: _UnwritableError if it is sparse.
    """
    shape, dtype = tuple(value.shape), value.dtype
    if value.layout is not torch.strided:
        raise _UnwritableError
    if dtype is torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    has_values = not value.is_meta and value.numel() > 0
    if dtype.is_floating_point or dtype.is_complex:
        dtype = torch.float32 if dtype is torch.get_default_dtype() else dtype
        kind = "" if dtype is torch.float32 else f", dtype={dtype}"
        if dtype.is_complex or not has_values or not 0 <= value.min() < value.max():
            return f"torch.randn({shape}{kind})"
        if (value != value.round()).any() or value.max() >= 2**31:
            return f"torch.rand({shape}{kind})"
    elif not has_values:
        return f"torch.zeros({shape}, dtype={dtype})"
    elif value.numel() <= _EXACT:
        return f"torch.tensor({value.tolist()}, dtype={dtype})"
    return f"torch.randint({int(value.min())}, {int(value.max()) + 1}, {shape}, dtype={dtype})"


_read_cached = functools.cache(read_parameters)


@functools.cache
def _read_usual(kind: Any) -> Mapping[str, Any]:
    """Return the settings of an object that is made without arguments; none if it cannot be."""
    try:
        return read_settings(kind()) or {}
    except Exception:  # noqa: BLE001 (what is foreign raises anything)
        return {}
