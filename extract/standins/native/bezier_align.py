"""Sampling of a text region between two cubic Bezier curves (Liu et al., "ABCNet", CVPR 2020, section 3.2).

`rois` is (K, 17): image index, four control points of the upper curve, four of the lower one (from the other end).
"""
# ruff: noqa: A002

import math

import torch


def _bezier_bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Values of `image` (C, H, W) at places of any shape S -> (C, *S); zero further than one pixel outside."""
    height, width = image.shape[-2:]
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    y0, x0 = y.floor().long(), x.floor().long()
    y1, x1 = (y0 + 1).clamp(max=height - 1), (x0 + 1).clamp(max=width - 1)
    dy, dx = y - y0, x - x0
    top = image[:, y0, x0] * (1 - dx) + image[:, y0, x1] * dx
    bottom = image[:, y1, x0] * (1 - dx) + image[:, y1, x1] * dx
    return (top * (1 - dy) + bottom * dy) * inside


def _bezier_pool(
    input: torch.Tensor, rois: torch.Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> torch.Tensor:
    """Averages (K, C, h, w) around the points that divide the region evenly along and between the curves."""
    rows = [input.new_zeros(0, input.shape[1], *size) + 0 * input.sum()]
    u = torch.arange(size[1], device=rois.device, dtype=rois.dtype) / size[1]
    v = torch.arange(size[0], device=rois.device, dtype=rois.dtype)[:, None, None] / size[0]
    basis = torch.stack([(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u**2 * (1 - u), u**3], 1)
    for roi in rois:
        points = (roi[1:] * scale).view(8, 2)
        upper, lower = points[:4], points[4:].flip(0)
        centre = (basis @ lower) * v + (basis @ upper) * (1 - v) - (0.5 if aligned else 0.0)
        sides = torch.maximum((upper[0] - upper[3]).abs(), (lower[0] - lower[3]).abs())
        sides = sides if aligned else sides.clamp(min=1)
        shifts = []
        for side, bins in ((sides[0], size[1]), (sides[1], size[0])):
            n = ratio if ratio > 0 else math.ceil(float(side) / bins)
            step = (torch.arange(n, device=rois.device, dtype=rois.dtype) + 0.5) / max(n, 1) - 0.5
            shifts.append(step * side / bins)
        x = centre[..., 0, None, None] + shifts[0][None, :] + 0 * shifts[1][:, None]
        y = centre[..., 1, None, None] + shifts[1][:, None] + 0 * shifts[0][None, :]
        value = _bezier_bilinear(input[int(roi[0])], y, x).flatten(3)
        rows.append(value.sum(-1)[None] / max(value.shape[-1], 1))
    return torch.cat(rows)


def bezier_align_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> None:
    """Fill `output` (K, C, h, w)."""
    size = (aligned_height, aligned_width)
    output.copy_(_bezier_pool(input, rois, size, spatial_scale, sampling_ratio, aligned))


def bezier_align_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    grad_input: torch.Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> None:
    """Add to `grad_input`."""
    size = (aligned_height, aligned_width)
    with torch.enable_grad():
        leaf = torch.zeros_like(grad_input, requires_grad=True)
        output = _bezier_pool(leaf, rois, size, spatial_scale, sampling_ratio, aligned)
    grad_input.add_(torch.autograd.grad(output, leaf, grad_output)[0])
