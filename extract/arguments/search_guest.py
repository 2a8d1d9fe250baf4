"""Inside the sandbox: validate one block (execute, construct, forward, backward) and return the level it reaches."""

import ast
import functools
import inspect
import math
import mimetypes
import ssl
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_pre_hook

from extract.arguments.constructing import TOO_LARGE, Arguments, Constructed, Constructor, confirm
from extract.arguments.forwarding import ForwardCall, Search, call_text, evaluate, run
from extract.arguments.messages import CompanionCode
from extract.arguments.observing import describe, describe_case, find_nothing, list_misfits, observe_signs, same
from extract.arguments.refine import WorkingCalls, refine, vary
from extract.arguments.trials import (
    MODULE_NAME,
    SEED,
    AttemptError,
    BlockNamespace,
    TimeBudget,
    attempt,
    classify_error,
    differentiate,
    draw_state,
    hide,
    is_finite,
    load,
    one_line,
    seed_all,
)
from extract.arguments.values import change_nested, flatten, has_shape

_MORE_SEEDS = (1, 2)  # under which a call must work, too
_OTHER_DRAWS = 1000  # added to a seed
_MAX_BACKWARD_TRIES = 3  # calls to try until one also runs backward
_MAX_DOUBTFUL_TRIES = 12  # as long as they work by accident
_CHANGED_SECONDS = 5.0  # of CPU time for one run with changed inputs


def search_arguments(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate a block up to the highest level that it reaches.

    Args:
        payload: `code`; `name` of the class; `folders` to append to sys.path; `origin`, packages to hide;
            `goal`, the level to stop at; `hints` from the corpus.

    Returns: `level`; `kind` and `error` if it stopped before the goal; from `constructed` on, `arguments` and
    `observed`.
    """
    disable_denied()
    sys.path += payload.get("folders", [])
    hide(payload.get("origin", []))
    cls, stopped = define(payload)
    if cls is None or payload["goal"] == "executed":
        return {"level": "executed", **stopped} if cls is not None else {"level": "compiled", **stopped}
    found = _search(cls, payload)
    if found.observe is not None:  # of the call that was chosen, since it takes more runs than to confirm it
        with suppress(AttemptError):  # of foreign kinds of tensors
            found.answer["observed"] |= found.observe()
    return found.answer


def disable_denied() -> None:
    """Disable what the sandbox does not allow, or where nothing comes of it.

    These are `torch.compile`'s processes, reading the machine's tables of types and its certificates, and sleeping.
    """
    torch.compile = _return_unchanged
    mimetypes.knownfiles.clear()
    ssl._create_default_https_context = ssl._create_unverified_context  # type: ignore[assignment]
    time.sleep = _return_unchanged  # what somebody waits for, such as the next try of a download, never comes


def _return_unchanged(model: Any = None, **_: object) -> Any:
    """Replace `torch.compile`, as a function and as a decorator with options."""
    return model if model is not None else (lambda function: function)


def define(payload: dict[str, Any]) -> tuple[type[nn.Module] | None, dict[str, Any]]:
    """Execute a block's file and return its class, or None with the kind of error and the message."""
    try:
        module = load(payload["code"])
        cls = getattr(module, payload["name"], None)
    except (MemoryError, PermissionError):
        raise  # the sandbox reports what was exceeded or denied
    except BaseException as error:  # noqa: BLE001 - foreign code raises anything; every error is an outcome
        return None, {"kind": classify_error(error), "error": one_line(error)}
    if not isinstance(cls, type):
        return None, {"kind": "not_defined", "error": f"the file runs but defines no class {payload['name']}"}
    if not issubclass(cls, nn.Module):
        return None, {"kind": "not_a_module", "error": f"{payload['name']} is not a subclass of torch.nn.Module"}
    return cls, {}


def namespace(block: dict[str, Any], companions: Sequence[CompanionCode]) -> BlockNamespace:
    """Return the names that expressions may use: the usual ones, then the block's, then its companions'."""
    loaded = {item["name"]: _load_companion(item, index) for index, item in enumerate(companions)}
    names = {name: value for name, value in loaded.items() if value is not None}
    # The block's own names win over companions: its file has the class that it really uses.
    names |= {name: value for name, value in block.items() if not name.startswith("__") and value is not object}
    usual: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "np": np, "numpy": np, "math": math}
    usual |= {"functools": functools, "partial": functools.partial, "types": types, "OrderedDict": OrderedDict}
    return BlockNamespace(names | usual)


