"""Multi-scale deformable attention, focal losses, CARAFE and masked convolution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.native import carafe, focal_loss, masked_conv
from extract.standins.native.ms_deform_attn import ms_deform_attn_backward, ms_deform_attn_forward


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SHAPES = torch.tensor([[3, 4], [2, 2]])
STARTS = torch.tensor([0, 12])


def attention_inputs():
    """Values (2, 16, 3 heads, 2), places for 5 queries, 2 levels, 4 points; some of them outside the maps."""
    places = random(2, 5, 3, 2, 4, 2, seed=1) * 0.5 + 0.5
    return random(2, 16, 3, 2), places, random(2, 5, 3, 2, 4, seed=2)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, places, weights, fills):
        ctx.save_for_backward(value, places, weights)
        ctx.fills = fills
        if fills:
            return ms_deform_attn_forward(value, SHAPES, STARTS, places, weights, im2col_step=64)
        return ms_deform_attn_forward(value, SHAPES, STARTS, places, weights, 64)

    @staticmethod
    def backward(ctx, grad):
        value, places, weights = ctx.saved_tensors
        if not ctx.fills:
            grads = ms_deform_attn_backward(value, SHAPES, STARTS, places, weights, grad, 64)
            return (*grads, None)
        grads = [torch.zeros_like(t) for t in ctx.saved_tensors]
        ms_deform_attn_backward(value, SHAPES, STARTS, places, weights, grad.contiguous(), *grads, im2col_step=64)
        return (*grads, None)


@pytest.mark.parametrize("fills", [True, False])
def test_deformable_attention(fills):
    value, places, weights = attention_inputs()
    wanted = torch.zeros(2, 5, 3, 2, dtype=torch.float64)
    for n, q, m, level, p in torch.cartesian_prod(*(torch.arange(k) for k in weights.shape)).tolist():
        height, width = SHAPES[level].tolist()
        x, y = (float(v) * side - 0.5 for v, side in zip(places[n, q, m, level, p], (width, height), strict=True))
        for i in (int(y // 1), int(y // 1) + 1):
            for j in (int(x // 1), int(x // 1) + 1):
                if 0 <= i < height and 0 <= j < width:
                    share = (1 - abs(y - i)) * (1 - abs(x - j)) * float(weights[n, q, m, level, p])
                    wanted[n, q, m] += share * value[n, int(STARTS[level]) + i * width + j, m]
    torch.testing.assert_close(Attention.apply(value, places, weights, fills), wanted.flatten(2))
    leaves = [t.requires_grad_() for t in (value, places, weights)]
    assert torch.autograd.gradcheck(lambda *t: Attention.apply(*t, fills), leaves, fast_mode=True)


class SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, weight, gamma, alpha):
        output = logits.new_zeros(logits.size())
        focal_loss.sigmoid_focal_loss_forward(logits, target, weight, output, gamma=gamma, alpha=alpha)
        ctx.save_for_backward(logits, target, weight)
        ctx.kwargs = {"gamma": gamma, "alpha": alpha}
        return output

    @staticmethod
    def backward(ctx, grad):
        grad_input = torch.zeros_like(grad)
        focal_loss.sigmoid_focal_loss_backward(*ctx.saved_tensors, grad_input, **ctx.kwargs)
        return grad_input * grad, None, None, None, None


class SoftmaxFocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, weight, gamma, alpha):
        p = logits.softmax(1)
        output = logits.new_zeros(len(logits))
        focal_loss.softmax_focal_loss_forward(p, target, weight, output, gamma=gamma, alpha=alpha)
        ctx.save_for_backward(p, target, weight)
        ctx.kwargs = {"gamma": gamma, "alpha": alpha}
        return output.sum()

    @staticmethod
    def backward(ctx, grad):
        p, target, weight = ctx.saved_tensors
        buff, grad_input = p.new_zeros(len(p)), torch.zeros_like(p)
        focal_loss.softmax_focal_loss_backward(p, target, weight, buff, grad_input, **ctx.kwargs)
        return grad_input * grad, None, None, None, None


WEIGHTS = [torch.zeros(0, dtype=torch.float64), torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)]


@pytest.mark.parametrize("weight", WEIGHTS, ids=["plain", "weighted"])
@pytest.mark.parametrize("gamma", [2.0, 1.5])
def test_sigmoid_focal_loss(weight, gamma):
    logits, target, alpha = random(6, 3) * 2, torch.tensor([0, 1, 2, 1, 0, 2]), 0.25
    p = logits.sigmoid()
    wanted = torch.empty(6, 3, dtype=torch.float64)
    for n in range(6):
        for c in range(3):
            hit = c == target[n]
            q, a = (p[n, c], alpha) if hit else (1 - p[n, c], 1 - alpha)
            wanted[n, c] = -a * (1 - q) ** gamma * q.log() * (weight[target[n]] if len(weight) else 1)
    torch.testing.assert_close(SigmoidFocal.apply(logits, target, weight, gamma, alpha), wanted)
    assert torch.autograd.gradcheck(
        lambda t: SigmoidFocal.apply(t, target, weight, gamma, alpha), logits.requires_grad_()
    )


def test_sigmoid_focal_loss_of_background_has_no_positive_class():
    out = torch.zeros(1, 3, dtype=torch.float64)
    focal_loss.sigmoid_focal_loss_forward(random(1, 3), torch.tensor([3]), WEIGHTS[0], out, gamma=2.0, alpha=0.25)
    p = random(1, 3).sigmoid()
    torch.testing.assert_close(out, -0.75 * p**2 * (1 - p).log())
    focal_loss.sigmoid_focal_loss_forward(random(1, 3), torch.tensor([3]), WEIGHTS[1], out, gamma=2.0, alpha=0.25)
    torch.testing.assert_close(out, -0.75 * p**2 * (1 - p).log() * WEIGHTS[1][2])


@pytest.mark.parametrize("weight", WEIGHTS, ids=["plain", "weighted"])
def test_softmax_focal_loss(weight):
    logits, target, gamma, alpha = random(6, 3) * 2, torch.tensor([0, 1, 2, -1, 0, 2]), 2.0, 0.25
    p = logits.softmax(1)
    wanted = sum(
        -alpha * (1 - p[n, c]) ** gamma * p[n, c].log() * (weight[c] if len(weight) else 1)
        for n, c in enumerate(target.tolist())
        if c >= 0
    )
    torch.testing.assert_close(SoftmaxFocal.apply(logits, target, weight, gamma, alpha), wanted)
    assert torch.autograd.gradcheck(
        lambda t: SoftmaxFocal.apply(t, target, weight, gamma, alpha), logits.requires_grad_()
    )


class Carafe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, masks, kernel, group, scale, naive):
        n, c, h, w = features.shape
        ctx.kwargs = {"kernel_size": kernel, "group_size": group, "scale_factor": scale}
        ctx.naive = naive
        output = features.new_zeros(n, c, h * scale, w * scale)
        if naive:
            carafe.carafe_naive_forward(features, masks, output, **ctx.kwargs)
            ctx.save_for_backward(features, masks)
        else:
            rfeatures, rmasks = torch.zeros_like(features), torch.zeros_like(masks)
            routput = torch.zeros_like(output)
            carafe.carafe_forward(features, masks, rfeatures, routput, rmasks, output, **ctx.kwargs)
            for last, first in ((rfeatures, features), (routput, output), (rmasks, masks)):
                assert torch.equal(last, first.permute(0, 2, 3, 1))
            ctx.save_for_backward(features, masks, rfeatures)
        return output

    @staticmethod
    def backward(ctx, grad):
        features, masks, *rest = ctx.saved_tensors
        grads = torch.zeros_like(features), torch.zeros_like(masks)
        if ctx.naive:
            carafe.carafe_naive_backward(grad.contiguous(), features, masks, *grads, **ctx.kwargs)
        else:
            spare = [torch.zeros_like(t) for t in (grad, grad, features, masks)]
            carafe.carafe_backward(grad.contiguous(), rest[0], masks, *spare, *grads, **ctx.kwargs)
        return (*grads, None, None, None, None)


@given(st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.booleans())
@settings(max_examples=15, deadline=None)
def test_carafe(kernel, group, scale, naive):
    features, masks = random(2, 4, 3, 4), random(2, group * kernel**2, 3 * scale, 4 * scale, seed=1)
    wanted = torch.zeros(2, 4, 3 * scale, 4 * scale, dtype=torch.float64)
    half = (kernel - 1) // 2
    for n, c, y, x in torch.cartesian_prod(*(torch.arange(k) for k in wanted.shape)).tolist():
        for u in range(kernel):
            for v in range(kernel):
                i, j = y // scale + u - half, x // scale + v - half
                if 0 <= i < 3 and 0 <= j < 4:
                    mask = masks[n, c // (4 // group) * kernel**2 + u * kernel + v, y, x]
                    wanted[n, c, y, x] += features[n, c, i, j] * mask
    torch.testing.assert_close(Carafe.apply(features, masks, kernel, group, scale, naive), wanted)


@pytest.mark.parametrize("naive", [True, False])
def test_carafe_gradients(naive):
    leaves = [random(1, 4, 2, 3).requires_grad_(), random(1, 18, 4, 6, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *t: Carafe.apply(*t, 3, 2, 2, naive), leaves, fast_mode=True)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 2)])
@pytest.mark.parametrize("pad", [(0, 0), (1, 1), (2, 0)])
def test_masked_convolution(kernel, pad):
    x, weight, bias = random(1, 3, 6, 7), random(4, 3, *kernel, seed=1), random(4, seed=2)
    full = torch.nn.functional.conv2d(x, weight, bias, padding=pad)
    mask = torch.rand(full.shape[2:], generator=torch.Generator().manual_seed(0)) > 0.5
    rows, columns = mask.nonzero().T.contiguous()
    col = x.new_zeros(3 * kernel[0] * kernel[1], len(rows))
    masked_conv.masked_im2col_forward(
        x, rows, columns, col, kernel_h=kernel[0], kernel_w=kernel[1], pad_h=pad[0], pad_w=pad[1]
    )
    out = torch.zeros_like(full)
    values = torch.addmm(bias[:, None], weight.view(4, -1), col)
    masked_conv.masked_col2im_forward(values, rows, columns, out, height=full.size(2), width=full.size(3), channels=4)
    torch.testing.assert_close(out, full * mask)
