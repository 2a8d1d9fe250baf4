"""Inside the sandbox: decide whether a definition of a project can replace one of a block's file, as the block uses it.

The block runs with its working arguments, and the arguments of each of its definitions are recorded. The project's
definitions get the same arguments: they must have the same signature, create the same state, and have equal graphs
(G0) in eval and in train mode. Functions, and classes that are not modules, are also equal if their text is equal and
all names in it mean the same.
"""

import ast
import copy
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from extract.arguments.inputs import change_nested, flatten
from extract.arguments.trials import AttemptError, attempt, seed_all
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import identities_of
from lemur_core.graphs.record.recorder import Recorder
from lemur_core.graphs.tracing.trace import ROUTES, both_modes, run
from lemur_core.sandbox.server.foreign import one_line

SECONDS = 60.0  # of CPU time, for one step; the sandbox sets the hard limit
IMPORT_SECONDS = 120.0
#: The reason if a definition was never called.
NOT_RUN = "the block's own is not run with the arguments that worked, so nothing can be compared"
_MAX_CASES = 6  # compared uses of one definition; the whole block is compared in any case
_INIT_CALL = "_init_call"  # attribute of watched modules
_WAYS = tuple((route, live) for live in (True, False) for route in ROUTES)


@dataclass(frozen=True, slots=True)
class Case:
    """One use of a definition: the constructor arguments of a class, and the arguments of the call."""

    init_call: tuple[tuple[Any, ...], dict[str, Any]]
    call: tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Watch:
    """Record how the definitions of a file are used."""

    file: ModuleType
    wanted: set[str]
    cases: dict[str, dict[str, Case]] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the uses inside this context."""
        with ExitStack() as undo:
            for name in sorted(self.wanted):
                value = getattr(self.file, name, None)
                if isinstance(value, type) and issubclass(value, nn.Module):
                    undo.enter_context(self._class(name, value))
                elif isinstance(value, FunctionType):
                    undo.callback(setattr, self.file, name, value)
                    setattr(self.file, name, self._function(name, value))
            yield

    @contextmanager
    def _class(self, name: str, cls: type[nn.Module]) -> Iterator[None]:
        own = {key: cls.__dict__[key] for key in ("__init__", "forward") if key in cls.__dict__}
        init, forward = cls.__init__, cls.forward

        def __init__(module: nn.Module, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            init_call = (copy_value(args), copy_value(kwargs))
            init(module, *args, **kwargs)
            if type(module) is cls:
                vars(module)[_INIT_CALL] = init_call  # stored there, so that clones have it, too

        def record_forward(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            stored_call = vars(module).get(_INIT_CALL)
            if stored_call is not None:
                self._record_case(name, stored_call, (copy_value(args), copy_value(kwargs)))
            return forward(module, *args, **kwargs)

        cls.__init__ = __init__  # type: ignore[assignment, method-assign]
        cls.forward = record_forward
        try:
            yield
        finally:
            for key in ("__init__", "forward"):
                if key in own:
                    setattr(cls, key, own[key])
                else:
                    delattr(cls, key)

    def _function(self, name: str, function: FunctionType) -> Callable[..., Any]:
        def record_call(*args: Any, **kwargs: Any) -> Any:
            self._record_case(name, ((), {}), (copy_value(args), copy_value(kwargs)))
            return function(*args, **kwargs)

        return record_call

    def _record_case(self, name: str, init_call: Any, call: Any) -> None:
        cases = self.cases.setdefault(name, {})
        if len(cases) < _MAX_CASES:
            cases.setdefault(one_line(f"{_describe(init_call)} {_describe(call)}", 10**6), Case(init_call, call))


def copy_value(value: Any) -> Any:
    """Return a copy of a value with detached tensors; other objects are copied where possible."""
    value = change_nested(value, lambda tensor: tensor.detach().clone())
    if isinstance(value, tuple | list):
        return type(value)(copy_value(item) for item in value) if type(value) in (tuple, list) else value
    if type(value) is dict:
        return {key: copy_value(item) for key, item in value.items()}
    if isinstance(value, nn.Module):
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - foreign code raises anything
            return value
    return value


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"[{' '.join(map(_describe, value))}]"
    if isinstance(value, dict):
        return f"{{{' '.join(f'{key} {_describe(item)}' for key, item in value.items())}}}"
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - foreign code raises anything
        return type(error).__name__


# --- whether two definitions are the same -----------------------------------------------------------------------------


def refusal(file: ModuleType, name: str, option: Mapping[str, str], cases: Mapping[str, Case]) -> str:
    """Return why a definition of the project cannot replace one of the block, or "" if it can.

    Args:
        file: the module of the block's file.
        name: name of the definition in it.
        option: `module` and `name` in the project.
        cases: how the block uses the definition.
    """
    ours = getattr(file, name, None)
    try:
        module = attempt(partial(importlib.import_module, option["module"]), IMPORT_SECONDS)
    except AttemptError as failure:
        return f"cannot be imported: {one_line(failure.message, 200)}"
    theirs = getattr(module, option["name"], None)
    if isinstance(ours, type) != isinstance(theirs, type) or not callable(theirs):
        return "is another kind of thing"
    try:
        if isinstance(ours, type) and isinstance(theirs, type):
            return _class_refusal(ours, theirs, list(cases.values()))
        return _function_refusal(ours, theirs, list(cases.values()))
    except AttemptError as failure:
        return f"does not run so: {one_line(failure.message, 200)}"


def _class_refusal(ours: type, theirs: type, cases: Sequence[Case]) -> str:
    if issubclass(ours, nn.Module) != issubclass(theirs, nn.Module):
        return "is another kind of class"
    if not issubclass(ours, nn.Module):
        return "" if same_source(ours, theirs) else "another class: the text differs"
    if not cases:
        return NOT_RUN
    for method in ("__init__", "forward"):
        if wrong := _signature_refusal(getattr(ours, method), getattr(theirs, method), method):
            return wrong
    for case in cases:
        if wrong := _state_refusal(partial(_make, ours, case), partial(_make, theirs, case)):
            return wrong
        if not _same_graph(partial(_make, ours, case), partial(_make, theirs, case), case.call):
            return f"computes another graph with {_describe_call(case.init_call)}"
    return ""


def _function_refusal(ours: Any, theirs: Any, cases: Sequence[Case]) -> str:
    if wrong := _signature_refusal(ours, theirs, "its call"):
        return wrong
    if same_source(ours, theirs):
        return ""
    tensors = [case for case in cases if flatten(list(case.call))]
    if not cases or len(tensors) < len(cases):
        return "the text differs, and it is not called with tensors alone, so there is no graph to compare"
    for case in cases:
        if not _same_graph(partial(_Call, ours), partial(_Call, theirs), case.call):
            return f"computes another graph with {_describe_call(case.call)}"
    return ""


class _Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def _make(cls: type[nn.Module], case: Case) -> nn.Module:
    args, kwargs = copy_value(case.init_call[0]), copy_value(case.init_call[1])
    seed_all()
    return cls(*args, **kwargs)


def _describe_call(call: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    parts = [*map(_describe, call[0]), *(f"{name}={_describe(value)}" for name, value in call[1].items())]
    return one_line(f"({', '.join(parts)})", 80)


def _signature_refusal(ours: Callable[..., Any], theirs: Callable[..., Any], what: str) -> str:
    first, second = _parameters(ours), _parameters(theirs)
    if first is not None and second is not None and list(first.values()) == list(second.values()):
        return ""
    texts = [one_line(", ".join(parameters) if parameters is not None else "?", 120) for parameters in (second, first)]
    return f"{what} takes ({texts[0]}) where the block's takes ({texts[1]})"


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[object, ...]] | None:
    """Return the name, kind and default of each parameter by its source text; annotations are ignored."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    entries: dict[str, tuple[object, ...]] = {}
    for parameter in parameters:
        if parameter.name != "self":
            mark = (
                "*"
                if parameter.kind is parameter.VAR_POSITIONAL
                else "**"
                if parameter.kind is parameter.VAR_KEYWORD
                else ""
            )
            text = (
                parameter.name
                if parameter.default is parameter.empty
                else f"{parameter.name}={_default(parameter.default)}"
            )
            by_name = " (by name only)" if parameter.kind is parameter.KEYWORD_ONLY else ""
            entries[f"{mark}{text}{by_name}"] = (parameter.name, parameter.kind, _value(parameter.default))
    return entries