def _load_companion(item: CompanionCode, index: int) -> Any:
    block, code = sys.modules[MODULE_NAME], item["code"]
    if vars(block).get(item["name"], object) is not object or not code:  # `object`: a placeholder of annotations
        return None
    path = Path(f"companion_{index}.py").resolve()
    path.write_text(code, encoding="utf-8")
    module = sys.modules[path.stem] = types.ModuleType(path.stem)
    module.__file__ = str(path)

    def execute() -> None:
        tree, lines, text = ast.parse(code), code.splitlines(), inspect.getsource(block)
        for node in list(tree.body):
            # An instance of a class is not one of another class with the same text.
            known = vars(block).get(node.name) if isinstance(node, ast.ClassDef) else None
            if isinstance(known, type) and "\n".join(lines[node.lineno - 1 : node.end_lineno]) in text:
                tree.body.remove(node)
                setattr(module, known.__name__, known)
        exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - inside the sandbox

    try:
        attempt(execute)
    except AttemptError:
        return None
    return getattr(module, item["name"], None)


@dataclass
class _Confirmed:
    """What was observed of one call.

    Attributes:
        doubtful: it works by accident: others are tried, too, and it counts only if none is better.
        observe: returns the signs of an accident.
    """

    answer: dict[str, Any]
    doubtful: bool = False
    observe: Callable[[], dict[str, Any]] | None = None

    @property
    def rank(self) -> tuple[int, bool]:
        return ("executed", "constructed", "forward", "backward").index(self.answer["level"]), not self.doubtful


def _search(cls: type[nn.Module], payload: dict[str, Any]) -> _Confirmed:
    hints, goal = payload.get("hints") or {}, payload["goal"]
    block = vars(sys.modules[MODULE_NAME])
    others = [
        name
        for name, value in block.items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == MODULE_NAME
    ]
    # Where an argument is a class, those that are named as blocks are tried before helpers.
    others.sort(key=lambda name: not name.lower().endswith(("block", "bottleneck", "layer")))
    blocks = tuple(name for name in others if block[name] is not cls)
    names = namespace(block, list(hints.get("companions", ())))
    constructor = Constructor(cls, names, hints, TimeBudget(construction=1.0), blocks)
    search = Search(constructor, forward=goal != "constructed")
    best: _Confirmed | None = None
    for number, (built, called) in enumerate(search.calls(), 1):
        if goal == "constructed":
            return _start(built, None, None)
        found = _confirm_refined(constructor, built, called, goal, search.work)
        empty = found.answer["kind"] == "no_result"
        search.rejected = found.answer["error"].rpartition("): ")[2] if empty else None
        best = found if best is None or found.rank > best.rank else best
        enough = number >= _MAX_BACKWARD_TRIES and not best.doubtful and best.answer["kind"] != "no_result"
        if (best.answer["level"] == goal and not best.doubtful) or enough or number >= _MAX_DOUBTFUL_TRIES:
            break
    if best is not None:
        return best
    if search.best_failure is None:
        nothing = {"level": "executed", "kind": "no_arguments", "error": "there are no constructor arguments to try"}
        return _start(search.best, "no_inputs", "there are no inputs to try") if search.best else _Confirmed(nothing)
    failure, text = search.best_failure
    error = f"({text}): {failure.message}{failure.where()}"
    if search.best is None:
        return _Confirmed({"level": "executed", "kind": failure.kind, "error": f"{cls.__name__}{error}"})
    return _start(search.best, failure.kind, f"forward{error}")


def _start(built: Constructed, kind: str | None, error: str | None) -> _Confirmed:
    answer = {"level": "constructed", "kind": kind, "error": error, "arguments": {"init": built.arguments.as_json()}}
    return _Confirmed({**answer, "observed": describe(built.module)})


def _confirm_refined(
    constructor: Constructor, built: Constructed, called: ForwardCall, goal: str, work: int
) -> _Confirmed:
    """Return what was observed of a call, with sizes of their own if it reaches the goal with them.

    Args: work: its multiply-adds.
    """
    refined = refine(constructor, built, called, work)
    found = _confirm(constructor, *refined, goal) if refined is not None else None
    return found if found is not None and found.answer["level"] == goal else _confirm(constructor, built, called, goal)


