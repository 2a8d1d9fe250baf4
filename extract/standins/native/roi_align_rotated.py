"""RoI Align on rotated regions (K, 6): image index, centre x and y, width, height, angle.

Source: RoI Align (He et al., ICCV 2017) with sampling points turned around the centre; the rotation-invariant form
also shifts the orientation channels (Han et al., "ReDet", CVPR 2021).
"""
# ruff: noqa: A002

import math

import torch


def _turned_bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
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


def _turned_places(
    roi: torch.Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool, angle: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sampling rows and columns (h, w, samples) of one region; `angle` in radians, counter-clockwise."""
    shift = 0.5 if aligned else 0.0
    places = []
    for side, bins in ((roi[4] * scale, size[0]), (roi[3] * scale, size[1])):
        side = side if aligned else side.clamp(min=1)
        n = ratio if ratio > 0 else max(math.ceil(float(side) / bins), 0)
        bin_index = torch.arange(bins, device=roi.device, dtype=roi.dtype)[:, None]
        steps = bin_index + (torch.arange(n, device=roi.device, dtype=roi.dtype) + 0.5) / max(n, 1)
        places.append(side * (steps / bins - 0.5))
    yy, xx = places[0][:, None, :, None], places[1][None, :, None, :]
    y = yy * angle.cos() - xx * angle.sin() + roi[2] * scale - shift
    x = yy * angle.sin() + xx * angle.cos() + roi[1] * scale - shift
    return y.flatten(2), x.flatten(2)


def _turned_pool(
    input: torch.Tensor,
    rois: torch.Tensor,
    size: tuple[int, int],
    scale: float,
    ratio: int,
    aligned: bool,
    turn: float,
    orientations: int,
) -> torch.Tensor:
    """Averages (K, C, h, w); `turn` maps the given angle to radians counter-clockwise."""
    rows = [input[:0].new_zeros(0, input.shape[1], *size) + 0 * input.sum()]
    for roi in rois:
        y, x = _turned_places(roi, size, scale, ratio, aligned, roi[5] * turn)
        value = _turned_bilinear(input[int(roi[0])], y, x).sum(-1) / max(y.shape[-1], 1)
        if orientations > 1:
            place = roi[5] * orientations / (2 * math.pi)
            share = place - place.floor()
            value = value.view(-1, orientations, *size)
            value = value.roll(int(place.floor()) % orientations, 1)
            value = ((1 - share) * value + share * value.roll(-1, 1)).flatten(0, 1)
        rows.append(value[None])
    return torch.cat(rows)


def _turned_gradient(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    grad_input: torch.Tensor,
    size: tuple[int, int],
    scale: float,
    ratio: int,
    aligned: bool,
    turn: float,
    orientations: int,
) -> torch.Tensor:
    with torch.enable_grad():
        leaf = torch.zeros_like(grad_input, requires_grad=True)
        output = _turned_pool(leaf, rois, size, scale, ratio, aligned, turn, orientations)
    return grad_input.add_(torch.autograd.grad(output, leaf, grad_output)[0])


def roi_align_rotated_forward(
    input: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor | float,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int = 0,
    aligned: bool = True,
    clockwise: bool = False,
) -> torch.Tensor:
    """Fill `output`, angles in radians. Called `(input, rois, spatial_scale, height, width, sampling_ratio)`: angles in
    degrees, counter-clockwise, and the result is returned.
    """
    size = (pooled_height, pooled_width)
    if not isinstance(output, torch.Tensor):
        return _turned_pool(input, rois, size, output, int(spatial_scale), True, math.pi / 180, 1)
    turn = -1.0 if clockwise else 1.0
    return output.copy_(_turned_pool(input, rois, size, spatial_scale, sampling_ratio, aligned, turn, 1))


def roi_align_rotated_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    grad_input: torch.Tensor | float,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int = 0,
    aligned: int = True,
    clockwise: int = False,
    last: int = 0,
) -> torch.Tensor:
    """Add to `grad_input`. Called `(grad, rois, spatial_scale, height, width, N, C, H, W, sampling_ratio)`: angles in
    degrees, and the gradient is returned.
    """
    size = (pooled_height, pooled_width)
    if not isinstance(grad_input, torch.Tensor):
        target = grad_output.new_zeros(int(spatial_scale), sampling_ratio, int(aligned), int(clockwise))
        return _turned_gradient(grad_output, rois, target, size, grad_input, last, True, math.pi / 180, 1)
    turn = -1.0 if clockwise else 1.0
    return _turned_gradient(grad_output, rois, grad_input, size, spatial_scale, sampling_ratio, bool(aligned), turn, 1)


def riroi_align_rotated_forward(
    features: torch.Tensor,
    rois: torch.Tensor,
    output: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    num_samples: int,
    num_orientations: int,
    clockwise: bool,
) -> None:
    """Fill `output` (K, C * orientations, h, w), orientation channels shifted and interpolated by the angle."""
    size, turn = (pooled_height, pooled_width), -1.0 if clockwise else 1.0
    output.copy_(_turned_pool(features, rois, size, spatial_scale, num_samples, False, turn, num_orientations))


def riroi_align_rotated_backward(
    top_grad: torch.Tensor,
    rois: torch.Tensor,
    bottom_grad: torch.Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    num_samples: int,
    num_orientations: int,
    clockwise: bool,
) -> None:
    """Add to `bottom_grad`."""
    size, turn = (pooled_height, pooled_width), -1.0 if clockwise else 1.0
    _turned_gradient(top_grad, rois, bottom_grad, size, spatial_scale, num_samples, False, turn, num_orientations)
