"""Inside the sandbox: which lines of a block run with the arguments that are known to work, and what comes of them."""

import copy
import gc
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import Arguments, Constructor
from extract.arguments.forwarding import Forward, ForwardCall, evaluate, run
from extract.arguments.inputs import change_nested, flatten, has_shape
from extract.arguments.probe import MODULE_NAME, hide, load
from extract.arguments.search_guest import compile_nothing, namespace
from extract.arguments.trials import (
    AttemptError,
    Budget,
    Namespace,
    attempt,
    differentiate,
    fill_unset,
    seed_all,
    unset_is_nan,
)
from extract.proofs.equivalence_guest import digest
from lemur_core.sandbox.server.foreign import one_line

_SECONDS = 60.0  # of CPU, for one step; the sandbox has the last word
_MOST_SETS = 4  # of arguments beside those that the search found
_FORWARDS = 24  # ways of calling forward that are tried with one
_SHAPE = re.compile(r"\w+ (\d+(?:x\d+)*|scalar)")
_FILE = f"{MODULE_NAME}.py"

Inputs = tuple[list[Any], dict[str, Any]]


def watch_block(payload: dict[str, Any]) -> dict[str, Any]:
    """Run one block in every way that is known to work, and say what of its file ran.

    Args:
        payload: `code`, `name`, `folders`, `origin`, `arguments` and `companions`, as for
            `extract.proofs.equivalence_guest.sign_block`; `sizes`, for each further call the shapes of its tensors;
            `others`, calls of the constructor and of forward that the corpus makes, as
            `extract.arguments.hints.Hints` has them.

    Returns: `{"error"}`, or `sets`, further arguments of `others` that work; `lines` that ran; `entered`, functions
        that were called (first line and name), and `used`, those after the file's own statements; `classes` of which
        there were objects; `bound`, methods that stand for one of another class ("Class.method"); and `signature`,
        what `sign_lean` returns.
    """
    _prepare(payload)
    watch = _Watch()
    scripts = "jit" in payload["code"]  # what TorchScript compiles does not run line by line
    if scripts:
        torch.jit._state.disable()
    try:
        payload = {**payload, "sets": _further_sets(payload)}
        with watch.watching():
            cls, names = _loaded(payload)
            watch.begin_use()
            found = exercised(cls, payload, names, watch.look)
        bound = sorted(_standing_for_others())
        if scripts:
            torch.jit._state.enable()
            found = exercised(*_again(payload))
    except AttemptError as failure:
        return {"error": failure.message}
    return {
        "sets": payload["sets"],
        "lines": sorted(watch.lines),
        "entered": sorted([line, name] for line, name in watch.entered),
        "used": sorted([line, name] for line, name in watch.used),
        "classes": sorted(watch.classes),
        "bound": bound,
        "signature": found,
    }


def sign_lean(payload: dict[str, Any]) -> dict[str, Any]:
    """What comes of a block in every way that is known to work.

    Args: payload: as for `watch_block`, with the `sets` that it found.

    Returns: `{"error", "stops"}`, or `steps`: for each a digest of all tensors, or the type of its error; and `stops`:
        for each error its type, its lines in the file, innermost first, and the name that was not there.
    """
    _prepare(payload)
    try:
        cls, payload, names = _again(payload)
        return exercised(cls, payload, names)
    except AttemptError as failure:
        return {"error": failure.message, "stops": [_stop(failure)]}


def _prepare(payload: Mapping[str, Any]) -> None:
    compile_nothing()
    sys.path += payload["folders"]
    hide(payload["origin"])


def _again(payload: dict[str, Any]) -> tuple[type[nn.Module], dict[str, Any], Namespace]:
    cls, names = _loaded(payload)
    return cls, payload, names


def _loaded(payload: Mapping[str, Any]) -> tuple[type[nn.Module], Namespace]:
    module = attempt(partial(load, payload["code"]), _SECONDS)
    cls = getattr(module, payload["name"], None)
    if not isinstance(cls, type):
        raise AttemptError(NameError(f"the file defines no class {payload['name']}", name=payload["name"]))
    return cls, namespace(vars(module), payload["companions"])


# -- what is done with a block -----------------------------------------------------------------------------------------


