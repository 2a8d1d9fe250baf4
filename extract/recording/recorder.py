"""Inside the sandbox: record the constructor and forward calls of modules, as expressions that give them again."""

import contextlib
import copyreg
import functools
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from extract.arguments.values import flatten, has_shape
from extract.recording.expressions import Description, UnwritableError, Writer
from extract.recording.messages import GUESSED, MOST_CALLS, RECORDED, SEARCHED, Way
from extract.recording.users import is_of

_MOST_ELEMENTS = 100_000_000  # of parameters and inputs: what is larger takes minutes to prove


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
            copied = _find_copied(caller)
            # A `__new__` of its own may not pass its arguments on.
            is_known = args or kwargs or caller.f_code.co_name != "__new__"
            description = recorder.describe(args, kwargs, cls) if is_known and copied is None else None
            recorder._constructed[id(module)] = (module, recorder._find_init(copied) or description)
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
                self.keep(
                    key, RecordedCall({"init": init.as_json()}, init.names, _count_parameters(module), way=init.way)
                )
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
            kept.sort(key=lambda r: (not r.worked, r.way != RECORDED, len(r.calls["init"]["kwargs"]), r.size))
            del kept[MOST_CALLS:]

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any], called: Any) -> Description | None:
        """Return a call as expressions, without defaults by name; None if there is none for one of its arguments."""
        space = vars(sys.modules.get(getattr(called, "__module__", ""), object))
        writer = Writer(self._packages, self._find_init, self._find_type, space)
        way: Way = SEARCHED if called in _GUESSED else GUESSED if _GUESSED else RECORDED
        try:
            return Description(list(map(writer.write, args)), writer.write_named(kwargs, called), writer.names, way)
        except UnwritableError:
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
                tensors = [*nn.Module.parameters(module), *flatten([args, kwargs])]
                size = sum(tensor.numel() for tensor in tensors if has_shape(tensor))
                calls = {"init": init.as_json(), "forward": forward.as_json()}
                yield key, RecordedCall(calls, {**init.names, **forward.names}, size, way=init.way)

    def _noting(self, cls: type[nn.Module], init: Callable[..., None]) -> Callable[..., None]:
        """Return a constructor that notes what a subclass passes to it."""

        @functools.wraps(init)
        def note(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(module) is not cls:
                self._inits[id(module), cls] = self.describe(args, kwargs, cls)
            init(module, *args, **kwargs)

        return note


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
