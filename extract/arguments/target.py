"""Inside the sandbox: one block, built and called with the arguments that the search found."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.inputs import change_nested, flatten, has_shape
from extract.arguments.probe import MODULE_NAME, hide
from extract.arguments.search_guest import compile_nothing, define, namespace
from extract.arguments.trials import AttemptError, attempt, fill_unset, seed_all

Shape = tuple[int, ...]
_SECONDS = 60.0  # of CPU, for one step; the sandbox has the last word


def prepare(payload: Mapping[str, Any]) -> None:
    """Make this process one in which the block can run as plain Python, away from its own package.

    Args: payload: `folders` to add at the end of sys.path; `origin`, packages out of reach.
    """
    compile_nothing()
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    sys.path += payload["folders"]
    hide(payload["origin"])


class Subject:
    """The class that a closed file defines, with what it is given.

    Args:
        payload: `code`, `name` of the class; `arguments` that worked; `companions` that these name.

    Raises: AttemptError if the file defines no module of this name.
    """

    def __init__(self, payload: Mapping[str, Any]) -> None:
        cls, stopped = define(dict(payload))
        if cls is None:
            raise AttemptError(RuntimeError(stopped["error"]))
        self.cls = cls
        self.file: ModuleType = sys.modules[MODULE_NAME]
        self._names = namespace(vars(self.file), list(payload["companions"]))
        self._init, forward = payload["arguments"]["init"], payload["arguments"]["forward"]
        self._call = ForwardCall(tuple(forward["args"]), tuple(forward["kwargs"].items()), None)

    def build(self) -> nn.Module:
        """The module, constructed under one seed. Raises: AttemptError."""

        def construct() -> nn.Module:
            args = [self._names.value(text) for text in self._init["args"]]
            kwargs = {name: self._names.value(text) for name, text in self._init["kwargs"].items()}
            seed_all()
            return self.cls(*args, **kwargs)

        seed_all()
        module: nn.Module = attempt(construct, _SECONDS)
        return module

    def settle(self, module: nn.Module) -> None:
        """Give a value to memory that was left unset, and lazy modules their shapes. Raises: AttemptError."""
        fill_unset(module)
        if not all(has_shape(tensor) for tensor in (*module.parameters(), *module.buffers())):
            args, kwargs = self.inputs()
            attempt(partial(module.eval(), *args, **kwargs), _SECONDS)

    def inputs(self, shapes: Sequence[Shape] | None = None, *, live: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """What forward is given, made anew under one seed.

        Args:
            shapes: of the tensors in it, in the order of `extract.arguments.inputs.flatten`; None: as they were found.
            live: gradients count; the tensors are no leaves of autograd, so that they may be written to.

        Raises: AttemptError if they cannot be made.
        """
        seed_all()
        arguments: list[Any] = list(evaluate(self._call, self._names))
        if shapes is not None:
            remaining = iter(shapes)
            arguments = change_nested(arguments, lambda tensor: resize_tensor(tensor, next(remaining)))
        if live:
            with torch.enable_grad():
                arguments = change_nested(arguments, _require_grad)
        args, kwargs = arguments
        return args, kwargs

    def shapes(self) -> list[Shape]:
        """The shapes of what forward is given. Raises: AttemptError."""
        return [tuple(tensor.shape) for tensor in flatten(list(self.inputs()))]


def resize_tensor(tensor: Tensor, shape: Shape) -> Tensor:
    """A tensor in another shape: its elements again and again, in an order that no two rows share."""
    if tuple(tensor.shape) == shape:
        return tensor
    if tensor.is_meta:
        return torch.empty(shape, dtype=tensor.dtype, device="meta")
    count = int(torch.Size(shape).numel())
    indices = torch.randperm(count, generator=torch.Generator().manual_seed(0)) % max(tensor.numel(), 1)
    return tensor.detach().reshape(-1)[indices].reshape(shape)


def _require_grad(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_() * 1 if tensor.is_floating_point() else tensor
