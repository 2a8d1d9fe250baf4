"""Inside the sandbox: rebuild a block from its spec alone, trace it, and compare it with the original."""

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from extract.arguments.messages import BlockRun, SpecRebuild
from extract.arguments.target import Shape, Target, prepare
from extract.arguments.trials import SEED, AttemptError, attempt, draw_state, seed_all, unset_is_nan
from extract.arguments.values.inputs import change_nested, flatten
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, Node
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.serialization import restore
from lemur_core.graphs.sizes import Sized, propose_new_shapes
from lemur_core.graphs.symbolic import Size, evaluate_graph
from lemur_core.graphs.trace import ROUTES, both_modes, run
from lemur_core.rebuild.calls import RebuildError
from lemur_core.rebuild.module_text import Rebuilt
from lemur_core.rebuild.proof import OutputDifference, Trial, compare
from lemur_core.rebuild.rebuild import rebuild
from lemur_core.sandbox.server.foreign import load as load_module

_SECONDS = 40.0
_SEEDS = (0, 1, 2)  # of the inputs, of draws in forward and, from the second on, of the state
_FILE = "rebuilt"
_TEXT_PACKAGES = ("torch", "torchvision")  # the generated text may import them, even if they are the origin


def rebuild_block(request: SpecRebuild) -> dict[str, object]:
    """Rebuild one block from its spec and prove it.

    Returns: the fields of `extract.proofs.rebuild.RebuildAnswer`.
    """
    original = None if request.original is None else BlockRun(**request.original)
    folders, origin = ((), ()) if original is None else (original.folders, original.origin)
    if isinstance(hidden := request.stored.get("hidden"), list) and hidden:
        return {"step": "read", "cause": "; ".join(hidden)}
    prepare(folders, [name for name in origin if name not in _TEXT_PACKAGES])
    sized = restore(request.stored)
    answer = _rebuild(request, original, sized)
    # Formulas of sizes may be wrong where the graph is right: try once more with the sizes that were traced.
    if sized.sizes and answer["step"] in ("read", "written"):
        trained = None if sized.trained is None else evaluate_graph(sized.trained)
        single = _rebuild(request, original, Sized(evaluate_graph(sized.evaluated), trained))
        if single["step"] not in ("read", "written"):
            return single | {"sizes_fail": answer["cause"]}
    return answer


def _rebuild(request: SpecRebuild, original: BlockRun | None, sized: Sized) -> dict[str, object]:
    header = f"{request.header}\n{_inputs_line(sized)}"
    try:
        module_text = rebuild(sized.evaluated, sized.trained, name=request.name, header=header)
    except RebuildError as error:
        return {"step": "read", "cause": str(error)}
    shapes = [node.outputs[0].shape for node in sized.evaluated.nodes if node.op == "input"]
    free = any(isinstance(size, Size) for shape in shapes for size in shape)
    answer: dict[str, object] = {"source": module_text.source, "free": free}
    subject, original_inputs = None, None
    if original is not None:
        try:
            subject = Target(original)
            original_inputs = flatten(list(subject.inputs()))
        except AttemptError as failure:
            answer["no_original"] = failure.message
    try:
        answer["same_graph"] = _identity(module_text, request.name, sized, original_inputs) == request.graph
    except AttemptError as failure:
        return answer | {"step": "written", "cause": f"what was written does not run: {failure.message}"}
    if subject is not None:
        answer |= _prove(request.name, subject, sized, module_text)
        if answer["step"] != "built":
            return answer
    # Without the original only the graphs can be compared.
    if answer["same_graph"]:
        return answer | {"step": "traced", "cause": answer.get("no_original", "")}
    return answer | {"step": "written", "cause": "what was written computes another graph"}


def _inputs_line(sized: Sized) -> str:
    """Return a line that lists the shapes of the inputs."""
    inputs = [node for node in sized.evaluated.nodes if node.op == "input"]
    parts = []
    for node in sorted(inputs, key=lambda node: node.get("number")):
        sizes = (size.text if isinstance(size, Size) else str(size) for size in node.outputs[0].shape)
        parts.append(f"{node.scope} {'×'.join(sizes) or 'scalar'}")
    return f"Inputs:  {', '.join(parts) or 'none'}"


# --- its graph --------------------------------------------------------------------------------------------------------


