"""Convolutions and attention that compiled operators compute: each is what the author's `Function.apply` returns."""

import itertools

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


class CorrelationFunction:
    """Correlation (N, patch h, patch w, H, W) of patches (Dosovitskiy et al., "FlowNet", ICCV 2015, equation 1).

    Products are summed over channels and kernel; both maps are zero outside.
    """

    @staticmethod
    def apply(input1, input2, kernel_size=1, max_displacement=1, stride=1, padding=1, dilation=1, dilation_patch=1):
        patch, padding, steps = 2 * max_displacement + 1, _pair(padding), _pair(dilation_patch)
        (pad_y, pad_x), (reach_y, reach_x) = padding, (step * max_displacement for step in steps)
        first = functional.pad(input1, (pad_x, pad_x, pad_y, pad_y))
        second = functional.pad(input2, (pad_x + reach_x, pad_x + reach_x, pad_y + reach_y, pad_y + reach_y))
        height, width = first.shape[2:]
        starts = itertools.product(*(range(0, patch * step, step) for step in steps))
        maps = torch.stack([(first * second[:, :, y : y + height, x : x + width]).sum(1) for y, x in starts], 1)
        ones = maps.new_ones(1, 1, *_pair(kernel_size))
        summed = functional.conv2d(maps.flatten(0, 1)[:, None], ones, stride=_pair(stride), dilation=_pair(dilation))
        return summed.reshape(len(input1), patch, patch, *summed.shape[2:])


class PSAMaskFunction:
    """The attention maps of PSANet from its over-complete masks (Zhao et al., ECCV 2018, section 3.2).

    (N, h_mask * w_mask, H, W) -> (N, H * W, H, W): `psa_type` 0 collects (channel = target), 1 distributes.
    """

    @staticmethod
    def apply(input, psa_type, mask_size):
        (mask_height, mask_width), (height, width) = _pair(mask_size), input.shape[2:]
        assert input.shape[1] == mask_height * mask_width
        y, x = (torch.arange(size, device=input.device) for size in (height, width))
        dy = (y[:, None] - y[None, :] + (mask_height - 1) // 2)[:, None, :, None]
        dx = (x[:, None] - x[None, :] + (mask_width - 1) // 2)[None, :, None, :]
        known = ((dy >= 0) & (dy < mask_height) & (dx >= 0) & (dx < mask_width)).reshape(height * width, -1)
        entry = (dy * mask_width + dx).reshape(height * width, -1).masked_fill(~known, 0)
        maps = input.flatten(2).gather(1, entry.expand(len(input), -1, -1)) * known
        return (maps if psa_type == 0 else maps.transpose(1, 2)).reshape(len(input), -1, height, width)


class TINShiftFunction:
    """Channel groups moved along time (Shao et al., "Temporal Interlacing Network", AAAI 2020).

    Input (N, T, C, L), shift (N, groups): frame t goes to t + shift; zero where none arrives. The gradient is that of
    the definition (the compiled operator's own shifts forwards again).
    """

    @staticmethod
    def apply(input, shift):
        n, frames, channels, places = input.shape
        if len(shift) != n:
            raise ValueError(
                f"The first dim (batch) of `input` and `shift` should be same, but got {n} and {len(shift)}."
            )
        if channels < shift.size(1) or channels % shift.size(1):
            raise ValueError(
                f"C should be a multiple of num_segments, but got C={channels} and {shift.size(1)} segments."
            )
        groups = input.reshape(n, frames, shift.shape[1], channels // shift.shape[1], places)
        time = torch.arange(frames, device=input.device)[None, :, None] - shift.long()[:, None]
        known = ((time >= 0) & (time < frames))[..., None, None]
        index = time.clamp(0, frames - 1)[..., None, None].expand(groups.shape)
        return (groups.gather(1, index) * known).reshape(input.shape)


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


class FusedBiasLeakyReLUFunction:
    """`scale * leaky_relu(input + bias)` (Karras et al., "StyleGAN2", CVPR 2020)."""

    @staticmethod
    def apply(input, bias, negative_slope, scale):
        return functional.leaky_relu(input + bias.view(1, -1, *[1] * (input.ndim - 2)), negative_slope) * scale


def _check_classes(input, target, weight, reduction):
    assert target.dtype == torch.long
    assert input.dim() == 2
    assert target.dim() == 1
    assert input.size(0) == target.size(0)
    assert weight is None or (weight.dim() == 1 and input.size(1) == weight.size(0))
    assert reduction in ("none", "mean", "sum")


def _reduced(loss, target, weight, reduction):
    """A loss (N,) or (N, C), weighted by its target's class, as it is or summed or averaged over N."""
    if weight is not None:
        weight = weight[target.clamp(0, len(weight) - 1)].to(loss.dtype)
        loss = loss * (weight if loss.ndim == 1 else weight[:, None])
    return {"none": loss, "mean": loss.sum() / max(len(loss), 1), "sum": loss.sum()}[reduction]


class SigmoidFocalLossFunction:
    """Focal loss on sigmoid scores (N, C) (Lin et al., ICCV 2017).

    -alpha (1-p)^gamma log p at the target class, -(1-alpha) p^gamma log(1-p) at the others.
    """

    @staticmethod
    def apply(input, target, gamma=2.0, alpha=0.25, weight=None, reduction="mean"):
        _check_classes(input, target, weight, reduction)
        p = input.sigmoid()
        hit = -alpha * (1 - p) ** gamma * functional.logsigmoid(input)
        miss = -(1 - alpha) * p**gamma * functional.logsigmoid(-input)
        positive = target[:, None] == torch.arange(input.shape[1], device=input.device)
        return _reduced(torch.where(positive, hit, miss), target, weight, reduction)


class SoftmaxFocalLossFunction:
    """Focal loss on softmax scores (N, C): -alpha (1-p)^gamma log p; a negative target costs nothing."""

    @staticmethod
    def apply(input, target, gamma=2.0, alpha=0.25, weight=None, reduction="mean"):
        _check_classes(input, target, weight, reduction)
        log_p = input.log_softmax(1).gather(1, target.clamp(min=0)[:, None]).squeeze(1)
        loss = -alpha * (1 - log_p.exp()) ** gamma * log_p
        return _reduced(torch.where(target >= 0, loss, torch.zeros_like(loss)), target, weight, reduction)
