"""Sandbox guest: visit a block: its graphs, the lines that run in every known way, and digests of the results."""

import copy
import gc
import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import Arguments, Constructor, construct
from extract.arguments.forwarding import ForwardCall, Search, evaluate, run
from extract.arguments.messages import NAME, BlockRun, BlockUses, CallsToRun, CallTexts, make_uses
from extract.arguments.observing import describe_inputs, describe_outputs
from extract.arguments.search_guest import disable_denied, namespace, search_arguments
from extract.arguments.trials import (
    MODULE_NAME,
    AttemptError,
    BlockNamespace,
    TimeBudget,
    attempt,
    counting_work,
    differentiate,
    fill_unset,
    hide,
    load,
    seed_all,
    unset_is_nan,
)
from extract.arguments.values import change_nested, flatten, has_shape, list_required, read_parameters
from extract.proofs.trace_guest import resize_tensor, trace
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox.server.foreign import name_type, one_line
from lemur_core.sandbox.server.jobs import Failure

_SECONDS = 60.0  # CPU seconds for one step; the limits of the sandbox come first
_MOST_SETS = 4  # argument sets in addition to the one from the search
_MOST_ELEMENTS = 4_000_000  # of the module that the required arguments alone construct
_FORWARDS = 24  # forward calls to try with each set
_MOST_WORK = 200_000_000  # multiply-adds of all runs at further sizes, and of one run of a call in the corpus
_FILE = f"{MODULE_NAME}.py"

Inputs = tuple[list[Any], dict[str, Any]]


# --- the visit --------------------------------------------------------------------------------------------------------


