"""What compiled operators compute: convolutions, attention, losses, regions of images, clouds of points.

A class is what the author's `Function.apply` returns; a function takes the place of the operator itself, and fills what
it is given to fill.
"""

import torch
import torchvision
from torch.nn import functional
from torch.nn.modules.utils import _pair


def _deformable_convolution(input, offset, mask, weight, bias, stride, padding, dilation):
    """Deformable convolution, v1 (Dai et al., ICCV 2017) and with a mask v2 (Zhu et al., CVPR 2019).

    The shapes tell the groups.
    """
    if input.dim() != 4:
        raise ValueError(f"Expected 4D tensor as input, got {input.dim()}D tensor instead.")
    weight, bias, mask = (None if item is None else item.type_as(offset) for item in (weight, bias, mask))
    return torchvision.ops.deform_conv2d(
        input.type_as(offset), offset, weight, bias, _pair(stride), _pair(padding), _pair(dilation), mask
    )


class DeformConv2dFunction:
    """Deformable convolution."""

    @staticmethod
    def apply(
        input, offset, weight, stride=1, padding=0, dilation=1, groups=1, deform_groups=1, bias=False, im2col_step=32
    ):
        assert bias is False, "Only support bias is False."
        return _deformable_convolution(input, offset, None, weight, None, stride, padding, dilation)


class _DeformConv:
    """Deformable convolution."""

    @staticmethod
    def apply(input, offset, weight, stride=1, padding=0, dilation=1, groups=1, deformable_groups=1, im2col_step=64):
        return _deformable_convolution(input, offset, None, weight, None, stride, padding, dilation)


class ModulatedDeformConv2dFunction:
    """Deformable convolution v2."""

    @staticmethod
    def apply(input, offset, mask, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, deform_groups=1):
        return _deformable_convolution(input, offset, mask, weight, bias, stride, padding, dilation)


class _ModulatedDeformConv:
    """Deformable convolution v2."""

    @staticmethod
    def apply(input, offset, mask, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, deformable_groups=1):
        return _deformable_convolution(input, offset, mask, weight, bias, stride, padding, dilation)


