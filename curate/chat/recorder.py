"""Inside the sandbox: watches a network run, through PyTorch's global module hooks, and tells what it saw.

What is seen is the last outermost call of a module: the forward pass of the network itself, whatever modules its
constructor tried out before.

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

#: Functions whose calls are counted, in place or not: what an activation module calls in the end is one of these.
ACTIVATIONS = frozenset(
    {
        "relu",
        "relu6",
        "leaky_relu",
        "prelu",
        "rrelu",
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "mish",
        "softplus",
        "threshold",
        "sigmoid",
        "log_sigmoid",
        "hardsigmoid",
        "hardswish",
        "tanh",
        "hardtanh",
        "tanhshrink",
        "hardshrink",
        "softshrink",
        "softsign",
        "softmax",
        "log_softmax",
        "softmin",
        "glu",
    }
)

_ITEMS = 4  # of a tuple or dictionary that are told


class Recorder(TorchFunctionMode):
    """Records the outermost module call that was made last. See `recording`."""

    def __init__(self) -> None:
        super().__init__()
        self.root: torch.nn.Module | None = None
        self.inputs: tuple[Any, ...] = ()
        self.output = ""
        self.multiply_adds = 0
        self.functions: Counter[str] = Counter()
        self.called: dict[int, int] = {}  # id of a module -> how many were called for the first time before it
        self.outputs: dict[int, str] = {}  # id of a top-level child -> the first output that it gave
        self._stack: list[torch.nn.Module] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count a call, and make it."""
        name = getattr(func, "__name__", "").strip("_")
        if name == "hardtanh" and {"min_val": 0.0, "max_val": 6.0}.items() <= (kwargs or {}).items():
            name = "relu6"  # what nn.ReLU6 calls
        if name in ACTIVATIONS:
            self.functions[name] += 1
        return func(*args, **(kwargs or {}))

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Before a call."""
        if not self._stack:
            self.root, self.inputs, self.multiply_adds = module, args, 0
            self.functions, self.called, self.outputs = Counter(), {}, {}
        self.called.setdefault(id(module), len(self.called))
        self._stack.append(module)

    def record(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Of a call that gave an output: one that raises is not recorded."""
        if module is self.root:
            self.output = told(output)
        elif self.root is not None and any(module is child for child in self.root.children()):
            self.outputs.setdefault(id(module), told(output))
        self.multiply_adds += _multiply_adds(module, args, kwargs, output)

    def leave(self, module: torch.nn.Module, *_: object) -> None:
        """Of every call, also of one that raises."""
        while self._stack and self._stack.pop() is not module:
            pass


@contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder of the modules and functions that are called inside the block."""
    recorder = Recorder()
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


def _multiply_adds(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Those of a convolution or linear layer and of attention's four projections, without bias; 0 for all else."""
    if isinstance(module, torch.nn.MultiheadAttention):
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        elements = [given[name].numel() for name in ("query", "key", "value")]
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


def told(value: object) -> str:
    """Shapes of tensors, with the type where it is not float32; of anything else what it consists of."""
    if isinstance(value, torch.Tensor):
        shape = "x".join(str(size) for size in value.shape) or "scalar"
        kind = str(value.dtype).removeprefix("torch.")
        return shape if kind == "float32" else f"{shape} {kind}"
    if isinstance(value, tuple | list):
        more = [f"{len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
        return f"({', '.join([*map(told, value[:_ITEMS]), *more])})"
    if isinstance(value, dict):
        items = [f"{key}: {told(item)}" for key, item in list(value.items())[:_ITEMS]]
        return f"{{{', '.join([*items, *(['more'] if len(value) > _ITEMS else [])])}}}"
    return type(value).__name__
