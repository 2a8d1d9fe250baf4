"""Running a filler for a check: in eval and train mode, backward, in bfloat16; what goes wrong is a Misfit."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lemur_core.sandbox.foreign import message_of, one_line

#: Constructs the module, anew each time; the argument is the rate at which a branch is dropped.
Make = Callable[..., nn.Module]

BATCH = 4
SQUARES = ((16, 16), (8, 8))  # heights and widths

_MESSAGE_CHARACTERS = 200


class Misfit(Exception):  # noqa: N818 (an outcome, not a fault)
    """Why a filler does not fit, and how far it came: 0 constructed, 1 run, 2 shapes, 3 behaviour."""

    def __init__(self, depth: int, reason: str) -> None:
        super().__init__(reason)
        self.depth, self.reason = depth, reason


def told(error: BaseException) -> str:
    """Type and message of a foreign exception."""
    return f"{type(error).__name__}: {one_line(message_of(error), _MESSAGE_CHARACTERS)}"


def output_shape(module: nn.Module, shape: Sequence[int]) -> torch.Size:
    """The shape of its output. Raises: Misfit."""
    try:
        with torch.no_grad():
            output = module.eval()(signed(shape))
    except Exception as error:
        raise Misfit(1, f"does not run on {size_text(shape)}: {told(error)}") from error
    if not isinstance(output, Tensor):
        raise Misfit(1, f"gives {type(output).__name__}, not a tensor")
    if output.dim() != len(shape):
        raise Misfit(2, f"gives {size_text(output.shape)} for {size_text(shape)}")
    return output.shape


def trial(make: Make, shape: Sequence[int], expected: Sequence[int] | None = None, gradients: bool = True) -> None:
    """Eval and train mode, gradients to inputs and parameters, bfloat16 in channels_last. Raises: Misfit."""
    expected = shape if expected is None else expected
    for mode in ("eval mode", "train mode", "bfloat16 and channels_last"):
        module = make().train(mode != "eval mode")
        inputs = signed(shape)
        narrow = mode.startswith("bfloat16")
        if narrow:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        inputs.requires_grad_(mode != "eval mode")
        try:
            if narrow:
                module = module.to(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow), torch.set_grad_enabled(mode != "eval mode"):
                output = module(inputs * 1.0)
        except Exception as error:
            reason = f"does not run on {size_text(shape)} in {mode}: {told(error)}"
            raise Misfit(1, reason) from error
        _right(output, expected, shape, mode)
        if mode != "eval mode":
            _backward(module, output, inputs, mode, gradients)


def _right(output: object, expected: Sequence[int], shape: Sequence[int], mode: str) -> None:
    if not isinstance(output, Tensor):
        raise Misfit(1, f"gives {type(output).__name__}, not a tensor")
    if tuple(output.shape) != tuple(expected):
        raise Misfit(2, f"gives {size_text(output.shape)} for {size_text(shape)}, not {size_text(expected)}")
    if not bool(torch.isfinite(output).all()):
        raise Misfit(3, f"gives values that are not finite in {mode}")


def _backward(module: nn.Module, output: Tensor, inputs: Tensor, mode: str, gradients: bool) -> None:
    try:
        torch.autograd.backward((output.float() * signed(output.shape, seed=1)).sum())
    except Exception as error:
        raise Misfit(1, f"has no backward pass in {mode}: {told(error)}") from error
    if inputs.grad is None or not bool(torch.isfinite(inputs.grad).all()):
        raise Misfit(3, f"gives its input no finite gradient in {mode}")
    if not gradients:
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not bool(torch.isfinite(parameter.grad).all())):
            raise Misfit(3, f"no finite gradient reaches its parameter {name} in {mode}")


def signed(shape: Sequence[int], seed: int = 0) -> Tensor:
    """Values of both signs, the same each time."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def size_text(shape: Sequence[int]) -> str:
    """A shape to print."""
    return "×".join(map(str, shape))


def stirred(module: nn.Module) -> nn.Module:
    """In eval mode, and without parameters that are all zero: a branch that starts at zero would look like none."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.1)
    return module.eval()
