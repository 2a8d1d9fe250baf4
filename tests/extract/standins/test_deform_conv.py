"""Deformable convolution called as its autograd functions call it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import NATIVE_OPS
from extract.standins.native import deform_conv as ops

KINDS = ("keywords", "positions")


def out_size(size, kernel, stride, pad, dilation):
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, pad, dilation, strict=True)
    ]


def sample(image, y, x):
    """Bilinear value of one channel, zero outside."""
    total = 0.0
    y0, x0 = int(y // 1), int(x // 1)
    for i in (y0, y0 + 1):
        for j in (x0, x0 + 1):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += float(image[i, j]) * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


def by_loops(x, offset, mask, weight, stride, pad, dilation, groups, offset_groups):
    n, channels, *size = x.shape
    outputs, per_group, kh, kw = weight.shape
    oh, ow = out_size(size, (kh, kw), stride, pad, dilation)
    out = torch.zeros(n, outputs, oh, ow, dtype=x.dtype)
    for b, o, i, j in torch.cartesian_prod(*(torch.arange(k) for k in out.shape)).tolist():
        for c, u, v in torch.cartesian_prod(torch.arange(per_group), torch.arange(kh), torch.arange(kw)).tolist():
            channel = o // (outputs // groups) * per_group + c
            tap = channel // (channels // offset_groups) * kh * kw + u * kw + v
            y = i * stride[0] - pad[0] + u * dilation[0] + float(offset[b, 2 * tap, i, j])
            z = j * stride[1] - pad[1] + v * dilation[1] + float(offset[b, 2 * tap + 1, i, j])
            share = 1.0 if mask is None else float(mask[b, tap, i, j])
            out[b, o, i, j] += float(weight[o, c, u, v]) * sample(x[b, channel], y, z) * share
    return out


class DeformConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offset, weight, stride, pad, dilation, groups, offset_groups, kind):
        ctx.save_for_backward(x, offset, weight)
        sizes = [weight.size(3), weight.size(2), *stride[::-1], *pad[::-1], *dilation[::-1], groups, offset_groups]
        names = ["kW", "kH", "dW", "dH", "padW", "padH", "dilationW", "dilationH", "group", "deformable_group"]
        ctx.args, ctx.kwargs = (sizes, {}) if kind == "positions" else ([], dict(zip(names, sizes, strict=True)))
        ctx.kind = kind
        output = x.new_empty(len(x), len(weight), *out_size(x.shape[2:], weight.shape[2:], stride, pad, dilation))
        ctx.bufs = [x.new_empty(0), x.new_empty(0)]
        tail = [len(x)] if kind == "positions" else []
        extra = {} if kind == "positions" else {"im2col_step": len(x)}
        ops.deform_conv_forward(x, weight, offset, output, *ctx.bufs, *ctx.args, *tail, **ctx.kwargs, **extra)
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, weight = ctx.saved_tensors
        dx, doffset, dweight = torch.zeros_like(x), torch.zeros_like(offset), torch.zeros_like(weight)
        if ctx.kind == "positions":
            ops.deform_conv_backward_input(x, offset, grad, dx, doffset, weight, ctx.bufs[0], *ctx.args, len(x))
            ops.deform_conv_backward_filter(x, offset, grad, dweight, *ctx.bufs, *ctx.args, 1, len(x))
        else:
            ops.deform_conv_backward_input(
                x, offset, grad, dx, doffset, weight, ctx.bufs[0], **ctx.kwargs, im2col_step=len(x)
            )
            ops.deform_conv_backward_parameters(
                x, offset, grad, dweight, *ctx.bufs, **ctx.kwargs, scale=1, im2col_step=len(x)
            )
        return dx, doffset, dweight, None, None, None, None, None, None


class ModulatedDeformConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offset, mask, weight, bias, stride, pad, dilation, groups, offset_groups, kind):
        ctx.with_bias = bias is not None
        bias = x.new_empty(0 if kind == "keywords" else 1) if bias is None else bias
        ctx.save_for_backward(x, offset, mask, weight, bias)
        values = [*weight.shape[2:], *stride, *pad, *dilation, groups, offset_groups, ctx.with_bias]
        names = "kernel_h kernel_w stride_h stride_w pad_h pad_w dilation_h dilation_w group deformable_group with_bias"
        ctx.args, ctx.kwargs = (
            (values, {}) if kind == "positions" else ([], dict(zip(names.split(), values, strict=True)))
        )
        output = x.new_empty(len(x), len(weight), *out_size(x.shape[2:], weight.shape[2:], stride, pad, dilation))
        ctx.bufs = [x.new_empty(0), x.new_empty(0)]
        ops.modulated_deform_conv_forward(
            x, weight, bias, ctx.bufs[0], offset, mask, output, ctx.bufs[1], *ctx.args, **ctx.kwargs
        )
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, mask, weight, bias = ctx.saved_tensors
        dx, doffset, dmask, dweight, dbias = (torch.zeros_like(t) for t in ctx.saved_tensors)
        ops.modulated_deform_conv_backward(
            x, weight, bias, ctx.bufs[0], offset, mask, ctx.bufs[1], dx, dweight, dbias, doffset, dmask, grad,
            *ctx.args, **ctx.kwargs,
        )  # fmt: skip
        return dx, doffset, dmask, dweight, dbias if ctx.with_bias else None, None, None, None, None, None, None


SHAPES = {
    "seed": st.integers(0, 2**31),
    "kernel": st.tuples(st.integers(1, 3), st.integers(1, 2)),
    "stride": st.tuples(st.integers(1, 2), st.integers(1, 3)),
    "pad": st.tuples(st.integers(0, 2), st.integers(0, 1)),
    "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
    "groups": st.sampled_from([1, 2]),
    "offset_groups": st.sampled_from([1, 2]),
    "kind": st.sampled_from(KINDS),
}


def random_inputs(seed, kernel, stride, pad, dilation, groups, offset_groups):
    generator = torch.Generator().manual_seed(seed)
    size = out_size((4, 5), kernel, stride, pad, dilation)
    taps = offset_groups * kernel[0] * kernel[1]
    shapes = [(2, 4, 4, 5), (2, 2 * taps, *size), (2, taps, *size), (2, 4 // groups, *kernel), (2,)]
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]


@given(**SHAPES)
@settings(max_examples=12, deadline=None)
def test_v1(seed, kernel, stride, pad, dilation, groups, offset_groups, kind):
    x, offset, _, weight, _ = random_inputs(seed, kernel, stride, pad, dilation, groups, offset_groups)
    args = (stride, pad, dilation, groups, offset_groups)
    torch.testing.assert_close(
        DeformConv.apply(x, offset, weight, *args, kind), by_loops(x, offset, None, weight, *args)
    )


@given(**SHAPES, with_bias=st.booleans())
@settings(max_examples=12, deadline=None)
def test_v2(seed, kernel, stride, pad, dilation, groups, offset_groups, kind, with_bias):
    x, offset, mask, weight, bias = random_inputs(seed, kernel, stride, pad, dilation, groups, offset_groups)
    args = (stride, pad, dilation, groups, offset_groups)
    wanted = by_loops(x, offset, mask, weight, *args) + (bias[:, None, None] if with_bias else 0)
    got = ModulatedDeformConv.apply(x, offset, mask, weight, bias if with_bias else None, *args, kind)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 2)])
def test_gradients(kind, groups, offset_groups):
    args = ((2, 1), (1, 1), (1, 2), groups, offset_groups)
    x, offset, mask, weight, bias = (t.requires_grad_() for t in random_inputs(0, (2, 2), *args))
    assert torch.autograd.gradcheck(lambda *t: DeformConv.apply(*t, *args, kind), (x, offset, weight), fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda *t: ModulatedDeformConv.apply(*t, *args, kind), (x, offset, mask, weight, bias), fast_mode=True
    )


def test_weight_gradients_add_up():
    """The original accumulates over its steps, and `scale` multiplies one step."""
    args = ((1, 1), (0, 0), (1, 1), 1, 1)
    x, offset, _, weight, _ = random_inputs(1, (2, 2), *args)
    grad = torch.ones_like(DeformConv.apply(x, offset, weight, *args, "keywords"))
    sizes = (2, 2, 1, 1, 0, 0, 1, 1, 1, 1)
    once, twice = torch.zeros_like(weight), torch.zeros_like(weight)
    ops.deform_conv_backward_parameters(x, offset, grad, once, grad, grad, *sizes, 1, 2)
    for scale in (0.5, 1.5):
        ops.deform_conv_backward_parameters(x, offset, grad, twice, grad, grad, *sizes, scale, 2)
    assert once.abs().max() > 0
    torch.testing.assert_close(twice, 2 * once)


def test_the_index_knows_both_names_of_the_weight_gradient():
    assert {"deform_conv_backward_filter", "deform_conv_backward_parameters"} <= set(NATIVE_OPS)
