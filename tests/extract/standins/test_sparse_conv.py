"""Sparse convolutions against dense ones at the active places."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.native import sparse_conv as ops

DENSE = {2: (torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d),
         3: (torch.nn.functional.conv3d, torch.nn.functional.conv_transpose3d)}  # fmt: skip


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scene(dims, seed=0):
    """Indices in no order, features, and the dense tensor (2, channels, *size) with zeros elsewhere."""
    size = (5, 4, 6)[:dims]
    generator = torch.Generator().manual_seed(seed)
    active = (torch.rand(2, *size, generator=generator) < 0.3).nonzero().int()
    active = active[torch.randperm(len(active), generator=generator)]
    features = random(len(active), 3, seed=seed + 1)
    dense = torch.zeros(2, *size, 3, dtype=torch.float64)
    dense[tuple(active.long().T)] = features
    return size, active, features, dense.movedim(-1, 1)


def pairs_of(dims, active, out_size, size, kernel, stride=1, pad=0, dilation=1, subm=0, transpose=0):
    function = getattr(ops, f"get_indice_pairs_{dims}d_forward")
    spread = [[v] * dims for v in (kernel, stride, pad, dilation, 0)]
    return function(active, 2, list(out_size), list(size), *spread, subm, transpose)


@given(
    dims=st.sampled_from([2, 3]), kernel=st.integers(1, 3), stride=st.integers(1, 2), pad=st.integers(0, 1),
    dilation=st.integers(1, 2), transpose=st.booleans(), seed=st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_convolution(dims, kernel, stride, pad, dilation, transpose, seed):
    size, active, features, dense = scene(dims, seed)
    filters = random(*[kernel] * dims, 3, 2, seed=9)
    reach = dilation * (kernel - 1) + 1
    if transpose:
        out_size = [(n - 1) * stride - 2 * pad + reach for n in size]
        weight = filters.movedim(-2, 0).movedim(-1, 1)
    else:
        out_size = [(n + 2 * pad - reach) // stride + 1 for n in size]
        weight = filters.movedim(-1, 0).movedim(-1, 1)
    if min(out_size) < 1 or len(active) == 0:
        return
    out, pairs, counts = pairs_of(dims, active, out_size, size, kernel, stride, pad, dilation, 0, int(transpose))
    assert out.dtype == pairs.dtype == counts.dtype == torch.int32
    assert pairs.shape == (kernel**dims, 2, len(active))
    assert torch.equal((pairs[:, 0] >= 0).sum(1), counts)
    assert len(out.unique(dim=0)) == len(out)
    got = ops.indice_conv_forward(features, filters, pairs, counts, len(out), 0, 0)
    wanted = DENSE[dims][transpose](dense, weight, stride=stride, padding=pad, dilation=dilation).movedim(1, -1)
    torch.testing.assert_close(got, wanted[tuple(out.long().T)])
    wanted = wanted.clone()
    wanted[tuple(out.long().T)] = 0
    assert wanted.abs().max() < 1e-9, "every place that is reached is among the outputs"


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1)])
def test_submanifold_convolution_keeps_the_places(dims, kernel, dilation):
    size, active, features, dense = scene(dims)
    filters = random(*[kernel] * dims, 3, 2, seed=9)
    out, pairs, counts = pairs_of(dims, active, size, size, kernel, 1, 0, dilation, subm=1)
    assert torch.equal(out, active)
    got = ops.indice_conv_forward(features, filters, pairs, counts, len(out), 0, 1)
    weight = filters.movedim(-1, 0).movedim(-1, 1)
    wanted = DENSE[dims][0](dense, weight, padding=kernel // 2, dilation=dilation).movedim(1, -1)
    torch.testing.assert_close(got, wanted[tuple(active.long().T)])
    fused = ops.fused_indice_conv_forward(features, filters, torch.ones(2), pairs, counts, len(out), 0, 1)
    torch.testing.assert_close(fused, got + 1)


def test_the_form_with_a_grid_and_four_dimensions():
    size, active, _, _ = scene(2)
    plain = pairs_of(2, active, (3, 2), size, 3, 2, 1)
    grid = torch.full((2 * 6,), -1)
    spread = [[3] * 2, [2] * 2, [1] * 2, [1] * 2, [0] * 2]
    for one, two in zip(
        plain, ops.get_indice_pairs_2d_backward(active, grid, 2, [3, 2], list(size), *spread, 0, 0), strict=True
    ):
        assert torch.equal(one, two)
    four = torch.tensor([[0, 1, 1, 1, 1]], dtype=torch.int32)
    out, _, counts = pairs_of(4, four, (3,) * 4, (3,) * 4, 3, 1, 1)
    assert len(out) == int(counts.sum()) == 81


class Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, filters, pairs, counts, number, inverse):
        ctx.save_for_backward(pairs, counts, features, filters)
        ctx.inverse = inverse
        return ops.indice_conv_forward(features, filters, pairs, counts, number, int(inverse), 0)

    @staticmethod
    def backward(ctx, grad):
        pairs, counts, features, filters = ctx.saved_tensors
        grads = ops.indice_conv_backward(features, filters, grad, pairs, counts, int(ctx.inverse), 0)
        return (*grads, None, None, None, None)


@pytest.mark.parametrize("inverse", [False, True])
def test_gradients_and_the_inverse(inverse):
    size, active, features, _ = scene(2)
    out, pairs, counts = pairs_of(2, active, (3, 2), size, 3, 2, 1)
    filters = random(3, 3, 3, 2, seed=9)
    if inverse:
        features = random(len(out), 3, seed=5)
        got = Conv.apply(features, filters, pairs, counts, len(active), True)
        wanted = torch.zeros(len(active), 2, dtype=torch.float64)
        for k in range(9):
            for i, o in pairs[k, :, : counts[k]].T.tolist():
                wanted[i] += features[o] @ filters.view(9, 3, 2)[k]
        torch.testing.assert_close(got, wanted)
    number = len(active) if inverse else len(out)
    leaves = [features.requires_grad_(), filters.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *t: Conv.apply(*t, pairs, counts, number, inverse), leaves, fast_mode=True)


class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, pairs, counts, number):
        out = ops.indice_maxpool_forward(features, pairs, counts, number)
        ctx.save_for_backward(pairs, counts, features, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        pairs, counts, features, out = ctx.saved_tensors
        return ops.indice_maxpool_backward(features, out, grad, pairs, counts), None, None, None


def test_max_pooling_starts_from_zero():
    size, active, features, dense = scene(3)
    out, pairs, counts = pairs_of(3, active, (2, 2, 3), size, 2, 2)
    got = MaxPool.apply(features, pairs, counts, len(out))
    wanted = torch.nn.functional.max_pool3d(dense.clamp(min=0), 2, 2).movedim(1, -1)[tuple(out.long().T)]
    torch.testing.assert_close(got, wanted)
    assert torch.autograd.gradcheck(lambda t: MaxPool.apply(t, pairs, counts, len(out)), features.requires_grad_())
