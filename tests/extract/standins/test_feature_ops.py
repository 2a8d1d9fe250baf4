"""PSA masks, correlation, synchronised batch normalisation, fused activations, up-filter-down."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.native import bias_act as acts
from extract.standins.native import sync_bn
from extract.standins.native.correlation import correlation_backward, correlation_forward
from extract.standins.native.psa_mask import psamask_backward, psamask_forward
from extract.standins.native.upfirdn2d import upfirdn2d


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class PSAMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kind, mask):
        n, _, h, w = x.shape
        ctx.kwargs = {
            "psa_type": kind, "num_": n, "h_feature": h, "w_feature": w, "h_mask": mask[0], "w_mask": mask[1],
            "half_h_mask": (mask[0] - 1) // 2, "half_w_mask": (mask[1] - 1) // 2,
        }  # fmt: skip
        ctx.shape = x.shape
        output = x.new_zeros(n, h * w, h, w)
        psamask_forward(x, output, **ctx.kwargs)
        return output

    @staticmethod
    def backward(ctx, grad):
        grad_input = grad.new_zeros(ctx.shape)
        psamask_backward(grad, grad_input, **ctx.kwargs)
        return grad_input, None, None


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("mask", [(3, 5), (7, 5), (1, 3)])
def test_psa_mask(kind, mask):
    h, w = 3, 4
    x = random(2, mask[0] * mask[1], h, w)
    wanted = torch.zeros(2, h * w, h, w, dtype=torch.float64)
    for y, z, u, v in torch.cartesian_prod(*(torch.arange(k) for k in (h, w, *mask))).tolist():
        ty, tz = y + u - (mask[0] - 1) // 2, z + v - (mask[1] - 1) // 2
        if 0 <= ty < h and 0 <= tz < w:
            value = x[:, u * mask[1] + v, y, z]
            if kind == 0:
                wanted[:, ty * w + tz, y, z] = value
            else:
                wanted[:, y * w + z, ty, tz] = value
    torch.testing.assert_close(PSAMask.apply(x, kind, mask), wanted)
    assert torch.autograd.gradcheck(lambda t: PSAMask.apply(t, kind, mask), x.requires_grad_(), fast_mode=True)


class Correlation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, kernel, patch, pad, dilation, dilation_patch, stride):
        ctx.save_for_backward(a, b)
        size = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(a.shape[2:], pad, dilation, kernel, stride, strict=True)
        ]
        names = ["kH", "kW", "patchH", "patchW", "padH", "padW", "dilationH", "dilationW"]
        names += ["dilation_patchH", "dilation_patchW", "dH", "dW"]
        values = [*kernel, patch, patch, *pad, *dilation, *dilation_patch, *stride]
        ctx.kwargs = dict(zip(names, values, strict=True))
        output = a.new_zeros(len(a), patch, patch, *size)
        correlation_forward(a, b, output, **ctx.kwargs)
        return output

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grads = torch.zeros_like(a), torch.zeros_like(b)
        correlation_backward(grad, a, b, *grads, **ctx.kwargs)
        return (*grads, *[None] * 6)


PAIR = st.tuples(st.integers(1, 2), st.integers(1, 2))


@given(
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 3])), st.sampled_from([1, 3, 5]),
    st.tuples(st.integers(0, 2), st.integers(0, 2)), PAIR, PAIR, PAIR,
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_correlation(kernel, patch, pad, dilation, dilation_patch, stride):
    a, b = random(2, 2, 6, 7), random(2, 2, 6, 7, seed=1)
    got = Correlation.apply(a, b, kernel, patch, pad, dilation, dilation_patch, stride)
    wanted = torch.zeros_like(got)
    far_a, far_b = (torch.nn.functional.pad(t, [20] * 4) for t in (a, b))
    reach = [d * (patch - 1) // 2 for d in dilation_patch]
    for p, q, i, j in torch.cartesian_prod(*(torch.arange(k) for k in got.shape[1:])).tolist():
        for u in range(kernel[0]):
            for v in range(kernel[1]):
                y, z = i * stride[0] - pad[0] + u * dilation[0] + 20, j * stride[1] - pad[1] + v * dilation[1] + 20
                y2, z2 = y + p * dilation_patch[0] - reach[0], z + q * dilation_patch[1] - reach[1]
                wanted[:, p, q, i, j] += (far_a[:, :, y, z] * far_b[:, :, y2, z2]).sum(1)
    torch.testing.assert_close(got, wanted)


def test_correlation_gradients():
    leaves = [random(1, 2, 4, 5).requires_grad_(), random(1, 2, 4, 5, seed=1).requires_grad_()]
    args = ((2, 1), 3, (1, 0), (1, 2), (1, 2), (2, 1))
    assert torch.autograd.gradcheck(lambda *t: Correlation.apply(*t, *args), leaves, fast_mode=True)


def test_sync_bn_of_one_worker_is_batch_norm():
    x, weight, bias, eps, momentum = random(4, 3, 10), random(3, seed=1), random(3, seed=2), 1e-3, 0.3
    running = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    mean, var, std = (torch.zeros(3, dtype=torch.float64) for _ in range(3))
    norm, output = torch.zeros_like(x), torch.zeros_like(x)
    sync_bn.sync_bn_forward_mean(x, mean)
    sync_bn.sync_bn_forward_var(x, mean, var)
    sync_bn.sync_bn_forward_output(
        x, mean, var, weight, bias, *running, norm, std, output, eps=eps, momentum=torch.tensor(momentum), group_size=1
    )
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    reference = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    wanted = torch.nn.functional.batch_norm(leaves[0], *reference, *leaves[1:], True, momentum, eps)
    torch.testing.assert_close(output, wanted.detach())
    torch.testing.assert_close(running, reference, rtol=1e-6, atol=1e-8)  # the momentum went through float32
    grad = random(4, 3, 10, seed=3)
    wanted.backward(grad)
    grad_weight, grad_bias, grad_input = torch.zeros_like(weight), torch.zeros_like(bias), torch.zeros_like(x)
    sync_bn.sync_bn_backward_param(grad, norm, grad_weight, grad_bias)
    sync_bn.sync_bn_backward_data(grad, weight, grad_weight, grad_bias, norm, std, grad_input)
    torch.testing.assert_close([grad_input, grad_weight, grad_bias], [t.grad for t in leaves])


def test_sync_bn_counts_the_whole_group():
    x = random(2, 1, 4)
    running_var, rest = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    var = torch.full((1,), 3.0, dtype=torch.float64)
    sync_bn.sync_bn_forward_output(
        x, rest, var, rest, rest, rest.clone(), running_var, x.clone(), rest.clone(), x.clone(), 1e-5, 1.0, 4
    )
    torch.testing.assert_close(running_var, var * 32 / 31)


class LeakyReLUGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad, out, slope, scale):
        ctx.save_for_backward(out)
        ctx.kwargs = {"act": 3, "grad": 1, "alpha": slope, "scale": scale}
        grad_input = acts.fused_bias_leakyrelu(grad, grad.new_empty(0), out, **ctx.kwargs)
        return grad_input, grad_input.sum([0, *range(2, grad.ndim)])

    @staticmethod
    def backward(ctx, gradgrad, gradgrad_bias):
        return acts.fused_bias_leakyrelu(gradgrad, gradgrad_bias, *ctx.saved_tensors, **ctx.kwargs), None, None, None


class LeakyReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, slope, scale):
        out = acts.fused_bias_act(x, bias, x.new_empty(0), 3, 0, slope, scale)
        ctx.save_for_backward(out)
        ctx.args = (slope, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad_input, grad_bias = LeakyReLUGrad.apply(grad, *ctx.saved_tensors, *ctx.args)
        return grad_input, grad_bias, None, None


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 5)])
def test_fused_bias_leakyrelu(shape):
    x, bias = random(*shape), random(shape[1], seed=1)
    shifted = x + bias.view(-1, *[1] * (len(shape) - 2))
    wanted = torch.nn.functional.leaky_relu(shifted, 0.2) * 1.5
    torch.testing.assert_close(LeakyReLU.apply(x, bias, 0.2, 1.5), wanted)
    leaves = [x.requires_grad_(), bias.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *t: LeakyReLU.apply(*t, 0.2, 1.5), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: LeakyReLU.apply(*t, 0.2, 1.5), leaves)
    empty = torch.zeros(0, dtype=torch.float64)
    torch.testing.assert_close(acts.fused_bias_leakyrelu(x, empty, empty, 1, 0, 0.2, 2.0), 2 * x)
    assert acts.fused_bias_leakyrelu(x, empty, x, 3, 2, 0.2, 2.0).abs().max() == 0


ACTIVATIONS = {
    1: lambda x: x,
    2: torch.relu,
    3: lambda x: torch.nn.functional.leaky_relu(x, 0.3),
    4: torch.tanh,
    5: torch.sigmoid,
    6: torch.nn.functional.elu,
    7: torch.nn.functional.selu,
    8: torch.nn.functional.softplus,
    9: lambda x: x * torch.sigmoid(x),
}


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("clamp", [-1, 0.8])
@pytest.mark.parametrize("dim", [1, 3])
def test_bias_act_and_its_derivatives(act, clamp, dim):
    """Called as the three levels call it: value, gradient (of `dy`), and gradient of the gradient."""
    x, bias, gain = random(2, 3, 4, 3) * 1.5, random(3, seed=1), 1.4
    empty, rest = torch.zeros(0, dtype=torch.float64), (dim, act, 0.3, gain, clamp)
    u = (x + bias.view([-1 if axis == dim else 1 for axis in range(4)])).requires_grad_()
    wanted = ACTIVATIONS[act](u) * gain
    wanted = wanted.clamp(-clamp, clamp) if clamp >= 0 else wanted
    y = acts.bias_act(x, bias, empty, empty, empty, 0, *rest)
    torch.testing.assert_close(y, wanted)
    if clamp == 0.8:
        assert (wanted.abs() < 0.8).any()
    dy = random(2, 3, 4, 3, seed=2)
    (wanted_dx,) = torch.autograd.grad(wanted, u, dy, create_graph=True)
    xref, shift, yref = (x, bias, empty) if act == 9 else (empty, empty, y)
    torch.testing.assert_close(acts.bias_act(dy, shift, xref, yref, empty, 1, *rest), wanted_dx)
    if act in (4, 5, 6, 8, 9):
        ddx = random(2, 3, 4, 3, seed=3)
        (wanted_d2,) = torch.autograd.grad(wanted_dx, u, ddx)
        torch.testing.assert_close(acts.bias_act(ddx, shift, xref, yref, dy, 2, *rest), wanted_d2)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(-1, 3)] * 4), st.tuples(st.integers(1, 4), st.integers(1, 4)), st.sampled_from([None, False, True]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_upfirdn2d(up, down, pad, size, flip):
    x, kernel = random(2, 3, 5, 4), random(*size, seed=1)
    height, width = 5 * up[1] + pad[2] + pad[3], 4 * up[0] + pad[0] + pad[1]
    if height < size[0] or width < size[1]:
        return
    big = torch.zeros(2, 3, height, width, dtype=torch.float64)
    for i in range(5):
        for j in range(4):
            y, z = i * up[1] + pad[2], j * up[0] + pad[0]
            if 0 <= y < height and 0 <= z < width:
                big[:, :, y, z] = x[:, :, i, j]
    oh, ow = (height - size[0]) // down[1] + 1, (width - size[1]) // down[0] + 1
    wanted = torch.zeros(2, 3, oh, ow, dtype=torch.float64)
    used = kernel if flip else torch.flip(kernel, [0, 1])
    for i in range(oh):
        for j in range(ow):
            window = big[:, :, i * down[1] : i * down[1] + size[0], j * down[0] : j * down[0] + size[1]]
            wanted[:, :, i, j] = (window * used).sum((2, 3))
    if flip is None:
        images = x.reshape(-1, 5, 4, 1)
        got = upfirdn2d(images, kernel, *up, *down, *pad).view(2, 3, oh, ow)
    else:
        got, wanted = upfirdn2d(x, kernel, *up, *down, *pad, flip, 2.5), wanted * 2.5
    torch.testing.assert_close(got, wanted)