class CARAFEFunction:
    """Content-aware reassembly of features (Wang et al., "CARAFE", ICCV 2019).

    Each output pixel is the weighted sum of the k x k neighbourhood of its source pixel, with weights of its own per
    group.
    """

    @staticmethod
    def apply(features, masks, kernel_size, group_size, scale_factor):
        assert scale_factor >= 1
        assert masks.size(1) == kernel_size * kernel_size * group_size
        assert masks.size(-1) == features.size(-1) * scale_factor
        assert masks.size(-2) == features.size(-2) * scale_factor
        assert features.size(1) % group_size == 0
        assert (kernel_size - 1) % 2 == 0
        n, channels, height, width = features.shape
        patches = functional.unfold(features, kernel_size, padding=(kernel_size - 1) // 2)
        patches = patches.view(n, channels * kernel_size**2, height, width)
        patches = patches.repeat_interleave(scale_factor, 2).repeat_interleave(scale_factor, 3)
        patches = patches.view(n, group_size, channels // group_size, kernel_size**2, *masks.shape[-2:])
        weights = masks.view(n, group_size, 1, kernel_size**2, *masks.shape[-2:])
        return (patches * weights).sum(3).flatten(1, 2)


CARAFENaiveFunction = CARAFEFunction


class MultiScaleDeformableAttnFunction:
    """Multi-scale deformable attention (Zhu et al., "Deformable DETR", ICLR 2021, equation 3).

    (N, S, M, D) values, (N, Q, M, L, P, 2) places in 0..1, (N, Q, M, L, P) weights -> (N, Q, M * D).
    """

    @staticmethod
    def apply(value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step):
        n, _, heads, dim = value.shape
        queries, points = sampling_locations.shape[1], sampling_locations.shape[4]
        output = value.new_zeros(n * heads, dim, queries)
        starts = value_level_start_index.tolist()
        for level, ((height, width), start) in enumerate(zip(value_spatial_shapes.tolist(), starts, strict=True)):
            image = value[:, start : start + height * width].permute(0, 2, 3, 1).reshape(n * heads, dim, height, width)
            grid = 2 * sampling_locations.type_as(value)[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
            taken = functional.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            weight = attention_weights.type_as(value)[:, :, :, level].transpose(1, 2).reshape(-1, 1, queries, points)
            output = output + (taken * weight).sum(-1)
        return output.view(n, heads * dim, queries).transpose(1, 2).contiguous()


MSDeformAttnFunction = MultiScaleDeformableAttnFunction


class SigmoidFocalLossFunction:
    """Focal loss on sigmoid scores (N, C) (Lin et al., ICCV 2017), weighted by the target's class.

    -alpha (1-p)^gamma log p at the target class, -(1-alpha) p^gamma log(1-p) at the others.
    """

    @staticmethod
    def apply(input, target, gamma=2.0, alpha=0.25, weight=None, reduction="mean"):
        assert target.dtype == torch.long
        assert input.dim() == 2
        assert target.dim() == 1
        assert input.size(0) == target.size(0)
        assert weight is None or (weight.dim() == 1 and input.size(1) == weight.size(0))
        p = input.sigmoid()
        hit = -alpha * (1 - p) ** gamma * functional.logsigmoid(input)
        miss = -(1 - alpha) * p**gamma * functional.logsigmoid(-input)
        positive = target[:, None] == torch.arange(input.shape[1], device=input.device)
        loss = torch.where(positive, hit, miss)
        if weight is not None:
            loss = loss * weight[target.clamp(0, len(weight) - 1)].to(loss.dtype)[:, None]
        return {"none": loss, "mean": loss.sum() / max(len(loss), 1), "sum": loss.sum()}[reduction]


def nms(boxes, scores, iou_threshold, offset=0):
    """Indices of the boxes kept by greedy NMS, best score first; widths and heights are `x2 - x1 + offset`."""
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torchvision.ops.nms(boxes, scores, float(iou_threshold))


class RoIAlignFunction:
    """RoI Align by average (He et al., "Mask R-CNN", ICCV 2017): regions (K, 5) of image index, x1, y1, x2, y2."""

    @staticmethod
    def apply(input, rois, output_size, spatial_scale=1.0, sampling_ratio=0, pool_mode="avg", aligned=True):
        assert rois.size(1) == 5, "RoI must be (idx, x1, y1, x2, y2)!"
        if pool_mode != "avg":
            raise NotImplementedError(f"RoI Align with pool_mode {pool_mode!r} is not part of this block")
        ratio = sampling_ratio if sampling_ratio > 0 else -1
        return torchvision.ops.roi_align(input, rois.detach(), _pair(output_size), spatial_scale, ratio, aligned)


def _fill_farthest(distances_to, temp_tensor, idx_tensor):
    """Greedy choice (Qi et al., "PointNet++", NeurIPS 2017): point 0, then always the farthest from all chosen ones."""
    chosen = torch.zeros(len(idx_tensor), dtype=torch.long, device=idx_tensor.device)
    for step in range(idx_tensor.shape[1]):
        idx_tensor[:, step] = chosen
        temp_tensor.copy_(torch.minimum(temp_tensor, distances_to(chosen).to(temp_tensor.dtype)))
        chosen = temp_tensor.argmax(1)


def furthest_point_sampling_forward(points_tensor, temp_tensor, idx_tensor, b, n, m):
    """Fill `idx_tensor` (B, m) from points (B, n, 3); `temp_tensor` holds the squared distances to the choice."""
    rows = torch.arange(len(points_tensor), device=points_tensor.device)
    _fill_farthest(
        lambda chosen: (points_tensor - points_tensor[rows, chosen][:, None]).square().sum(-1), temp_tensor, idx_tensor
    )


def furthest_point_sampling_with_dist_forward(points_tensor, temp_tensor, idx_tensor, b, n, m):
    """Fill `idx_tensor` (B, m) from pairwise distances (B, n, n)."""
    rows = torch.arange(len(points_tensor), device=points_tensor.device)
    _fill_farthest(lambda chosen: points_tensor[rows, chosen], temp_tensor, idx_tensor)
