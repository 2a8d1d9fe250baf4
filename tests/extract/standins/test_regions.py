"""Boxes and region pooling against torchvision (average) and against loops over the definition (the others)."""

import itertools
import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import regions

ROIS = torch.tensor(
    [
        [0, 1.3, 2.1, 9.7, 8.2],
        [1, -3.0, -2.0, 4.5, 30.0],
        [0, 5.0, 5.0, 5.2, 5.1],
        [1, 40.0, 40.0, 50.0, 50.0],
        [0, -2.9, -2.9, -0.9, -0.9],
        [1, 14.2, 10.6, 18.6, 14.2],
        [0, 0, 0, 0.2, 0.2],
    ],
    dtype=torch.float64,
)
TURNED = torch.tensor(
    [[0, 4.0, 3.5, 6.0, 3.0, 0.7], [1, 5.0, 4.0, 9.0, 4.5, -2.1], [0, 2, 2, 0.4, 0.3, 5.0]], dtype=torch.float64
)


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_roi_align(mode, aligned, ratio):
    x, size, scale = random(2, 3, 7, 9), (2, 3), 0.5
    wanted = torch.zeros(len(ROIS), 3, *size, dtype=torch.float64)
    for k, roi in enumerate(ROIS):
        for (i, j), points in samples(roi, size, scale, ratio, aligned):
            for c in range(3):
                values = [bilinear(x[int(roi[0]), c], *point) for point in points]
                wanted[k, c, i, j] = max(values) if mode == "max" else sum(values) / len(values)
    got = regions.RoIAlignFunction.apply(x, ROIS, size, scale, ratio, mode, aligned)
    torch.testing.assert_close(got, wanted)


def test_roi_align_gradients_equal_the_compiled_ones():
    """One sample a bin: then the maximum is the average, and both are torchvision's."""
    grads = []
    for function, *args in (
        (torchvision.ops.roi_align, (2, 2), 0.5, 1, True),
        (regions.RoIAlignFunction.apply, (2, 2), 0.5, 1, "avg", True),
        (regions.RoIAlignFunction.apply, (2, 2), 0.5, 1, "max", True),
    ):
        x = random(2, 3, 7, 9).requires_grad_()
        function(x, ROIS, *args).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0])


def turned_by_loops(x, rois, size, scale, ratio, aligned, clockwise):
    out = torch.zeros(len(rois), x.shape[1], *size, dtype=x.dtype)
    for k, (index, cx, cy, w, h, angle) in enumerate(rois.tolist()):
        shift = 0.5 if aligned else 0.0
        cx, cy, w, h = cx * scale - shift, cy * scale - shift, w * scale, h * scale
        if not aligned:
            w, h = max(w, 1), max(h, 1)
        rows = ratio or math.ceil(h / size[0])
        columns = ratio or math.ceil(w / size[1])
        theta = -angle if clockwise else angle
        for c, i, j in itertools.product(range(x.shape[1]), range(size[0]), range(size[1])):
            total = 0.0
            for u, v in itertools.product(range(rows), range(columns)):
                yy = -h / 2 + (i + (u + 0.5) / rows) * h / size[0]
                xx = -w / 2 + (j + (v + 0.5) / columns) * w / size[1]
                y = yy * math.cos(theta) - xx * math.sin(theta) + cy
                total += bilinear(x[int(index), c], y, yy * math.sin(theta) + xx * math.cos(theta) + cx)
            out[k, c, i, j] = total / max(rows * columns, 1)
    return out


@pytest.mark.parametrize("clockwise", [False, True])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_rotated_regions(ratio, aligned, clockwise):
    x, size, scale = random(2, 4, 7, 8), (2, 3), 0.8
    wanted = turned_by_loops(x, TURNED, size, scale, ratio, aligned, clockwise)
    got = regions.RoIAlignRotatedFunction.apply(x, TURNED, size, scale, ratio, aligned, clockwise)
    torch.testing.assert_close(got, wanted)


def test_rotated_regions_without_an_angle_are_plain_roi_align():
    x = random(1, 2, 9, 9)
    rois = torch.tensor([[0, 4.0, 5.0, 6.0, 4.0, 0.0]], dtype=torch.float64)
    plain = torch.tensor([[0, 1.0, 3.0, 7.0, 7.0]], dtype=torch.float64)
    got = regions.RoIAlignRotatedFunction.apply(x, rois, (3, 2), 1.0, 2, True, False)
    torch.testing.assert_close(got, torchvision.ops.roi_align(x, plain, (3, 2), 1.0, 2, True))


