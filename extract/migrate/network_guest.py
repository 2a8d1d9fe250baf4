"""Sandbox guest: observe the submodules of a LEMUR network, and verify it again once it has an inserted block.

The network is built as LEMUR's trainer builds it.

- Observe: for each case the network is constructed again and run in eval and train mode. Sizes that differ between the
  cases, apart from the batch, depend on the image size or are random, so no constant in the code can represent them.
  Finally the network is trained on one batch: a network that cannot learn is not tested with a block.
- Prove: the new network is run at the sizes of the original; its outputs must have the same shapes. Then follow a
  backward pass, one batch with its own `train_setup` and `learn`, and a trace of its graph, which shows whether the
  block contributes to a result.
"""

import ast
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.migrate.messages import (
    BrokenNetwork,
    Case,
    MigrationStep,
    NetworkProof,
    NetworkToObserve,
    NetworkToProve,
    ObservedNetwork,
    ObservedSubmodule,
    Shape,
)
from lemur_core.graphs.networks.trace import trace_network
from lemur_core.graphs.trace import flatten_tensors
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    make_inputs,
    seed_all,
    sizes,
    step,
    stub_weights,
    tuples,
)

_THREADS = 1

#: Batch size for training; normalization over a batch needs several images.
BATCH = 4


@dataclass(slots=True)
class _SeenModule:
    """The calls of one module in one run."""

    turn: int  # order of the first call among all modules
    calls: int = 0
    inputs: set[tuple[int, ...]] = field(default_factory=set)
    outputs: set[tuple[int, ...]] = field(default_factory=set)
    single: bool = True  # each call maps one real tensor to one real tensor


def observe(request: NetworkToObserve) -> ObservedNetwork | BrokenNetwork:
    """Run a network at several sizes and report the inputs and outputs of each submodule.

    From each list of cases the first one that the network runs with is used; no case of the second list has to work.

    Raises: MemoryError and the like, which the sandbox reports.
    """
    torch.set_num_threads(_THREADS)
    stub_weights()
    ran: list[tuple[Case, Shape, Mapping[str, ObservedSubmodule]]] = []
    failure: NetError | None = None
    for number, cases in enumerate(request.cases):
        for case in cases:
            try:
                ran.append((case, *_run(request, case, number)))
                break
            except NetError as error:
                failure = failure or error
        if not ran:
            assert failure is not None
            return BrokenNetwork(failure.category, failure.detail)
    cases, outputs, by_case = zip(*ran, strict=True)
    try:
        learn(request.code, cases[0], request.prm)
    except NetError as error:
        return BrokenNetwork(error.category, error.detail)
    # A submodule that only some sizes reach cannot be replaced for all of them.
    paths = [path for path in by_case[0] if all(path in places for places in by_case)]
    places = tuple(_merge([places[path] for places in by_case]) for path in paths)
    return ObservedNetwork(cases, outputs, places, _stars(request.code))


def _run(request: NetworkToObserve, case: Case, seed: int) -> tuple[Shape, dict[str, ObservedSubmodule]]:
    """Run one case. Returns: the shape of its output, and its submodules by path. Raises: NetError."""
    seed_all(seed)
    file = execute(request.code)
    net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm)).eval()
    seen: dict[nn.Module, _SeenModule] = {}
    for module in net.modules():
        # A block can neither replace nor follow the network itself.
        if module is not net:
            module.register_forward_hook(_watcher(seen), with_kwargs=True)
    inputs = make_inputs(dict(case))
    with step("forward_failed", f"input {list(inputs.shape)}"), torch.no_grad():
        output = net(inputs)
        places = _places(net, seen)
    with step("forward_failed", f"input {list(inputs.shape)} in train mode"), torch.no_grad():
        net.train()(inputs)
    if not isinstance(output, Tensor):
        raise NetError("wrong_output", f"forward gives {type(output).__name__}, not a tensor")
    return tuple(output.shape), places


def learn(code: str, case: Case, prm: Mapping[str, Any]) -> tuple[Any, Any, Tensor]:
    """Train a network on one batch, as LEMUR's trainer does.

    Args: case: describes the images; the batch size is replaced by `BATCH`.
    Returns: the file as a module, the network, and its output for the batch afterwards, in eval mode.
    Raises: NetError.
    """
    seed_all(0)
    case = with_batch(case)
    file = execute(code)
    net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(prm))
    images, labels = make_inputs(case), torch.arange(BATCH) % int(case["out_shape"][0])
    with step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup({**prm, "batch": BATCH})
    with step("learn_failed", f"in learn(train_data), one batch of {BATCH}"):
        net.train()
        net.learn([(images, labels)])
    with step("forward_failed", "after one batch was learned"), torch.no_grad():
        return file, net, net.eval()(images)