def exercised(
    cls: type[nn.Module], payload: Mapping[str, Any], names: Namespace, look: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Each set of arguments in turn: construct, print, save and load, then forward and backward in eval and train mode.

    Args: payload: `arguments` that worked, with these at all `sizes`, and further `sets`, as for `watch_block`.
    Returns: as `sign_lean`.
    Raises: AttemptError if it cannot be constructed.
    """
    steps: dict[str, str] = {}
    stops: list[dict[str, Any]] = []
    for number, arguments in enumerate([payload["arguments"], *payload.get("sets", ())]):
        about = f"arguments {number}, " if number else ""

        def step(name: str, action: Callable[[], str], about: str = about) -> None:
            try:
                steps[about + name] = attempt(action, _SECONDS)
            except AttemptError as failure:
                steps[about + name] = f"raises {type(failure.cause).__name__}"
                stops.append({"step": about + name, **_stop(failure)})

        try:
            module = _constructed(cls, arguments["init"], names)
        except AttemptError as failure:
            if not number:
                raise
            step("construct", partial(_fail, failure))
            continue
        _in_all_modes(module, arguments["forward"], names, [] if number else payload["sizes"], step)
        look()
    return {"steps": steps, "stops": stops}


def _fail(failure: AttemptError) -> str:
    raise failure.cause


def _constructed(cls: type[nn.Module], init: Mapping[str, Any], names: Namespace) -> nn.Module:
    def construct() -> Any:
        args = [names.value(text) for text in init["args"]]
        kwargs = {name: names.value(text) for name, text in init["kwargs"].items()}
        seed_all()
        return cls(*args, **kwargs)

    seed_all()
    with unset_is_nan():
        module: nn.Module = attempt(construct, _SECONDS)
    fill_unset(module)
    return module


def _in_all_modes(
    module: nn.Module,
    forward: Mapping[str, Any],
    names: Namespace,
    sizes: list[list[list[int]]],
    step: Callable[[str, Callable[[], str]], None],
) -> None:
    """Print, save and load, then forward and backward in eval and train mode, at every size."""
    called = ForwardCall(tuple(forward["args"]), tuple(forward["kwargs"].items()), None)
    step("state", lambda: _state(module))
    step("repr", lambda: hashlib.sha256(one_line(repr(module), 10**7).encode()).hexdigest())
    step("load", lambda: str(module.load_state_dict(copy.deepcopy(module.state_dict()))))
    for number, shapes in enumerate([None, *sizes]):

        def inputs(shapes: Any = shapes) -> Inputs:
            seed_all()
            given = evaluate(called, names)
            return given if shapes is None else _resized(given, shapes)

        for mode in ("eval", "train"):
            module.train(mode == "train")
            if mode == "eval":
                step(f"eval without gradients, inputs {number}", partial(_forward, module, inputs))
            step(f"{mode}, inputs {number}", partial(_both, module, inputs))
            step(f"state after {mode}, inputs {number}", lambda: _state(module))


def _further_sets(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of the corpus that construct a small module which runs forward, twice with the same outputs."""
    others, own = payload["others"], payload["arguments"]
    if not others["init"]:
        return []
    cls, names = _loaded(payload)
    as_found = own["forward"]
    inputs: list[dict[str, Any]] = [{"args": as_found["args"], "kwargs": list(as_found["kwargs"].items())}]
    inputs += others["forward"]
    found: list[dict[str, Any]] = []
    for call in others["init"]:
        init: dict[str, Any] = {"args": list(call["args"]), "kwargs": dict(call["kwargs"])}
        if init == own["init"] or len(found) == _MOST_SETS:
            continue
        budget = Budget(constructions=4, forwards=_FORWARDS, seconds=_SECONDS)
        constructor = Constructor(cls, names, {"forward": inputs, "inputs": others["inputs"]}, budget, ())
        try:
            built = constructor.make(Arguments(tuple(init["args"]), tuple(init["kwargs"].items())))
            if built.on_meta:  # large
                continue
            way = next(Forward(built, constructor, names, constructor.hints, budget).search(), None)
            if way is not None and len({digest(run(built.module, way, names)) for _ in range(2)}) == 1:
                found.append({"init": init, "forward": way.as_json()})
        except AttemptError:
            continue
    return found


def _forward(module: nn.Module, inputs: Callable[[], Inputs]) -> str:
    args, kwargs = inputs()
    seed_all()
    with torch.no_grad():
        return digest(module(*args, **kwargs))


def _both(module: nn.Module, inputs: Callable[[], Inputs]) -> str:
    """The digest of the outputs and of all gradients; where there are none, the reason."""
    module.zero_grad(set_to_none=True)
    args, kwargs = inputs()
    leaves = [t for t in flatten([args, kwargs]) if t.is_floating_point() or t.is_complex()]
    for leaf in leaves:
        leaf.requires_grad_()
    args, kwargs = change_nested([args, kwargs], lambda t: t * 1 if t.requires_grad else t)  # may be written to
    seed_all()
    with torch.enable_grad():
        output = module(*args, **kwargs)
    found = digest(output)
    seed_all()
    try:
        differentiate(module, output, leaves)
    except ValueError as error:
        return f"{found}, {error}"
    gradients = [t.grad for t in (*module.parameters(), *leaves)]
    missing = [number for number, gradient in enumerate(gradients) if gradient is None]
    return f"{found}, {digest([gradient for gradient in gradients if gradient is not None])}, none of {missing}"


def _state(module: nn.Module) -> str:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **module.state_dict(keep_vars=True)}
    kept = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    names = [f"{name} {has_shape(value)} {value.requires_grad}" for name, value in kept.items()]
    return hashlib.sha256(f"{names} {digest(list(kept.values()))}".encode()).hexdigest()


