"""Code that runs inside the sandbox: run a network as `--check-runs` does, and measure it or train it for one step.

It observes the network through PyTorch's global module hooks. It records the last outermost call of a module: the
forward pass of the network itself, whatever modules its constructor called before.

Source: `register_module_forward_hook`, https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.module.register_module_forward_hook.html
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lemur_core.files import Json
from lemur_core.sandbox.loader import NETWORK
from lemur_core.sandbox.net import NetError, run_network

#: The containers of torch.nn, which are not layers themselves.
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Module"})

#: What must not depend on chance: a network whose seeds disagree on one of these is not measured.
_OF_THE_ARCHITECTURE = ("parameters", "trainable", "buffers", "layers", "own", "dropout")
#: Fields that weights and inputs may change, with their placeholder in that case.
_OF_THE_RUN: Json = {"multiply_adds": 0, "output": None, "functions": {}}

#: Counted functions: those that the activation modules of torch.nn are named after and call.
ACTIVATIONS = frozenset(
    function.__name__.strip("_")  # in-place or not
    for name, function in vars(torch.nn.functional).items()
    if name.replace("_", "") in {kind.lower() for kind in torch.nn.modules.activation.__all__}
)

_ITEMS = 4  # maximum number of described items of a tuple or dictionary


def measure(payload: Json) -> Json:
    """Construct a network, run it forward and describe its structure, as far as it is the same with another seed.

    Args:
        payload: as for `lemur_core.sandbox.net.run_network`.

    Returns: its answer; if `runs` is true also the fields of `curate.chat.network.NetworkFacts`. The category is
        `not_measured` if the network's structure depends on chance.
    """
    return _with_another_seed(payload, _measure_once(payload)[0])


def train_step(payload: Json) -> Json:
    """Measure a network, then let it set up its training and learn from one batch of random labels.

    Args:
        payload: as for `measure`; the task is a classification.

    Returns: as `measure`; the category is `step_failed` if setting up or learning raises.
    """
    answer, net, inputs = _measure_once(payload)
    if answer["runs"]:
        classes = int(payload["case"]["output"][1])
        # Any labels will do: what counts is that a step can be taken.
        labels = torch.randint(0, classes, (inputs.shape[0],))
        try:
            net.train_setup(payload["prm"])
            net.train()
            net.learn([(inputs, labels)])
        except Exception as error:  # noqa: BLE001 (foreign code may raise anything; it is recorded)
            answer = _failure("step_failed", NetError.from_exception(error, "step_failed", "one training step").detail)
    return _with_another_seed(payload, answer)


def _with_another_seed(payload: Json, answer: Json) -> Json:
    """Return the answer without what another seed changes: weights, inputs, and a random architecture."""
    if not answer["runs"]:
        return answer
    other = _measure_once(payload | {"seed": 1})[0]
    if not other["runs"]:
        return _failure("not_measured", f"it runs with one seed; with another, {other['category']}: {other['error']}")
    for name in _OF_THE_ARCHITECTURE:
        if answer[name] != other[name]:
            return _failure(
                "not_measured", f"chance decides its {name}: {answer[name]} with one seed, {other[name]} with another"
            )
    ends = [{child["name"]: child for child in facts["children"]} for facts in (answer, other)]
    for name, child in ends[0].items():
        twin = ends[1].get(name)
        if twin is None or any(child[key] != twin[key] for key in ("kind", "parameters")):
            return _failure("not_measured", f"chance decides its top-level module {name}")
        for key in ("use", "output"):
            child[key] = child[key] if child[key] == twin[key] else None
    return answer | {name: nothing for name, nothing in _OF_THE_RUN.items() if answer[name] != other[name]}


def _failure(category: str, error: str) -> Json:
    return {"runs": False, "category": category, "error": error, "missing": ""}


def _measure_once(payload: Json) -> tuple[Json, Any, Any]:
    """Return the answer and, if it runs, the network and its inputs."""
    with recording() as recorder:
        answer = run_network(payload)
    net, inputs = recorder.root, recorder.inputs  # before train_setup, which may call modules
    if not answer["runs"]:
        return answer, None, None
    if net is None:
        return _failure("not_measured", "Net was called, but not as a module: nothing could be measured"), None, None
    layers: Counter[str] = Counter()
    own: Counter[str] = Counter()
    _count(net, layers, own, set())
    rates = [module.p for module in net.modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)]
    facts = {
        "parameters": _elements(net.parameters()),
        "trainable": _elements(p for p in net.parameters() if p.requires_grad),
        "buffers": _elements(net.buffers()),
        "multiply_adds": recorder.multiply_adds,
        "attention": any(isinstance(module, torch.nn.MultiheadAttention) for module in net.modules()),
        "output": recorder.output,
        "layers": _rank_children(layers),
        "own": _rank_children(own),
        "functions": _rank_children(recorder.functions),
        "dropout": sorted({float(rate) for rate in rates if isinstance(rate, int | float)}),
        "children": _children(net, recorder),
    }
    return answer | facts | _training(net, payload["prm"]), net, inputs[0]


def _children(net: torch.nn.Module, recorder: "ShapeRecorder") -> list[Json]:
    """Return the top-level children without losses, in the order of the first calls of them or modules in them."""
    children = []
    for name, child in net.named_children():
        calls = [recorder.called[id(module)] for module in child.modules() if id(module) in recorder.called]
        use = "unused" if not calls else "inside"
        if id(child) in recorder.called:
            use = "called" if id(child) in recorder.outputs else "failed"
        size, output = _elements(child.parameters()), recorder.outputs.get(id(child))
        fields = {"name": name, "kind": type(child).__name__, "parameters": size, "use": use, "output": output}
        if not _is_loss(child):
            children.append((min(calls, default=len(recorder.called)), fields))
    return [fields for _, fields in sorted(children, key=lambda item: item[0])]


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
    except Exception as error:  # noqa: BLE001 (foreign code may raise anything; it is recorded)
        setup_error = NetError.from_exception(error, "", "train_setup(prm)").detail
        return {"optimizers": [], "losses": [], "setup_error": setup_error}
    held = [*vars(net).values(), *net.children()]
    held += [item for value in held if isinstance(value, tuple | list) for item in value]
    optimizers = {type(value).__name__ for value in held if isinstance(value, torch.optim.Optimizer)}
    losses = {type(value).__name__ for value in held if _is_loss(value)}
    return {"optimizers": sorted(optimizers), "losses": sorted(losses), "setup_error": None}


def _elements(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _rank_children(counted: Counter[str]) -> dict[str, int]:
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


class ShapeRecorder(TorchFunctionMode):
    """Records the last outermost module call. See `recording`."""

    def __init__(self) -> None:
        super().__init__()
        self.root: torch.nn.Module | None = None
        self.inputs: tuple[Any, ...] = ()
        self.output = ""
        self.multiply_adds = 0
        self.functions: Counter[str] = Counter()
        self.called: dict[int, int] = {}  # id of a module -> number of modules first called before it
        self.outputs: dict[int, str] = {}  # id of a top-level child -> its first output
        self._stack: list[torch.nn.Module] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Json | None = None,
    ) -> Any:
        """Count a call, and run it."""
        name = getattr(func, "__name__", "").strip("_")
        if name == "hardtanh" and {"min_val": 0.0, "max_val": 6.0}.items() <= (kwargs or {}).items():
            name = "relu6"  # called by nn.ReLU6
        if name in ACTIVATIONS:
            self.functions[name] += 1
        return func(*args, **(kwargs or {}))

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Run before each call."""
        if not self._stack:
            self.root, self.inputs, self.multiply_adds = module, args, 0
            self.functions, self.called, self.outputs = Counter(), {}, {}
        self.called.setdefault(id(module), len(self.called))
        self._stack.append(module)

    def record(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Json, output: Any) -> None:
        """Run after each call that returns; one that raises is not recorded."""
        if module is self.root:
            self.output = shape_text(output)
        elif self.root is not None and any(module is child for child in self.root.children()):
            self.outputs.setdefault(id(module), shape_text(output))
        self.multiply_adds += _multiply_adds(module, args, kwargs, output)

    def leave(self, module: torch.nn.Module, *_: object) -> None:
        """Run after every call, including one that raises."""
        while self._stack and self._stack.pop() is not module:
            pass


@contextmanager
def recording() -> Iterator[ShapeRecorder]:
    """Record the modules and functions that are called inside the block."""
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
