"""Inside the sandbox: compare the bindings of global names in a self-contained file with those in its origin.

The answers contain names of the source but none of its text, so they can be passed on under any license.

The original class is imported from its own package, and the self-contained file is executed in the same process, so
that objects from elsewhere (torch, numpy, the standard library) are identical. Starting from the two classes, functions
are compared instruction by instruction; each global name that the original reads (`fn.__globals__`, with attributes of
modules) is one binding. Two objects are the same if they are identical; functions, if they have the same instructions,
defaults and cells; classes, if their bases and all their members are the same; other values, if they are equal part by
part. The names that a function of the file reads are followed in turn.
"""

import builtins
import contextlib
import dis
import functools
import importlib
import logging
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch

from extract.arguments.messages import FilesToCompare
from extract.arguments.probe import load
from extract.arguments.search_guest import compile_nothing
from extract.arguments.trials import AttemptError, attempt
from lemur_core.sandbox.server.foreign import load as load_module
from lemur_core.sandbox.server.foreign import name_type, read_message

_SECONDS = 120.0  # of CPU time, for one import or file
_RECURSION_LIMIT = 10_000
#: Attributes that differ between any two classes or modules.
_OWN = {"__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__annotations__", "__parameters__"}
_OWN |= {"__abstractmethods__", "_abc_impl", "__orig_bases__", "__firstlineno__", "__static_attributes__"}
_OWN |= {"_autograd_function_id"}  # torch counts its functions
_MODULES_OWN = frozenset(("__name__", "__file__", "__doc__", "__package__", "__spec__", "__path__", "__builtins__"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...), type(NotImplemented), range, slice, re.Pattern)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)

