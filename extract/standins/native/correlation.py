"""Correlation of patches of two feature maps (Dosovitskiy et al., "FlowNet", ICCV 2015, equation 1)."""
# ruff: noqa: N803

import torch


def _correlation_output(
    input1: torch.Tensor,
    input2: torch.Tensor,
    kernel: tuple[int, int],
    patch: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    dilation_patch: tuple[int, int],
    stride: tuple[int, int],
) -> torch.Tensor:
    """(N, patch h, patch w, H, W): products summed over channels and kernel; zero outside both maps."""
    reach_y, reach_x = (d * (p - 1) // 2 for d, p in zip(dilation_patch, patch, strict=True))
    pad_y, pad_x = padding
    first = torch.nn.functional.pad(input1, (pad_x, pad_x, pad_y, pad_y))
    second = torch.nn.functional.pad(
        input2, (pad_x + reach_x, pad_x + reach_x + patch[1], pad_y + reach_y, pad_y + reach_y + patch[0])
    )
    height, width = first.shape[2:]
    products = []
    for i in range(patch[0]):
        for j in range(patch[1]):
            y, x = i * dilation_patch[0], j * dilation_patch[1]
            products.append((first * second[:, :, y : y + height, x : x + width]).sum(1))
    maps = torch.stack(products, 1)
    ones = maps.new_ones(1, 1, *kernel)
    summed = torch.nn.functional.conv2d(maps.flatten(0, 1)[:, None], ones, stride=stride, dilation=dilation)
    return summed.reshape(len(input1), patch[0], patch[1], *summed.shape[2:])


def correlation_forward(
    input1: torch.Tensor,
    input2: torch.Tensor,
    output: torch.Tensor,
    kH: int,
    kW: int,
    patchH: int,
    patchW: int,
    padH: int,
    padW: int,
    dilationH: int,
    dilationW: int,
    dilation_patchH: int,
    dilation_patchW: int,
    dH: int,
    dW: int,
) -> None:
    """Fill `output` (N, patchH, patchW, oH, oW)."""
    result = _correlation_output(
        input1, input2, (kH, kW), (patchH, patchW), (padH, padW), (dilationH, dilationW),
        (dilation_patchH, dilation_patchW), (dH, dW),
    )  # fmt: skip
    output.copy_(result)


def correlation_backward(
    grad_output: torch.Tensor,
    input1: torch.Tensor,
    input2: torch.Tensor,
    grad_input1: torch.Tensor,
    grad_input2: torch.Tensor,
    kH: int,
    kW: int,
    patchH: int,
    patchW: int,
    padH: int,
    padW: int,
    dilationH: int,
    dilationW: int,
    dilation_patchH: int,
    dilation_patchW: int,
    dH: int,
    dW: int,
) -> None:
    """Fill `grad_input1` and `grad_input2`."""
    with torch.enable_grad():
        leaves = [input1.detach().requires_grad_(), input2.detach().requires_grad_()]
        output = _correlation_output(
            leaves[0], leaves[1], (kH, kW), (patchH, patchW), (padH, padW), (dilationH, dilationW),
            (dilation_patchH, dilation_patchW), (dH, dW),
        )  # fmt: skip
    grads = torch.autograd.grad(output, leaves, grad_output)
    grad_input1.copy_(grads[0])
    grad_input2.copy_(grads[1])
