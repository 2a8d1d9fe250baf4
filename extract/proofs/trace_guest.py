"""Inside the sandbox: a block with the arguments of the search, and its trace."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.arguments.constructing import construct
from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.messages import BlockRun
from extract.arguments.search_guest import define, disable_denied, namespace
from extract.arguments.trials import MODULE_NAME, SEED, AttemptError, attempt, fill_unset, hide, seed_all
from extract.arguments.values import change_nested, flatten, has_shape
from lemur_core.describe.facts import list_draws
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import DRAWS, LEAVES, Graph, Ref, reachable
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.sizes import Sized, propose_new_shapes, trace_sizes
from lemur_core.graphs.trace import (
    CHANGED,
    ROUTES,
    TraceResult,
    both_modes,
    initial_values,
    read_generators,
    run,
)
from lemur_core.sandbox.server.jobs import Failure

_SECONDS = 60.0  # of CPU time, for one run; the sandbox sets the hard limit
_MAX_FORMULA = 200  # operations that compute a buffer
_SECONDS_FURTHER = 6.0  # for one run at other sizes
#: Leaves whose values are others in another run, or after training.
_VARYING = frozenset({"input", "parameter", "buffer"})
#: Ways to run it: first with inputs that require gradients, which some blocks do not support.
_WAYS = tuple((route, live) for live in (True, False) for route in ROUTES)

Shape = tuple[int, ...]


def prepare(folders: Sequence[str], origin: Collection[str]) -> None:
    """Set up this process to run a block as plain Python, without its own package.

    Args: folders: appended to sys.path. origin: packages to hide.
    """
    disable_denied()
    # TorchScript and the fast path of attention would hide what is computed from the recorder.
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    sys.path += folders
    hide(origin)


class Target:
    """The class of a self-contained file, with its arguments.

    Raises: AttemptError if the file defines no module of this name.
    """

    def __init__(self, request: BlockRun) -> None:
        cls, stopped = define({"code": request.code, "name": request.name})
        if cls is None:
            raise AttemptError(RuntimeError(stopped["error"]))
        self.cls = cls
        self.file: ModuleType = sys.modules[MODULE_NAME]
        self.names = namespace(vars(self.file), request.companions)
        self._init, forward = request.arguments["init"], request.arguments["forward"]
        self.call = ForwardCall(tuple(forward["args"]), tuple(forward["kwargs"].items()))

    def build(self) -> nn.Module:
        """Construct the module with a fixed seed. Raises: AttemptError."""
        return construct(self.cls, self._init, self.names, _SECONDS)

    def settle(self, module: nn.Module) -> None:
        """Fill parameters that were left unset, and materialize lazy modules. Raises: AttemptError."""
        fill_unset(module)
        if not all(has_shape(tensor) for tensor in (*nn.Module.parameters(module), *nn.Module.buffers(module))):
            args, kwargs = self.inputs()
            module.eval()
            attempt(partial(module, *args, **kwargs), _SECONDS)

    def inputs(
        self, shapes: Sequence[Shape] | None = None, *, live: bool = False, seed: int = SEED
    ) -> tuple[list[Any], dict[str, Any]]:
        """Create the arguments of forward.

        Args:
            shapes: shapes of their tensors, in the order of `extract.arguments.values.flatten`; None: unchanged.
            live: require gradients; the tensors are not leaves of autograd, so that they may be written to.
            seed: of the numbers that they hold.

        Returns: positional and keyword arguments.
        Raises: AttemptError if they cannot be created.
        """
        seed_all(seed)
        arguments: list[Any] = list(evaluate(self.call, self.names))
        if shapes is not None:
            remaining = iter(shapes)
            arguments = change_nested(arguments, lambda tensor: resize_tensor(tensor, next(remaining)))
        if live:
            with torch.enable_grad():
                arguments = change_nested(arguments, _require_grad)
        args, kwargs = arguments
        return args, kwargs

    def shapes(self) -> list[Shape]:
        """Return the shapes of the tensors passed to forward. Raises: AttemptError."""
        return [tuple(tensor.shape) for tensor in flatten(list(self.inputs()))]


def resize_tensor(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor of another shape, filled with repeated elements in random order so that rows differ."""
    if tuple(tensor.shape) == shape:
        return tensor
    if tensor.is_meta:
        return torch.empty(shape, dtype=tensor.dtype, device="meta")
    count = int(torch.Size(shape).numel())
    indices = torch.randperm(count, generator=torch.Generator().manual_seed(0)) % max(tensor.numel(), 1)
    return tensor.detach().reshape(-1)[indices].reshape(shape)