def _identity(module_text: Rebuilt, name: str, sized: Sized, original_inputs: Sequence[Tensor] | None) -> str:
    """Return the graph identity of the generated code.

    Args: original_inputs: inputs of the original; None: tensors as described in the spec.
    Raises: AttemptError if it does not run.
    """
    failure = AttemptError(ValueError("forward gives no tensor"))
    taken = None if original_inputs is None else [original_inputs[number] for number in module_text.takes]
    # Some operators have no meta implementation: the second route runs on the CPU.
    for route in ROUTES:
        recorder = Recorder(route)
        with recorder.recording():
            try:
                module = attempt(lambda: getattr(load_module(module_text.source, _FILE), name)(), _SECONDS)

                def trace_mode(train: bool) -> Graph:
                    with recorder.pause():  # noqa: B023
                        inputs = _inputs(sized, taken)
                    seed_all()
                    record = functools.partial(run, recorder, module, inputs, train=train)  # noqa: B023
                    return _renumber_inputs(canonical(attempt(record, _SECONDS)), module_text.takes)

                if sized.trained is None:
                    return compute_identities({"eval": trace_mode(False)})["graph"]
                return compute_identities(both_modes(trace_mode, AttemptError, route=route)[0])["graph"]
            except AttemptError as error:
                failure = error
    raise failure


def _renumber_inputs(graph: Graph, takes: Sequence[int]) -> Graph:
    """Return the graph with its inputs numbered as in the spec."""

    def renumber(node: Node) -> Node:
        if node.op != "input":
            return node
        return replace(node, arguments=tuple((n, takes[v] if n == "number" else v) for n, v in node.arguments))

    return replace(graph, nodes=tuple(map(renumber, graph.nodes)))


def _inputs(sized: Sized, tensors: Sequence[Tensor] | None) -> list[Tensor]:
    """Return input tensors as described in the spec, in order, with the values of `tensors` if there are any."""
    nodes: dict[int, Node] = {}
    for graph in (sized.trained, sized.evaluated):
        nodes |= {node.get("number"): node for node in (graph.nodes if graph else ()) if node.op == "input"}
    inputs = []
    for index, (_, node) in enumerate(sorted(nodes.items())):
        kind = node.outputs[0]
        shape = [int(size.value) if isinstance(size, Size) else size for size in kind.shape]
        with torch.enable_grad():
            tensor = torch.ones(shape, dtype=getattr(torch, kind.dtype))
            tensor = tensor if tensors is None else tensors[index].detach().to(tensor.device)
            inputs.append(tensor.requires_grad_() * 1 if node.get("trained") else tensor)
    return inputs


# --- against the original ---------------------------------------------------------------------------------------------