def search_and_visit(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate a block as `search_arguments` does, and visit it if it runs, with its answer as `visit`."""
    found = search_arguments(payload)
    arguments = found.get("arguments")
    if found["level"] not in ("forward", "backward") or arguments is None:
        return found
    hints = payload.get("hints") or {}
    words = set(NAME.findall(str(arguments)))
    named = [item for item in hints.get("companions", ()) if item["name"] in words]
    run = BlockRun(payload["code"], payload["name"], payload["origin"], payload["folders"], arguments, named)
    gc.collect()
    return found | {"visit": visit_block(make_uses(run, found["observed"], hints))}


def visit_block(request: BlockUses) -> dict[str, object]:
    """Record the graphs of one block, then run it in every known way and report which parts of its file ran.

    Returns: the fields of `extract.proofs.visit.Visit`.
    """
    graphs: dict[str, object] | Failure = Failure("not asked for")
    proposed: list[list[list[int]]] = []
    sizes = [list(map(list, shapes)) for shapes in request.sizes]
    if request.graphs:
        traced = trace(request)
        # The other runs are those of a user: compiled where the block wants it, on the fast path of attention.
        torch.jit._state.enable()
        torch.backends.mha.set_fastpath_enabled(True)
        graphs = traced if isinstance(traced, Failure) else traced.answer
        if not isinstance(traced, Failure):
            proposed = [shapes for shapes in traced.propose_sizes() if shapes not in (*sizes, traced.shapes)]
        del traced
    else:
        _prepare(request)
    uses = _watch(replace(request, sizes=[*sizes, *proposed]))
    steps: Any = uses.get("signature", {})
    # Sizes were varied without values, and not every operation refuses there what it refuses with values.
    fails = steps.get("steps", {}).get(f"eval without gradients, inputs {len(sizes) + 1}", "") if proposed else ""
    if not isinstance(graphs, Failure) and fails.startswith("raises"):
        tried = ", ".join("×".join(map(str, shape)) for shape in proposed[0])
        graphs |= Sized.from_json(graphs).fix(f"with inputs {tried} it {fails}").to_json()
    return {"graphs": graphs, "uses": uses}


def _watch(request: BlockUses) -> dict[str, object]:
    watch = _Watch()
    try:
        # Code compiled by TorchScript cannot be traced line by line: if there is any, the block runs again as it is.
        with _compiling_nothing() as wanted:
            request = replace(request, sets=_further_sets(request))
            with watch.watching():
                cls, names = _load(request)
                watch.using = True
                signature = exercise(cls, request, names, watch)
        if wanted or "ScriptModule" in request.code:
            cls, names = _load(request)
            signature = exercise(cls, request, names)
    except AttemptError as failure:
        return {"error": failure.message}
    watched = {
        "lines": sorted(watch.lines),
        "entered": sorted([line, name] for line, name in watch.entered),
        "used": sorted([line, name] for line, name in watch.used),
    }
    calls = [request.arguments, *request.sets]
    cases = [
        {"init": call["init"], "forward": call["forward"], **case}
        for call, case in zip(calls, watch.cases, strict=True)
    ]
    return {"cases": cases, "sizes": request.sizes, "signature": signature, "watched": watched}


def sign_results(request: BlockUses) -> dict[str, object]:
    """Sign the results of a block in every known working way.

    Args: request: with the `sets` that `visit_block` returned.

    Returns: `{"error"}`, or `steps`: step -> digest of all tensors, or the type of the error; and `errors`: their
        messages by step.
    """
    _prepare(request)
    try:
        cls, names = _load(request)
        return exercise(cls, request, names)
    except AttemptError as failure:
        return {"error": failure.message}


def _prepare(request: BlockUses) -> None:
    disable_denied()
    sys.path += request.folders
    hide(request.origin)


def _load(request: BlockUses) -> tuple[type[nn.Module], BlockNamespace]:
    module = attempt(partial(load, request.code), _SECONDS)
    cls = getattr(module, request.name, None)
    if not isinstance(cls, type):
        raise AttemptError(NameError(f"the file defines no class {request.name}", name=request.name))
    return cls, namespace(vars(module), request.companions)


@contextmanager
def _compiling_nothing() -> Iterator[list[str]]:
    """Let TorchScript return what it is to compile. Yields: an item for each time that it was wanted."""
    wanted: list[str] = []
    kind = type(torch.jit._state._enabled)
    before = kind.__bool__

    def refuse(_: object) -> bool:
        wanted.append("")
        return False

    kind.__bool__ = refuse  # type: ignore[method-assign,assignment]
    try:
        yield wanted
    finally:
        kind.__bool__ = before  # type: ignore[method-assign]


# -- running a block ---------------------------------------------------------------------------------------------------


def exercise(
    cls: type[nn.Module], request: BlockUses, names: BlockNamespace, watch: "_Watch | None" = None
) -> dict[str, object]:
    """Construct, print, save, load and run the block in eval and train mode, with each set of arguments in turn.

    Args:
        request: its `arguments` are run at all `sizes`.
        watch: notes what each call takes and returns.
    Returns: as `sign_results`.
    Raises: AttemptError if the block cannot be constructed.
    """
    steps: dict[str, str] = {}
    errors: dict[str, str] = {}
    for number, arguments in enumerate([request.arguments, *request.sets]):
        about = f"arguments {number}, " if number else ""
        called = ForwardCall(tuple(arguments["forward"]["args"]), tuple(arguments["forward"]["kwargs"].items()))
        seen: dict[str, Any] = watch.begin_case(called, names) if watch else {}

        def step(name: str, action: Callable[[], str], about: str = about) -> None:
            try:
                steps[about + name] = attempt(action, _SECONDS)
            except AttemptError as failure:
                steps[about + name] = f"raises {name_type(failure.cause)}"
                errors[about + name] = f"{name_type(failure.cause)}: {one_line(failure.message, 200)}"

        try:
            module = _construct(cls, arguments["init"], names)
        except AttemptError as failure:
            if not number:
                raise
            step("construct", partial(_fail, failure))
            continue
        sizes = [] if number else request.sizes
        # Backward takes most of the time. Where nothing in it is Python, the operators of forward decide what it does.
        backward = not number or request.backward
        _in_all_modes(module, called, names, sizes, step, seen, backward=backward)
        for train in (True, False) if not number else ():
            step(f"as printed, train {train}", partial(_run_as_printed, cls, arguments["init"], called, names, train))
    return {"steps": steps, "errors": errors}


def _run_as_printed(
    cls: type[nn.Module], init: CallTexts, called: ForwardCall, names: BlockNamespace, train: bool
) -> str:
    module = _construct(cls, init, names).train(train)
    seed_all()  # once: what forward draws follows what its inputs drew
    args, kwargs = evaluate(called, names)
    return _digest(module(*args, **kwargs))


def _fail(failure: AttemptError) -> str:
    raise failure.cause


def _construct(cls: type[nn.Module], init: CallTexts, names: BlockNamespace) -> nn.Module:
    with unset_is_nan():
        module = construct(cls, init, names, _SECONDS)
    fill_unset(module)
    return module


def _in_all_modes(
    module: nn.Module,
    called: ForwardCall,
    names: BlockNamespace,
    sizes: Sequence[Sequence[Sequence[int]]],
    step: Callable[[str, Callable[[], str]], None],
    seen: dict[str, Any],
    *,
    backward: bool,
) -> None:
    """Print, save and load, then run forward and backward in eval and train mode, and forward at every other size.

    Args: seen: takes the tensors of the output by mode, in words.
    """
    step("state", lambda: _state(module))
    step("repr", lambda: hashlib.sha256(one_line(repr(module), 10**7).encode()).hexdigest())
    step("load", lambda: str(module.load_state_dict(copy.deepcopy(module.state_dict()))))
    work, own, left = 0, 1, float(_MOST_WORK)
    for number, shapes in enumerate([None, *sizes]):
        # In proportion to the elements of the inputs, so that no run is needed to know it.
        expected = 2 * work * sum(map(math.prod, shapes)) / own if shapes is not None else 0.0
        if expected > left:
            continue
        left -= expected

        def inputs(shapes: Any = shapes) -> Inputs:
            nonlocal own
            seed_all()
            values = evaluate(called, names)
            if shapes is None:
                own = max(sum(tensor.numel() for tensor in flatten(list(values))), 1)
                return values
            return _resize(values, shapes)

        for mode in ("eval", "train"):
            module.train(mode == "train")
            # Further arguments run once in eval mode, below: that also notes what they return.
            if number or (mode == "eval" and backward):
                with counting_work() as counted:
                    step(f"{mode} without gradients, inputs {number}", partial(_forward, module, inputs))
                work = work or counted[0]
            # What backward runs does not depend on sizes, and it takes most of the time.
            if not number:
                note = partial(seen.__setitem__, mode)
                step(f"{mode}, inputs {number}", partial(_forward_backward, module, inputs, note, backward=backward))
            if not number or mode == "train":
                step(f"state after {mode}, inputs {number}", lambda: _state(module))


def _further_sets(request: BlockUses) -> list[CallsToRun]:
    """Return further calls that construct a module which runs forward twice with the same outputs.

    These are the call with the required arguments alone, and the corpus calls that construct a small module.
    """
    cls, names = _load(request)
    others, own = request.others, request.arguments
    own_forward = own["forward"]
    inputs: list[Any] = [{"args": own_forward["args"], "kwargs": list(own_forward["kwargs"].items())}]
    inputs += others["forward"]
    default = _keep_required(cls, own["init"])
    known = [CallTexts(args=list(call["args"]), kwargs=dict(call["kwargs"])) for call in others["init"]]
    sets: list[CallsToRun] = []
    for init in [default, *known]:
        if len(sets) == _MOST_SETS or init in (own["init"], *(calls["init"] for calls in sets)):
            continue
        budget = TimeBudget(constructions=4, forwards=_FORWARDS, seconds=_SECONDS)
        constructor = Constructor(cls, names, {"forward": inputs}, budget)
        arguments = Arguments(tuple(init["args"]), tuple(init["kwargs"].items()))
        try:
            built = constructor.make(arguments)
            if built.on_meta and init == default and built.size <= _MOST_ELEMENTS:
                built = constructor.make(arguments, real=True)
            if built.on_meta:  # large
                continue
            found = next(Search(constructor, only=built).calls(), None)
            if found is None:
                continue
            way = found[1]
            with counting_work() as counted:
                first = digest(run(built.module, way, names))
            if (init == default or counted[0] <= _MOST_WORK) and first == digest(run(built.module, way, names)):
                sets.append({"init": init, "forward": CallTexts(args=list(way.args), kwargs=dict(way.kwargs))})
        except AttemptError:
            continue
    return sets


def _keep_required(cls: type[nn.Module], init: CallTexts) -> CallTexts:
    """Return a constructor call without the arguments that have defaults."""
    parameters = read_parameters(cls)
    required = set(list_required(parameters))
    leading = list(itertools.takewhile(required.__contains__, parameters))
    kwargs = {name: text for name, text in init["kwargs"].items() if name in required}
    return CallTexts(args=list(init["args"][: len(leading)]), kwargs=kwargs)


def _forward(module: nn.Module, inputs: Callable[[], Inputs]) -> str:
    args, kwargs = inputs()
    seed_all()
    with torch.no_grad():
        return _digest(module(*args, **kwargs))


def _forward_backward(
    module: nn.Module, inputs: Callable[[], Inputs], note: Callable[[list[str]], None], *, backward: bool
) -> str:
    """Return the digests of the outputs and of all gradients, or the reason why there are no gradients.

    Args:
        note: takes the tensors of the output, in words.
        backward: if false, the gradients are not computed.
    """
    module.zero_grad(set_to_none=True)
    args, kwargs = inputs()
    leaves = [t for t in flatten([args, kwargs]) if t.is_floating_point() or t.is_complex()]
    for leaf in leaves:
        leaf.requires_grad_()
    args, kwargs = change_nested([args, kwargs], lambda t: t * 1 if t.requires_grad else t)  # may be written to
    seed_all()
    with torch.enable_grad():
        output = module(*args, **kwargs)
    outputs_digest = _digest(output)
    note(describe_outputs(output))
    if not backward:
        return outputs_digest
    seed_all()
    try:
        differentiate(module, output, leaves)
    except ValueError as error:
        return f"{outputs_digest}, {error}"
    gradients = [t.grad for t in (*module.parameters(), *leaves)]
    missing = [number for number, gradient in enumerate(gradients) if gradient is None]
    return (
        f"{outputs_digest}, {_digest([gradient for gradient in gradients if gradient is not None])}, none of {missing}"
    )


def digest(value: object) -> str:
    """Return the SHA-256 of the tensors in a value: their dtypes, shapes and bits."""
    text = hashlib.sha256()
    for tensor in flatten(value):
        # Lazy parameters have no shape before the first run.
        if not has_shape(tensor):
            text.update(b"lazy")
            continue
        for part in _dense(tensor.detach()):
            text.update(f"{part.dtype} {tuple(part.shape)}".encode())
            text.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return text.hexdigest()


def _dense(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        yield from (tensor.indices(), tensor.values())
    elif tensor.layout is not torch.strided:
        yield tensor.to_dense()
    elif tensor.is_quantized:
        yield tensor.int_repr()
    else:
        yield tensor.resolve_conj().resolve_neg()


def _digest(values: Any) -> str:
    """Return the digest of all tensors, computed without the trace, which takes as long again."""
    tensors = flatten(values)  # an operator that is not computed yet runs code of the block
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        return digest(tensors)
    finally:
        sys.settrace(trace)


def _state(module: nn.Module) -> str:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **module.state_dict(keep_vars=True)}
    kept = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    names = [f"{name} {has_shape(value)} {value.requires_grad}" for name, value in kept.items()]
    return hashlib.sha256(f"{names} {_digest(list(kept.values()))}".encode()).hexdigest()


def _resize(inputs: Inputs, shapes: Sequence[Sequence[int]]) -> Inputs:
    """Return the inputs in other shapes."""
    wanted = iter(shapes)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        shape = tuple(next(wanted, tensor.shape))
        return resize_tensor(tensor, shape) if tensor.numel() else tensor

    args, kwargs = change_nested([inputs[0], inputs[1]], change)
    return args, kwargs


# -- executed lines ----------------------------------------------------------------------------------------------------


class _Watch:
    """Recorder of the executed lines of the block's file, and of what each call takes and returns."""

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.entered: set[tuple[int, str]] = set()
        self.used: set[tuple[int, str]] = set()  # entered after the file's own statements had run
        # By the id of a code object, which is kept for it (its hash takes long), the lines that are left to run: once
        # all have run, the function is no longer traced, which costs most of the time.
        self._left: dict[int, tuple[CodeType, set[int] | None]] = {}
        self.using = False
        self.cases: list[dict[str, Any]] = []

    def begin_case(self, called: ForwardCall, names: BlockNamespace) -> dict[str, Any]:
        """Return where the outputs of a call are noted by mode, beside its inputs."""
        try:
            inputs = attempt(partial(describe_inputs, called, names), _SECONDS)
        except AttemptError:
            inputs = {}
        self.cases.append({"inputs": inputs, "eval": None, "train": None})
        return self.cases[-1]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the lines of this thread; autograd on the CPU runs backward in it as well."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        known = self._left.get(id(code))
        if known is None:
            own = code.co_filename.endswith(_FILE)
            lines = {line for _, _, line in code.co_lines() if line is not None} - {frame.f_lineno} if own else None
            known = self._left[id(code)] = code, lines
            if own:
                self.entered.add((code.co_firstlineno, code.co_name))
        left = known[1]
        if left is None:
            return None
        if self.using:
            self.used.add((code.co_firstlineno, code.co_name))
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            line = frame.f_lineno
            self.lines.add(line)
            self._left[id(frame.f_code)][1].discard(line)  # type: ignore[union-attr]
        return self._line
