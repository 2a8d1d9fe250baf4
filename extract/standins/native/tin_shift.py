"""Shift of channel groups along time (Shao et al., "Temporal Interlacing Network", AAAI 2020)."""
# ruff: noqa: A002

import torch


def _tin_shifted(input: torch.Tensor, shift: torch.Tensor, sign: int) -> torch.Tensor:
    """Input (N, T, C, L), shift (N, groups): moved frames, zero where none arrives."""
    n, frames, channels, places = input.shape
    groups = input.reshape(n, frames, shift.shape[1], channels // shift.shape[1], places)
    time = torch.arange(frames, device=input.device)[None, :, None] - sign * shift.long()[:, None]
    known = (time >= 0) & (time < frames)
    index = time.clamp(0, frames - 1)[..., None, None].expand(groups.shape)
    return (groups.gather(1, index) * known[..., None, None]).reshape(input.shape)


def tin_shift_forward(input: torch.Tensor, shift: torch.Tensor, output: torch.Tensor) -> None:
    """Fill `output`: frame t goes to t + shift."""
    output.copy_(_tin_shifted(input, shift, 1))


def tin_shift_backward(grad_output: torch.Tensor, shift: torch.Tensor, grad_input: torch.Tensor) -> None:
    """Fill `grad_input` with the gradient: t takes from t + shift (the compiled operator shifts forwards again)."""
    grad_input.copy_(_tin_shifted(grad_output, shift, -1))