def _value(default: object) -> object:
    """Return a default in a form that compares equal for equal values, such as 0 and 0.0."""
    if isinstance(default, int | float) and not isinstance(default, bool):
        return float(default)
    return _default(default)


def _default(value: object) -> str:
    return value.__qualname__ if isinstance(value, type | FunctionType) else _describe(value)


def _state_refusal(ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module]) -> str:
    first, second = (attempt(make, SECONDS) for make in (ours, theirs))
    before, after = (
        {**dict(module.named_parameters()), **dict(module.named_buffers()), **module.state_dict(keep_vars=True)}
        for module in (first, second)
    )
    if list(before) != list(after):
        names = sorted(before.keys() ^ after.keys()) or ["their order"]
        return f"its state has other names: {', '.join(names[:4])}"
    for name, tensor in before.items():
        other = after[name]
        if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor):
            if _kind(tensor) != _kind(other):
                return f"its {name} is another tensor"
            if not torch.equal(torch.nan_to_num(tensor.detach()), torch.nan_to_num(other.detach())):
                return f"its {name} starts from other values"
    return ""


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _same_graph(ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module], called: Any) -> bool:
    """Return whether both have equal graphs (G0) in eval and train mode. Raises: AttemptError if tracing fails."""
    failure: AttemptError | None = None
    for route, live in _WAYS:
        try:
            return _identity(ours, called, route, live) == _identity(theirs, called, route, live)
        except AttemptError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _identity(make: Callable[[], nn.Module], called: Any, route: str, live: bool) -> str:
    recorder = Recorder(route)
    with recorder.recording():
        module = attempt(make, SECONDS)

        def go(train: bool) -> Graph:
            with recorder.pause():
                args, kwargs = change_nested(list(copy_value(called)), partial(_copy_tensor, route=route, live=live))
            seed_all()
            record = partial(run, recorder, module, args, kwargs, train=train, find=flatten)
            graph: Graph = attempt(record, SECONDS)
            if not graph.outputs:
                raise AttemptError(ValueError("returned no tensor"))
            return canonical(graph)

        graphs, error = both_modes(go, AttemptError, route=route)
        if error is not None:
            raise error
    return identities_of(graphs)["graph"]