def test_rotated_regions_in_degrees():
    x, degrees = random(2, 4, 7, 8), TURNED * torch.tensor([1, 1, 1, 1, 1, 180 / math.pi])
    wanted = turned_by_loops(x, TURNED, (2, 3), 0.8, 2, True, False)
    torch.testing.assert_close(regions._ROIAlignRotated.apply(x, degrees, (2, 3), 0.8, 2), wanted)
    torch.testing.assert_close(regions.roi_align_rotated_forward(x, degrees, 0.8, 2, 3, 2), wanted)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("moved", [True, False])
def test_deform_roi_pool(moved, ratio):
    x, size, scale, gamma = random(2, 3, 7, 8), (2, 3), 0.7, 0.3
    rois = torch.cat([ROIS[:1], torch.tensor([[1, 0.4, 1.0, 4.5, 11.0], [1, 3.0, 3.0, 3.6, 3.4]])])
    offset = random(3, 2, *size, seed=1) if moved else None
    wanted = torch.zeros(3, 3, *size, dtype=torch.float64)
    for k, (index, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale - 0.5 for v in corners)
        w, h = x2 - x1, y2 - y1
        rows, columns = ratio or math.ceil(h / size[0]), ratio or math.ceil(w / size[1])
        for i in range(size[0]):
            for j in range(size[1]):
                left = x1 + gamma * w * (float(offset[k, 0, i, j]) if moved else 0)
                top = y1 + gamma * h * (float(offset[k, 1, i, j]) if moved else 0)
                for c in range(3):
                    values = [
                        bilinear(
                            x[int(index), c],
                            top + (i + (u + 0.5) / rows) * h / size[0],
                            left + (j + (v + 0.5) / columns) * w / size[1],
                        )
                        for u in range(rows)
                        for v in range(columns)
                    ]
                    wanted[k, c, i, j] = sum(values) / max(len(values), 1)
    got = regions.DeformRoIPoolFunction.apply(x, rois, offset, size, scale, ratio, gamma)
    torch.testing.assert_close(got, wanted)


def test_precise_pooling():
    """The integral, by a fine midpoint rule over the image continued by zeros."""
    x, scale, fine = random(2, 2, 6, 7).float(), 0.6, 60
    rois = torch.cat([ROIS[:1], torch.tensor([[0, -4.0, 5.0, 3.0, 14.0], [0, 5.0, 5.0, 5.0, 9.0]])]).float()
    got = regions.PrRoIPoolFunction.apply(x, rois, (2, 2), scale)
    padded = torch.nn.functional.pad(x, [4] * 4)
    steps = (torch.arange(fine) + 0.5) / fine
    for k, (index, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale for v in corners)
        for i, j in itertools.product(range(2), range(2)):
            y = y1 + (i + steps) * (y2 - y1) / 2 + 4
            z = x1 + (j + steps) * (x2 - x1) / 2 + 4
            rows = (1 - (y[:, None] - torch.arange(14)).abs()).clamp(min=0)
            columns = (1 - (z[:, None] - torch.arange(15)).abs()).clamp(min=0)
            mean = torch.einsum("yh,chw,xw->c", rows, padded[int(index)], columns) / fine**2
            wanted = mean if x2 > x1 and y2 > y1 else torch.zeros_like(mean)
            torch.testing.assert_close(got[k, :, i, j], wanted, rtol=0, atol=2e-3)
    with pytest.raises(ValueError, match="only takes float"):
        regions.PrRoIPoolFunction.apply(x.double(), rois, (2, 2), scale)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_bezier_align(ratio, aligned):
    x, size, scale = random(2, 2, 7, 8), (2, 3), 0.8
    upper = torch.tensor([[1.0, 1], [3, 0.5], [5, 2], [8, 1.5]])
    lower = torch.tensor([[8.5, 6], [6, 7.5], [3, 6], [0.5, 6.5]])  # from the other end
    beziers = torch.cat([torch.tensor([1.0]), upper.flatten(), lower.flatten()])[None].double()
    got = regions.BezierAlignFunction.apply(x, beziers, size, scale, ratio, aligned)
    top, bottom = (upper * scale).double(), (lower.flip(0) * scale).double()
    width, height = (max(abs(float(p[0, a] - p[3, a])) for p in (top, bottom)) for a in (0, 1))
    if not aligned:
        width, height = max(width, 1), max(height, 1)
    rows, columns = ratio or math.ceil(height / size[0]), ratio or math.ceil(width / size[1])

    def curve(p, u):
        return sum(math.comb(3, k) * u**k * (1 - u) ** (3 - k) * p[k] for k in range(4))

    outside = beziers + torch.cat(
        [torch.zeros(1), torch.tensor([-20.0, 0]).repeat(4), torch.tensor([0.0, 20]).repeat(4)]
    )
    far = regions.BezierAlignFunction.apply(x, outside, size, scale, ratio, aligned)
    assert far[0, :, 0, 0].abs().max() == 0, "the upper curve is left of the image"
    for c, i, j in itertools.product(range(2), range(2), range(3)):
        u, v = j / size[1], i / size[0]
        cx, cy = (curve(bottom, u) * v + curve(top, u) * (1 - v) - (0.5 if aligned else 0)).tolist()
        values = [
            bilinear(
                x[1, c],
                cy + ((a + 0.5) / rows - 0.5) * height / size[0],
                cx + ((b + 0.5) / columns - 0.5) * width / size[1],
            )
            for a in range(rows)
            for b in range(columns)
        ]
        assert float(got[0, c, i, j]) == pytest.approx(sum(values) / len(values), abs=1e-6)