def with_batch(case: Case) -> dict[str, Any]:
    """Return the case with `BATCH` images."""
    return {**case, "in_shape": [BATCH, *case["in_shape"][1:]]}


def _stars(code: str) -> dict[str, list[str]]:
    """Return module -> names that its star import in the file binds."""
    bound = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and node.names[0].name == "*":
            module = importlib.import_module(node.module)
            public = [name for name in vars(module) if not name.startswith("_")]
            bound[node.module] = sorted(getattr(module, "__all__", public))
    return bound


def _watcher(seen: dict[nn.Module, _SeenModule]) -> Any:
    def watch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        observed = seen.setdefault(module, _SeenModule(len(seen)))
        observed.calls += 1
        if len(args) == 1 and not kwargs and all(map(_is_real, (args[0], output))):
            observed.inputs.add(tuple(args[0].shape))
            observed.outputs.add(tuple(output.shape))
        else:
            observed.single = False

    return watch


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _places(net: nn.Module, seen: Mapping[nn.Module, _SeenModule]) -> dict[str, ObservedSubmodule]:
    """Return the description of each called submodule by path, in the order of the calls."""
    names: dict[nn.Module, list[str]] = {}
    for path, module in net.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(path)
    places = {}
    for module, observed in sorted(seen.items(), key=lambda item: item[1].turn):
        if module not in names:
            continue  # it was created or removed during forward
        path = names[module][0]
        # With its container, so that an item of a Sequential can be found in the text.
        holder = net.get_submodule(path.rpartition(".")[0])
        places[path] = ObservedSubmodule(
            path=path,
            steps=_steps(net, path),
            kind=type(module).__name__,
            within=(type(holder).__name__, len(list(holder.children()))),
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            children=len(list(module.children())),
            shared=len(names[module]) > 1,
            calls=observed.calls,
            single=observed.single,
            inputs=(tuple(sorted(observed.inputs)),),
            outputs=(tuple(sorted(observed.outputs)),),
        )
    return places


def _steps(net: nn.Module, path: str) -> str:
    """Return the Python expression from the network to a submodule, e.g. `.layers[2].conv`; empty if there is none."""
    text, holder = "", net
    for name in path.split("."):
        if isinstance(holder, nn.ModuleDict):
            text += f"[{name!r}]"
        elif isinstance(holder, nn.Sequential | nn.ModuleList) and name.isdecimal():
            text += f"[{list(holder._modules).index(name)}]"
        elif name.isidentifier():
            text += f".{name}"
        else:
            return ""
        holder = holder.get_submodule(name)
    return text


def _merge(by_case: Sequence[ObservedSubmodule]) -> ObservedSubmodule:
    """Merge the descriptions of a submodule from all cases."""
    return replace(
        by_case[0],
        calls=max(observed.calls for observed in by_case),
        single=all(observed.single and observed.kind == by_case[0].kind for observed in by_case),
        inputs=tuple(shapes for observed in by_case for shapes in observed.inputs),
        outputs=tuple(shapes for observed in by_case for shapes in observed.outputs),
    )


# -- with an inserted block ------------------------------------------------------------------------------------------


class _Failed(Exception):  # noqa: N818 (an outcome, not a fault)
    """A failed step."""

    def __init__(self, step: MigrationStep, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


def prove(request: NetworkToProve) -> NetworkProof:
    """Verify a network with an inserted block. Raises: MemoryError and the like, which the sandbox reports."""
    torch.set_num_threads(_THREADS)
    stub_weights()
    proof = NetworkProof([])
    try:
        _prove(request, proof)
    except _Failed as failure:
        proof.failed, proof.why = failure.step, failure.why
    return proof


def _prove(request: NetworkToProve, proof: NetworkProof) -> None:
    for number, (case, output) in enumerate(zip(request.cases, request.outputs, strict=True)):
        net, _ = _build(request, case)
        if number == 0:
            proof.proved.append("builds")
        _check_outputs(net, case, output)
    proof.proved += ["runs", "shape"]
    case = with_batch(request.cases[0])
    net, blocks = _build(request, case)
    trained = _trainable(blocks)
    proof.parameters = len(trained)
    _differentiate(net, case, blocks, trained)
    proof.proved.append("gradients")
    proof.moved = _check_learning(request)
    proof.proved.append("learns")
    proof.graph = _check_lead(request, type(blocks[0]).__qualname__)
    proof.proved += [] if proof.graph else ["leads"]


def _build(request: NetworkToProve, case: Case) -> tuple[Any, list[nn.Module]]:
    """Build the network; also return the instances of the block's class at the insertion point."""
    seed_all(0)
    try:
        file = execute(request.code)
        net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm))
    except NetError as error:
        raise _Failed("builds", error.detail) from error
    return net, _find_blocks(file, net, request)


