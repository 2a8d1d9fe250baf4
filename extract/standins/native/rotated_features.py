"""Operators of rotated detectors: features gathered at box points, and filters turned to each orientation."""
# ruff: noqa: A002

import torch


def _refine_bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
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


def _refine_output(
    features: torch.Tensor, best_bboxes: torch.Tensor, spatial_scale: float, points: int
) -> torch.Tensor:
    boxes = best_bboxes.reshape(len(features), *features.shape[2:], 5)
    y, x, w, h = (boxes[..., :4] * spatial_scale).unbind(-1)
    cos, sin = boxes[..., 4].cos(), boxes[..., 4].sin()
    places = [(y, x)]
    if points > 1:
        for a, b in ((0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5), (0.5, -0.5)):
            places.append((y + a * w * sin + b * h * cos, x + a * w * cos - b * h * sin))
    rows = []
    for n, image in enumerate(features):
        rows.append(image + sum(_refine_bilinear(image, py[n], px[n]) for py, px in places[:points]))
    return torch.stack(rows)


def rotated_feature_align_forward(
    features: torch.Tensor, best_bboxes: torch.Tensor, output: torch.Tensor, spatial_scale: float, points: int
) -> None:
    """Fill `output`: each feature plus those at the centre and, for 5 points, the corners of its box
    (y, x, w, h, angle) (Yang et al., "R3Det", AAAI 2021).
    """
    output.copy_(_refine_output(features, best_bboxes, spatial_scale, points))


def rotated_feature_align_backward(
    top_grad: torch.Tensor, best_bboxes: torch.Tensor, bottom_grad: torch.Tensor, spatial_scale: float, points: int
) -> None:
    """Add to `bottom_grad`."""
    with torch.enable_grad():
        leaf = torch.zeros_like(bottom_grad, requires_grad=True)
        output = _refine_output(leaf, best_bboxes, spatial_scale, points)
    bottom_grad.add_(torch.autograd.grad(output, leaf, top_grad)[0])


def active_rotated_filter_forward(input: torch.Tensor, indices: torch.Tensor, output: torch.Tensor) -> None:
    """Fill `output` (out * rotations, in * orientations, h, w) with `input` (out, in, orientations, h, w) rearranged:
    entry l goes to place `indices[l] - 1` of each rotation (Zhou et al., "Oriented Response Networks", CVPR 2017).
    """
    rotations, entries = indices.shape[-1], indices[..., 0].numel()
    places = (indices.reshape(entries, rotations).T.long() - 1)[None, :, None].expand(
        input.shape[0], -1, input.shape[1], -1
    )
    source = input.reshape(input.shape[0], 1, input.shape[1], entries).expand_as(places)
    turned = torch.empty_like(source, memory_format=torch.contiguous_format).scatter_(3, places, source)
    output.copy_(turned.reshape(output.shape))


def active_rotated_filter_backward(grad_out: torch.Tensor, indices: torch.Tensor, grad_in: torch.Tensor) -> None:
    """Add to `grad_in` (out, in, orientations, h, w)."""
    rotations, entries = indices.shape[-1], indices[..., 0].numel()
    shape = (grad_in.shape[0], rotations, grad_in.shape[1], entries)
    places = (indices.reshape(entries, rotations).T.long() - 1)[None, :, None].expand(shape)
    grad_in.add_(grad_out.reshape(shape).gather(3, places).sum(1).view_as(grad_in))
