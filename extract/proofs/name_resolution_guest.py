"""Inside the sandbox: what the names of a closed file are bound to, beside what they are bound to where it came from.

What it tells holds names of the source and no text of it: it is passed on, whatever the licence.

The original class is imported from its own package, its closed file is executed beside it, in one process, so that
what both have from elsewhere (torch, numpy, the standard library) is one object. From the two classes on, functions
are compared instruction by instruction; each global name that the original reads (`fn.__globals__`, with the attributes
that it asks of modules) is one binding. Two things are the same if they are one object; as functions, if they have the
same instructions, defaults and cells; as classes, if their bases and all that they define are the same; as other
values, if they are equal, part by part. What a function of the file reads is followed in turn.
"""

import builtins
import dis
import functools
import importlib
import logging
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch

from extract.arguments.probe import load
from extract.arguments.search_guest import compile_nothing
from extract.arguments.trials import AttemptError, attempt
from lemur_core.sandbox.server.foreign import load as load_module

_SECONDS = 120.0  # of CPU, for one import or file
_RECURSION_LIMIT = 10_000
#: What each class and module has anew.
_OWN = frozenset(
    (
        "__module__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__qualname__",
        "__annotations__",
        "__parameters__",
        "__abstractmethods__",
        "_abc_impl",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "_autograd_function_id",  # torch counts its functions
    )
)
_MODULES_OWN = frozenset(("__name__", "__file__", "__doc__", "__package__", "__spec__", "__path__", "__builtins__"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...), type(NotImplemented), range, slice, re.Pattern)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)