#: Instructions that are irrelevant for the behavior of a function.
_SILENT = frozenset(
    ("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "NOT_TAKEN")
)
_GLOBAL = "global"

Token = tuple[Any, ...]


def compare_bindings(request: FilesToCompare) -> dict[str, dict[str, Any]]:
    """Compare the bindings of global names for several blocks of one package.

    Returns: for each block id, `missing` with the reason if it cannot be compared, or the number of names, `compared`,
    how many of them are bound to the same object, `same`, or to one of our stubs, and `others`, the first names
    that are bound to something else, each with the reason.
    """
    compile_nothing()
    sys.path[:0] = request.folders
    sys.path += request.runtime
    sys.setrecursionlimit(_RECURSION_LIMIT)
    answers: dict[str, dict[str, Any]] = {}
    # All files share one process, so each gets its own module name.
    for index, item in enumerate(request.blocks):
        try:
            module = attempt(partial(importlib.import_module, item["module"]), _SECONDS)
            theirs = getattr(module, item["name"])
            file = attempt(partial(_load, item["code"], index), _SECONDS)
            ours = getattr(file, item["name"])
        except (AttemptError, AttributeError) as error:
            answers[item["block"]] = {"missing": f"{name_type(error)}: {' '.join(read_message(error).split())}"[:200]}
            continue
        answer = Bindings(frozenset(item["stubs"])).compare(theirs, ours)
        answers[item["block"]] = answer | {"others": answer["others"][: request.most]}
    return answers


def _load(code: str, index: int) -> types.ModuleType:
    return load_module(code, f"block_{index}") if index else load(code)


class Bindings:
    """The bindings of one block, starting from its class."""

    def __init__(self, stubs: frozenset[str] = frozenset()) -> None:
        self._stubs = stubs
        self._known: dict[tuple[int, int], str] = {}
        self._kept: list[object] = []  # keeps objects alive, so that their ids stay unique
        self._functions: deque[tuple[types.FunctionType, types.FunctionType]] = deque()
        self._reasons: dict[tuple[str, str], str | None] = {}
        #: How to compare values of each type; the first match counts.
        self._kinds: tuple[tuple[Any, Callable[[Any, Any], str]], ...] = (
            (type, self._classes_differ),
            (types.FunctionType, self._functions_differ),
            (logging.Logger, lambda _theirs, _ours: ""),  # named after its module
            (_PLAIN + _PLAIN_OF_TORCH, self._plain_differ),
            ((dict, types.MappingProxyType), self._mappings_differ),
            ((set, frozenset), self._sets_differ),
            (torch.Tensor, _tensors_differ),
            (np.ndarray, _tensors_differ),
        )

    def compare(self, theirs: type, ours: type) -> dict[str, Any]:
        """Return the answer of `compare_bindings` for one block."""
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
        """Compare the bindings of each name that a function reads."""
        for (name, their_value), (other_name, our_value) in zip(references(theirs), references(ours), strict=True):
            key = theirs.__module__ or "", name
            # A name that differs once counts as differing. One that is unbound in the original: both fail there.
            if name.partition(".")[0] in _MODULES_OWN or self._reasons.get(key) or their_value is _UNBOUND:
                continue
            if our_value is _UNBOUND:
                self._reasons[key] = f"{other_name} is not bound"
                continue
            try:
                why = self.differs(their_value, our_value)
            except Undecided:
                self._reasons.setdefault(key, None)
                continue
            self._reasons[key] = "a stand-in" if why and other_name.partition(".")[0] in self._stubs else why

    def _functions_differ(self, theirs: types.FunctionType, ours: types.FunctionType) -> str:
        if instructions(theirs) != instructions(ours):
            return "another text"
        signatures = [(function.__code__.co_argcount, function.__code__.co_varnames) for function in (theirs, ours)]
        if signatures[0] != signatures[1]:
            return "other arguments"
        self._functions.append((theirs, ours))
        parts = [
            ("defaults", getattr(theirs, name), getattr(ours, name)) for name in ("__defaults__", "__kwdefaults__")
        ]
        for original, other in zip(theirs.__closure__ or (), ours.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                parts.append(("enclosed", original.cell_contents, other.cell_contents))
        return next((f"{what}: {why}" for what, *values in parts if (why := self.differs(*values))), "")

    # -- values --------------------------------------------------------------------------------------------------------

    def differs(self, theirs: Any, ours: Any) -> str:
        """Return why two objects are not the same, or "" if they are. Raises: Undecided."""
        if theirs is ours:
            return ""
        key = id(theirs), id(ours)
        if key not in self._known:
            self._known[key] = ""  # assume equality for objects that refer to themselves
            self._kept += [theirs, ours]
            self._known[key] = self._differ(theirs, ours)
        return self._known[key]

    def _differ(self, theirs: Any, ours: Any) -> str:
        # A member refers to its class, and that to its members: compared by class and name.
        if isinstance(theirs, Enum) and isinstance(ours, Enum):
            why = self.differs(type(theirs), type(ours))
            return why or ("" if theirs.name == ours.name else f"{ours.name}, not {theirs.name}")
        if isinstance(theirs, types.ModuleType):
            return self._modules_differ(theirs, ours)
        for kind, parts in _PARTS:
            if isinstance(theirs, kind) and isinstance(ours, kind):
                return self._parts_differ(parts(theirs), parts(ours))
        for kind, compare in self._kinds:
            if isinstance(theirs, kind) and isinstance(ours, kind):
                return compare(theirs, ours)
        if isinstance(theirs, _BUILTIN) and isinstance(ours, _BUILTIN):
            return "" if _full_name(theirs) == _full_name(ours) else f"{_full_name(ours)}, not {_full_name(theirs)}"
        why = self.differs(type(theirs), type(ours))
        if why:
            return f"a {type(ours).__name__}, not a {type(theirs).__name__}: {why}"[:160]
        if isinstance(theirs, _OF_SCRIPT):
            raise Undecided
        return self._objects_differ(theirs, ours)

    def _plain_differ(self, theirs: Any, ours: Any) -> str:
        if self.differs(type(theirs), type(ours)):
            return f"of type {type(ours).__name__}, not {type(theirs).__name__}"
        return "" if theirs == ours or (theirs != theirs and ours != ours) else "another value"

    def _sets_differ(self, theirs: Collection[Any], ours: Collection[Any]) -> str:
        """Match each member of one set with an equal member of the other, in any order."""
        unmatched = list(ours)
        for item in theirs:
            # Members of the same name first, which saves comparisons.
            name = getattr(item, "__name__", None)
            unmatched.sort(key=lambda other: getattr(other, "__name__", None) != name)
            match = next((index for index, other in enumerate(unmatched) if not self.differs(item, other)), None)
            if match is None:
                return "another member"
            del unmatched[match]
        return "more members" if unmatched else ""

    def _modules_differ(self, theirs: types.ModuleType, ours: Any) -> str:
        """Compare a module with a module, or with a namespace that holds the attributes in use."""
        if isinstance(ours, types.ModuleType):
            return "" if theirs.__name__ == ours.__name__ else f"module {ours.__name__}, not {theirs.__name__}"
        if not isinstance(ours, types.SimpleNamespace):
            return f"a {type(ours).__name__}, not a module"
        reasons = ((name, self.differs(getattr(theirs, name, _UNBOUND), value)) for name, value in vars(ours).items())
        return next((f"{name}: {why}" for name, why in reasons if why), "")

    def _classes_differ(self, theirs: type, ours: type) -> str:
        why = self.differs(type(theirs), type(ours))
        if why:
            return f"metaclass: {why}"
        for kind in (theirs, ours):
            # A class of C has no text that could be compared: it is the same object or another one.
            if not kind.__flags__ & _HEAP:
                return f"{_full_name(ours)}, not {_full_name(theirs)}"
        if len(theirs.__bases__) != len(ours.__bases__):
            return "other bases"
        for original, other in zip(theirs.__bases__, ours.__bases__, strict=True):
            why = self.differs(original, other)
            if why:
                return f"base {original.__name__}: {why if original.__name__ == other.__name__ else _full_name(other)}"
        their_members, our_members = ({n: v for n, v in vars(kind).items() if n not in _OWN} for kind in (theirs, ours))
        for name in their_members.keys() ^ our_members.keys():
            return f"{name} is {'lacking' if name in their_members else 'new'}"
        reasons = []
        for name, value in their_members.items():  # compare all members, so that the names that each reads are followed
            with contextlib.suppress(Undecided):
                why = "" if isinstance(value, _SLOTS) else self.differs(value, our_members[name])
                reasons += [f"{name}: {why}"] if why else []
        return reasons[0] if reasons else ""

    def _parts_differ(self, theirs: Any, ours: Any) -> str:
        if len(theirs) != len(ours):
            return f"{len(ours)} items, not {len(theirs)}"
        return next((why for pair in zip(theirs, ours, strict=True) if (why := self.differs(*pair))), "")

    def _mappings_differ(self, theirs: Mapping[Any, Any], ours: Mapping[Any, Any]) -> str:
        if len(theirs) != len(ours):
            return f"{len(ours)} entries, not {len(theirs)}"
        # Keys that are classes are equal only to themselves, and are compared in order.
        if theirs.keys() != ours.keys():
            return self._parts_differ([*theirs, *theirs.values()], [*ours, *ours.values()])
        return next((f"an entry: {why}" for key in theirs if (why := self.differs(theirs[key], ours[key]))), "")

    def _objects_differ(self, theirs: Any, ours: Any) -> str:
        """Compare the attributes of two objects whose classes are the same."""
        states = [vars(value) if hasattr(value, "__dict__") else {} for value in (theirs, ours)]
        members = (item for kind in type(theirs).__mro__ for item in vars(kind).items())
        slots = [name for name, value in members if isinstance(value, types.MemberDescriptorType)]
        if not hasattr(theirs, "__dict__") and not slots:
            raise Undecided
        values = ([getattr(value, name, _UNBOUND) for name in slots] for value in (theirs, ours))
        return self._mappings_differ(*states) or self._parts_differ(*values)


class Undecided(Exception):  # noqa: N818 (an outcome)
    """It is impossible to decide whether two objects are the same."""


def _tensors_differ(theirs: Any, ours: Any) -> str:
    theirs, ours = torch.as_tensor(theirs), torch.as_tensor(ours)
    same_type = theirs.shape == ours.shape and theirs.dtype == ours.dtype
    return "" if same_type and torch.equal(theirs, ours) else "another tensor"


def _full_name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', type(value).__name__)}"


_UNBOUND = object()
_HEAP = 1 << 9  # flag of classes created by a `class` statement
_CACHED = type(functools.lru_cache(lambda: None))
#: Values that are the same if their parts are, and the parts of each type.
_PARTS: tuple[tuple[Any, Callable[[Any], Sequence[Any]]], ...] = (
    (staticmethod, lambda value: (value.__func__,)),
    (classmethod, lambda value: (value.__func__,)),
    (types.MethodType, lambda value: (value.__func__, value.__self__)),
    (property, lambda value: (value.fget, value.fset, value.fdel)),
    (functools.cached_property, lambda value: (value.func,)),
    (functools.partial, lambda value: (value.func, value.args, value.keywords)),
    (_CACHED, lambda value: (value.__wrapped__,)),
    ((list, tuple, deque), lambda value: value),
)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_BUILTIN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, np.ufunc)
_OF_SCRIPT = (torch.jit.ScriptFunction, torch.jit.ScriptModule)


# --- instructions -----------------------------------------------------------------------------------------------------


def instructions(function: types.FunctionType) -> list[Token]:
    """Return the instructions of a function, without the names of globals and without positions."""
    return [(_GLOBAL,) if token[0] == _GLOBAL else token for token in _tokens(function.__code__, function.__globals__)]


def references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global names that a function reads, in order, including attributes of modules, and their values."""
    yield from (
        (token[1], token[2]) for token in _tokens(function.__code__, function.__globals__) if token[0] == _GLOBAL
    )


def _tokens(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[Token]:
    reading: list[Any] | None = None  # a name and its value, while attributes of modules follow
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
            # Methods of imported names compile to LOAD_ATTR, others to LOAD_METHOD: the text may be the same.
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
