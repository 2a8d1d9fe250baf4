"""Multi-scale deformable attention (Zhu et al., "Deformable DETR", ICLR 2021, equation 3)."""

import torch


def _msda_output(
    value: torch.Tensor,
    shapes: torch.Tensor,
    starts: torch.Tensor,
    locations: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """(N, S, M, D) values, (N, Q, M, L, P, 2) places in 0..1, (N, Q, M, L, P) weights -> (N, Q, M * D)."""
    n, _, heads, dim = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    output = value.new_zeros(n * heads, dim, queries)
    for level, ((height, width), start) in enumerate(zip(shapes.tolist(), starts.tolist(), strict=True)):
        image = value[:, start : start + height * width].permute(0, 2, 3, 1).reshape(n * heads, dim, height, width)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).reshape(n * heads, queries, points, 2) - 1
        taken = torch.nn.functional.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(n * heads, 1, queries, points)
        output = output + (taken * weight).sum(-1)
    return output.view(n, heads * dim, queries).transpose(1, 2).contiguous()


def ms_deform_attn_forward(
    value: torch.Tensor,
    value_spatial_shapes: torch.Tensor,
    value_level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    im2col_step: int,
) -> torch.Tensor:
    """Attention output (N, queries, heads * channels)."""
    return _msda_output(value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights)


def ms_deform_attn_backward(
    value: torch.Tensor,
    value_spatial_shapes: torch.Tensor,
    value_level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_output: torch.Tensor,
    grad_value: torch.Tensor | int,
    grad_sampling_loc: torch.Tensor | None = None,
    grad_attn_weight: torch.Tensor | None = None,
    im2col_step: int = 64,
) -> list[torch.Tensor]:
    """Gradients of value, locations and weights, returned; also added to the `grad_*` tensors when these are given
    (in the short form the seventh argument is `im2col_step`).
    """
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (value, sampling_locations, attention_weights)]
        output = _msda_output(leaves[0], value_spatial_shapes, value_level_start_index, leaves[1], leaves[2])
    grads = list(torch.autograd.grad(output, leaves, grad_output.reshape(output.shape)))
    for target, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads, strict=True):
        if isinstance(target, torch.Tensor):
            target.add_(grad)
    return grads
