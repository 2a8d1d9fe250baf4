"""The torch-only operators against torchvision's own compiled ones."""

import pytest
import torch
import torchvision  # noqa: F401  (registers torch.ops.torchvision)
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.native import rotated, torchvision_ops

REAL = torch.ops.torchvision


def boxes(count, generator, size=20.0):
    corner = torch.rand(count, 2, dtype=torch.float64, generator=generator) * size - 2
    side = torch.rand(count, 2, dtype=torch.float64, generator=generator) * size * 0.7
    return torch.cat([corner, corner + side], 1)


def regions(count, images, generator, size=20.0):
    index = torch.randint(images, (count, 1), generator=generator).double()
    return torch.cat([index, boxes(count, generator, size)], 1)


def compare(name, inputs, args, differentiable):
    """Same values, and same gradients for a random gradient of the output."""
    results = []
    for function in (getattr(REAL, name), getattr(torchvision_ops, name)):
        leaves = [t.clone().requires_grad_(i in differentiable) for i, t in enumerate(inputs)]
        out = function(*leaves, *args)
        first = out[0] if isinstance(out, tuple) else out
        weight = torch.randn(first.shape, dtype=first.dtype, generator=torch.Generator().manual_seed(5))
        wanted = [leaves[i] for i in differentiable]
        results.append((out, torch.autograd.grad((first * weight).sum(), wanted)))
    (real, real_grads), (ours, our_grads) = results
    if isinstance(real, tuple):
        torch.testing.assert_close(ours[0], real[0], rtol=1e-5, atol=1e-6)
        assert torch.equal(ours[1], real[1])
    else:
        torch.testing.assert_close(ours, real, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(our_grads, real_grads, rtol=1e-5, atol=1e-6)


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_nms_keeps_the_same_indices(count, threshold, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    found = boxes(count, generator).to(dtype)
    scores = torch.randint(0, 30, (count,), generator=generator).to(dtype)  # ties
    assert torch.equal(torchvision_ops.nms(found, scores, threshold), REAL.nms(found, scores, threshold))


def test_nms_of_touching_and_equal_boxes():
    found = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2], [2, 0, 4, 2], [0, 0, 2, 4], [1, 1, 1, 1]])
    scores = torch.tensor([0.5, 0.9, 0.8, 0.7, 0.1])
    for threshold in (0.0, 0.5, 1.0):
        assert torch.equal(torchvision_ops.nms(found, scores, threshold), REAL.nms(found, scores, threshold))


def test_quantised_nms_takes_integers():
    found = torch.tensor([[0, 0, 20, 20], [1, 1, 21, 21], [40, 0, 60, 20]], dtype=torch.uint8)
    scores = torch.tensor([10, 90, 50], dtype=torch.uint8)
    assert torchvision_ops.qnms(found, scores, 0.5).tolist() == REAL.qnms(found, scores, 0.5).tolist() == [1, 2]


@given(
    st.integers(0, 2**31), st.integers(0, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([-1, 0, 1, 3]),
    st.booleans(), st.sampled_from([0.25, 0.5, 1.0]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_roi_align(seed, count, height, width, ratio, aligned, scale):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 3, 9, 11, dtype=torch.float64, generator=generator)
    compare("roi_align", [image, regions(count, 2, generator)], (scale, height, width, ratio, aligned), [0])


@given(
    st.integers(0, 2**31), st.integers(0, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.25, 0.5, 1.0])
)
@settings(max_examples=25, deadline=None)
def test_roi_pool(seed, count, height, width, scale):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 3, 9, 11, dtype=torch.float64, generator=generator)
    compare("roi_pool", [image, regions(count, 2, generator)], (scale, height, width), [0])


@given(st.integers(0, 2**31), st.integers(0, 6), st.integers(1, 3), st.integers(1, 3), st.sampled_from([-1, 0, 2]))
@settings(max_examples=25, deadline=None)
def test_ps_roi_align(seed, count, height, width, ratio):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 2 * height * width, 9, 11, dtype=torch.float64, generator=generator)
    compare("ps_roi_align", [image, regions(count, 2, generator)], (0.5, height, width, ratio), [0])


@given(st.integers(0, 2**31), st.integers(0, 6), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_ps_roi_pool(seed, count, height, width):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 2 * height * width, 9, 11, dtype=torch.float64, generator=generator)
    compare("ps_roi_pool", [image, regions(count, 2, generator)], (0.5, height, width), [0])


@given(
    seed=st.integers(0, 2**31), kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)), pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)), groups=st.sampled_from([1, 2]),
    offset_groups=st.sampled_from([1, 2, 4]), masked=st.booleans(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_deform_conv2d(seed, kernel, stride, pad, dilation, groups, offset_groups, masked):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip((7, 8), kernel, stride, pad, dilation, strict=True)
    ]
    taps = offset_groups * kernel[0] * kernel[1]
    mask = random(2, taps, *out) if masked else torch.zeros(2, 1, dtype=torch.float64)
    inputs = [random(2, 4, 7, 8), random(6, 4 // groups, *kernel), random(2, 2 * taps, *out), mask, random(6)]
    args = (*stride, *pad, *dilation, groups, offset_groups, masked)
    compare("deform_conv2d", inputs, args, [0, 1, 2, 4] + ([3] if masked else []))


def test_quantised_roi_align_rounds_like_the_compiled_one():
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 255, (1, 3, 9, 11), dtype=torch.uint8, generator=generator)
    rois = torch.tensor([[0, 2, 4, 30, 32], [0, 8, 8, 12, 20]], dtype=torch.uint8)
    args = (0.02, 3, 0.5, 0, 0.5, 2, 2, 2, True)
    ours, real = torchvision_ops.qroi_align(image, rois, *args), REAL.qroi_align(image, rois, *args)
    assert ours.dtype == real.dtype
    assert (ours.int() - real.int()).abs().max() <= 1


def test_box_iou_rotated():
    if not hasattr(REAL, "box_iou_rotated"):
        pytest.skip("this torchvision has no rotated IoU")
    generator = torch.Generator().manual_seed(1)

    def some(count):
        values = torch.rand(count, 5, dtype=torch.float64, generator=generator)
        return values * torch.tensor([10.0, 10, 8, 8, 720]) - torch.tensor([0.0, 0, 0, 0, 360])

    first, second = some(30), some(40)
    first[0], first[1] = second[0], second[1] + torch.tensor([0.0, 0, 0, 0, 90])
    first[2, 2] = 0
    ours, real = rotated.box_iou_rotated(first, second), REAL.box_iou_rotated(first, second)
    assert real.max() > 0.9
    torch.testing.assert_close(ours, real.to(ours.dtype), rtol=1e-5, atol=1e-5)