#: Instructions that say nothing of what a function does.
_SILENT = frozenset(
    ("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "NOT_TAKEN")
)
_GLOBAL = "global"

Token = tuple[Any, ...]


def compare_bindings(payload: dict[str, Any]) -> dict[str, Any]:
    """Which names are bound to the same, for several blocks of one package.

    Args:
        payload: `folders`, for the beginning of sys.path: the package and what it needs; `runtime`, for its end;
            `blocks`, each with `block`, its id, `module` and `name` to import, `code`, the closed file, and `standins`,
            names that the file has from us; `told`, of how many others it is told.

    Returns: by block id, `missing` with the reason why nothing can be compared, or `compared`, a number of names,
    `same` and `standin`, how many of them are bound to the same and to a stand-in of ours, and `others`, the names that
    are not bound to the same, each with the reason, the first so many.
    """
    compile_nothing()
    sys.path[:0] = payload["folders"]
    sys.path += payload["runtime"]
    sys.setrecursionlimit(_RECURSION_LIMIT)
    answers: dict[str, Any] = {}
    for index, item in enumerate(payload["blocks"]):
        try:
            module = attempt(partial(importlib.import_module, item["module"]), _SECONDS)
            theirs = getattr(module, item["name"])
            file = attempt(partial(_load, item["code"], index), _SECONDS)
            ours = getattr(file, item["name"])
        except (AttemptError, AttributeError) as error:
            answers[item["block"]] = {"missing": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
            continue
        answer = Bindings(frozenset(item["standins"])).compare(theirs, ours)
        answers[item["block"]] = answer | {"others": answer["others"][: payload["told"]]}
    return answers


def _load(code: str, index: int) -> types.ModuleType:
    return load_module(code, f"block_{index}") if index else load(code)


class Bindings:
    """The bindings of one block, from its class on."""

    def __init__(self, stubs: frozenset[str] = frozenset()) -> None:
        self._stubs = stubs
        self._known: dict[tuple[int, int], str] = {}
        self._kept: list[object] = []  # so that no other object gets the identity of one that is known
        self._functions: deque[tuple[types.FunctionType, types.FunctionType]] = deque()
        self._reasons: dict[tuple[str, str], str | None] = {}

    def compare(self, theirs: type, ours: type) -> dict[str, Any]:
        """What `compare_bindings` returns of a block."""
        self.differs(theirs, ours)
        while self._functions:
            self._follow(*self._functions.popleft())
        reasons = {key: why for key, why in self._reasons.items() if why is not None}
        others = sorted(f"{module}: {name}: {why}" for (module, name), why in reasons.items() if why)
        stub_count = sum(why.startswith("a stand-in") for why in reasons.values())
        return {
            "compared": len(reasons),
            "same": sum(not why for why in reasons.values()),
            "standin": stub_count,
            "others": others,
        }

    # -- functions -----------------------------------------------------------------------------------------------------

    def _follow(self, theirs: types.FunctionType, ours: types.FunctionType) -> None:
        """Note what each name that a function reads is bound to, in both."""
        their_names, our_names = list(references(theirs)), list(references(ours))
        for (name, their_value), (other_name, our_value) in zip(their_names, our_names, strict=True):
            if name.partition(".")[0] in _MODULES_OWN:
                continue
            key = theirs.__module__ or "", name
            if self._reasons.get(key):
                continue
            if their_value is _UNBOUND:  # not bound in the original either: it fails in both when it is reached
                continue
            if our_value is _UNBOUND:
                self._reasons[key] = f"{other_name} is not bound"
                continue
            try:
                why = self.differs(their_value, our_value)
            except Undecided:
                self._reasons.setdefault(key, None)
                continue
            if why and other_name.partition(".")[0] in self._stubs:
                why = "a stand-in"
            self._reasons[key] = why

    def _functions_differ(self, theirs: types.FunctionType, ours: types.FunctionType) -> str:
        if instructions(theirs) != instructions(ours):
            return "another text"
        if (theirs.__code__.co_argcount, theirs.__code__.co_varnames) != (
            ours.__code__.co_argcount,
            ours.__code__.co_varnames,
        ):
            return "other arguments"
        self._functions.append((theirs, ours))
        for what in ("__defaults__", "__kwdefaults__"):
            why = self.differs(getattr(theirs, what), getattr(ours, what))
            if why:
                return f"defaults: {why}"
        return self._cells_differ(theirs.__closure__ or (), ours.__closure__ or ())

    def _cells_differ(self, theirs: tuple[types.CellType, ...], ours: tuple[types.CellType, ...]) -> str:
        for one, other in zip(theirs, ours, strict=True):
            try:
                contents = one.cell_contents, other.cell_contents
            except ValueError:  # a cell that is empty
                continue
            why = self.differs(*contents)
            if why:
                return f"enclosed: {why}"
        return ""

    # -- values --------------------------------------------------------------------------------------------------------

    def differs(self, theirs: Any, ours: Any) -> str:
        """Why two things are not the same; empty if they are. Raises: Undecided."""
        if theirs is ours:
            return ""
        key = id(theirs), id(ours)
        if key not in self._known:
            self._known[key] = ""  # what refers to itself is the same if all else is
            self._kept += [theirs, ours]
            self._known[key] = self._differ(theirs, ours)
        return self._known[key]

    def _differ(self, theirs: Any, ours: Any) -> str:
        if isinstance(theirs, Enum) and isinstance(ours, Enum):
            why = self.differs(type(theirs), type(ours))
            return why or ("" if theirs.name == ours.name else f"{ours.name}, not {theirs.name}")
        for kind, compare in self._kinds():
            if isinstance(theirs, kind) and (isinstance(ours, kind) or kind is types.ModuleType):
                return compare(theirs, ours)
        if isinstance(theirs, _BUILTIN) and isinstance(ours, _BUILTIN):
            return (
                ""
                if _qualified_name(theirs) == _qualified_name(ours)
                else f"{_qualified_name(ours)}, not {_qualified_name(theirs)}"
            )
        why = self.differs(type(theirs), type(ours))
        if why:
            return f"a {type(ours).__name__}, not a {type(theirs).__name__}: {why}"[:160]
        if isinstance(theirs, _OF_SCRIPT):
            raise Undecided
        return self._objects_differ(theirs, ours)

    def _kinds(self) -> tuple[tuple[Any, Callable[[Any, Any], str]], ...]:
        """How things of a kind are compared; the first that fits."""
        return (
            (types.ModuleType, self._modules_differ),
            (type, self._classes_differ),
            (types.FunctionType, self._functions_differ),
            (staticmethod, lambda a, b: self.differs(a.__func__, b.__func__)),
            (classmethod, lambda a, b: self.differs(a.__func__, b.__func__)),
            (
                types.MethodType,
                lambda a, b: self.differs(a.__func__, b.__func__) or self.differs(a.__self__, b.__self__),
            ),
            (property, lambda a, b: self._parts_differ((a.fget, a.fset, a.fdel), (b.fget, b.fset, b.fdel))),
            (functools.cached_property, lambda a, b: self.differs(a.func, b.func)),
            (
                functools.partial,
                lambda a, b: self._parts_differ((a.func, a.args, a.keywords), (b.func, b.args, b.keywords)),
            ),
            (_CACHED, lambda a, b: self.differs(a.__wrapped__, b.__wrapped__)),
            (logging.Logger, lambda _a, _b: ""),  # its name is its module's
            (_PLAIN + _PLAIN_OF_TORCH, self._plain_differ),
            ((list, tuple, deque), self._parts_differ),
            ((dict, types.MappingProxyType), self._mappings_differ),
            ((set, frozenset), self._sets_differ),
            (torch.Tensor, _tensors_differ),
            (np.ndarray, lambda a, b: _tensors_differ(torch.as_tensor(a), torch.as_tensor(b))),
        )

    def _plain_differ(self, theirs: Any, ours: Any) -> str:
        if self.differs(type(theirs), type(ours)):
            return f"of type {type(ours).__name__}, not {type(theirs).__name__}"
        return "" if theirs == ours or (theirs != theirs and ours != ours) else "another value"

    def _sets_differ(self, theirs: Collection[Any], ours: Collection[Any]) -> str:
        """Each member of one has its like in the other; which comes first says nothing."""
        unmatched = list(ours)
        for one in theirs:
            unmatched.sort(key=partial(_has_other_name, getattr(one, "__name__", None)))  # what is likely comes first
            match = next((index for index, other in enumerate(unmatched) if not self.differs(one, other)), None)
            if match is None:
                return "another member"
            del unmatched[match]
        return "more members" if unmatched else ""

    def _modules_differ(self, theirs: types.ModuleType, ours: Any) -> str:
        """A module stands for itself, or for a namespace with what is asked of it."""
        if isinstance(ours, types.SimpleNamespace):
            for name, value in vars(ours).items():
                why = self.differs(getattr(theirs, name, _UNBOUND), value)
                if why:
                    return f"{name}: {why}"
            return ""
        if isinstance(ours, types.ModuleType):
            return "" if theirs.__name__ == ours.__name__ else f"module {ours.__name__}, not {theirs.__name__}"
        return f"a {type(ours).__name__}, not a module"

    def _classes_differ(self, theirs: type, ours: type) -> str:
        why = self.differs(type(theirs), type(ours))
        if why:
            return f"metaclass: {why}"
        for kind in (theirs, ours):
            if not kind.__flags__ & _HEAP:
                return f"{_qualified_name(ours)}, not {_qualified_name(theirs)}"
        if len(theirs.__bases__) != len(ours.__bases__):
            return "other bases"
        for one, other in zip(theirs.__bases__, ours.__bases__, strict=True):
            why = self.differs(one, other)
            if why:
                return f"base {one.__name__}: {why if one.__name__ == other.__name__ else _qualified_name(other)}"
        their_members, our_members = ({n: v for n, v in vars(kind).items() if n not in _OWN} for kind in (theirs, ours))
        for name in their_members.keys() ^ our_members.keys():
            return f"{name} is {'lacking' if name in their_members else 'new'}"
        reasons = []
        for name, value in their_members.items():  # all of them, so that what each reads is followed
            if isinstance(value, _SLOTS):
                continue
            try:
                why = self.differs(value, our_members[name])
            except Undecided:
                continue
            if why:
                reasons.append(f"{name}: {why}")
        return reasons[0] if reasons else ""

    def _parts_differ(self, theirs: Any, ours: Any) -> str:
        if len(theirs) != len(ours):
            return f"{len(ours)} items, not {len(theirs)}"
        for one, other in zip(theirs, ours, strict=True):
            why = self.differs(one, other)
            if why:
                return why
        return ""

    def _mappings_differ(self, theirs: Mapping[Any, Any], ours: Mapping[Any, Any]) -> str:
        if len(theirs) != len(ours):
            return f"{len(ours)} entries, not {len(theirs)}"
        if theirs.keys() == ours.keys():
            for key, value in theirs.items():
                why = self.differs(value, ours[key])
                if why:
                    return f"an entry: {why}"
            return ""
        return self._parts_differ(list(theirs.keys()), list(ours.keys())) or self._parts_differ(
            list(theirs.values()), list(ours.values())
        )

    def _objects_differ(self, theirs: Any, ours: Any) -> str:
        """Two objects of classes that are the same: by what they hold."""
        their_state, our_state = (getattr(value, "__dict__", None) for value in (theirs, ours))
        slots = [n for kind in type(theirs).__mro__ for n in _list_slots(kind)]
        if their_state is None and not slots:
            raise Undecided
        why = self._mappings_differ(their_state, our_state) if their_state is not None and our_state is not None else ""
        if why:
            return why
        return self._parts_differ(*([getattr(value, n, _UNBOUND) for n in slots] for value in (theirs, ours)))


class Undecided(Exception):  # noqa: N818 (an outcome)
    """There is no telling whether two things are the same."""


def _has_other_name(name: str | None, value: object) -> bool:
    return getattr(value, "__name__", None) != name


def _tensors_differ(theirs: torch.Tensor, ours: torch.Tensor) -> str:
    same_type = theirs.shape == ours.shape and theirs.dtype == ours.dtype
    return "" if same_type and torch.equal(theirs, ours) else "another tensor"


def _qualified_name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', type(value).__name__)}"


def _list_slots(kind: type) -> Iterator[str]:
    return (name for name, value in vars(kind).items() if isinstance(value, types.MemberDescriptorType))


_UNBOUND = object()
_HEAP = 1 << 9  # of a class that a `class` statement made
_CACHED = type(functools.lru_cache(lambda: None))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_BUILTIN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, np.ufunc)
_OF_SCRIPT = (torch.jit.ScriptFunction, torch.jit.ScriptModule)


# --- instructions -----------------------------------------------------------------------------------------------------


def instructions(function: types.FunctionType) -> list[Token]:
    """What a function does, without the names of the globals that it reads, nor where its text stands."""
    return [(_GLOBAL,) if token[0] == _GLOBAL else token for token in _tokens(function.__code__, function.__globals__)]


def references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The global names that a function reads, in order, each with the attributes of modules after it, and its value."""
    yield from (
        (token[1], token[2]) for token in _tokens(function.__code__, function.__globals__) if token[0] == _GLOBAL
    )


def _tokens(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[Token]:
    reading: list[Any] | None = None  # a name and its value, as long as attributes are asked of modules
    for instruction in dis.get_instructions(code):
        if instruction.opname in _SILENT:
            continue
        if reading is not None:
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(reading[1], _SPACES):
                reading = [f"{reading[0]}.{instruction.argval}", _member(reading[1], str(instruction.argval))]
                continue
            yield (_GLOBAL, *reading)
            reading = None
        if instruction.opname == "LOAD_GLOBAL":
            value = names.get(instruction.argval, _UNBOUND)
            if value is _UNBOUND and hasattr(builtins, instruction.argval):
                yield "builtin", instruction.argval
            else:
                reading = [instruction.argval, value]
        elif isinstance(instruction.argval, types.CodeType):
            yield from _tokens(instruction.argval, names)
        elif instruction.opcode in dis.hasconst or instruction.opname in ("KW_NAMES", "RETURN_CONST"):
            yield instruction.opname, type(instruction.argval).__name__, _constant(instruction.argval)
        elif instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            yield (instruction.opname,)
        else:
            # A method of what the file imports is asked for as an attribute; which it is says nothing of the text.
            name = "LOAD_ATTR" if instruction.opname == "LOAD_METHOD" else instruction.opname
            yield name, instruction.argval if instruction.opcode in _NAMED else instruction.argrepr or instruction.arg
    if reading is not None:
        yield (_GLOBAL, *reading)


_SPACES = (types.ModuleType, types.SimpleNamespace)
_NAMED = frozenset((*dis.hasname, *dis.haslocal, *dis.hasfree))


def _member(space: Any, name: str) -> Any:
    try:
        return getattr(space, name)
    except Exception:  # noqa: BLE001 (a module may compute what it offers)
        return _UNBOUND


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
