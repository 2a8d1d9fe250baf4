"""Bias, activation and gain in one step, with its derivatives (Karras et al., StyleGAN2 2020 and StyleGAN3 2021)."""
# ruff: noqa: A002

import torch


def fused_bias_leakyrelu(
    input: torch.Tensor,
    bias: torch.Tensor,
    refer: torch.Tensor,
    act: int,
    grad: int,
    alpha: float,
    scale: float,
) -> torch.Tensor:
    """`scale * f(input + bias)`: `act` 1 linear, 3 leaky ReLU of slope `alpha`; `grad` 1 takes the slope from the sign
    of `refer`, 2 is zero. Empty `bias` or `refer` means none.
    """
    x = input
    if bias.numel():
        x = x + bias.view(1, -1, *[1] * (x.ndim - 2))
    if grad == 2:
        return torch.zeros_like(x)
    if act == 3:
        sign = x if grad == 0 else refer if refer.numel() else torch.zeros_like(x)
        x = torch.where(sign > 0, x, x * alpha)
    return x * scale


def fused_bias_act(
    input: torch.Tensor,
    bias: torch.Tensor,
    refer: torch.Tensor,
    act: int,
    grad: int,
    alpha: float,
    scale: float,
) -> torch.Tensor:
    """Another name of `fused_bias_leakyrelu`."""
    return fused_bias_leakyrelu(input, bias, refer, act, grad, alpha, scale)


def _bias_act_value(act: int, x: torch.Tensor, alpha: float) -> torch.Tensor:
    functional = torch.nn.functional
    choices = {
        1: lambda: x,
        2: lambda: functional.relu(x),
        3: lambda: functional.leaky_relu(x, alpha),
        4: lambda: torch.tanh(x),
        5: lambda: torch.sigmoid(x),
        6: lambda: functional.elu(x),
        7: lambda: functional.selu(x),
        8: lambda: functional.softplus(x),
        9: lambda: functional.silu(x),
    }
    value: torch.Tensor = choices[act]()
    return value


def _bias_act_slope(act: int, order: int, y: torch.Tensor, u: torch.Tensor, alpha: float) -> torch.Tensor:
    """First or second derivative of the activation, from its value `y` (from its argument `u` for swish)."""
    zero, one = torch.zeros_like(y), torch.ones_like(y)
    selu_scale, selu_alpha = 1.0507009873554805, 1.6732632423543772
    if act == 9:
        s = torch.sigmoid(u)
        first = s * (1 + u * (1 - s))
        return first if order == 1 else s * (1 - s) * (2 + u * (1 - 2 * s))
    choices = {
        1: (one, zero),
        2: (torch.where(y > 0, one, zero), zero),
        3: (torch.where(y > 0, one, alpha * one), zero),
        4: (1 - y * y, -2 * y * (1 - y * y)),
        5: (y * (1 - y), y * (1 - y) * (1 - 2 * y)),
        6: (torch.where(y >= 0, one, y + 1), torch.where(y >= 0, zero, y + 1)),
        7: (
            torch.where(y >= 0, selu_scale * one, y + selu_scale * selu_alpha),
            torch.where(y >= 0, zero, y + selu_scale * selu_alpha),
        ),
        8: (1 - (-y).exp(), (-y).exp() * (1 - (-y).exp())),
    }
    return choices[act][order - 1]


def bias_act(
    input: torch.Tensor,
    bias: torch.Tensor,
    xref: torch.Tensor,
    yref: torch.Tensor,
    dy: torch.Tensor,
    grad: int,
    dim: int,
    act: int,
    alpha: float,
    gain: float,
    clamp: float,
) -> torch.Tensor:
    """Activation `act` (1 linear, relu, lrelu, tanh, sigmoid, elu, selu, softplus, 9 swish) of `input + bias`, times
    `gain`, clamped. `grad` 1 and 2: `input` times its derivatives at `xref`/`yref`, times `dy`. Empty means none.
    """
    shape = [-1 if axis == dim else 1 for axis in range(input.ndim)]
    shift = bias.view(shape) if bias.numel() else input.new_zeros(())
    if grad == 0:
        value = _bias_act_value(act, input + shift, alpha) * gain
        return value.clamp(-clamp, clamp) if clamp >= 0 else value
    u = (xref if xref.numel() else torch.zeros_like(input)) + shift
    reached = yref if yref.numel() else torch.zeros_like(input)
    slope = _bias_act_slope(act, grad, reached / gain if gain else torch.zeros_like(reached), u, alpha)
    value = input * slope * gain
    if dy.numel():
        value = value * dy
    if act == 9:
        reached = torch.nn.functional.silu(u) * gain
    return torch.where((reached > -clamp) & (reached < clamp), value, torch.zeros_like(value)) if clamp >= 0 else value
