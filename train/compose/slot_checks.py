"""The contract of each slot, as checks that run its filler: in eval and train mode, backward, in bfloat16.

Each check returns its observations, or raises a SlotMismatch.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lemur_core.files import Json
from lemur_core.sandbox.server.foreign import name_type, one_line, read_message

Facts = Json
#: Constructs a new module on each call; the argument is the rate at which a branch is dropped.
Make = Callable[..., nn.Module]

BATCH = 4
SQUARES = ((16, 16), (8, 8))  # heights and widths

_MESSAGE_CHARACTERS = 200

SIZES = ((16, 16), (12, 8))
ALIAS_LIMIT = 0.1  # of |output|, for an input of size 1 at the Nyquist frequency
_BORDER = 2

_DROP_BATCH, _DROP_RATES, _DEVIATIONS = 512, (0.5, 0.25), 5.0
_NORM_SCALE, _NORM_TOLERANCE = 8.0, 0.05

MOST_CHILDREN = 48  # of a block, whose outputs are zeroed one after another
_RATE = 0.2

_AFTER_ADDITION: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu,
    "LeakyReLU, slope 0.1": lambda x: functional.leaky_relu(x, 0.1),
    "LeakyReLU": functional.leaky_relu,
    "ReLU6": functional.relu6,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Mish": functional.mish,
    "Hardswish": functional.hardswish,
}

_MOST_GATE = 2.0  # what a gate multiplies with: twice a sigmoid is in use
_ROUNDING = 1e-4
_SCALES = ((1.0, 8.0), (64.0, 512.0))  # at the larger ones, what saturates has saturated
_CLOSE = 0.05


class SlotMismatch(Exception):  # noqa: N818 (an outcome, not a fault)
    """The reason why a filler does not fit, and its stage: 0 construction, 1 execution, 2 shapes, 3 behavior."""

    def __init__(self, depth: int, reason: str) -> None:
        self.depth, self.reason = depth, reason


def error_text(error: BaseException) -> str:
    """Return type and message of a foreign exception."""
    return f"{name_type(error)}: {one_line(read_message(error), _MESSAGE_CHARACTERS)}"


def output_shape(module: nn.Module, shape: Sequence[int]) -> torch.Size:
    """Return the shape of the module's output. Raises: SlotMismatch."""
    with torch.no_grad():
        output = _output(module.eval(), random_input(shape), shape, "")
    if output.dim() != len(shape):
        raise SlotMismatch(2, f"gives {size_text(output.shape)} for {size_text(shape)}")
    return output.shape


def _output(module: nn.Module, inputs: Tensor, shape: Sequence[int], mode: str) -> Tensor:
    """Run the module and return its output. Raises: SlotMismatch if it does not run, or does not return a tensor."""
    try:
        output = module(inputs)
    except Exception as error:
        raise SlotMismatch(1, f"does not run on {size_text(shape)}{mode}: {error_text(error)}") from error
    if not isinstance(output, Tensor):
        raise SlotMismatch(1, f"gives {type(output).__name__}, not a tensor")
    return output


def run_filler(make: Make, shape: Sequence[int], expected: Sequence[int] | None = None, gradients: bool = True) -> None:
    """Run it in eval and train mode, backward to inputs and parameters, in bfloat16 channels_last.

    Raises: SlotMismatch.
    """
    expected = shape if expected is None else expected
    for mode in ("eval mode", "train mode", "bfloat16 and channels_last"):
        training, narrow = mode != "eval mode", mode.startswith("bfloat16")
        module, inputs = make().train(training), random_input(shape)
        if narrow:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            module = module.to(memory_format=torch.channels_last)
        inputs.requires_grad_(training)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow), torch.set_grad_enabled(training):
            # Times one: a module that works in place cannot take a leaf that requires gradients.
            output = _output(module, inputs * 1.0, shape, f" in {mode}")
        if tuple(output.shape) != tuple(expected):
            raise SlotMismatch(2, f"gives {size_text(output.shape)} for {size_text(shape)}, not {size_text(expected)}")
        if not bool(torch.isfinite(output).all()):
            raise SlotMismatch(3, f"gives values that are not finite in {mode}")
        if training:
            _backward(module, output, inputs, mode, gradients)


def _backward(module: nn.Module, output: Tensor, inputs: Tensor, mode: str, gradients: bool) -> None:
    try:
        torch.autograd.backward((output.float() * random_input(output.shape, seed=1)).sum())
    except Exception as error:
        raise SlotMismatch(1, f"has no backward pass in {mode}: {error_text(error)}") from error
    if inputs.grad is None or not bool(torch.isfinite(inputs.grad).all()):
        raise SlotMismatch(3, f"gives its input no finite gradient in {mode}")
    if not gradients:
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not bool(torch.isfinite(parameter.grad).all())):
            raise SlotMismatch(3, f"no finite gradient reaches its parameter {name} in {mode}")


