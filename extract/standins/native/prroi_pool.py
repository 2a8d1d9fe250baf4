"""Precise RoI pooling: the integral of the bilinear image over each bin, by its area (Jiang et al., ECCV 2018)."""
# ruff: noqa: A002

import torch


def _precise_weights(
    low: torch.Tensor, high: torch.Tensor, bins: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Integral of every pixel's hat function over each bin (K, bins, length), and the width of a bin (K,)."""
    step = (high - low).clamp(min=0) / bins
    edges = low[:, None] + step[:, None] * torch.arange(bins + 1, device=low.device, dtype=low.dtype)
    t = (edges[..., None] - torch.arange(length, device=low.device, dtype=low.dtype)).clamp(-1, 1)
    integral = 0.5 + t - 0.5 * t * t.abs()
    return integral[:, 1:] - integral[:, :-1], step


def _precise_pool(
    input: torch.Tensor, rois: torch.Tensor, pooled_height: int, pooled_width: int, spatial_scale: float
) -> torch.Tensor:
    x1, y1, x2, y2 = (rois[:, 1:] * spatial_scale).unbind(1)
    rows, height = _precise_weights(y1, y2, pooled_height, input.shape[2])
    columns, width = _precise_weights(x1, x2, pooled_width, input.shape[3])
    parts = [input.new_zeros(0, input.shape[1], pooled_height, pooled_width) + 0 * (input.sum() + rois.sum())]
    for k, index in enumerate(rois[:, 0].long().tolist()):
        area = height[k] * width[k]
        total = torch.einsum("ph,chw,qw->cpq", rows[k], input[index], columns[k])
        parts.append((total / torch.where(area > 0, area, torch.ones_like(area)) * (area > 0))[None])
    return torch.cat(parts)


def prroi_pool_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Fill `output` (K, C, h, w)."""
    output.copy_(_precise_pool(input, rois, pooled_height, pooled_width, spatial_scale))


def prroi_pool_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    grad_input: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of the image to `grad_input`."""
    with torch.enable_grad():
        leaf = torch.zeros_like(grad_input, requires_grad=True)
        output = _precise_pool(leaf, rois, pooled_height, pooled_width, spatial_scale)
    grad_input.add_(torch.autograd.grad(output, leaf, grad_output)[0])


def prroi_pool_coor_backward(
    output: torch.Tensor,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    rois: torch.Tensor,
    grad_rois: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of the regions' corners to `grad_rois`."""
    with torch.enable_grad():
        leaf = rois.detach().requires_grad_()
        result = _precise_pool(input, leaf, pooled_height, pooled_width, spatial_scale)
    grad_rois.add_(torch.autograd.grad(result, leaf, grad_output)[0])
