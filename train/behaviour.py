"""What each slot asks of its filler, as checks that run it: each tells what it observed, or raises a Misfit."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from train.attention import check_attention
from train.residual import check_residual
from train.trial import BATCH, SQUARES, Make, Misfit, output_shape, signed, trial

Facts = dict[str, Any]

SIZES = ((16, 16), (12, 8))
ALIAS_LIMIT = 0.1  # of |output|, for an input of size 1 at the Nyquist frequency
_BORDER = 2

_DROP_BATCH, _DROP_RATES, _DEVIATIONS = 512, (0.5, 0.25), 5.0
_NORM_SCALE, _NORM_TOLERANCE = 8.0, 0.05


def check_stem(make: Make, values: Mapping[str, int]) -> Facts:
    """Images in, maps of as many channels as the first stage has out; height and width are kept."""
    into, out = values["in_channels"], values["out_channels"]
    halved = output_shape(make(), (BATCH, into, 16, 16))[2] == 8
    if halved and values["strict"]:
        raise Misfit(2, "halves height and width; a stem keeps them")
    divisor = 2 if halved else 1
    for height, width in SQUARES:
        trial(make, (BATCH, into, height, width), (BATCH, out, height // divisor, width // divisor))
    return {"stride": divisor}


def check_downsample(make: Make, values: Mapping[str, int]) -> Facts:
    """Halves height and width; keeps the channels, or goes to those of the next stage. Tells whether it aliases.

    Source: the input at the Nyquist frequency must be attenuated before sampling, Zhang 2019, arXiv:1904.11486
    """
    channels = values["channels"]
    out = output_shape(make(), (BATCH, channels, 16, 16))[1]
    changes = "out_channels" in getattr(make, "names", ())
    wanted = values["out_channels" if changes else "channels"]
    if out != wanted:
        raise Misfit(2, f"gives {out} channels for {channels}, not {wanted}")
    for height, width in SQUARES:
        trial(make, (BATCH, channels, height, width), (BATCH, out, height // 2, width // 2))
    module = make().eval()
    constant, waves = _responses(module, channels)
    plain = not any(True for _ in module.parameters())
    if plain:
        steady = constant is not None and abs(constant - 1) < 1e-3
        antialiased = steady and max(waves) < ALIAS_LIMIT
    else:
        antialiased = constant is not None and max(waves) < ALIAS_LIMIT * abs(constant)
    return {"antialiased": antialiased, "changes_channels": changes}


def _responses(module: nn.Module, channels: int) -> tuple[float | None, list[float]]:
    """The constant that a constant 1 becomes (None if it becomes none), and mean |output| for the fastest waves."""
    side = 32
    rows = (-1.0) ** torch.arange(side)
    images = [torch.ones(side, side), rows[:, None] * rows, rows[:, None].expand(side, side), rows.expand(side, side)]
    inside = slice(_BORDER, -_BORDER)
    with torch.no_grad():
        silent = module(torch.zeros(1, channels, side, side))
        outputs = [
            (module(image.expand(1, channels, side, side).clone()) - silent)[:, :, inside, inside] for image in images
        ]
    level = outputs[0]
    same = bool(torch.allclose(level, level[:, :, :1, :1].expand_as(level), atol=1e-4))
    size = float(level.abs().mean())
    return (size if same else None), [float(output.abs().mean()) for output in outputs[1:]]


def check_norm(make: Make, values: Mapping[str, int]) -> Facts:
    """Keeps the shape, and gives about the same whatever the scale of its input."""
    channels = values["channels"]
    for height, width in SIZES:
        trial(make, (BATCH, channels, height, width))
    inputs = signed((BATCH, channels, 8, 8))
    with torch.no_grad():
        plain, scaled = make().train()(inputs.clone()), make().train()(inputs * _NORM_SCALE)
    if float((plain - scaled).abs().max()) > _NORM_TOLERANCE * float(plain.abs().max()):
        raise Misfit(3, f"does not normalise: {_NORM_SCALE:g} times its input gives another output")
    return {}


def check_activation(make: Make, values: Mapping[str, int]) -> Facts:
    """Keeps the shape, works on each element by itself, and is not linear."""
    shape = (BATCH, values["channels"], 8, 8)
    trial(make, shape)
    module = make().eval()
    inputs, other = signed(shape), signed(shape, seed=2)
    order = torch.randperm(inputs.numel(), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        output = module(inputs.clone())
        shuffled = module(inputs.flatten()[order].reshape(shape).clone())
        both = module(inputs + other)
        added = output + module(other.clone())
    if not torch.allclose(output.flatten()[order].reshape(shape), shuffled, atol=1e-6):
        raise Misfit(3, "is not elementwise: moving elements about changes their values")
    if torch.equal(output, inputs):
        raise Misfit(3, "gives its input back unchanged in eval mode")
    if torch.allclose(both, added, atol=1e-4):
        raise Misfit(3, "is linear")
    return {}


def check_stochastic_depth(make: Make, values: Mapping[str, int]) -> Facts:
    """The identity in eval mode and at rate 0; in train mode each sample is dropped, or scaled so that the mean stays.

    Source: Huang et al. 2016, arXiv:1603.09382
    """
    shape = (_DROP_BATCH, values["channels"], 2, 2)
    inputs = signed(shape)
    for rate in (0.0, *_DROP_RATES):
        module = make(rate=rate)
        trial(lambda rate=rate: make(rate=rate), (BATCH, *shape[1:]), gradients=False)
        with torch.no_grad():
            if not torch.equal(module.eval()(inputs.clone()), inputs):
                raise Misfit(3, f"is not the identity in eval mode (rate {rate})")
            output = module.train()(inputs.clone())
        if rate == 0 and not torch.equal(output, inputs):
            raise Misfit(3, "is not the identity at rate 0")
        if rate:
            _dropped(inputs, output, rate)
    return {}


def _dropped(inputs: Tensor, output: Tensor, rate: float) -> None:
    ratios = (output / inputs).flatten(1)
    zero = (output == 0).flatten(1)
    if bool((zero.any(1) & ~zero.all(1)).any()):
        raise Misfit(3, "drops parts of a sample, not whole samples")
    dropped = zero.all(1)
    share = float(dropped.float().mean())
    if share in (0.0, 1.0):
        what = "nothing" if share == 0 else "the whole batch"
        raise Misfit(3, f"drops {what} at rate {rate}, not samples by themselves")
    kept = ratios[~dropped]
    factor = float(kept.mean())
    if not torch.allclose(kept, torch.full_like(kept, factor), rtol=1e-3):
        raise Misfit(3, "scales the samples that it keeps by different factors")
    if abs(factor * (1 - rate) - 1) > 1e-3:
        raise Misfit(3, f"does not keep the mean: samples are scaled by {factor:.4g} at rate {rate}")
    spread = (rate * (1 - rate) / len(inputs)) ** 0.5
    if abs(share - rate) > _DEVIATIONS * spread:
        raise Misfit(3, f"drops {share:.0%} of the samples at rate {rate}")


def check_head(make: Make, values: Mapping[str, int]) -> Facts:
    """Maps of any size in, one value a class out."""
    for height, width in SQUARES:
        trial(make, (BATCH, values["channels"], height, width), (BATCH, values["classes"]))
    return {}


CHECKS: dict[str, Callable[[Make, Mapping[str, int]], Facts]] = {
    "stem": check_stem,
    "residual": check_residual,
    "attention": check_attention,
    "downsample": check_downsample,
    "norm": check_norm,
    "activation": check_activation,
    "stochastic_depth": check_stochastic_depth,
    "head": check_head,
}
