"""Overlaps and NMS against torchvision's compiled operators and plain loops over the definition."""

import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.boxes import bbox_overlaps, box_iou_rotated, nms, nms_match, nms_rotated


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
    assert nms(boxes, scores, iou_threshold=threshold, offset=offset).tolist() == kept


def test_nms_of_integer_offset_counts_the_last_pixel():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 1, 1, 2]])  # share no area, but one row of pixels
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, iou_threshold=0.3, offset=0).tolist() == nms(boxes, scores, 0.3).tolist() == [0, 1]
    assert nms(boxes, scores, iou_threshold=0.3, offset=1).tolist() == [0]


def test_match_of_nothing():
    assert nms_match(torch.zeros(0, 5), iou_threshold=0.5) == []


def test_nms_match_gives_each_box_to_the_first_that_suppresses_it():
    boxes, scores = some_boxes(30, seed=5)
    groups, used = [], set()
    order = scores.argsort(descending=True).tolist()
    for position, i in enumerate(order):
        if i not in used:
            rest = [j for j in order[position + 1 :] if j not in used]
            hit = [j for j in rest if iou_of(boxes[i].tolist(), boxes[j].tolist(), 0) >= 0.2]
            used.update(hit)
            groups.append([i, *hit])
    assert nms_match(torch.cat([boxes, scores[:, None]], 1), iou_threshold=0.2) == groups
    assert max(map(len, groups)) > 2


def corners_of(box, clockwise_radians):
    cx, cy, w, h, angle = box
    cos, sin = math.cos(clockwise_radians(angle)), math.sin(clockwise_radians(angle))
    around = [(-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2)]
    return [(cx + x * cos - y * sin, cy + x * sin + y * cos) for x, y in around]


def clip(subject, clipper):
    """Sutherland-Hodgman: what of `subject` is inside the convex, positively oriented `clipper`."""
    for (x1, y1), (x2, y2) in zip(clipper, clipper[1:] + clipper[:1], strict=True):

        def side(p, x1=x1, y1=y1, x2=x2, y2=y2):
            return (x2 - x1) * (p[1] - y1) - (y2 - y1) * (p[0] - x1)

        out = []
        for p, q in zip(subject, subject[1:] + subject[:1], strict=True):
            if side(p) >= 0:
                out.append(p)
            if side(p) * side(q) < 0:
                t = side(p) / (side(p) - side(q))
                out.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
        subject = out
    return subject


def area_of(points):
    return sum(p[0] * q[1] - p[1] * q[0] for p, q in zip(points, points[1:] + points[:1], strict=True)) / 2


def polygon_iou(first, second, mode=0):
    inter = area_of(clip(first, second))
    return inter / (area_of(first) if mode else area_of(first) + area_of(second) - inter)


def some_rotated(count, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, 5, dtype=torch.float64, generator=generator)
    return values * torch.tensor([10.0, 10, 8, 8, 12.6]) + torch.tensor([0, 0, 0.5, 0.5, -6.3])


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("aligned", [False, True])
def test_box_iou_rotated_fills_its_third_argument(mode, aligned):
    first, second = some_rotated(12, 1), some_rotated(12, 2)
    second[0] = first[0]
    pairs = [(i, j) for i in range(12) for j in range(12) if i == j or not aligned]
    wanted = [
        polygon_iou(*(corners_of(b[i].tolist(), lambda a: a) for b, i in ((first, i), (second, j))), mode)
        for i, j in pairs
    ]
    ious = first.new_zeros(len(pairs))  # the original is given a flat tensor
    box_iou_rotated(first, second, ious, mode_flag=mode, aligned=aligned)
    torch.testing.assert_close(ious, torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-8)
    assert ious[0] == pytest.approx(1)


def test_box_iou_rotated_without_a_third_argument_takes_degrees_the_other_way():
    first, second = some_rotated(6, 3), some_rotated(5, 4)
    degrees = torch.tensor([1, 1, 1, 1, -180 / math.pi])
    ious = first.new_zeros(30)
    box_iou_rotated(first, second, ious, mode_flag=0, aligned=False)
    torch.testing.assert_close(box_iou_rotated(first * degrees, second * degrees), ious.view(6, 5))
    assert not torch.allclose(box_iou_rotated(first * degrees.abs(), second * degrees.abs()), ious.view(6, 5))


def greedy(quads, scores, threshold):
    kept = []
    for i in scores.argsort(descending=True).tolist():
        if all(polygon_iou(quads[i], quads[j]) < threshold for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("labelled", [False, True])
def test_nms_of_rotated_boxes(labelled):
    boxes = some_rotated(25, 8)
    scores = torch.rand(25, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = greedy([corners_of(box, lambda a: a) for box in boxes.tolist()], scores, 0.2)
    assert 1 < len(wanted) < 25
    labels = torch.zeros(25, 1) if labelled else torch.zeros(25, 0)
    dets, order = torch.cat([boxes, labels], 1), scores.argsort(descending=True)
    assert nms_rotated(dets, scores, order, dets[order], labels, 0.2, labelled).tolist() == wanted
    degrees = boxes * torch.tensor([1, 1, 1, 1, -180 / math.pi])
    assert nms_rotated(degrees, scores, 0.2).tolist() == wanted


def test_rotated_overlaps_equal_the_compiled_ones():
    compiled = getattr(torch.ops.torchvision, "box_iou_rotated", None)
    if compiled is None:
        pytest.skip("this torchvision has no rotated IoU")
    degrees = torch.tensor([1, 1, 1, 1, -180 / math.pi])
    first, second = some_rotated(30, 5) * degrees, some_rotated(40, 6) * degrees
    first[0], first[1] = second[0], second[1] + torch.tensor([0.0, 0, 0, 0, 90])
    first[2, 2] = 0
    wanted = compiled(first, second)
    assert wanted.max() > 0.9
    torch.testing.assert_close(box_iou_rotated(first, second), wanted.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("aligned", [False, True])
def test_bbox_overlaps(mode, offset, aligned):
    first, second = some_boxes(6, 1)[0].double(), some_boxes(6, 2)[0].double()
    first[0] = second[0]
    ious = torch.zeros(6 if aligned else (6, 6), dtype=torch.float64)
    bbox_overlaps(first, second, ious, mode=mode, aligned=aligned, offset=offset)
    if offset:
        first, second = (b + torch.tensor([0, 0, 1, 1]) for b in (first, second))
    wanted = torchvision.ops.box_iou(first, second)
    if mode:
        inter = wanted * (torchvision.ops.box_area(first)[:, None] + torchvision.ops.box_area(second)) / (1 + wanted)
        wanted = inter / torchvision.ops.box_area(first)[:, None]
    torch.testing.assert_close(ious, wanted.diagonal() if aligned else wanted)
    assert ious.flatten()[0] == pytest.approx(1)
