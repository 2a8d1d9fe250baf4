"""RoI Align by average (He et al., "Mask R-CNN", ICCV 2017) or by maximum, on axis-aligned regions.

`rois` is (K, 5): image index, x1, y1, x2, y2. Outputs and gradients are filled in place.
"""
# ruff: noqa: A002

import math

import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]


def _roi_max_places(
    roi: torch.Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sampling rows and columns (h, w, samples) of one region."""
    x1, y1, x2, y2 = (roi[1:] * scale - (0.5 if aligned else 0.0)).unbind()
    sides = torch.stack([y2 - y1, x2 - x1])
    sides = sides if aligned else sides.clamp(min=1)
    places = []
    for start, side, bins in zip((y1, x1), sides, size, strict=True):
        n = ratio if ratio > 0 else max(math.ceil(float(side) / bins), 0)
        bin_index = torch.arange(bins, device=roi.device, dtype=roi.dtype)[:, None]
        steps = bin_index + (torch.arange(n, device=roi.device, dtype=roi.dtype) + 0.5) / max(n, 1)
        places.append(start + steps * side / bins)
    shape = (size[0], size[1], places[0].shape[1], places[1].shape[1])
    y, x = places[0][:, None, :, None].expand(shape), places[1][None, :, None, :].expand(shape)
    return y.flatten(2), x.flatten(2)


def _roi_bilinear(
    image: torch.Tensor, y: torch.Tensor, x: torch.Tensor, channel: torch.Tensor | None = None
) -> torch.Tensor:
    """Values of `image` (C, H, W) at places of any shape S -> (C, *S); zero further than one pixel outside.

    With `channel` (broadcastable to S) one channel is read per place and the result has shape S.
    """
    height, width = image.shape[-2:]
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    y0, x0 = y.floor().long(), x.floor().long()
    y1, x1 = (y0 + 1).clamp(max=height - 1), (x0 + 1).clamp(max=width - 1)
    dy, dx = y - y0, x - x0
    total = torch.zeros((), dtype=image.dtype, device=image.device)
    corners = ((y0, x0, (1 - dy) * (1 - dx)), (y0, x1, (1 - dy) * dx), (y1, x0, dy * (1 - dx)), (y1, x1, dy * dx))
    for row, column, share in corners:
        picked = image[:, row, column] if channel is None else image[channel, row, column]
        total = total + picked * (share * inside)
    return total


def roi_align_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor,
    argmax_y: torch.Tensor,
    argmax_x: torch.Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill `output` (K, C, h, w); `pool_mode` 1 averages, 0 takes the maximum and fills the places of it."""
    size = (aligned_height, aligned_width)
    if pool_mode == 1:
        output.copy_(torchvision.ops.roi_align(input, rois, size, spatial_scale, max(sampling_ratio, 0) or -1, aligned))
        return
    for k, roi in enumerate(rois):
        y, x = _roi_max_places(roi, size, spatial_scale, sampling_ratio, aligned)
        if y.shape[-1] == 0:
            output[k], argmax_y[k], argmax_x[k] = -10000, -1, -1
            continue
        value, best = _roi_bilinear(input[int(roi[0])], y, x).max(-1)
        output[k] = value
        argmax_y[k] = y.expand(len(best), *y.shape).gather(-1, best[..., None]).squeeze(-1)
        argmax_x[k] = x.expand(len(best), *x.shape).gather(-1, best[..., None]).squeeze(-1)


def roi_align_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    argmax_y: torch.Tensor,
    argmax_x: torch.Tensor,
    grad_input: torch.Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add to `grad_input` what each output took from the input."""
    size = (aligned_height, aligned_width)
    with torch.enable_grad():
        leaf = torch.zeros_like(grad_input, requires_grad=True)
        if pool_mode == 1:
            pooled = torchvision.ops.roi_align(leaf, rois, size, spatial_scale, max(sampling_ratio, 0) or -1, aligned)
        else:
            channel = torch.arange(leaf.shape[1], device=leaf.device)[:, None, None]
            rows = [_roi_bilinear(leaf[int(roi[0])], argmax_y[k], argmax_x[k], channel) for k, roi in enumerate(rois)]
            pooled = torch.stack(rows) if rows else leaf.new_zeros(grad_output.shape) + 0 * leaf.sum()
    grad_input.add_(torch.autograd.grad(pooled, leaf, grad_output)[0])
