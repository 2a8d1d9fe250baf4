"""Sandbox guest: observe the inputs and outputs of each submodule of a LEMUR network, built as the trainer builds it.

For each case the network is constructed again and run in eval and train mode. Sizes that differ between the cases,
apart from the batch, depend on the image size or are random, so no constant in the code can represent them. Finally
the network is trained on one batch: a network that cannot learn is not tested with a block.
"""

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from extract.migrate.messages import BrokenNetwork, Case, NetworkToObserve
from lemur_core.sandbox.net import NetError, construct, execute, make_inputs, seed_all, step, stub_weights, tuples

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


def observe(request: NetworkToObserve) -> dict[str, Any] | BrokenNetwork:
    """Run a network at several sizes and report the inputs and outputs of each submodule.

    From each list of cases the first one that the network runs with is used; no case of the second list has to work.

    Returns: the fields of `extract.migrate.network.network.ObservedNetwork`; for each called submodule those of
        `extract.migrate.insertion_points.ObservedSubmodule`, ordered by the end of their first calls.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    torch.set_num_threads(_THREADS)
    stub_weights()
    ran: list[dict[str, Any]] = []
    failure: NetError | None = None
    for number, cases in enumerate(request.cases):
        for case in cases:
            try:
                ran.append(_run(request, case, number))
                break
            except NetError as error:
                failure = failure or error
        if not ran:
            assert failure is not None
            return BrokenNetwork(failure.category, failure.detail)
    paths = [path for path in ran[0]["places"] if all(path in one["places"] for one in ran)]
    try:
        learn(request.code, ran[0]["case"], request.prm)
    except NetError as error:
        return BrokenNetwork(error.category, error.detail)
    places = [_merge([one["places"][path] for one in ran]) for path in paths]
    return {
        "cases": [one["case"] for one in ran],
        "outputs": [one["output"] for one in ran],
        "places": places,
        "stars": _stars(request.code),
    }


def _run(request: NetworkToObserve, case: Case, seed: int) -> dict[str, Any]:
    """Run one case. Raises: NetError."""
    seed_all(seed)
    file = execute(request.code)
    net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm)).eval()
    seen: dict[nn.Module, _SeenModule] = {}
    for module in net.modules():
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
    return {"case": dict(case), "output": list(output.shape), "places": places}


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
        one = seen.setdefault(module, _SeenModule(len(seen)))
        one.calls += 1
        if len(args) == 1 and not kwargs and all(map(_is_real, (args[0], output))):
            one.inputs.add(tuple(args[0].shape))
            one.outputs.add(tuple(output.shape))
        else:
            one.single = False

    return watch


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _places(net: nn.Module, seen: Mapping[nn.Module, _SeenModule]) -> dict[str, dict[str, Any]]:
    """Return the description of each called submodule by path, in the order of the calls."""
    names: dict[nn.Module, list[str]] = {}
    for path, module in net.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(path)
    places = {}
    for module, one in sorted(seen.items(), key=lambda item: item[1].turn):
        if module not in names:
            continue  # it was created or removed during forward
        path = names[module][0]
        holder = net.get_submodule(path.rpartition(".")[0])
        places[path] = {
            "path": path,
            "steps": _steps(net, path),
            "kind": type(module).__name__,
            "within": [type(holder).__name__, len(list(holder.children()))],
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "children": len(list(module.children())),
            "shared": len(names[module]) > 1,
            "calls": one.calls,
            "inputs": sorted(map(list, one.inputs)),
            "outputs": sorted(map(list, one.outputs)),
            "single": one.single,
        }
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


def _merge(ones: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the descriptions of a submodule from all cases."""
    kept = {name: value for name, value in ones[0].items() if name not in ("calls", "inputs", "outputs", "single")}
    return kept | {
        "calls": max(one["calls"] for one in ones),
        "inputs": [one["inputs"] for one in ones],
        "outputs": [one["outputs"] for one in ones],
        "single": all(one["single"] and one["kind"] == kept["kind"] for one in ones),
    }
