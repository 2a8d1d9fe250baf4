"""Content-aware reassembly of features (Wang et al., "CARAFE", ICCV 2019).

Each output pixel is the weighted sum of the k x k neighbourhood of its source pixel, with weights of its own per group.
"""

import torch


def _carafe_output(
    features: torch.Tensor, masks: torch.Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> torch.Tensor:
    n, channels, height, width = features.shape
    patches = torch.nn.functional.unfold(features, kernel_size, padding=(kernel_size - 1) // 2)
    patches = patches.view(n, channels * kernel_size**2, height, width)
    patches = patches.repeat_interleave(scale_factor, 2).repeat_interleave(scale_factor, 3)
    patches = patches.view(n, group_size, channels // group_size, kernel_size**2, *masks.shape[-2:])
    weights = masks.view(n, group_size, 1, kernel_size**2, *masks.shape[-2:])
    return (patches * weights).sum(3).flatten(1, 2)


def _carafe_gradients(
    top_grad: torch.Tensor,
    features: torch.Tensor,
    masks: torch.Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        leaves = [features.detach().requires_grad_(), masks.detach().requires_grad_()]
        output = _carafe_output(leaves[0], leaves[1], kernel_size, group_size, scale_factor)
    return torch.autograd.grad(output, leaves, top_grad)


def carafe_naive_forward(
    features: torch.Tensor,
    masks: torch.Tensor,
    output: torch.Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Fill `output` (N, C, sH, sW)."""
    output.copy_(_carafe_output(features, masks, kernel_size, group_size, scale_factor))


def carafe_naive_backward(
    top_grad: torch.Tensor,
    features: torch.Tensor,
    masks: torch.Tensor,
    bottom_grad: torch.Tensor,
    mask_grad: torch.Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Add the gradients of features and masks."""
    grads = _carafe_gradients(top_grad, features, masks, kernel_size, group_size, scale_factor)
    bottom_grad.add_(grads[0])
    mask_grad.add_(grads[1])


def carafe_forward(
    features: torch.Tensor,
    masks: torch.Tensor,
    rfeatures: torch.Tensor,
    routput: torch.Tensor,
    rmasks: torch.Tensor,
    output: torch.Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Fill `output`; the `r*` buffers become the channels-last copies that the backward call reads."""
    for buffer, source in ((rfeatures, features), (rmasks, masks)):
        buffer.resize_(source.permute(0, 2, 3, 1).shape).copy_(source.permute(0, 2, 3, 1))
    output.copy_(_carafe_output(features, masks, kernel_size, group_size, scale_factor))
    routput.resize_(output.permute(0, 2, 3, 1).shape).copy_(output.permute(0, 2, 3, 1))


def carafe_backward(
    top_grad: torch.Tensor,
    rfeatures: torch.Tensor,
    masks: torch.Tensor,
    rtop_grad: torch.Tensor,
    rbottom_grad_hs: torch.Tensor,
    rbottom_grad: torch.Tensor,
    rmask_grad: torch.Tensor,
    bottom_grad: torch.Tensor,
    mask_grad: torch.Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Fill the gradients of features and masks; `rfeatures` is the channels-last copy of the features."""
    features = rfeatures.permute(0, 3, 1, 2).contiguous()
    grads = _carafe_gradients(top_grad, features, masks, kernel_size, group_size, scale_factor)
    bottom_grad.copy_(grads[0])
    mask_grad.copy_(grads[1])