def _prove(name: str, subject: Target, sized: Sized, module_text: Rebuilt) -> dict[str, object]:
    """Compare the generated code with the original; the step is `built` if the original cannot be built here."""
    try:
        with unset_is_nan():
            original = subject.build()
        subject.settle(original)
        own = subject.shapes()
    except AttemptError as failure:
        return {"step": "built", "no_original": failure.message}
    cause, largest_error = "", 0.0
    for seed in _SEEDS:
        if seed:  # what a module computes from its initial zeros and ones proves little
            draw_state(original, seed)
        try:
            rebuilt = getattr(load_module(module_text.source, _FILE), name)()
            _hand_over(original, rebuilt, module_text.mapping)
        except (ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
            return {"step": "written", "cause": f"its state: {type(error).__name__}: {error}"}
        pair = _RebuiltPair(subject, original, rebuilt, module_text, sized.trained is not None, seed)
        difference, error_here = pair.differs(None)
        if difference is None and not seed:
            difference = "the original does not run again"
        cause, largest_error = difference or "", max(largest_error, error_here)
        if cause:
            break
    new_shapes = [] if cause else propose_new_shapes(sized, own)
    compared = [own]
    for shapes in new_shapes:
        difference, error_here = pair.differs(shapes)
        if difference is not None:
            compared.append(shapes)
            cause, largest_error = difference, max(largest_error, error_here)
        if difference is not None or pair.late:
            break
    if cause:
        return {"step": "written", "cause": cause}
    return {"step": "equal", "cause": "", "error": largest_error, "bits": largest_error == 0.0, "shapes": compared}


_ROUNDING = 1e-9  # relative to the largest value, in double precision


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class _RebuiltPair:
    """The original and the rebuilt module, with the same state."""

    def __init__(
        self,
        subject: Target,
        original: nn.Module,
        rebuilt: nn.Module,
        module_text: Rebuilt,
        trains: bool,
        seed: int,
    ) -> None:
        self.subject, self.original, self.rebuilt, self.module_text = subject, original, rebuilt, module_text
        self.modes, self.seed = (False, True) if trains else (False,), seed
        self.late = False  # one of the other sizes took too long, so no further one is tried

    def differs(self, shapes: Sequence[Shape] | None) -> tuple[str | None, float]:
        """Return the difference ("" if equal, None if the original does not run so) and the largest error."""
        largest_error = 0.0
        for train in self.modes:
            where = f"in {'train' if train else 'eval'} mode{f' at {shapes}' if shapes else ''}"
            try:
                difference = self._compare_outputs(shapes, train)
            except AttemptError as failure:
                self.late = shapes is not None and isinstance(failure.cause, TimeoutError)
                if self.late or (shapes and not self._runs(shapes, train)):
                    return None, 0.0
                return f"{where}: {failure.message}", 1.0
            if difference.what and not self._is_rounding(shapes, train):
                return f"{where}: {difference.what}", difference.error
            largest_error = max(largest_error, difference.error)
        return "", largest_error

    def _trial(self, shapes: Sequence[Shape] | None, train: bool, gradients: bool = True) -> Trial:
        # Other numbers may take another way through the original: what was written knows the one that was traced.
        inputs = functools.partial(self.subject.inputs, shapes, seed=SEED + self.seed)
        return Trial(inputs, functools.partial(seed_all, self.seed), train, gradients, flatten, change_nested)

    def _compare_outputs(self, shapes: Sequence[Shape] | None, train: bool) -> OutputDifference:
        try:
            return self._compare(self._trial(shapes, train))
        except AttemptError as failure:
            if isinstance(failure.cause, TimeoutError) or self._runs(shapes, train):
                raise
            return self._compare(self._trial(shapes, train, gradients=False))  # the original has no gradients either

    def _compare(self, trial: Trial) -> OutputDifference:
        # A run may change buffers: every comparison starts from the same state.
        original, rebuilt = copy.deepcopy(self.original), copy.deepcopy(self.rebuilt)
        action = functools.partial(compare, original, rebuilt, self.module_text.mapping, trial, self.module_text.takes)
        difference: OutputDifference = attempt(action, _SECONDS)
        return difference

    def _is_rounding(self, shapes: Sequence[Shape] | None, train: bool) -> bool:
        """Return whether both are equal in double precision."""
        exact = _RebuiltPair(
            self.subject, copy.deepcopy(self.original), copy.deepcopy(self.rebuilt), self.module_text, train, self.seed
        )
        trial = self._trial(shapes, train)
        single = trial.inputs
        trial = replace(trial, inputs=lambda: change_nested(list(single()), _double))
        try:
            exact.original.double()
            exact.rebuilt.double()
            difference = exact._compare(trial)
        except (AttemptError, RuntimeError, TypeError):
            return False
        return not difference.what and difference.error < _ROUNDING

    def _runs(self, shapes: Sequence[Shape] | None, train: bool) -> bool:
        """Return whether the original runs with gradients."""
        try:
            attempt(functools.partial(self._trial(shapes, train).run, copy.deepcopy(self.original)), _SECONDS)
        except AttemptError:
            return False
        return True


def _hand_over(original: nn.Module, rebuilt: nn.Module, mapping: Mapping[str, str]) -> None:
    """Load the original's state dict, with the function in the generated file."""
    state = {name: value for name, value in original.state_dict().items() if isinstance(value, Tensor)}
    renamed = getattr(sys.modules[_FILE], "renamed", None)
    taken = renamed(state, rebuilt) if renamed else {name: state[old] for name, old in mapping.items()}
    # Buffers that the generated module alone has, such as constants, keep their values.
    rebuilt.load_state_dict(rebuilt.state_dict() | taken)
    for name, old in mapping.items():
        if not torch.equal(rebuilt.state_dict()[name], state[old].detach()):
            raise ValueError(f"{name} does not hold the original's {old}")
