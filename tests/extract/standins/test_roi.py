"""Region pooling against torchvision (average) and against loops (maximum, real-valued bins)."""

import math

import pytest
import torch
import torchvision

from extract.standins.native.roi_align import roi_align_backward, roi_align_forward
from extract.standins.native.roi_pool import roi_pool_backward, roi_pool_forward

ROIS = torch.tensor(
    [[0, 1.3, 2.1, 9.7, 8.2], [1, -3.0, -2.0, 4.5, 30.0], [0, 5.0, 5.0, 5.2, 5.1], [1, 40.0, 40.0, 50.0, 50.0]],
    dtype=torch.float64,
)


EDGES = torch.tensor(
    [[0, -2.9, -2.9, -0.9, -0.9], [1, 14.2, 10.6, 18.6, 14.2], [0, 0, 0, 0.2, 0.2]], dtype=torch.float64
)
ROIS = torch.cat([ROIS, EDGES])


def image(*shape):
    return torch.randn(*(shape or (2, 3, 7, 9)), dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gradcheck(function):
    return torch.autograd.gradcheck(function, image(2, 2, 4, 5).requires_grad_(), fast_mode=True)


class RoIAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rois, size, scale, ratio, mode, aligned):
        shape = (len(rois), x.size(1), *size)
        output = x.new_zeros(shape)
        places = [x.new_zeros(shape if mode == 0 else 0) for _ in range(2)]
        ctx.kwargs = {
            "aligned_height": size[0], "aligned_width": size[1], "spatial_scale": scale, "sampling_ratio": ratio,
            "pool_mode": mode, "aligned": aligned,
        }  # fmt: skip
        roi_align_forward(x, rois, output, *places, **ctx.kwargs)
        ctx.save_for_backward(rois, *places)
        ctx.shape = x.shape
        return output

    @staticmethod
    def backward(ctx, grad):
        grad_input = grad.new_zeros(ctx.shape)
        roi_align_backward(grad.contiguous(), *ctx.saved_tensors, grad_input, **ctx.kwargs)
        return grad_input, None, None, None, None, None, None


def bilinear(plane, y, x):
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    y0, x0 = int(y), int(x)
    return sum(
        float(plane[min(y0 + i, height - 1), min(x0 + j, width - 1)]) * abs(1 - i - (y - y0)) * abs(1 - j - (x - x0))
        for i in (0, 1)
        for j in (0, 1)
    )


def samples(roi, size, scale, ratio, aligned):
    """All sampling points of each bin, by the definition."""
    shift = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (float(v) * scale - shift for v in roi[1:])
    height, width = y2 - y1, x2 - x1
    if not aligned:
        height, width = max(height, 1), max(width, 1)
    rows = ratio if ratio > 0 else math.ceil(height / size[0])
    columns = ratio if ratio > 0 else math.ceil(width / size[1])
    for i in range(size[0]):
        for j in range(size[1]):
            yield (
                (i, j),
                [
                    (y1 + (i + (u + 0.5) / rows) * height / size[0], x1 + (j + (v + 0.5) / columns) * width / size[1])
                    for u in range(rows)
                    for v in range(columns)
                ],
            )


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mode", [0, 1])
def test_roi_align(mode, aligned, ratio):
    x, size, scale = image(), (2, 3), 0.5
    wanted = torch.zeros(len(ROIS), 3, *size, dtype=torch.float64)
    for k, roi in enumerate(ROIS):
        for (i, j), points in samples(roi, size, scale, ratio, aligned):
            for c in range(3):
                values = [bilinear(x[int(roi[0]), c], *point) for point in points]
                wanted[k, c, i, j] = max(values) if mode == 0 else sum(values) / len(values)
    got = RoIAlign.apply(x, ROIS, size, scale, ratio, mode, aligned)
    torch.testing.assert_close(got, wanted)
    assert gradcheck(lambda t: RoIAlign.apply(t, ROIS, size, scale, ratio, mode, aligned))


def test_roi_align_gradients_equal_torchvision_and_add_to_what_is_there():
    x = image().requires_grad_()
    torchvision.ops.roi_align(x, ROIS, (2, 2), 0.5, 2, True).sum().backward()
    grad = torch.ones_like(x)
    none = x.new_zeros(0)
    ones = torch.ones(len(ROIS), 3, 2, 2, dtype=torch.float64)
    roi_align_backward(ones, ROIS, none, none, grad, 2, 2, 0.5, 2, 1, True)
    torch.testing.assert_close(grad, x.grad + 1)


@pytest.mark.parametrize("mode", [0, 1])
def test_no_regions(mode):
    x = image().requires_grad_()
    out = RoIAlign.apply(x, ROIS[:0], (2, 2), 1.0, 0, mode, True)
    assert out.shape == (0, 3, 2, 2)
    out.sum().backward()
    assert x.grad.abs().max() == 0


class RoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rois, size, scale):
        output = x.new_zeros(len(rois), x.size(1), *size)
        argmax = x.new_zeros(output.shape, dtype=torch.int)
        ctx.kwargs = {"pooled_height": size[0], "pooled_width": size[1], "spatial_scale": scale}
        roi_pool_forward(x, rois, output, argmax, **ctx.kwargs)
        ctx.save_for_backward(rois, argmax)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(argmax)
        return output, argmax

    @staticmethod
    def backward(ctx, grad, _):
        grad_input = grad.new_zeros(ctx.shape)
        roi_pool_backward(grad, *ctx.saved_tensors, grad_input, **ctx.kwargs)
        return grad_input, None, None, None


@pytest.mark.parametrize("scale", [0.5, 0.7, 1.0])
def test_roi_pool(scale):
    x, size = image(), (2, 3)
    wanted = torch.zeros(len(ROIS), 3, *size, dtype=torch.float64)
    places = torch.full(wanted.shape, -1, dtype=torch.int)
    for k, (index, x1, y1, x2, y2) in enumerate(ROIS.tolist()):
        left, top = x1 * scale, y1 * scale
        step_x, step_y = ((x2 + 1) * scale - left) / size[1], ((y2 + 1) * scale - top) / size[0]
        for i in range(size[0]):
            rows = [r for r in range(7) if math.floor(top + i * step_y) <= r < math.ceil(top + (i + 1) * step_y)]
            for j in range(size[1]):
                columns = [
                    q for q in range(9) if math.floor(left + j * step_x) <= q < math.ceil(left + (j + 1) * step_x)
                ]
                for c in range(3):
                    inside = [(float(x[int(index), c, r, q]), r * 9 + q) for r in rows for q in columns]
                    if inside:
                        wanted[k, c, i, j], places[k, c, i, j] = max(inside)
    got, argmax = RoIPool.apply(x, ROIS, size, scale)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(argmax, places)
    assert (places == -1).any()
    assert gradcheck(lambda t: RoIPool.apply(t, ROIS, size, scale)[0])


def test_roi_pool_leaves_malformed_regions_alone():
    output, argmax = torch.full((1, 3, 2, 2), 7.0), torch.full((1, 3, 2, 2), 7, dtype=torch.int)
    roi_pool_forward(image().float(), torch.tensor([[0.0, 5, 5, 3, 8]]), output, argmax, 2, 2, 1.0)
    assert output.unique().tolist() == argmax.unique().tolist() == [7]
