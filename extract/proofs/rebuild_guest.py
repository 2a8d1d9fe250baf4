"""Inside the sandbox: rebuild a block from its spec alone, and compare it with the original on every recorded case."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from extract.arguments.constructing import Arguments
from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.messages import BlockRun, SpecRebuild
from extract.arguments.refine import WorkingCalls, vary
from extract.arguments.trials import SEED, AttemptError, attempt, draw_state, seed_all, unset_is_nan
from extract.arguments.values import change_nested, flatten
from extract.proofs.trace_guest import Shape, Target, prepare
from lemur_core.graphs.formulas import Size
from lemur_core.graphs.sizes import Sized, propose_new_shapes
from lemur_core.rebuild.operators import RebuildError
from lemur_core.rebuild.proof import Inputs, Results, Trial, find_difference
from lemur_core.rebuild.rebuild import Rebuilt, rebuild
from lemur_core.sandbox.loader import load as load_module

_SECONDS = 40.0
_SEEDS = (0, 1)  # of the state and of the inputs; with the first, both are as they are constructed
_FILE = "rebuilt"
_TEXT_PACKAGES = ("torch", "torchvision")  # the generated text may import them, even if they are the origin


def rebuild_block(request: SpecRebuild) -> dict[str, object]:
    """Rebuild one block from its spec and prove it.

    Returns: the fields of `extract.proofs.rebuild.RebuildAnswer`.
    """
    original = None if request.original is None else BlockRun(**request.original)
    folders, origin = ((), ()) if original is None else (original.folders, original.origin)
    if isinstance(hidden := request.stored.get("hidden"), list) and hidden:
        return {"error": "; ".join(hidden)}
    prepare(folders, [name for name in origin if name not in _TEXT_PACKAGES])
    sized = Sized.from_json(request.stored)
    try:
        rebuilt = rebuild(
            sized.evaluated, sized.trained, name=request.name, header=f"{request.header}\n{_list_inputs(sized)}"
        )
    except RebuildError as error:
        return {"error": str(error)}
    answer: dict[str, object] = {"source": rebuilt.source}
    if original is None:
        return answer
    try:
        subject = Target(original)
        with unset_is_nan():
            module = subject.build()
        subject.settle(module)
    except AttemptError as failure:
        return answer | {"no_original": failure.message}
    return answer | _Proof(request, subject, module, sized, rebuilt).run()


def _list_inputs(sized: Sized) -> str:
    """Return a line that lists the shapes of the inputs."""
    inputs = [node for node in sized.evaluated.nodes if node.op == "input"]
    parts = []
    for node in sorted(inputs, key=lambda node: node.get("number")):
        sizes = (size.text if isinstance(size, Size) else str(size) for size in node.outputs[0].shape)
        parts.append(f"{node.scope} {'×'.join(sizes) or 'scalar'}")
    return f"Inputs:  {', '.join(parts) or 'none'}"


class _Proof:
    """The original and the rebuilt module, run side by side with the same state."""

    def __init__(
        self, request: SpecRebuild, subject: Target, original: nn.Module, sized: Sized, rebuilt: Rebuilt
    ) -> None:
        self.name, self.tolerance = request.name, request.tolerance
        self.subject, self.original, self.sized, self.rebuilt = subject, original, sized, rebuilt
        self.shapes: list[list[Shape]] = []  # of the inputs of each call that was compared

    def run(self) -> dict[str, object]:
        """Return the fields of the answer that tell whether both are equal."""
        try:
            refuted = self._compare_all()
        except AttemptError as failure:
            return {"no_original": failure.message}
        return {"error": refuted, "proven": not refuted, "shapes": self.shapes, "varied": self._list_varied()}

    def _compare_all(self) -> str:
        """Return the first difference, with the case; "" if there is none."""
        own = self.subject.shapes()
        for seed in _SEEDS:
            if seed:  # what a module computes from its initial zeros and ones proves little
                draw_state(self.original, seed)
            refuted = self._differ(own, partial(self.subject.inputs, seed=SEED + seed), seed)
            if refuted:
                return refuted
        if not self.shapes:
            return "the original does not run again"
        for inputs in self._list_cases():
            try:
                shapes = [tuple(tensor.shape) for tensor in flatten(list(inputs()))]
            except AttemptError:
                continue
            refuted = self._differ(shapes, inputs, 0)
            if refuted:
                return refuted
        known = len(self.shapes)
        for shapes in propose_new_shapes(self.sized, own):
            refuted = self._differ(shapes, partial(self.subject.inputs, shapes), 0)
            if refuted or len(self.shapes) > known:
                return refuted
        return ""

    def _list_cases(self) -> Iterator[Callable[[], Inputs]]:
        """Yield the inputs of each further call that the search for arguments recorded, where it worked."""
        for called in vary(WorkingCalls(Arguments(), self.subject.call)):
            yield partial(self._evaluate, called)

    def _evaluate(self, called: ForwardCall) -> Inputs:
        seed_all()
        return evaluate(called, self.subject.names)

    def _differ(self, shapes: Sequence[Shape], inputs: Callable[[], Inputs], seed: int) -> str:
        """Compare both modes on one call. Returns: the first difference; "" if equal, or the original does not run."""
        ran = False
        for train in (False, True):
            # Other numbers may take another way through the original: what was written knows the one that was traced.
            trial = Trial(inputs, partial(seed_all, seed), train, True, flatten, change_nested)
            theirs = self._run_original(trial)
            if theirs is None:
                trial = replace(trial, gradients=False)
                theirs = self._run_original(trial)
            if theirs is None:
                continue
            where = f"in {'train' if train else 'eval'} mode, inputs of {write_shapes(shapes)}"
            try:
                ours: Results = attempt(partial(self._run_rebuilt, trial), _SECONDS)
            except AttemptError as failure:
                return f"{where}: what was written does not run: {failure.message}"
            if difference := find_difference(theirs, ours, self.rebuilt.mapping, self.tolerance):
                nodes = self.sized.evaluated.nodes if difference.startswith("gradient of") else ()
                own = any(node.op == "custom_gradient" for node in nodes)
                why = "; a spec does not hold the gradients that an autograd function defines" if own else ""
                return f"{where}: {difference}{why}"
            ran = True
        if ran and list(shapes) not in self.shapes:
            self.shapes.append(list(shapes))
        return ""

    def _run_original(self, trial: Trial) -> Results | None:
        """Run the original, of which each run starts from the same state; None if it fails."""
        try:
            results: Results = attempt(partial(trial.run, copy.deepcopy(self.original)), _SECONDS)
        except AttemptError:
            return None
        return results

    def _run_rebuilt(self, trial: Trial) -> Results:
        """Construct the rebuilt module, give it the original's state with the function in its file, and run it."""
        module: nn.Module = getattr(load_module(self.rebuilt.source, _FILE), self.name)()
        state = {name: value for name, value in self.original.state_dict().items() if isinstance(value, Tensor)}
        renamed = getattr(sys.modules[_FILE], "renamed", None)
        taken = renamed(state) if renamed else {name: state[name] for name in self.rebuilt.mapping}
        # Buffers that the generated module alone has, such as constants, keep their values.
        module.load_state_dict(module.state_dict() | taken)
        return trial.run(module, self.rebuilt.mapping, self.rebuilt.takes)

    def _list_varied(self) -> list[str]:
        """Return the dimensions of the inputs that were not the same in all calls: `x[0]`."""
        names = {node.get("number"): node.scope for node in self.sized.evaluated.nodes if node.op == "input"}
        own, *others = self.shapes or [[]]
        return [
            f"{names.get(number, f'input {number}')}[{dim}]"
            for number, shape in enumerate(own)
            for dim, size in enumerate(shape)
            if any(other[number][dim] != size for other in others)
        ]


def write_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Return the shapes of one call: `2×8×20×24, 2×8`."""
    return ", ".join("×".join(map(str, shape)) or "one number" for shape in shapes) or "no tensor"