def _confirm(constructor: Constructor, built: Constructed, called: ForwardCall, goal: str) -> _Confirmed:
    """Run a new module on the CPU with the arguments of the search, and return what was observed."""
    names = constructor.names
    if built.size > TOO_LARGE:
        return _start(built, "too_large", f"{built.size:,} elements of parameters: only its shapes were checked")
    try:
        # A new module: the search may have changed the state of the one that it tried.
        module, unset = confirm(constructor, built.arguments)
        module.eval()
        with _noting_no_batch() as without_batch:
            output = run(module, called, names)
        # A coin that fell "no" once shows nothing of what the other side does.
        others = [flatten(_run_again(constructor, built, module, called, seed)) for seed in _MORE_SEEDS]
    except AttemptError as failure:
        return _start(built, failure.kind, f"forward({call_text(called)}): {failure.message}{failure.where()}")
    first = flatten(output)
    # Drawn again: forward may have written to its inputs.
    inputs = _draw_inputs(called, names)
    is_drawn = not any(same(inputs, _draw_inputs(called, names, seed)) for seed in _MORE_SEEDS)
    if problem := find_nothing(module, first, inputs):
        return _start(built, "no_result", f"forward({call_text(called)}): {problem}")
    found = _start(built, None, None)
    answer = found.answer
    answer["level"] = "forward"
    answer["arguments"]["forward"] = called.as_json()
    misfits = _list_misfits(constructor, built.arguments, called, module)
    cases = [describe_case(called, names, output), *further_cases(module, called, names)]
    observed = answer["observed"] = describe(module) | {"cases": cases, "uninitialized": unset, "misfits": misfits}
    observed["constant"] = is_drawn and all(same(first, other) for other in others)
    # A call that was recorded in a model whose own arguments were guessed is a guess, too.
    own = [call for call in constructor.hints.get("forward", ()) if call.get("way") in ("call", "recorded")]
    found.observe = partial(_observe_signs, module, called, names, guessed=called.guessed or not own)
    # What somebody wrote is no accident.
    found.doubtful = bool(without_batch or (misfits and called.guessed))
    if goal != "forward":
        found.doubtful |= _backward(module, called, names, answer)
    _compare_modes(constructor, built, called, answer)
    # No parameter takes part, or no mode computes anything: the input has a form that the class passes on.
    passed_on = observed["parameters"] or observed.get("train_differs") is not True
    found.doubtful |= bool(observed["constant"] or (observed.get("identity_in_eval") and passed_on))
    return found


def _observe_signs(module: nn.Module, called: ForwardCall, names: BlockNamespace, *, guessed: bool) -> dict[str, Any]:
    """Return what is doubtful about a call. Raises: AttemptError if its inputs are foreign kinds of tensors."""

    def run_changed(change: Callable[[torch.Tensor], torch.Tensor], other: Mapping[str, str]) -> list[torch.Tensor]:
        try:
            seed_all()
            changed = replace(called, kwargs=tuple({**dict(called.kwargs), **other}.items()))
            args, kwargs = change_nested(list(evaluate(changed, names)), change)
            seed_all()
            with torch.no_grad():
                return flatten(attempt(partial(module, *args, **kwargs), _CHANGED_SECONDS))
        except (AttemptError, RuntimeError, IndexError):  # of a changed input, too
            return []

    def observe() -> dict[str, Any]:
        module.eval()
        inputs = _draw_inputs(called, names), _draw_inputs(called, names, seed=1)
        return observe_signs(run_changed, *inputs, dict(called.kwargs), guessed=guessed)

    signs: dict[str, Any] = attempt(observe)
    return signs


def _list_misfits(constructor: Constructor, arguments: Arguments, called: ForwardCall, module: nn.Module) -> list[str]:
    """Return the arguments of both calls that do not fit their annotations; none if foreign types cannot be asked."""
    names, forward = constructor.names, type(module).forward

    def action() -> list[str]:
        _, *takes = inspect.signature(forward).parameters.items()
        misfits = list_misfits(type(module).__init__, constructor.parameters, *evaluate(arguments, names))
        return [*misfits, *list_misfits(forward, dict(takes), *evaluate(called, names))]

    try:
        misfits: list[str] = attempt(action)
    except AttemptError:
        return []
    return misfits


@contextmanager
def _noting_no_batch() -> Iterator[list[nn.Module]]:
    """List the convolutions that run in this context on one image without a batch, as they do if a dimension lacks."""
    noted: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, _ConvNd) and args and has_shape(args[0]) and args[0].dim() < len(module.kernel_size) + 2:
            noted.append(module)

    hook = register_module_forward_pre_hook(note)
    try:
        yield noted
    finally:
        hook.remove()


