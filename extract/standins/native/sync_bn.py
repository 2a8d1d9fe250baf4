"""The steps of synchronised batch normalisation on one worker (Ioffe and Szegedy, ICML 2015); input is (N, C, L)."""
# ruff: noqa: A002

import torch


def sync_bn_forward_mean(input: torch.Tensor, mean: torch.Tensor) -> None:
    """Fill `mean` (C,)."""
    mean.copy_(input.to(mean.dtype).mean((0, 2)))


def sync_bn_forward_var(input: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> None:
    """Fill `var` (C,) with the mean square distance from `mean`."""
    var.copy_((input.to(var.dtype) - mean[:, None]).square().mean((0, 2)))


def sync_bn_forward_output(
    input: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    norm: torch.Tensor,
    std: torch.Tensor,
    output: torch.Tensor,
    eps: float,
    momentum: float | torch.Tensor,
    group_size: int,
) -> None:
    """Fill `norm`, `std` and `output`; move the running statistics (unbiased variance over the whole group)."""
    std.copy_((var + eps).sqrt())
    norm.copy_((input.to(norm.dtype) - mean[:, None]) / std[:, None])
    output.copy_(norm * weight[:, None] + bias[:, None])
    count = input.shape[0] * input.shape[2] * group_size
    unbiased = var * count / (count - 1) if count > 1 else var
    running_mean.copy_(momentum * mean + (1 - momentum) * running_mean)
    running_var.copy_(momentum * unbiased + (1 - momentum) * running_var)


def sync_bn_backward_param(
    grad_output: torch.Tensor, norm: torch.Tensor, grad_weight: torch.Tensor, grad_bias: torch.Tensor
) -> None:
    """Fill the gradients of weight and bias."""
    grad_weight.copy_((grad_output * norm).sum((0, 2)))
    grad_bias.copy_(grad_output.to(grad_bias.dtype).sum((0, 2)))


def sync_bn_backward_data(
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor,
    norm: torch.Tensor,
    std: torch.Tensor,
    grad_input: torch.Tensor,
) -> None:
    """Fill `grad_input` (N, C, L)."""
    count = norm.shape[0] * norm.shape[2]
    mean_grad = (grad_weight[:, None] * norm + grad_bias[:, None]) / count
    grad_input.copy_(weight[:, None] * (grad_output - mean_grad) / std[:, None])
