"""Inside the sandbox: watches a network run, through PyTorch's global module hooks, and tells what it saw.

What is seen is the last outermost call of a module: the forward pass of the network itself, whatever modules its
constructor tried out before.

Source: `register_module_forward_hook`, https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.module.register_module_forward_hook.html
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

#: Functions whose calls are counted: what an activation module calls in the end is one of these.
ACTIVATIONS = frozenset(
    {"relu", "relu_", "relu6", "gelu", "silu", "elu", "leaky_relu", "mish", "hardswish", "sigmoid", "tanh", "softmax"}
)

_ITEMS = 4  # of a tuple or dictionary that are told


class Recorder(TorchFunctionMode):
    """Records the outermost module call that was made last. To be used as a context manager, once a process."""

    def __init__(self) -> None:
        super().__init__()
        self.root: torch.nn.Module | None = None
        self.inputs: tuple[Any, ...] = ()
        self.output = ""
        self.multiply_adds = 0
        self.functions: Counter[str] = Counter()
        self.children: dict[int, str] = {}  # id of a top-level child -> its first output
        self._stack: list[torch.nn.Module] = []
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)  # also when it raises, else the stack would grow

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count a call, and make it."""
        name = getattr(func, "__name__", "")
        if name in ACTIVATIONS:
            self.functions[name] += 1
        return func(*args, **(kwargs or {}))

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not self._stack:
            self.root, self.inputs, self.multiply_adds = module, args, 0
            self.functions, self.children = Counter(), {}
        self._stack.append(module)

    def _leave(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        while self._stack and self._stack.pop() is not module:
            pass
        if not self._stack:
            self.output = told(output)
        elif self.root is not None and any(module is child for child in self.root.children()):
            self.children.setdefault(id(module), told(output))
        self.multiply_adds += _multiply_adds(module, args, output)


def _multiply_adds(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> int:
    """Those of a convolution or linear layer, without bias; 0 for everything else."""
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