def random_input(shape: Sequence[int], seed: int = 0) -> Tensor:
    """Return values of both signs, the same each time."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def size_text(shape: Sequence[int]) -> str:
    """Format a shape."""
    return "×".join(map(str, shape))


def with_nonzero_parameters(module: nn.Module) -> nn.Module:
    """Set eval mode and replace parameters that are all zero: a branch that starts at zero would look absent."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.1)
    return module.eval()


def check_stem(make: Make, values: Json) -> Facts:
    """Check that images become maps with the channels of the first stage, and keep height and width."""
    into, out = values["in_channels"], values["out_channels"]
    halved = output_shape(make(), (BATCH, into, 16, 16))[2] == 8
    if halved and values["strict"]:
        raise SlotMismatch(2, "halves height and width; a stem keeps them")
    divisor = 2 if halved else 1
    for height, width in SQUARES:
        run_filler(make, (BATCH, into, height, width), (BATCH, out, height // divisor, width // divisor))
    return {"stride": divisor}


def check_residual(make: Make, values: Json) -> Json:
    """Check that it keeps the shape, and that zeroing the output of one child, the branch's end, makes it the identity.

    Then the shortcut is the identity and nothing follows the addition: the pre-activation form.
    Source: He et al. 2016, arXiv:1603.05027
    """
    channels = values["channels"]
    for height, width in SQUARES:
        run_filler(make, (BATCH, channels, height, width))
    if "rate" in values["names"]:
        run_filler(lambda: make(rate=_RATE), (BATCH, channels, *SQUARES[0]))
    module = with_nonzero_parameters(make())
    inputs = random_input((2, channels, 8, 8))
    ran = _children_run(module, inputs)
    after: str | None = None
    for name in reversed(ran[-MOST_CHILDREN:]):
        output = _without(module, [name], inputs)
        if output is not None and torch.equal(output, inputs):
            _attachable(make(), name, inputs)
            return {"branch_end": name, "empty_end": type(module.get_submodule(name)) is nn.Identity}
        if output is not None and after is None:
            after = next((kind for kind, act in _AFTER_ADDITION.items() if torch.equal(output, act(inputs))), None)
    if after:
        raise SlotMismatch(3, f"an activation after the addition ({after}): the shortcut is not the identity")
    silent = _without(module, ran, inputs)
    if silent is not None and torch.equal(silent, inputs):
        several = "only zeroing several at once makes the block the identity"
        raise SlotMismatch(3, f"no single child ends the branch: {several}")
    raise SlotMismatch(3, "has no identity shortcut: zeroing the outputs of its children does not return the input")


def _children_run(module: nn.Module, inputs: Tensor) -> list[str]:
    """Return the children that ran once and returned a tensor of the input's shape, in the order of completion."""
    ended: list[str] = []
    fits: dict[str, bool] = {}

    def note(name: str, output: object) -> None:
        ended.append(name)
        fits[name] = isinstance(output, Tensor) and output.shape == inputs.shape

    with torch.no_grad(), _hooks(module, [name for name, _ in module.named_modules() if name], note):
        module(inputs.clone())
    return [name for name in ended if fits[name] and ended.count(name) == 1]


def _without(module: nn.Module, names: Sequence[str], inputs: Tensor) -> Tensor | None:
    """Return the output with the outputs of some children zeroed; None if it cannot run like that."""
    try:
        with torch.no_grad(), _hooks(module, names, lambda _name, output: torch.zeros_like(output)):
            output = module(inputs.clone())
    except Exception:  # noqa: BLE001 (foreign code: these children do not end the branch)
        return None
    return output if isinstance(output, Tensor) else None


@contextlib.contextmanager
def _hooks(module: nn.Module, names: Sequence[str], call: Callable[[str, Any], Tensor | None]) -> Iterator[None]:
    """Call a function with the name and output of each of these children; what it returns replaces the output."""
    with contextlib.ExitStack() as stack:
        for name in names:
            hook = lambda _module, _arguments, output, name=name: call(name, output)  # noqa: E731
            stack.enter_context(module.get_submodule(name).register_forward_hook(hook))
        yield


def _attachable(module: nn.Module, name: str, inputs: Tensor) -> None:
    """Check that a module can be appended to the end of the branch. Raises: SlotMismatch."""
    module.eval()
    end = module.get_submodule(name)
    with torch.no_grad():
        before = module(inputs.clone())
        module.set_submodule(name, nn.Sequential(end, nn.Identity()))
        try:
            same = torch.equal(module(inputs.clone()), before)
        except Exception as error:
            raise SlotMismatch(3, f"nothing can follow its branch's end {name}: {error_text(error)}") from error
    if not same:
        raise SlotMismatch(3, f"nothing can follow its branch's end {name}: the output changes")


def check_attention(make: Make, values: Json) -> Json:
    """Check that it keeps the shape of maps of several sizes, and attends.

    It attends if it gates (each output value is the input value times a factor from 0 to 2 that depends on other
    values) or sees all (one corner of the map influences the opposite one). A normalization does neither: its output
    does not depend on the scale. Returns: which of the two, and whether zeros give zeros.
    """
    channels = values["channels"]
    for height, width in SIZES:
        run_filler(make, (BATCH, channels, height, width))
    module = with_nonzero_parameters(make())
    inputs = random_input((BATCH, channels, *SIZES[0]))
    with torch.no_grad():
        output = module(inputs.clone())
        if torch.equal(output, inputs):
            raise SlotMismatch(3, "gives its input back unchanged")
        for small, large in _SCALES:
            one, other = module(inputs * large), module(inputs * small)
            if float((one - other).abs().max()) <= _CLOSE * float(other.abs().max()):
                raise SlotMismatch(3, f"normalises: {large:g} times its input gives the same output as {small:g} times")
        zero = module(torch.zeros_like(inputs))
        gates, sees_all = _gates(module, inputs, output), _sees_all(module, inputs, output)
    if not gates and not sees_all:
        raise SlotMismatch(3, "attends to nothing: it neither gates its input nor sees all of the map")
    return {"gates": gates, "sees_all": sees_all, "zero_to_zero": bool((zero == 0).all())}


def _gates(module: nn.Module, inputs: Tensor, output: Tensor) -> bool:
    ratio = output / inputs
    if not bool(((ratio >= -_ROUNDING) & (ratio <= _MOST_GATE + _ROUNDING)).all()):
        return False
    some = torch.zeros_like(inputs, dtype=torch.bool)
    some[:, ::2, ::3, ::3] = True
    without = module(inputs.masked_fill(some, 0.0))
    return not bool(without[some].any()) and not torch.equal(without[~some], output[~some])


def _sees_all(module: nn.Module, inputs: Tensor, output: Tensor) -> bool:
    moved = inputs.clone()
    moved[:, :, 0, 0] += 10.0
    return not torch.equal(module(moved)[:, :, -1, -1], output[:, :, -1, -1])


def check_downsample(make: Make, values: Json) -> Facts:
    """Check that it halves height and width and keeps the channels or changes to those of the next stage.

    Returns: also whether it aliases.

    Source: the input at the Nyquist frequency must be attenuated before sampling, Zhang 2019, arXiv:1904.11486
    """
    channels = values["channels"]
    out = output_shape(make(), (BATCH, channels, 16, 16))[1]
    changes = "out_channels" in values["names"]
    wanted = values["out_channels" if changes else "channels"]
    if out != wanted:
        raise SlotMismatch(2, f"gives {out} channels for {channels}, not {wanted}")
    for height, width in SQUARES:
        run_filler(make, (BATCH, channels, height, width), (BATCH, out, height // 2, width // 2))
    module = make().eval()
    constant, waves = _responses(module, channels)
    # One without parameters must leave a constant as it is.
    steady = constant is not None and (any(True for _ in module.parameters()) or abs(constant - 1) < 1e-3)
    antialiased = constant is not None and steady and max(waves) < ALIAS_LIMIT * abs(constant)
    return {"antialiased": antialiased, "changes_channels": changes}


def _responses(module: nn.Module, channels: int) -> tuple[float | None, list[float]]:
    """Return the constant output for a constant 1 (None if it is not constant), and mean |output| for fastest waves."""
    side = 32
    rows = (-1.0) ** torch.arange(side)
    images = [torch.ones(side, side), rows[:, None] * rows, rows[:, None].expand(side, side), rows.expand(side, side)]
    # Padding changes what comes out at the border.
    inside = slice(_BORDER, -_BORDER)
    with torch.no_grad():
        # Subtracted below: a bias does not answer the input.
        silent = module(torch.zeros(1, channels, side, side))
        outputs = [
            (module(image.expand(1, channels, side, side).clone()) - silent)[:, :, inside, inside] for image in images
        ]
    level = outputs[0]
    same = bool(torch.allclose(level, level[:, :, :1, :1].expand_as(level), atol=1e-4))
    size = float(level.abs().mean())
    return (size if same else None), [float(output.abs().mean()) for output in outputs[1:]]


def check_norm(make: Make, values: Json) -> Facts:
    """Check that it keeps the shape, and that its output hardly depends on the scale of its input."""
    channels = values["channels"]
    for height, width in SIZES:
        run_filler(make, (BATCH, channels, height, width))
    inputs = random_input((BATCH, channels, 8, 8))
    with torch.no_grad():
        plain, scaled = make().train()(inputs.clone()), make().train()(inputs * _NORM_SCALE)
    if float((plain - scaled).abs().max()) > _NORM_TOLERANCE * float(plain.abs().max()):
        raise SlotMismatch(3, f"does not normalise: {_NORM_SCALE:g} times its input gives another output")
    return {}


def check_activation(make: Make, values: Json) -> Facts:
    """Check that it keeps the shape, works elementwise, and is not linear."""
    shape = (BATCH, values["channels"], 8, 8)
    run_filler(make, shape)
    module = make().eval()
    inputs, other = random_input(shape), random_input(shape, seed=2)
    order = torch.randperm(inputs.numel(), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        output = module(inputs.clone())
        shuffled = module(inputs.flatten()[order].reshape(shape).clone())
        both = module(inputs + other)
        added = output + module(other.clone())
    if not torch.allclose(output.flatten()[order].reshape(shape), shuffled, atol=1e-6):
        raise SlotMismatch(3, "is not elementwise: permuting elements changes their values")
    if torch.equal(output, inputs):
        raise SlotMismatch(3, "gives its input back unchanged in eval mode")
    if torch.allclose(both, added, atol=1e-4):
        raise SlotMismatch(3, "is linear")
    return {}


def check_stochastic_depth(make: Make, values: Json) -> Facts:
    """Check that it is the identity in eval mode and at rate 0, and in train mode drops samples but keeps the mean.

    Source: Huang et al. 2016, arXiv:1603.09382
    """
    shape = (_DROP_BATCH, values["channels"], 2, 2)
    inputs = random_input(shape)
    for rate in (0.0, *_DROP_RATES):
        module = make(rate=rate)
        run_filler(lambda rate=rate: make(rate=rate), (BATCH, *shape[1:]), gradients=False)
        with torch.no_grad():
            if not torch.equal(module.eval()(inputs.clone()), inputs):
                raise SlotMismatch(3, f"is not the identity in eval mode (rate {rate})")
            output = module.train()(inputs.clone())
        if rate == 0 and not torch.equal(output, inputs):
            raise SlotMismatch(3, "is not the identity at rate 0")
        if rate:
            _check_dropping(inputs, output, rate)
    return {}


def _check_dropping(inputs: Tensor, output: Tensor, rate: float) -> None:
    ratios = (output / inputs).flatten(1)
    zero = (output == 0).flatten(1)
    if bool((zero.any(1) & ~zero.all(1)).any()):
        raise SlotMismatch(3, "drops parts of a sample, not whole samples")
    dropped = zero.all(1)
    share = float(dropped.float().mean())
    if share in (0.0, 1.0):
        what = "nothing" if share == 0 else "the whole batch"
        raise SlotMismatch(3, f"drops {what} at rate {rate}, not samples by themselves")
    kept = ratios[~dropped]
    factor = float(kept.mean())
    if not torch.allclose(kept, torch.full_like(kept, factor), rtol=1e-3):
        raise SlotMismatch(3, "scales the samples that it keeps by different factors")
    if abs(factor * (1 - rate) - 1) > 1e-3:
        raise SlotMismatch(3, f"does not keep the mean: samples are scaled by {factor:.4g} at rate {rate}")
    spread = (rate * (1 - rate) / len(inputs)) ** 0.5
    if abs(share - rate) > _DEVIATIONS * spread:
        raise SlotMismatch(3, f"drops {share:.0%} of the samples at rate {rate}")


def check_head(make: Make, values: Json) -> Facts:
    """Check that maps of any size become one value per class."""
    for height, width in SQUARES:
        run_filler(make, (BATCH, values["channels"], height, width), (BATCH, values["classes"]))
    return {}


CHECKS: dict[str, Callable[[Make, Json], Facts]] = {
    "stem": check_stem,
    "residual": check_residual,
    "attention": check_attention,
    "downsample": check_downsample,
    "norm": check_norm,
    "activation": check_activation,
    "stochastic_depth": check_stochastic_depth,
    "head": check_head,
}
