"""Overlaps and suppression of boxes; features pooled over regions of an image, by sampling it bilinearly.

`rois` is (K, 5): image index, x1, y1, x2, y2; rotated ones are (K, 6): image index, centre x and y, width, height,
angle. Results are (K, C, h, w). Gradients reach the image. `nms` and `bbox_overlaps` take the place of the operators
themselves: what they are given is filled.
"""

import math

import torch
import torchvision
from torch.nn.modules.utils import _pair


def nms(boxes, scores, iou_threshold, offset=0):
    """Indices of the boxes kept by greedy NMS, best score first; widths and heights are `x2 - x1 + offset`."""
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torchvision.ops.nms(boxes, scores, float(iou_threshold))


def bbox_overlaps(bboxes1, bboxes2, ious, mode, aligned, offset):
    """Fill `ious` (N, M), or (N,) if `aligned`: `mode` 0 IoU, 1 over the first area; sides are `x2 - x1 + offset`."""
    first, second = (bboxes1, bboxes2) if aligned else (bboxes1[:, None], bboxes2[None])
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2]) + offset
    inter = sides.clamp(min=0).prod(-1)
    area1, area2 = ((b[..., 2:] - b[..., :2] + offset).prod(-1) for b in (first, second))
    base = area1 + area2 - inter if mode == 0 else area1 + torch.zeros_like(inter)
    ious.copy_(inter / base.clamp(min=offset))


# -- regions ---------------------------------------------------------------------------------------------------------


def _bilinear(image, y, x):
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


def _sample_steps(side, bins, sampling_ratio):
    """Sampling points (bins, n) along a side, from its start; n is the ratio, or one a pixel where that is 0."""
    n = sampling_ratio if sampling_ratio > 0 else max(math.ceil(float(side) / bins), 0)
    steps = torch.arange(bins, device=side.device, dtype=side.dtype)[:, None]
    steps = steps + (torch.arange(n, device=side.device, dtype=side.dtype) + 0.5) / max(n, 1)
    return steps * side / bins


def _sample_grid(y, x):
    """Rows (h, n) and columns (w, m) as places (h, w, n, m)."""
    return torch.broadcast_tensors(y[:, None, :, None], x[None, :, None, :])


def _sample_mean(image, y, x):
    """Means (C, h, w) over the samples of each bin, of places (h, w, n, m); zero where there are none."""
    value = _bilinear(image, y, x).flatten(3)
    return value.sum(-1) / max(value.shape[-1], 1)


def _stack_regions(results, input, output_size):
    """The results of all regions; joined to the image even where there are none."""
    nothing = input.new_zeros(0, input.shape[1], *output_size) + 0 * input.sum()
    return torch.cat([nothing, *(result[None] for result in results)])


class RoIAlignFunction:
    """RoI Align by average (He et al., "Mask R-CNN", ICCV 2017)."""

    @staticmethod
    def apply(input, rois, output_size, spatial_scale=1.0, sampling_ratio=0, pool_mode="avg", aligned=True):
        assert rois.size(1) == 5, "RoI must be (idx, x1, y1, x2, y2)!"
        if pool_mode != "avg":
            raise NotImplementedError(f"RoI Align with pool_mode {pool_mode!r} is not part of this block")
        ratio = sampling_ratio if sampling_ratio > 0 else -1
        return torchvision.ops.roi_align(input, rois.detach(), _pair(output_size), spatial_scale, ratio, aligned)


def _rotated_roi_align(input, rois, size, spatial_scale, sampling_ratio, aligned, clockwise):
    results = []
    for roi in rois.detach():
        width, height = (side if aligned else side.clamp(min=1) for side in roi[3:5] * spatial_scale)
        dy = _sample_steps(height, size[0], sampling_ratio) - height / 2
        dx = _sample_steps(width, size[1], sampling_ratio) - width / 2
        dy, dx = _sample_grid(dy, dx)
        cos, sin = roi[5].cos(), -roi[5].sin() if clockwise else roi[5].sin()
        centre_x, centre_y = roi[1:3] * spatial_scale - (0.5 if aligned else 0.0)
        places = dy * cos - dx * sin + centre_y, dy * sin + dx * cos + centre_x
        results.append(_sample_mean(input[int(roi[0])], *places))
    return _stack_regions(results, input, size)


class RoIAlignRotatedFunction:
    """RoI Align on regions turned by an angle in radians."""

    @staticmethod
    def apply(input, rois, output_size, spatial_scale, sampling_ratio=0, aligned=True, clockwise=False):
        return _rotated_roi_align(input, rois, _pair(output_size), spatial_scale, sampling_ratio, aligned, clockwise)


def roi_align_rotated_forward(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    """RoI Align on regions turned counter-clockwise by an angle in degrees."""
    radians = torch.cat([rois[:, :5], rois[:, 5:] * (math.pi / 180)], 1)
    size = (pooled_height, pooled_width)
    return _rotated_roi_align(input, radians, size, spatial_scale, sampling_ratio, True, False)


class _ROIAlignRotated:
    """RoI Align on regions turned counter-clockwise by an angle in degrees."""

    @staticmethod
    def apply(input, roi, output_size, spatial_scale, sampling_ratio):
        return roi_align_rotated_forward(input, roi, spatial_scale, *output_size, sampling_ratio)


class DeformRoIPoolFunction:
    """RoI Align whose bins move (Dai et al., "Deformable Convolutional Networks", ICCV 2017, section 2.2).

    `offset` (K, 2, h, w) holds x then y, in sides of the region times `gamma`; None and empty are none.
    """

    @staticmethod
    def apply(input, rois, offset, output_size, spatial_scale=1.0, sampling_ratio=0, gamma=0.1):
        assert rois.size(1) == 5, "RoI must be (idx, x1, y1, x2, y2)!"
        size = _pair(output_size)
        if offset is None or not offset.numel():
            offset = input.new_zeros(len(rois), 2, *size)
        results = []
        for roi, move in zip(rois.detach(), offset, strict=True):
            x1, y1, x2, y2 = roi[1:] * spatial_scale - 0.5
            y = y1 + _sample_steps(y2 - y1, size[0], sampling_ratio)
            x = x1 + _sample_steps(x2 - x1, size[1], sampling_ratio)
            y, x = _sample_grid(y, x)
            move_x, move_y = gamma * torch.stack([x2 - x1, y2 - y1])[:, None, None] * move
            results.append(_sample_mean(input[int(roi[0])], y + move_y[..., None, None], x + move_x[..., None, None]))
        return _stack_regions(results, input, size)
