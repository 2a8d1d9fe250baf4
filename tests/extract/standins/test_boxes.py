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


COMPILED = getattr(torch.ops.torchvision, "box_iou_rotated", None)
DEGREES = torch.tensor([1, 1, 1, 1, -180 / math.pi])  # of radians that turn the other way
with_compiled = pytest.mark.skipif(COMPILED is None, reason="this torchvision has no rotated IoU")


def some_rotated(count, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, 5, dtype=torch.float64, generator=generator)
    return values * torch.tensor([10.0, 10, 8, 8, 12.6]) + torch.tensor([0, 0, 0.5, 0.5, -6.3])


@with_compiled
def test_rotated_overlaps_equal_the_compiled_ones():
    first, second = some_rotated(30, 5) * DEGREES, some_rotated(40, 6) * DEGREES
    first[0], first[1] = second[0], second[1] + torch.tensor([0.0, 0, 0, 0, 90])
    first[2, 2] = 0
    wanted = COMPILED(first, second)
    assert wanted.max() > 0.9
    torch.testing.assert_close(box_iou_rotated(first, second), wanted.double(), rtol=1e-5, atol=1e-5)


@with_compiled
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("aligned", [False, True])
def test_box_iou_rotated_fills_its_third_argument(mode, aligned):
    first, second = some_rotated(12, 1), some_rotated(12, 2)
    second[0] = first[0]
    wanted = COMPILED(first * DEGREES, second * DEGREES).double()
    if mode:
        own, other = (boxes[:, 2] * boxes[:, 3] for boxes in (first, second))
        wanted = wanted * (own[:, None] + other) / (1 + wanted) / own[:, None]
    wanted = wanted.diagonal() if aligned else wanted.flatten()
    ious = first.new_zeros(len(wanted))  # the original is given a flat tensor
    box_iou_rotated(first, second, ious, mode_flag=mode, aligned=aligned)
    torch.testing.assert_close(ious, wanted, rtol=1e-5, atol=1e-5)


@with_compiled
@pytest.mark.parametrize("labelled", [False, True])
def test_nms_of_rotated_boxes(labelled):
    boxes = some_rotated(25, 8)
    scores = torch.rand(25, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order, overlaps = scores.argsort(descending=True), COMPILED(boxes * DEGREES, boxes * DEGREES)
    wanted = []
    for i in order.tolist():
        if all(overlaps[i, j] < 0.2 for j in wanted):
            wanted.append(i)
    assert 1 < len(wanted) < 25
    labels = torch.zeros(25, 1) if labelled else torch.zeros(25, 0)
    dets = torch.cat([boxes, labels], 1)
    assert nms_rotated(dets, scores, order, dets[order], labels, 0.2, labelled).tolist() == wanted
    assert nms_rotated(boxes * DEGREES, scores, 0.2).tolist() == wanted


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