def _find_blocks(file: ModuleType, net: nn.Module, request: NetworkToProve) -> list[nn.Module]:
    name, path = request.name, request.path
    try:
        holder = net.get_submodule(path)
    except AttributeError as error:
        raise _Failed("builds", f"there is no {path} in it: {error}") from error
    blocks = [module for module in holder.modules() if isinstance(module, getattr(file, name))]
    if not blocks:
        raise _Failed("builds", f"no {name} is in {path} once it is constructed")
    return blocks


def _check_outputs(net: nn.Module, case: Case, expected: Sequence[int]) -> None:
    inputs = make_inputs(dict(case))
    try:
        with step("runs", f"input {sizes(inputs.shape)}"), torch.no_grad():
            output = net.eval()(inputs)
    except NetError as error:
        raise _Failed("runs", error.detail) from error
    if not isinstance(output, Tensor) or list(output.shape) != list(expected):
        received = sizes(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise _Failed("shape", f"gives {received} for {sizes(inputs.shape)}, where {sizes(expected)} is wanted")
    if not bool(torch.isfinite(output).all()):
        raise _Failed("shape", "the output is not finite")


def _differentiate(net: Any, case: Case, blocks: list[nn.Module], trained: Mapping[str, nn.Parameter]) -> None:
    """Check that a finite gradient reaches each trainable parameter of the block, and its outputs."""
    gave: list[Tensor] = []

    def retain_gradient(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        gave.append(output)

    hooks = [block.register_forward_hook(retain_gradient) for block in blocks]
    try:
        with step("gradients", "train mode"):
            output = net.train()(make_inputs(dict(case)))
            outputs = [tensor for tensor in flatten_tensors(output) if tensor.requires_grad]
            # Random weights: with a plain sum, gradients of opposite sign could cancel, as after a softmax.
            generator = torch.Generator().manual_seed(0)
            weights = [torch.randn(tensor.shape, generator=generator) for tensor in outputs]
            torch.autograd.backward(outputs, weights)  # raises if there are no outputs
    except NetError as error:
        raise _Failed("gradients", error.detail) from error
    for hook in hooks:
        hook.remove()
    missing = sorted(name for name, parameter in trained.items() if parameter.grad is None)
    if missing:
        raise _Failed(
            "gradients", f"none reaches {', '.join(missing[:4])}: {len(missing)} of {len(trained)} parameters"
        )
    gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
    wrong = sorted(name for name, gradient in gradients.items() if not bool(torch.isfinite(gradient).all()))
    if wrong:
        raise _Failed("gradients", f"that of {wrong[0]} is not finite")
    if not gave or all(tensor.grad is None for tensor in gave):
        raise _Failed("gradients", "none reaches the output of the block")


def _check_learning(request: NetworkToProve) -> int:
    """Train one batch with the network's own code. Returns: the number of parameters of the block that changed."""
    # The state before training: built again, since `learn` returns only the trained network.
    _, blocks = _build(request, with_batch(request.cases[0]))  # with the same seed as for training
    before = _trainable(blocks)
    try:
        file, net, output = learn(request.code, request.cases[0], request.prm)
    except NetError as error:
        raise _Failed("learns", f"{error.category}: {error.detail}") from error
    if not bool(torch.isfinite(output).all()):
        raise _Failed("learns", "outputs are not finite after one batch")
    after = _trainable(_find_blocks(file, net, request))
    moved = sum(
        not torch.equal(old.detach(), new.detach()) for old, new in zip(before.values(), after.values(), strict=True)
    )
    if before and not moved:
        raise _Failed("learns", "one batch does not change any parameter of the block")
    return moved


def _trainable(blocks: list[nn.Module]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of blocks, by name and number of the block."""
    return {
        f"{name} of {number}" if number else name: parameter
        for number, block in enumerate(blocks)
        for name, parameter in block.named_parameters()
        if parameter.requires_grad
    }


def _check_lead(request: NetworkToProve, name: str) -> str | None:
    """Check that operations of the block contribute to a result. Returns: the reason if that is unknown, else None."""
    trace = trace_network({"code": request.code, "prm": dict(request.prm), "cases": [dict(request.cases[0])]})
    if "graph" not in trace:
        return f"{trace['category']}: {trace['error']}"
    if name in trace["dead_classes"]:
        raise _Failed("leads", "no operation of the block leads to a result")
    return None
