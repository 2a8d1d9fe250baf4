"""Suppression of boxes and region pooling against torchvision, and against loops over the definition."""

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


@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align_is_that_of_torchvision(aligned):
    """Sampling every pixel, where the ratio is 0; by maximum there is none."""
    x = random(2, 3, 7, 9)
    got = regions.RoIAlignFunction.apply(x, ROIS, (2, 3), 0.5, 0, "avg", aligned)
    assert torch.equal(got, torchvision.ops.roi_align(x, ROIS, (2, 3), 0.5, -1, aligned))
    with pytest.raises(NotImplementedError, match="'max' is not part"):
        regions.RoIAlignFunction.apply(x, ROIS, (2, 3), 0.5, 0, "max", aligned)


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


POOLED = {
    "RoIAlignFunction": (ROIS, (2, 3), 0.5, 2, "avg", True),
    "RoIAlignRotatedFunction": (TURNED, (2, 3), 0.5),
    "_ROIAlignRotated": (TURNED, (2, 3), 0.5, 2),
    "DeformRoIPoolFunction": (ROIS, None, (2, 3)),
}


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("name", POOLED)
def test_gradients_reach_the_image_alone(name, count):
    rois, *args = POOLED[name]
    x, rois = random(2, 4, 7, 9).float().requires_grad_(), rois[:count].float().clone().requires_grad_()
    out = getattr(regions, name).apply(x, rois, *args)
    assert out.shape == (count, 4, 2, 3)
    assert out.is_contiguous()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert bool(x.grad.any()) == bool(count)
    assert rois.grad is None


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
