"""The attention maps of PSANet from its over-complete masks (Zhao et al., ECCV 2018, section 3.2)."""
# ruff: noqa: A002

import torch


def _psa_index(
    h_feature: int, w_feature: int, h_mask: int, w_mask: int, half_h_mask: int, half_w_mask: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """For (target place, source place): which mask entry of the source refers to the target, and whether one does."""
    y, x = (torch.arange(n, device=device) for n in (h_feature, w_feature))
    dy = (y[:, None] - y[None, :] + half_h_mask)[:, None, :, None]
    dx = (x[:, None] - x[None, :] + half_w_mask)[None, :, None, :]
    valid = (dy >= 0) & (dy < h_mask) & (dx >= 0) & (dx < w_mask)
    places = h_feature * w_feature
    return (dy * w_mask + dx).masked_fill(~valid, 0).reshape(places, places), valid.reshape(places, places)


def psamask_forward(
    input: torch.Tensor,
    output: torch.Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Fill `output` (N, H * W, H, W): `psa_type` 0 collects (channel = target), 1 distributes (channel = source)."""
    index, valid = _psa_index(h_feature, w_feature, h_mask, w_mask, half_h_mask, half_w_mask, input.device)
    maps = input.flatten(2).gather(1, index.expand(len(input), -1, -1)) * valid
    output.copy_((maps if psa_type == 0 else maps.transpose(1, 2)).reshape(output.shape))


def psamask_backward(
    grad_output: torch.Tensor,
    grad_input: torch.Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Fill `grad_input` (N, h_mask * w_mask, H, W)."""
    index, valid = _psa_index(h_feature, w_feature, h_mask, w_mask, half_h_mask, half_w_mask, grad_output.device)
    maps = grad_output.flatten(2)
    maps = (maps if psa_type == 0 else maps.transpose(1, 2)) * valid
    empty = torch.zeros_like(grad_input).flatten(2)
    grad_input.copy_(empty.scatter_add_(1, index.expand(len(maps), -1, -1), maps).view_as(grad_input))
