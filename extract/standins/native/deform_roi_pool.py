"""Deformable RoI pooling: RoI Align whose bins move by learnt offsets (Dai et al., ICCV 2017, section 2.2)."""
# ruff: noqa: A002

import math

import torch


def _moved_bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
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


def _moved_pool(
    input: torch.Tensor,
    rois: torch.Tensor,
    offset: torch.Tensor,
    size: tuple[int, int],
    scale: float,
    ratio: int,
    gamma: float,
) -> torch.Tensor:
    """Averages (K, C, h, w); `offset` (K, 2, h, w) holds x then y, in sides of the region times `gamma`."""
    rows = [input.new_zeros(0, input.shape[1], *size) + 0 * (input.sum() + offset.sum())]
    for k, roi in enumerate(rois):
        x1, y1, x2, y2 = (roi[1:] * scale - 0.5).unbind()
        places = []
        for axis, (start, side, bins) in enumerate(((x1, x2 - x1, size[1]), (y1, y2 - y1, size[0]))):
            n = ratio if ratio > 0 else max(math.ceil(float(side) / bins), 0)
            bin_index = torch.arange(bins, device=roi.device, dtype=roi.dtype)[:, None]
            steps = bin_index + (torch.arange(n, device=roi.device, dtype=roi.dtype) + 0.5) / max(n, 1)
            place = start + steps * side / bins
            place = place[None, :, None, :] if axis == 0 else place[:, None, :, None]
            if offset.numel():
                place = place + (gamma * side * offset[k, axis])[:, :, None, None]
            places.append(place)
        x, y = places
        grid = x + 0 * y
        value = _moved_bilinear(input[int(roi[0])], (y + 0 * x).expand_as(grid), grid)
        rows.append(value.flatten(3).sum(-1)[None] / max(grid[0, 0].numel(), 1))
    return torch.cat(rows)


def deform_roi_pool_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    offset: torch.Tensor,
    output: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Fill `output`; an empty `offset` means none."""
    size = (pooled_height, pooled_width)
    output.copy_(_moved_pool(input, rois, offset, size, spatial_scale, sampling_ratio, gamma))


def deform_roi_pool_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    rois: torch.Tensor,
    offset: torch.Tensor,
    grad_input: torch.Tensor,
    grad_offset: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Add to `grad_input` and, where there are offsets, to `grad_offset`."""
    size = (pooled_height, pooled_width)
    with torch.enable_grad():
        leaves = [input.detach().requires_grad_(), offset.detach().requires_grad_()]
        output = _moved_pool(leaves[0], rois, leaves[1], size, spatial_scale, sampling_ratio, gamma)
    grads = torch.autograd.grad(output, leaves, grad_output)
    grad_input.add_(grads[0])
    grad_offset.add_(grads[1])
