"""What stands in for compiled operators against loops over the definitions, and against torchvision."""

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import operators as ops


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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


DEFORMABLE = {
    "seed": st.integers(0, 2**31),
    "kernel": st.tuples(st.integers(1, 3), st.integers(1, 2)),
    "stride": st.tuples(st.integers(1, 2), st.integers(1, 3)),
    "pad": st.tuples(st.integers(0, 2), st.integers(0, 1)),
    "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
    "groups": st.sampled_from([1, 2]),
    "offset_groups": st.sampled_from([1, 2]),
}


def random_inputs(seed, kernel, stride, pad, dilation, groups, offset_groups):
    generator = torch.Generator().manual_seed(seed)
    size = out_size((4, 5), kernel, stride, pad, dilation)
    taps = offset_groups * kernel[0] * kernel[1]
    shapes = [(2, 4, 4, 5), (2, 2 * taps, *size), (2, taps, *size), (2, 4 // groups, *kernel), (2,)]
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]


@given(**DEFORMABLE, masked=st.booleans(), theirs=st.booleans())
@settings(max_examples=20, deadline=None)
def test_deformable_convolution(seed, kernel, stride, pad, dilation, groups, offset_groups, masked, theirs):
    args = (stride, pad, dilation, groups, offset_groups)
    x, offset, mask, weight, bias = inputs = random_inputs(seed, kernel, *args)
    wanted = by_loops(x, offset, mask if masked else None, weight, *args) + (bias[:, None, None] if masked else 0)
    x, offset, mask, weight, bias = (t.clone().requires_grad_() for t in inputs)
    if masked:
        function = ops._ModulatedDeformConv if theirs else ops.ModulatedDeformConv2dFunction
        got = function.apply(x, offset, mask, weight, bias, *args)
    else:
        function = ops._DeformConv if theirs else ops.DeformConv2dFunction
        got = function.apply(x, offset, weight, *args)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    assert all((t.grad is not None) == used for t, used in ((x, True), (offset, True), (weight, True), (mask, masked)))


def test_deformable_convolution_checks_its_input():
    for call in (ops.DeformConv2dFunction.apply, ops.ModulatedDeformConv2dFunction.apply):
        with pytest.raises(ValueError, match="Expected 4D tensor as input, got 3D"):
            call(*[random(3, 4, 5)] * 4)


SHAPES = torch.tensor([[3, 4], [2, 2]])
STARTS = torch.tensor([0, 12])


def attention_inputs():
    """Values (2, 16, 3 heads, 2), places for 5 queries, 2 levels, 4 points; some of them outside the maps."""
    places = random(2, 5, 3, 2, 4, 2, seed=1) * 0.5 + 0.5
    return random(2, 16, 3, 2), places, random(2, 5, 3, 2, 4, seed=2)


def test_deformable_attention():
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
    got = ops.MSDeformAttnFunction.apply(value, SHAPES, STARTS, places, weights, 64)
    torch.testing.assert_close(got, wanted.flatten(2))


WEIGHTS = [None, torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)]


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
            wanted[n, c] = -a * (1 - q) ** gamma * q.log() * (weight[target[n]] if weight is not None else 1)
    for reduction, value in (("none", wanted), ("mean", wanted.sum() / 6), ("sum", wanted.sum())):
        got = ops.SigmoidFocalLossFunction.apply(logits, target, gamma, alpha, weight, reduction)
        torch.testing.assert_close(got, value)


def test_a_sure_mistake_keeps_its_gradient():
    """Where the probability rounds to 0 or 1; there the compiled operator's own derivative is the slope of the loss."""
    logits = torch.tensor([[60.0, -60.0]], requires_grad=True)
    ops.SigmoidFocalLossFunction.apply(logits, torch.tensor([1]), 2.0, 0.25, None, "sum").backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.75, -0.25]]))


def test_sigmoid_focal_loss_of_background_has_no_positive_class():
    logits, p = random(1, 3), random(1, 3).sigmoid()
    wanted = -0.75 * p**2 * (1 - p).log()
    for weight in WEIGHTS:
        got = ops.SigmoidFocalLossFunction.apply(logits, torch.tensor([3]), 2.0, 0.25, weight, "none")
        torch.testing.assert_close(got, wanted * (1 if weight is None else weight[2]))


@given(st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]))
@settings(max_examples=15, deadline=None)
def test_carafe(kernel, group, scale):
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
    torch.testing.assert_close(ops.CARAFENaiveFunction.apply(features, masks, kernel, group, scale), wanted)


ROIS = torch.tensor(
    [
        [0, 1.3, 2.1, 9.7, 8.2],
        [1, -3.0, -2.0, 4.5, 30.0],
        [0, 5.0, 5.0, 5.2, 5.1],
        [0, 0, 0, 0.2, 0.2],
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align_is_that_of_torchvision(aligned):
    """Sampling every pixel, where the ratio is 0; by maximum there is none."""
    x = random(2, 3, 7, 9)
    got = ops.RoIAlignFunction.apply(x, ROIS, (2, 3), 0.5, 0, "avg", aligned)
    assert torch.equal(got, torchvision.ops.roi_align(x, ROIS, (2, 3), 0.5, -1, aligned))
    with pytest.raises(NotImplementedError, match="'max' is not part"):
        ops.RoIAlignFunction.apply(x, ROIS, (2, 3), 0.5, 0, "max", aligned)


def some_boxes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 20
    side = torch.rand(count, 2, generator=generator) * 12 + 1
    return torch.cat([corner, corner + side], 1), torch.rand(count, generator=generator)


def iou_of(a, b, offset):
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    inter = max(width, 0) * max(height, 0)
    areas = [(p[2] - p[0] + offset) * (p[3] - p[1] + offset) for p in (a, b)]
    return inter / (sum(areas) - inter)


@given(st.integers(0, 30), st.integers(0, 2**31), st.floats(0.05, 0.95), st.sampled_from([0, 1]))
@settings(max_examples=40, deadline=None)
def test_nms(count, seed, threshold, offset):
    boxes, scores = some_boxes(count, seed)
    kept = []
    for i in scores.argsort(descending=True).tolist():
        if all(iou_of(boxes[j].tolist(), boxes[i].tolist(), offset) <= threshold for j in kept):
            kept.append(i)
    assert ops.nms(boxes, scores, iou_threshold=threshold, offset=offset).tolist() == kept


@pytest.mark.parametrize("pairwise", [False, True])
def test_furthest_point_sampling(pairwise):
    xyz = random(2, 12, 3).float()
    distances = (xyz[:, :, None] - xyz[:, None]).square().sum(-1)
    temp, idx = torch.full((2, 12), 1e10), torch.zeros(2, 6, dtype=torch.int32)
    if pairwise:
        ops.furthest_point_sampling_with_dist_forward(distances, temp, idx, b=2, n=12, m=6)
    else:
        ops.furthest_point_sampling_forward(xyz, temp, idx, b=2, n=12, m=6)
    for b in range(2):
        chosen = [0]
        while len(chosen) < 6:
            chosen.append(max(range(12), key=lambda k: min(float(distances[b, k, c]) for c in chosen)))
        assert idx[b].tolist() == chosen