POOLED = {
    "RoIAlignFunction": (ROIS, (2, 3), 0.5, 2, "max", True),
    "RoIAlignRotatedFunction": (TURNED, (2, 3), 0.5),
    "_ROIAlignRotated": (TURNED, (2, 3), 0.5, 2),
    "DeformRoIPoolFunction": (ROIS, None, (2, 3)),
    "PrRoIPoolFunction": (ROIS, (2, 3), 0.5),
    "BezierAlignFunction": (
        torch.tensor([[0, 1, 1, 3, 0.5, 5, 2, 8, 1.5, 8.5, 6, 6, 7.5, 3, 6, 0.5, 6.5]] * 2),
        (2, 3),
    ),
}


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("name", POOLED)
def test_gradients_reach_the_image_and_the_regions_where_they_should(name, count):
    rois, *args = POOLED[name]
    x, rois = random(2, 4, 7, 9).float().requires_grad_(), rois[:count].float().clone().requires_grad_()
    out = getattr(regions, name).apply(x, rois, *args)
    assert out.shape == (count, 4, 2, 3)
    assert out.is_contiguous()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert bool(x.grad.any()) == bool(count)
    assert (rois.grad is not None) == (name == "PrRoIPoolFunction")


# -- boxes -------------------------------------------------------------------------------------------------------------


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
    assert regions.nms(boxes, scores, iou_threshold=threshold, offset=offset).tolist() == kept


def test_nms_of_integer_offset_counts_the_last_pixel():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 1, 1, 2]])  # share no area, but one row of pixels
    scores = torch.tensor([0.9, 0.8])
    assert (
        regions.nms(boxes, scores, iou_threshold=0.3, offset=0).tolist()
        == regions.nms(boxes, scores, 0.3).tolist()
        == [0, 1]
    )
    assert regions.nms(boxes, scores, iou_threshold=0.3, offset=1).tolist() == [0]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("aligned", [False, True])
def test_bbox_overlaps(mode, offset, aligned):
    first, second = some_boxes(6, 1)[0].double(), some_boxes(6, 2)[0].double()
    first[0] = second[0]
    ious = torch.zeros(6 if aligned else (6, 6), dtype=torch.float64)
    regions.bbox_overlaps(first, second, ious, mode=mode, aligned=aligned, offset=offset)
    if offset:
        first, second = (b + torch.tensor([0, 0, 1, 1]) for b in (first, second))
    wanted = torchvision.ops.box_iou(first, second)
    if mode:
        inter = wanted * (torchvision.ops.box_area(first)[:, None] + torchvision.ops.box_area(second)) / (1 + wanted)
        wanted = inter / torchvision.ops.box_area(first)[:, None]
    torch.testing.assert_close(ious, wanted.diagonal() if aligned else wanted)
    assert ious.flatten()[0] == pytest.approx(1)
