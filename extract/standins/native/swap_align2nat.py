"""Change of a mask tensor from the aligned to the natural representation (Chen et al., "TensorMask", ICCV 2019)."""
# ruff: noqa: N803

import math

import torch


def _align2nat_output(X: torch.Tensor, lambda_val: int, pad_val: float) -> torch.Tensor:
    """Linear interpolation in four axes: (N, V * U, H, W) -> (N, lV * lU, ceil(H / l), ceil(W / l))."""
    n, channels, height, width = X.shape
    side = math.isqrt(channels)
    big = lambda_val * side
    masks = torch.nn.functional.pad((X - pad_val).view(n, side, side, height, width), [1] * 8)
    index = torch.arange(big, device=X.device, dtype=X.dtype)
    inner = (index + 0.5) / lambda_val - 0.5
    v, u = inner[:, None, None, None], inner[None, :, None, None]
    rows = torch.arange(math.ceil(height / lambda_val), device=X.device, dtype=X.dtype) * lambda_val
    columns = torch.arange(math.ceil(width / lambda_val), device=X.device, dtype=X.dtype) * lambda_val
    shift = index - big / 2 + 0.5
    y = rows[None, None, :, None] + shift[:, None, None, None]
    x = columns[None, None, None, :] + shift[None, :, None, None]
    total = X.new_zeros(())
    for corner in range(16):
        share, places = X.new_ones(()), []
        for bit, (place, length) in enumerate(((v, side), (u, side), (y, height), (x, width))):
            low = place.floor()
            upper = (corner >> bit) & 1
            share = share * (place - low if upper else 1 - (place - low))
            places.append((low + upper + 1).clamp(0, length + 1).long())
        total = total + share * masks[:, places[0], places[1], places[2], places[3]]
    return (total + pad_val).reshape(n, big * big, len(rows), len(columns))


def swap_align2nat_forward(X: torch.Tensor, lambda_val: int, pad_val: float) -> torch.Tensor:
    """The natural representation; values from outside the input are `pad_val`."""
    return _align2nat_output(X, lambda_val, pad_val)


def swap_align2nat_backward(
    gY: torch.Tensor, lambda_val: int, batch_size: int, channel: int, height: int, width: int
) -> torch.Tensor:
    """Gradient of the input (batch_size, channel, height, width)."""
    with torch.enable_grad():
        leaf = gY.new_zeros(batch_size, channel, height, width, requires_grad=True)
        output = _align2nat_output(leaf, lambda_val, 0.0)
    return torch.autograd.grad(output, leaf, gY)[0]