def _copy_tensor(tensor: torch.Tensor, route: str, live: bool) -> torch.Tensor:
    fresh = tensor.to(route)
    if live and (fresh.is_floating_point() or fresh.is_complex()):
        with torch.enable_grad():
            return fresh.detach().requires_grad_() * 1
    return fresh


# --- by text ----------------------------------------------------------------------------------------------------------


def same_source(ours: Any, theirs: Any, depth: int = 6) -> bool:
    """Return whether two classes or functions have the same text, and all names in it mean the same.

    Comments, docstrings and annotations are ignored.
    """
    if ours is theirs:
        return True
    if not depth or type(ours) is not type(theirs):
        return False
    first, second = _tree(ours), _tree(theirs)
    if first is None or second is None or ast.dump(first) != ast.dump(second):
        return False
    one, other = vars(sys.modules[ours.__module__]), vars(sys.modules[theirs.__module__])
    names = {node.id for node in ast.walk(first) if isinstance(node, ast.Name)} - {_NAME}
    return all(_means_the_same(one.get(name, _ABSENT), other.get(name, _ABSENT), depth) for name in names)


_NAME = "_itself"
_ABSENT = object()


def _means_the_same(ours: Any, theirs: Any, depth: int) -> bool:
    if ours is theirs:
        return True
    if isinstance(ours, bool | int | float | str | bytes | None | tuple):
        return type(ours) is type(theirs) and bool(ours == theirs)
    if isinstance(ours, type | FunctionType):
        return same_source(ours, theirs, depth - 1)
    return False


def _tree(thing: Any) -> ast.AST | None:
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return None
    own = node.name
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if ast.get_docstring(item, clean=False) is not None:
                item.body = item.body[1:] or [ast.Pass()]
            item.name = _NAME if item.name == own else item.name
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            item.returns = None
        if isinstance(item, ast.arg):
            item.annotation = None
        if isinstance(item, ast.Name) and item.id == own:
            item.id = _NAME
    return node
