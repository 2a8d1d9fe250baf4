"""Inside the sandbox: build and call one block with the arguments of the search."""

import sys
from collections.abc import Collection, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.arguments.constructing import construct
from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.messages import BlockRun
from extract.arguments.probe import MODULE_NAME, hide
from extract.arguments.search_guest import define, disable_denied, namespace
from extract.arguments.trials import SEED, AttemptError, attempt, fill_unset, seed_all
from extract.arguments.values.inputs import change_nested, flatten, has_shape

Shape = tuple[int, ...]
_SECONDS = 60.0  # of CPU time, for one step; the sandbox sets the hard limit


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
            shapes: shapes of their tensors, in the order of `extract.arguments.values.inputs.flatten`; None: unchanged.
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
