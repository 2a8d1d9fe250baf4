"""RoI max pooling (Girshick, "Fast R-CNN", ICCV 2015) with bins in real numbers: a region ends after its last pixel."""
# ruff: noqa: A002

import torch


def _roi_pool_bins(low: torch.Tensor, high: torch.Tensor, bins: int, length: int) -> torch.Tensor:
    """Which of `length` places lie in each bin (K, bins, length) of the span from `low` to `high`."""
    step = torch.arange(bins + 1, device=low.device, dtype=low.dtype)
    edges = step * ((high - low) / bins)[:, None] + low[:, None]
    place = torch.arange(length, device=low.device, dtype=low.dtype)
    return (place >= edges[:, :-1, None].floor()) & (place < edges[:, 1:, None].ceil())


def roi_pool_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor,
    argmax: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Fill `output` (K, C, h, w) and `argmax` (flat pixel index, -1 for an empty bin)."""
    height, width = input.shape[-2:]
    x1, y1 = rois[:, 1] * spatial_scale, rois[:, 2] * spatial_scale
    x2, y2 = (rois[:, 3] + 1) * spatial_scale, (rois[:, 4] + 1) * spatial_scale
    in_row = _roi_pool_bins(y1, y2, pooled_height, height)
    in_column = _roi_pool_bins(x1, x2, pooled_width, width)
    for k, index in enumerate(rois[:, 0].long().tolist()):
        if x2[k] <= x1[k] or y2[k] <= y1[k]:
            continue
        best, column = input[index][:, :, None, :].masked_fill(~in_column[k], -torch.inf).max(-1)
        best, row = best[:, None].masked_fill(~in_row[k][..., None], -torch.inf).max(2)
        column = column[:, None].expand(-1, pooled_height, -1, -1).gather(2, row[:, :, None]).squeeze(2)
        empty = ~(in_row[k].any(1)[:, None] & in_column[k].any(1))
        output[k] = best.masked_fill(empty, 0)
        argmax[k] = (row * width + column).masked_fill(empty, -1).to(argmax.dtype)


def roi_pool_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    argmax: torch.Tensor,
    grad_input: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add each output's gradient to `grad_input` at its `argmax`."""
    chosen = argmax.flatten(2).long()
    source = (grad_output.flatten(2) * (chosen >= 0)).to(grad_input.dtype)
    flat = grad_input.flatten(2)
    for k, image in enumerate(rois[:, 0].long().tolist()):
        flat[image].scatter_add_(1, chosen[k].clamp(min=0), source[k])
    grad_input.copy_(flat.view_as(grad_input))
