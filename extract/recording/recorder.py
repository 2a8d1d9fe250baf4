"""Inside the sandbox: record the constructor and forward calls of modules, as expressions that give them again."""

import contextlib
import copyreg
import enum
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from extract.arguments.messages import MOST_CHARACTERS, join_arguments
from extract.arguments.values.inputs import RECORD, flatten, has_shape
from extract.arguments.values.names import read_parameters
from extract.recording.configured import read_settings
from extract.recording.messages import GUESSED, MOST_CALLS, RECORDED, SEARCHED, Way
from extract.recording.users import is_of

_DEPTH = 8  # of nested values
_RUNTIME = frozenset({"torch", "numpy", "math", "builtins"})
_MOST_ELEMENTS = 100_000_000  # of parameters and inputs: what is larger takes minutes to prove
_EXACT = 16  # elements of a tensor of integers whose values are kept: sizes, offsets
#: Where expressions find functions and classes of the runtime, shortest name first.
_NAMESPACES: Mapping[str, Any] = {"nn": nn, "F": nn.functional, "torch": torch, "math": math, "np": np}


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
    way: Way = RECORDED


class StepsError(Exception):
    """More modules were constructed and called than allowed."""


class _Description(NamedTuple):
    call: dict[str, Any]
    names: dict[str, str]
    way: Way = RECORDED


