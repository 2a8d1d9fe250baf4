"""Deformable convolution, v1 (Dai et al., ICCV 2017) and modulated v2 (Zhu et al., CVPR 2019).

Output and gradient arguments are filled in place; buffers (`columns`, `ones`) and `im2col_step` are not needed.
"""
# ruff: noqa: A002, N803

import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]


def _deform_output(
    input: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    output: torch.Tensor = torchvision.ops.deform_conv2d(
        input, offset, weight, bias, stride=stride, padding=padding, dilation=dilation, mask=mask
    )
    return output


def _deform_gradients(
    input: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor | None,
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> list[torch.Tensor]:
    """Gradients of input, offset, weight and, where there is one, mask."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (input, offset, weight)]
        if mask is not None:
            leaves.append(mask.detach().requires_grad_())
        output = _deform_output(
            leaves[0], leaves[1], leaves[3] if mask is not None else None, leaves[2], None, stride, padding, dilation
        )
    return list(torch.autograd.grad(output, leaves, grad_output))


def deform_conv_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    output: torch.Tensor,
    columns: torch.Tensor,
    ones: torch.Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> int:
    """Fill `output` with the deformable convolution of `input`."""
    result = _deform_output(input, offset, None, weight, None, (dH, dW), (padH, padW), (dilationH, dilationW))
    output.copy_(result.reshape(output.shape))
    return 1


def deform_conv_backward_input(
    input: torch.Tensor,
    offset: torch.Tensor,
    gradOutput: torch.Tensor,
    gradInput: torch.Tensor,
    gradOffset: torch.Tensor,
    weight: torch.Tensor,
    columns: torch.Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> int:
    """Fill `gradInput` and `gradOffset`."""
    grads = _deform_gradients(input, offset, None, weight, gradOutput, (dH, dW), (padH, padW), (dilationH, dilationW))
    gradInput.copy_(grads[0])
    gradOffset.copy_(grads[1])
    return 1


def deform_conv_backward_parameters(
    input: torch.Tensor,
    offset: torch.Tensor,
    gradOutput: torch.Tensor,
    gradWeight: torch.Tensor,
    columns: torch.Tensor,
    ones: torch.Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> int:
    """Add `scale` times the weight gradient to `gradWeight`."""
    grads = _deform_gradients(
        input, offset, None, gradWeight, gradOutput, (dH, dW), (padH, padW), (dilationH, dilationW)
    )
    gradWeight.add_(grads[2], alpha=scale)
    return 1


def deform_conv_backward_filter(
    input: torch.Tensor,
    offset: torch.Tensor,
    gradOutput: torch.Tensor,
    gradWeight: torch.Tensor,
    columns: torch.Tensor,
    ones: torch.Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> int:
    """Add `scale` times the weight gradient to `gradWeight` (another name of `deform_conv_backward_parameters`)."""
    return deform_conv_backward_parameters(
        input, offset, gradOutput, gradWeight, columns, ones, kW, kH, dW, dH, padW, padH, dilationW, dilationH,
        group, deformable_group, scale, im2col_step,
    )  # fmt: skip


def modulated_deform_conv_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    ones: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    output: torch.Tensor,
    columns: torch.Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Fill `output` with the modulated deformable convolution of `input`."""
    result = _deform_output(
        input, offset, mask, weight, bias if with_bias else None,
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w),
    )  # fmt: skip
    output.copy_(result.reshape(output.shape))


def modulated_deform_conv_backward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    ones: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    columns: torch.Tensor,
    grad_input: torch.Tensor,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor,
    grad_offset: torch.Tensor,
    grad_mask: torch.Tensor,
    grad_output: torch.Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Fill the gradients of input, offset and mask; add those of weight and bias."""
    grads = _deform_gradients(
        input, offset, mask, weight, grad_output, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w)
    )
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[1])
    grad_weight.add_(grads[2])
    grad_mask.copy_(grads[3])
    if with_bias:
        grad_bias.add_(grad_output.sum((0, 2, 3)))
