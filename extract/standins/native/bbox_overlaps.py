"""Overlaps of axis-aligned boxes, filled into a given tensor."""

import torch


def bbox_overlaps(
    bboxes1: torch.Tensor, bboxes2: torch.Tensor, ious: torch.Tensor, mode: int, aligned: bool, offset: int
) -> None:
    """Fill `ious` (N, M), or (N,) if `aligned`: `mode` 0 IoU, 1 over the first area; sides are `x2 - x1 + offset`."""
    first, second = (bboxes1, bboxes2) if aligned else (bboxes1[:, None], bboxes2[None])
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2]) + offset
    inter = sides.clamp(min=0).prod(-1)
    area1, area2 = ((b[..., 2] - b[..., 0] + offset) * (b[..., 3] - b[..., 1] + offset) for b in (first, second))
    base = area1 + area2 - inter if mode == 0 else area1 + torch.zeros_like(inter)
    ious.copy_(inter / base.clamp(min=offset))