class _UnnamedError(Exception):
    """A value that no expression gives."""


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

    `calls` has those nearest to the defaults, by module and name of the class.

    Args:
        packages: the top-level packages.
        most_steps: modules that may be constructed and called, so that what runs ends after the same work everywhere.
        find_type: returns the class that a registry finds by a name.
        bases: classes whose calls those of their subclasses show, which may be all that is ever constructed.
    """

    def __init__(
        self,
        packages: frozenset[str],
        most_steps: int,
        find_type: Callable[[str], type | None] = lambda _: None,
        bases: Sequence[type[nn.Module]] = (),
    ) -> None:
        self.calls: dict[str, list[RecordedCall]] = {}
        self.steps = 0
        self._packages = packages
        self._depth = 0  # of calls inside each other
        self._find_type = find_type
        self._most_steps = most_steps
        # The modules are held, since the id of one that is gone would be given again.
        self._constructed: dict[int, tuple[nn.Module, _Description | None]] = {}
        self._names: dict[str, str] = {}  # in the expressions of the call that is being described
        self._optional = False  # whether the argument that is being described can be left out
        self._space: Mapping[str, Any] = {}  # the names of the module whose class is called
        self._call = nn.Module.__call__
        self._inits: dict[tuple[int, type], _Description | None] = {}  # what a subclass passes to a base
        self._bases: Mapping[Any, Callable[..., None]] = {cls: cls.__init__ for cls in bases}

    def __enter__(self) -> None:
        recorder = self

        def new(cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
            recorder._step()
            module: nn.Module = object.__new__(cls)
            caller = sys._getframe(1)
            copied = _find_copied(caller)
            if copied is not None:
                description = recorder._constructed.get(id(copied), (None, None))[1]
            else:
                passed = (args, kwargs) if args or kwargs else _list_passed(caller, cls)
                description = recorder._describe(*passed, cls)
            recorder._constructed[id(module)] = (module, description)
            return module

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            recorder._step()
            # Described before the call, which may write to its inputs; kept after it, since what works counts most.
            records = recorder.describe(module, args, kwargs)
            is_inner, worked = recorder._depth > 0, False
            recorder._depth += 1
            try:
                output = recorder._call(module, *args, **kwargs)
                worked = True
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

    def count_largest(self) -> int:
        """Return the number of elements of the largest module that was constructed."""
        return max((_count_parameters(module) for module, _ in self._constructed.values()), default=0)

    def forget(self) -> None:
        """Let go of the modules that were constructed so far; keep how those were whose class was never called."""
        called = set(self.calls)
        for module, init in self._constructed.values():
            key = self.key(type(module))
            if key is not None and init is not None and key not in called:
                self.keep(key, RecordedCall({"init": init.call}, init.names, _count_parameters(module), True, init.way))
        self._constructed.clear()

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._most_steps:
            raise StepsError("constructs and calls too many modules")

    def describe(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, RecordedCall]:
        """Return the record of a call by its key, and of the same for the bases whose `forward` runs.

        None of a class that is not recorded, or where an argument has no text.
        """
        kind = type(module)
        inits = [(kind, self._constructed.get(id(module), (None, None))[1])]
        above = [base for base in self._bases if base is not kind and base.forward is kind.forward]
        inits += [(base, self._inits.get((id(module), base))) for base in above]
        known = ((key, init) for cls, init in inits if (key := self.key(cls)) is not None)
        records = {key: self._describe_both(init, module, args, kwargs) for key, init in known}
        return {key: record for key, record in records.items() if record is not None}

    def _describe_both(
        self, init: _Description | None, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> RecordedCall | None:
        """Return the record of a call. Args: init: the call of its constructor, if that is known."""
        forward = self._describe(args, kwargs, type(module).forward) if init is not None else None
        if init is None or forward is None or any(forward.names.get(n, m) != m for n, m in init.names.items()):
            return None
        tensors = [*nn.Module.parameters(module), *flatten([args, kwargs])]
        size = sum(tensor.numel() for tensor in tensors if has_shape(tensor))
        calls, names = {"init": init.call, "forward": forward.call}, {**init.names, **forward.names}
        return RecordedCall(calls, names, size, way=init.way)

    def _describe(self, args: Sequence[Any], kwargs: Mapping[str, Any], called: Any) -> _Description | None:
        """Return a call as expressions, without defaults by name; None if there is none for one of its arguments."""
        self._names = {}
        self._optional = False
        self._space = vars(sys.modules.get(getattr(called, "__module__", ""), object))
        try:
            texts = [self._text(value) for value in args]
            named = self._describe_named(kwargs, _read_defaults(called)) if kwargs else {}
        except _UnnamedError:
            return None
        way: Way = SEARCHED if called in _GUESSED else GUESSED if _GUESSED else RECORDED
        return _Description({"args": texts, "kwargs": named}, self._names, way)

    def _describe_named(self, kwargs: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
        """Return arguments by name, without those that are defaults, or can be left out and have no expression.

        Raises: _UnnamedError.
        """
        named = {}
        for name, value in kwargs.items():
            if not name.isidentifier():
                raise _UnnamedError
            if not _is_same(value, defaults.get(name, _UNSET)):
                self._optional = defaults.get(name) is not inspect.Parameter.empty
                try:
                    named[name] = self._text(value)
                except _UnnamedError:  # such as a cache of a decoder
                    if not self._optional:
                        raise
        return named

    def _text(self, value: object) -> str:
        text = self._expression(value, 0)
        if len(text) > MOST_CHARACTERS:
            raise _UnnamedError
        return text

    def _expression(self, value: Any, depth: int) -> str:
        """Return an expression for a value of the same kind. Raises: _UnnamedError."""
        if depth > _DEPTH:
            raise _UnnamedError
        write = functools.partial(self._expression, depth=depth + 1)
        kind: Any = type(value)
        if kind is str and value.startswith("/") and Path(value).exists():
            raise _UnnamedError  # a file of this machine
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return repr(value)
        if kind is float:
            return f"float('{value}')"
        if isinstance(value, nn.Module):
            init = self._constructed.get(id(value), (None, None))[1]
            if init is None:
                raise _UnnamedError
            if kind in (nn.ModuleList, nn.Sequential) and not init.call["args"]:  # filled later
                inside = ", ".join(map(write, value._modules.values()))
                return f"nn.ModuleList([{inside}])" if kind is nn.ModuleList else f"nn.Sequential({inside})"
            for name, module in init.names.items():
                self._use(name, module)
            return f"{self._name(kind)}({join_arguments(init.call['args'], init.call['kwargs'])})"
        if isinstance(value, torch.Tensor):
            text = _tensor(value)
            return f"nn.Parameter({text})" if isinstance(value, nn.Parameter) else text
        if isinstance(value, torch.Size):
            return repr(tuple(value))
        if isinstance(value, torch.dtype):
            return repr(value)
        if isinstance(value, torch.device):
            return "torch.device('cpu')"
        if kind is torch.Generator:
            return "torch.Generator().manual_seed(0)"
        if isinstance(value, np.generic):
            item = value.item()
            return write(item) if isinstance(item, float) else repr(item)
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
        if kind is tuple:
            return f"({', '.join(map(write, value))}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(write, value))}]"
        if isinstance(value, dict):
            registered = self._find_type(value["type"]) if isinstance(value.get("type"), str) else None
            if registered is not None:
                self.name(registered)  # noted
            return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"
        if kind is range or kind is slice:
            return repr(value)
        if isinstance(value, int | str):  # a constant with a name of its own
            return repr(int(value) if isinstance(value, int) else str(value))
        return self._namespace(value, depth + 1)

    def _namespace(self, value: Any, depth: int) -> str:
        """Return an expression for what holds tensors by name, such as a batch of graphs, without its class.

        Raises: _UnnamedError if it has none that can be expressed, or can be left out.
        """
        texts = {}
        for name, held in _read_fields(value).items():
            with contextlib.suppress(_UnnamedError):
                texts[name] = self._expression(held, depth)
        if self._optional or not any("torch." in text for text in texts.values()):
            raise _UnnamedError
        kind = RECORD if callable(getattr(type(value), "__getitem__", None)) else "types.SimpleNamespace"
        return f"{kind}({join_arguments([], texts)})"

    def _name(self, value: Any) -> str:
        """Return the name of a class or function: of the file, or of the runtime."""
        own = self.name(value)
        if own is not None:
            return own
        name = getattr(value, "__name__", "")
        for prefix, namespace in _NAMESPACES.items():
            if inspect.getattr_static(namespace, name, None) is value:
                return f"{prefix}.{name}"
        raise _UnnamedError

    def _use(self, name: str, module: str) -> str:
        """Note that a name of a module is used. Raises: _UnnamedError if it has two meanings in one call."""
        if self._names.setdefault(name, module) != module:
            raise _UnnamedError
        return name

    def _noting(self, cls: type[nn.Module], init: Callable[..., None]) -> Callable[..., None]:
        """Return a constructor that notes what a subclass passes to it."""

        @functools.wraps(init)
        def note(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(module) is not cls:
                self._inits[id(module), cls] = self._describe(args, kwargs, cls)
            init(module, *args, **kwargs)

        return note

    def key(self, cls: type[nn.Module]) -> str | None:
        """Return `MODULE:QUALNAME`."""
        return f"{cls.__module__}:{cls.__qualname__}" if is_of(cls, self._packages) else None

    def name(self, value: Any) -> str | None:
        """Return the name of a definition at module level, and note its module."""
        name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
        if not isinstance(name, str) or not isinstance(module, str) or module.partition(".")[0] in _RUNTIME:
            return None
        if not is_of(value, self._packages):
            for alias, item in self._space.items():
                if item is value:
                    return alias
                if isinstance(item, types.ModuleType) and vars(item).get(name) is value:
                    return f"{alias}.{name}"
        return self._use(name, module) if vars(sys.modules.get(module, object)).get(name) is value else None

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
            kept.sort(
                key=lambda other: (
                    not other.worked,
                    other.way != RECORDED,
                    len(other.calls["init"]["kwargs"]),
                    other.size,
                )
            )
            del kept[MOST_CALLS:]


def _count_parameters(module: nn.Module) -> int:
    # A module whose constructor failed may have no parameters at all.
    whole = "_parameters" in vars(module) and "_modules" in vars(module)
    # Classes override `parameters`.
    return sum(tensor.numel() for tensor in nn.Module.parameters(module) if has_shape(tensor)) if whole else 0


def _find_copied(caller: types.FrameType) -> object | None:
    """Return the object that `copy` is making a copy of, which is not constructed; None if it does not."""
    outer = caller.f_back
    if caller.f_code is not copyreg.__newobj__.__code__ or outer is None:  # type: ignore[attr-defined]
        return None
    copied: object = outer.f_locals.get("x", caller)
    return copied


def _list_passed(frame: types.FrameType, cls: type) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of the `__new__` of a class itself, which often passes none of them on."""
    if frame.f_code.co_name != "__new__" or not frame.f_code.co_argcount:
        return (), {}
    names, rest, keywords, values = inspect.getargvalues(frame)
    if values.get(names[0]) is not cls or not {*names, rest or names[0], keywords or names[0]} <= values.keys():
        return (), {}  # of another class, or it has deleted them
    args = [values[name] for name in names[1:]] + list(values[rest] if rest else ())
    return args, dict(values[keywords] if keywords else {})


def _read_fields(value: Any) -> dict[str, Any]:
    """Return the values that an object holds by name: its items if its keys are names, else its attributes."""
    try:
        fields = {key: value[key] for key in value.keys()}  # noqa: SIM118 (it need not be a mapping)
    except Exception:  # noqa: BLE001 (what is foreign raises anything)
        slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
        fields = {name: getattr(value, name, None) for name in slots} | dict(getattr(value, "__dict__", {}))
    return {name: held for name, held in fields.items() if isinstance(name, str) and name.isidentifier()}


_UNSET = object()


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


def _is_same(value: Any, default: Any) -> bool:
    """Return whether a plain value is the default."""
    return type(value) is type(default) and isinstance(value, bool | int | float | str | None) and value == default


def _write_all(write: functools.partial[str], values: Mapping[str, Any]) -> dict[str, str]:
    return {name: write(value) for name, value in values.items()}


def _tensor(value: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and type, of the same range if it holds whole numbers.

    None is negative if none of the tensor is.
    """
    shape, dtype = tuple(value.shape), value.dtype
    if value.layout is not torch.strided:
        raise _UnnamedError
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
