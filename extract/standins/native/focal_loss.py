"""Focal loss on sigmoid and on softmax scores (Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017).

Outputs and gradients are per element and filled in place; an empty `weight` means no class weights.
"""
# ruff: noqa: A002

import torch


def _focal_class_weight(target: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if weight is None or weight.numel() == 0:
        return torch.ones_like(target, dtype=like.dtype)
    return weight[target.clamp(0, weight.numel() - 1)].to(like.dtype)


def _focal_log(p: torch.Tensor) -> torch.Tensor:
    return p.clamp(min=torch.finfo(torch.float32).tiny).log()


def sigmoid_focal_loss_forward(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill `output` (N, C): -alpha (1-p)^gamma log p at the target class, else -(1-alpha) p^gamma log(1-p)."""
    p = input.sigmoid()
    positive = target[:, None] == torch.arange(input.shape[1], device=input.device)
    hit = -alpha * (1 - p) ** gamma * _focal_log(p)
    miss = -(1 - alpha) * p**gamma * _focal_log(1 - p)
    output.copy_(torch.where(positive, hit, miss) * _focal_class_weight(target, weight, input)[:, None])


def sigmoid_focal_loss_backward(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    grad_input: torch.Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill `grad_input` (N, C) with the derivative of each element by its own logit."""
    p = input.sigmoid()
    positive = target[:, None] == torch.arange(input.shape[1], device=input.device)
    hit = -alpha * (1 - p) ** gamma * (1 - p - gamma * p * _focal_log(p))
    miss = -(1 - alpha) * p**gamma * (gamma * (1 - p) * _focal_log(1 - p) - p)
    grad_input.copy_(torch.where(positive, hit, miss) * _focal_class_weight(target, weight, input)[:, None])


def softmax_focal_loss_forward(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill `output` (N,) with -alpha (1-p)^gamma log p; `input`: probabilities; a negative target costs nothing."""
    p = input.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    loss = -alpha * (1 - p) ** gamma * _focal_log(p) * _focal_class_weight(target, weight, input)
    output.copy_(torch.where(target >= 0, loss, torch.zeros_like(loss)))


def softmax_focal_loss_backward(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    buff: torch.Tensor,
    grad_input: torch.Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill `grad_input` (N, C) with the derivative by the logits before softmax; `buff` holds p times dloss/dp."""
    p = input.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    slope = alpha * (gamma * (1 - p) ** (gamma - 1) * p * _focal_log(p) - (1 - p) ** gamma)
    slope = torch.where(target >= 0, slope * _focal_class_weight(target, weight, input), torch.zeros_like(slope))
    buff.copy_(slope)
    one_hot = target[:, None] == torch.arange(input.shape[1], device=input.device)
    grad_input.copy_(slope[:, None] * (one_hot.to(input.dtype) - input))