def _require_grad(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_() * 1 if tensor.is_floating_point() else tensor


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """A traced block. Args: answer: the fields of `extract.proofs.visit.BlockGraphs`. shapes: of its inputs."""

    answer: dict[str, object]
    shapes: list[list[int]]
    sized: Sized

    def propose_sizes(self) -> list[list[list[int]]]:
        """Return one set of shapes of the inputs that no graph is of, if any size is free."""
        try:
            proposed = propose_new_shapes(self.sized, list(map(tuple, self.shapes))) if self.sized.sizes else []
        except (ValueError, LookupError, StopIteration):  # inputs in another order than in the graph
            return []
        return [list(map(list, shapes)) for shapes in proposed[-1:]]


def trace_block(request: BlockRun) -> dict[str, object] | Failure:
    """Trace one block. Returns: the fields of `extract.proofs.visit.BlockGraphs`, or the error of the last route."""
    traced = trace(request)
    return traced if isinstance(traced, Failure) else traced.answer


def trace(request: BlockRun) -> TracedBlock | Failure:
    """Trace one block in eval and in train mode, at its own sizes and at other sizes that it accepts."""
    prepare(request.folders, request.origin)
    errors: list[str] = []
    for route, live in _WAYS:
        try:
            try:
                return _trace(request, route, live)
            except AttemptError as failure:
                if CHANGED not in failure.message:
                    raise
                return _trace(request, route, live, compute=False)
        except AttemptError as failure:
            errors.append(f"{failure.kind}: {failure.message}")
    return Failure(errors[len(ROUTES) - 1])


def list_passing(module: nn.Module) -> list[str]:
    """Return the names of the buffers that are in no state dict (`persistent=False`)."""
    return [
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        for name in sorted(child._non_persistent_buffers_set)
        if child._buffers.get(name) is not None
    ]


def find_computed(recorder: Recorder, initial: Mapping[str, Ref]) -> dict[str, Ref]:
    """Return the initial values that a short computation without random numbers gives.

    Who rebuilds a block has its state dict, and must compute what is not in it.
    """
    computed = {}
    for name, ref in initial.items():
        nodes = [recorder.nodes[index] for index in reachable(recorder.nodes, [ref])]
        leaves = [node for node in nodes if node.op in LEAVES]
        known = all(leaf.op == "constant" and not isinstance(leaf.get("value"), str) for leaf in leaves)
        if known and len(nodes) <= _MAX_FORMULA and not any(node.get("draw") is not None for node in nodes):
            computed[name] = ref
    return computed


def _trace(request: BlockRun, route: str, live: bool, *, compute: bool = True) -> TracedBlock:
    """Trace both modes. Args: compute: show buffers that are in no state dict as the computation of their values."""
    recorder = Recorder(route)
    with recorder.recording():
        subject = Target(request)
        module = subject.build()
        returned: list[Any] = []
        hook = module.register_forward_hook(
            lambda _module, _inputs, output: returned.append(describe_structure(output))
        )
        with recorder.pause():
            subject.settle(module)
            own_shapes = subject.shapes()
        initial = initial_values(recorder, module)
        passing = list_passing(module)
        computed = find_computed(recorder, {name: initial[name] for name in passing}) if compute else {}
        draws: dict[str, list[str]] = {}
        reads_values = sees_values = False  # values that another run may change; any

        def trace_mode(train: bool, shapes: Sequence[Shape] | None = None) -> Graph:
            nonlocal reads_values, sees_values
            with recorder.pause():
                args, kwargs = subject.inputs(shapes, live=live)
            seed_all()
            before, start, already = read_generators(), len(recorder.nodes), len(recorder.reads)
            record = partial(run, recorder, module, args, kwargs, train=train, find=flatten, computed=computed)
            graph: Graph = attempt(record, _SECONDS if shapes is None else _SECONDS_FURTHER)
            if shapes is None:
                after = read_generators()
                read, ran = recorder.reads[already:], range(start, len(recorder.nodes))
                drawing = [Ref(index) for index in ran if recorder.nodes[index].get("draw") is not None]
                drawn = list_draws(canonical(Graph(tuple(recorder.nodes), tuple(drawing))))
                outside = [name for name in after if after[name] != before[name]]
                draws["train" if train else "eval"] = [*drawn, *outside]
                sees_values |= bool(read)
                behind = [recorder.nodes[index] for index in reachable(recorder.nodes, read)]
                reads_values |= any(node.op in _VARYING or node.get("draw") is not None for node in behind)
            if not graph.outputs:
                raise AttemptError(ValueError("forward returned no tensor"))
            return graph

        graphs, error = both_modes(trace_mode, AttemptError, route=route)
        hook.remove()
        forms = {mode: canonical(graph) for mode, graph in graphs.items()}
        train_error = None if error is None else f"{error.kind}: {error.message}"
        traced = TraceResult(subject.file, module, recorder, graphs, initial, route, train_error)
        used = {node.scope for form in forms.values() for node in form.nodes if node.op == "buffer"}
        hidden = [f"{name} is in no state dict, and no operations give its values" for name in passing if name in used]
        hidden += [DRAWS] if any(read_generators().keys() & names for names in draws.values()) else []
        seen = {"returns": returned[0], "hidden": hidden, "draws": draws, "reads_values": reads_values}
        answer = traced.answer(forms) | seen
        if sees_values:
            sized = Sized(forms["eval"], forms.get("train"), {}, "Python saw a value on the way")
        else:
            sized = trace_sizes(
                lambda shapes, train: canonical(trace_mode(train, shapes)),
                own_shapes,
                forms["eval"],
                forms.get("train"),
            )
    return TracedBlock(answer | sized.to_json(), list(map(list, own_shapes)), sized)


def describe_structure(value: Any) -> Any:
    """Return the structure of a value: "tensor", None for others, a list of these, or `{"items": [[key, …], …]}`."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, Mapping):
        return {"items": [[str(name), describe_structure(item)] for name, item in value.items()]}
    return [describe_structure(item) for item in value] if isinstance(value, list | tuple) else None