def _resized(given: Inputs, shapes: list[list[int]]) -> Inputs:
    """The same inputs in other shapes: their elements again and again."""
    wanted = iter(shapes)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        shape = tuple(next(wanted, tensor.shape))
        if tuple(tensor.shape) == shape or not tensor.numel():
            return tensor
        count = int(torch.Size(shape).numel())
        return tensor.reshape(-1)[torch.arange(count) % tensor.numel()].reshape(shape)

    args, kwargs = change_nested([given[0], given[1]], change)
    return args, kwargs


def _stop(failure: AttemptError) -> dict[str, Any]:
    cause = failure.cause
    name = getattr(cause, "name", None) if isinstance(cause, NameError | AttributeError | ImportError) else None
    if isinstance(cause, KeyError) and cause.args:
        name = str(cause.args[0])
    message = f"{type(cause).__name__}: {one_line(failure.message, 200)}"
    return {"message": message, "lines": list(failure.numbers[::-1]), "name": name}


# -- what ran ----------------------------------------------------------------------------------------------------------


class _Watch:
    """Notes which lines of the block's file run."""

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.entered: set[tuple[int, str]] = set()
        self.used: set[tuple[int, str]] = set()  # entered after the file's own statements had run
        self.classes: set[str] = set()  # of which there were objects
        self._left: dict[CodeType, set[int]] = {}
        self._using = False

    def begin_use(self) -> None:
        """From now on the block is used."""
        self._using = True

    def look(self) -> None:
        """Note the file's classes of which there are objects, or objects of a class that derives from them."""
        kinds = {base for kind in {type(item) for item in gc.get_objects()} for base in kind.__mro__}
        self.classes |= {kind.__qualname__ for kind in kinds if getattr(kind, "__module__", "") == MODULE_NAME}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the lines of this thread, in which autograd runs backward on the CPU, too."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            if not code.co_filename.endswith(_FILE):
                left = set()
            else:
                left = {line for _, _, line in code.co_lines() if line is not None} - {frame.f_lineno}
            self._left[code] = left
        if code.co_filename.endswith(_FILE):
            name = (code.co_firstlineno, code.co_name)
            self.entered.add(name)
            if self._using:
                self.used.add(name)
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            line = frame.f_lineno
            self.lines.add(line)
            self._left[frame.f_code].discard(line)
        return self._line


def _standing_for_others() -> Iterator[str]:
    """Names in the file's classes that, were they not there, would be found in another class."""
    found: set[str] = set()
    waiting = [value for value in vars(sys.modules[MODULE_NAME]).values() if isinstance(value, type)]
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen or kind.__module__ != MODULE_NAME:
            continue
        seen.add(kind)
        waiting += [value for value in vars(kind).values() if isinstance(value, type)]
        order = kind.__mro__
        for place, owner in enumerate(order):
            if owner.__module__ == MODULE_NAME:
                later = [vars(other) for other in order[place + 1 :]]
                found |= {f"{owner.__qualname__}.{name}" for name in vars(owner) if any(name in o for o in later)}
    yield from found
