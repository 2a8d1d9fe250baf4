"""Code that runs inside the sandbox: run a network as `--check-runs` does, and measure it.

It observes the network through PyTorch's global module hooks. It records the last outermost call of a module: the
forward pass of the network itself, whatever modules its constructor called before.

Source: `register_module_forward_hook`, https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.module.register_module_forward_hook.html
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lemur_core.files import Json
from lemur_core.sandbox.loader import NETWORK
from lemur_core.sandbox.net import run_network

#: The containers of torch.nn, which are not layers themselves.
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Module"})

#: What must not depend on chance: a network whose seeds disagree on one of these is not measured.
_OF_THE_ARCHITECTURE = ("parameters", "trainable", "layers", "own")
#: Fields that weights and inputs may change, with their placeholder in that case.
_OF_THE_RUN: Json = {"multiply_adds": 0, "output": None}

_ITEMS = 4  # maximum number of described items of a tuple or dictionary


def measure(payload: Json) -> Json:
    """Construct a network, run it forward and describe its structure, as far as it is the same with another seed.

    Args:
        payload: as for `lemur_core.sandbox.net.run_network`.

    Returns: its answer; if `runs` is true also the fields of `curate.chat.network.NetworkFacts`. The category is
        `not_measured` if the network's structure depends on chance.
    """
    answer = _measure_once(payload)
    if not answer["runs"]:
        return answer
    other = _measure_once(payload | {"seed": 1})
    if not other["runs"]:
        return _failure(f"it runs with one seed; with another, {other['category']}: {other['error']}")
    for name in _OF_THE_ARCHITECTURE:
        if answer[name] != other[name]:
            return _failure(f"chance decides its {name}: {answer[name]} with one seed, {other[name]} with another")
    return answer | {name: nothing for name, nothing in _OF_THE_RUN.items() if answer[name] != other[name]}


def _failure(error: str) -> Json:
    return {"runs": False, "category": "not_measured", "error": error, "missing": ""}


def _measure_once(payload: Json) -> Json:
    with recording() as recorder:
        answer = run_network(payload)
    net = recorder.root  # before train_setup, which may call modules
    if not answer["runs"]:
        return answer
    if net is None:
        return _failure("Net was called, but not as a module: nothing could be measured")
    layers: Counter[str] = Counter()
    own: Counter[str] = Counter()
    _count(net, layers, own, set())
    facts = {
        "parameters": _elements(net.parameters()),
        "trainable": _elements(p for p in net.parameters() if p.requires_grad),
        "multiply_adds": recorder.multiply_adds,
        "attention": any(isinstance(module, torch.nn.MultiheadAttention) for module in net.modules()),
        "output": recorder.output,
        "layers": _rank(layers),
        "own": _rank(own),
    }
    return answer | facts | _training(net, payload["prm"])


def _count(module: torch.nn.Module, layers: Counter[str], own: Counter[str], seen: set[int]) -> None:
    """Count library layers, without looking inside those of torch.nn, and modules that the file defines."""
    for child in module.children():
        if id(child) in seen or _is_loss(child):
            continue
        seen.add(id(child))
        kind = type(child)
        of_torch = kind.__module__.startswith("torch.nn.") and kind.__name__ not in _CONTAINERS
        if kind.__module__ == NETWORK:
            own[kind.__name__] += 1
        elif (of_torch or not any(True for _ in child.children())) and kind.__name__ not in _CONTAINERS:
            layers[kind.__name__] += 1
        if not of_torch:
            _count(child, layers, own, seen)


def _is_loss(module: object) -> bool:
    """Return True for a loss of torch.nn, or a module named as one."""
    return isinstance(module, torch.nn.Module) and (
        isinstance(module, torch.nn.modules.loss._Loss) or type(module).__name__.endswith("Loss")
    )


def _training(net: Any, prm: Json) -> Json:
    """Return the classes of the optimizer and the losses that `train_setup` creates; empty without `train_setup`."""
    try:
        net.train_setup(prm)
    except Exception:  # noqa: BLE001 (foreign code may raise anything: nothing is stated of its training then)
        return {"optimizers": [], "losses": []}
    held = [*vars(net).values(), *net.children()]
    held += [item for value in held if isinstance(value, tuple | list) for item in value]
    optimizers = {type(value).__name__ for value in held if isinstance(value, torch.optim.Optimizer)}
    losses = {type(value).__name__ for value in held if _is_loss(value)}
    return {"optimizers": sorted(optimizers), "losses": sorted(losses)}


def _elements(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _rank(counted: Counter[str]) -> dict[str, int]:
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


class ShapeRecorder(TorchFunctionMode):
    """Records the last outermost module call. See `recording`.

    As a mode it keeps composites of torch.nn from fused paths, which do not call their parts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root: torch.nn.Module | None = None
        self.output = ""
        self.multiply_adds = 0
        self._stack: list[torch.nn.Module] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Json | None = None) -> Any:
        """Call the function as it is."""
        return func(*args, **(kwargs or {}))

    def enter(self, module: torch.nn.Module, _args: tuple[Any, ...]) -> None:
        """Run before each call."""
        if not self._stack:
            self.root, self.multiply_adds = module, 0
        self._stack.append(module)

    def record(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Json, output: Any) -> None:
        """Run after each call that returns; one that raises is not recorded."""
        if module is self.root:
            self.output = shape_text(output)
        self.multiply_adds += _multiply_adds(module, args, kwargs, output)

    def leave(self, module: torch.nn.Module, *_: object) -> None:
        """Run after every call, including one that raises."""
        while self._stack and self._stack.pop() is not module:
            pass


@contextmanager
def recording() -> Iterator[ShapeRecorder]:
    """Record the modules that are called inside the block."""
    recorder = ShapeRecorder()
    hooks = [
        register_module_forward_pre_hook(recorder.enter),
        register_module_forward_hook(recorder.record, with_kwargs=True),
        register_module_forward_hook(recorder.leave, always_call=True),
    ]
    try:
        with recorder:
            yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def _multiply_adds(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Json, output: Any) -> int:
    """Return those of a convolution, linear layer or attention's four projections, without bias; 0 for all else."""
    if isinstance(module, torch.nn.MultiheadAttention):
        inputs = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        elements = [inputs[name].numel() for name in ("query", "key", "value")]
        return int((sum(elements) + output[0].numel()) * module.embed_dim)
    if not isinstance(output, torch.Tensor):
        return 0
    if isinstance(module, _ConvTransposeNd):
        return int(args[0].numel() * (module.out_channels // module.groups) * math.prod(module.kernel_size))
    if isinstance(module, _ConvNd):
        return output.numel() * (module.in_channels // module.groups) * math.prod(module.kernel_size)
    if isinstance(module, torch.nn.Linear):
        return output.numel() * module.in_features
    return 0


def shape_text(value: object) -> str:
    """Describe shapes of tensors, with the type unless it is float32; for anything else its contents."""
    if isinstance(value, torch.Tensor):
        shape = "x".join(str(size) for size in value.shape) or "scalar"
        kind = str(value.dtype).removeprefix("torch.")
        return shape if kind == "float32" else f"{shape} {kind}"
    if isinstance(value, tuple | list):
        more = [f"{len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
        return f"({', '.join([*map(shape_text, value[:_ITEMS]), *more])})"
    if isinstance(value, dict):
        items = [f"{key}: {shape_text(item)}" for key, item in list(value.items())[:_ITEMS]]
        return f"{{{', '.join([*items, *(['more'] if len(value) > _ITEMS else [])])}}}"
    return type(value).__name__
