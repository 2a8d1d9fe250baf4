"""Maximum along the four borders of each box (Qiu et al., "BorderDet", ECCV 2020, section 3.2)."""
# ruff: noqa: A002

import torch


def _border_bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
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


def _border_values(input: torch.Tensor, boxes: torch.Tensor, pool_size: int) -> torch.Tensor:
    """Samples (N, C, K, 4, pool_size + 1): top and left from the first corner, bottom and right from the second."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    step_x, step_y = (x2 - x1) / pool_size, (y2 - y1) / pool_size
    none = torch.zeros_like(step_x)
    start = torch.stack([x1, y1, x1, y1, x2, y2, x2, y2], -1).view(*boxes.shape[:-1], 4, 2)
    move = torch.stack([step_x, none, none, step_y, -step_x, none, none, -step_y], -1).view(*boxes.shape[:-1], 4, 2)
    count = torch.arange(pool_size + 1, device=boxes.device, dtype=boxes.dtype)
    x, y = (start[..., None, :] + move[..., None, :] * count[:, None]).unbind(-1)
    channels = input.shape[1] // 4
    images = []
    for n in range(len(input)):
        sides = [
            _border_bilinear(input[n, side * channels : (side + 1) * channels], y[n, :, side], x[n, :, side])
            for side in range(4)
        ]
        images.append(torch.stack(sides, 2))
    return torch.stack(images)


def border_align_forward(
    input: torch.Tensor, boxes: torch.Tensor, output: torch.Tensor, argmax_idx: torch.Tensor, pool_size: int
) -> None:
    """Fill `output` (N, C, K, 4) from `input` (N, 4C, H, W) and `boxes` (N, K, 4), and the index of each maximum."""
    value, place = _border_values(input, boxes, pool_size).max(-1)
    output.copy_(value)
    argmax_idx.copy_(place)


def border_align_backward(
    grad_output: torch.Tensor, boxes: torch.Tensor, argmax_idx: torch.Tensor, grad_input: torch.Tensor, pool_size: int
) -> None:
    """Add to `grad_input` (N, 4C, H, W)."""
    with torch.enable_grad():
        leaf = torch.zeros_like(grad_input, requires_grad=True)
        values = _border_values(leaf, boxes, pool_size).gather(-1, argmax_idx.long()[..., None]).squeeze(-1)
    grad_input.add_(torch.autograd.grad(values, leaf, grad_output)[0])