def _compare_modes(constructor: Constructor, built: Constructed, called: ForwardCall, answer: dict[str, Any]) -> None:
    """Observe whether eval mode returns the input, and whether train mode differs from it.

    As it is constructed, a module that begins at zero may return its input: its state is drawn at random first, and
    left as it is only where the module does not run so.
    """
    observed, names = answer["observed"], constructor.names

    def compare(module: nn.Module, first: list[torch.Tensor]) -> None:
        inputs = _draw_inputs(called, names)
        observed["identity_in_eval"] = bool(inputs and first) and same(first, inputs[:1] * len(first))
        if observed["constant"]:  # as it is constructed
            others = [flatten(run(module, called, names, seed=seed)) for seed in _MORE_SEEDS]
            observed["constant"] = all(same(first, other) for other in others)
        for seed in _MORE_SEEDS if observed["identity_in_eval"] else ():
            inputs = _draw_inputs(called, names, seed)
            again = flatten(run(module, called, names, seed=seed, draws=seed + _OTHER_DRAWS))
            observed["identity_in_eval"] &= same(again, inputs[:1] * len(again))
        if answer["level"] == "backward" and same(first, flatten(run(module, called, names))):
            module.train()
            observed["train_differs"] = not same(flatten(run(module, called, names)), first)

    for drawn in (True, False):
        with suppress(AttemptError):  # it works only once, or not in train mode
            module, _ = confirm(constructor, built.arguments)
            module.eval()  # a `train` of its own may return nothing, so no call is chained to it
            if drawn:
                draw_state(module)
            first = flatten(run(module, called, names))
            if not drawn or all(map(is_finite, first)):
                compare(module, first)
                return


def _run_again(constructor: Constructor, built: Constructed, module: nn.Module, called: ForwardCall, seed: int) -> Any:
    """Return the output under another seed, of a new module if one runs only once. Raises: AttemptError."""
    try:
        return run(module, called, constructor.names, seed=seed)
    except AttemptError:
        fresh, _ = confirm(constructor, built.arguments)
        fresh.eval()
        return run(fresh, called, constructor.names, seed=seed)


def _draw_inputs(called: ForwardCall, names: BlockNamespace, seed: int = SEED) -> list[torch.Tensor]:
    seed_all(seed)
    return flatten(list(evaluate(called, names)))


def _backward(module: nn.Module, called: ForwardCall, names: BlockNamespace, answer: dict[str, Any]) -> bool:
    """Run backward in train mode, or in eval mode if train mode fails; return whether what it shows is doubtful."""
    observed = answer["observed"]
    for mode in (True, False):
        module.train(mode)
        module.zero_grad(set_to_none=True)
        ran = False
        try:
            output, inputs = _run_with_gradients(module, called, names)
            ran = True
            reached, wanted = attempt(partial(differentiate, module, output, inputs))
        except AttemptError as failure:
            if mode and not ran:
                observed["train_error"] = failure.message
            error = f"backward({call_text(called)}): {failure.message}{failure.where()}"
            answer["kind"] = "not_differentiable" if isinstance(failure.cause, ValueError) else failure.kind
            answer["error"] = answer["error"] or error
            continue
        gradients = [tensor.grad for tensor in (*nn.Module.parameters(module), *inputs) if tensor.grad is not None]
        zero = not any(bool((g.coalesce().values() if g.is_sparse else g).any()) for g in gradients)
        observed |= {"gradients": reached, "tensors": wanted, "zero_gradients": zero}
        answer |= {"level": "backward", "kind": None, "error": None}
        return not mode or zero  # train mode failed, or what is masked hides all
    return False


def _run_with_gradients(
    module: nn.Module, called: ForwardCall, names: BlockNamespace
) -> tuple[Any, list[torch.Tensor]]:
    seed_all()
    args, kwargs = evaluate(called, names)
    inputs = [t for t in flatten([args, kwargs]) if t.is_floating_point() or t.is_complex()]
    free = not any(p.requires_grad for p in nn.Module.parameters(module))
    for tensor in inputs if free else ():
        tensor.requires_grad_()
    if free:  # in-place operations may not write to leaves
        args, kwargs = change_nested([args, kwargs], lambda t: t * 1 if t.requires_grad else t)

    def action() -> Any:
        with torch.enable_grad():
            return module(*args, **kwargs)

    seed_all()
    return attempt(action), inputs


def further_cases(module: nn.Module, called: ForwardCall, names: BlockNamespace) -> list[dict[str, Any]]:
    """Return the same call with another number of pixels or tokens, and another batch size, if they work."""
    cases = []
    for other in vary(WorkingCalls(Arguments(), called)):
        try:
            cases.append(describe_case(other, names, run(module, other, names)))
        except AttemptError:
            continue
    return cases
