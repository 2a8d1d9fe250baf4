"""Overlaps and non-maximum suppression of boxes, axis-aligned and rotated.

They take the place of the operators themselves, and so have their signatures: what they are given is filled.
"""

import math

import torch
import torchvision


def nms(boxes, scores, iou_threshold, offset=0):
    """Indices of the boxes kept by greedy NMS, best score first; widths and heights are `x2 - x1 + offset`."""
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torchvision.ops.nms(boxes, scores, float(iou_threshold))


def bbox_overlaps(bboxes1, bboxes2, ious, mode, aligned, offset):
    """Fill `ious` (N, M), or (N,) if `aligned`: `mode` 0 IoU, 1 over the first area; sides are `x2 - x1 + offset`."""
    first, second = (bboxes1, bboxes2) if aligned else (bboxes1[:, None], bboxes2[None])
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2]) + offset
    inter = sides.clamp(min=0).prod(-1)
    area1, area2 = ((b[..., 2:] - b[..., :2] + offset).prod(-1) for b in (first, second))
    base = area1 + area2 - inter if mode == 0 else area1 + torch.zeros_like(inter)
    ious.copy_(inter / base.clamp(min=offset))


def _overlaps_of_one(box, others, offset):
    ious = others.new_empty(1, len(others))
    bbox_overlaps(box[None], others, ious, 0, False, offset)
    return ious[0]


def nms_match(dets, iou_threshold):
    """For each kept box its index followed by the indices that it suppressed, kept boxes by falling score."""
    alive = dets[:, 4].argsort(descending=True, stable=True)
    groups = []
    while alive.numel():
        best, rest = alive[0], alive[1:]
        hit = _overlaps_of_one(dets[best, :4], dets[rest, :4], 0) >= iou_threshold
        groups.append([int(best), *rest[hit].tolist()])
        alive = rest[~hit]
    return groups


# -- rotated boxes -----------------------------------------------------------------------------------------------------


def _corners_of(boxes, degrees):
    """Corners (..., 4, 2) of (cx, cy, w, h, angle): degrees turn counter-clockwise on the screen, radians clockwise."""
    angle = boxes[..., 4] * (-math.pi / 180) if degrees else boxes[..., 4]
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    signs = boxes.new_tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    x, y = (signs * boxes[..., None, 2:4]).unbind(-1)
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1) + boxes[..., None, :2]


def _cross(a, b):
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _signed_area(polygons):
    """Signed area of polygons (..., n, 2) by the shoelace formula."""
    return 0.5 * _cross(polygons, polygons.roll(-1, dims=-2)).sum(-1)


def _inside(points, quads):
    """Whether points (..., p, 2) lie in counter-clockwise convex polygons (..., q, 2), border included."""
    edges = quads.roll(-1, dims=-2) - quads
    side = _cross(edges[..., None, :, :], points[..., :, None, :] - quads[..., None, :, :])
    slack = 16 * torch.finfo(quads.dtype).eps * (edges * edges).sum(-1).amax(-1)
    return (side >= -slack[..., None, None]).all(-1)


def _common_area(first, second):
    """Area common to two convex quadrilaterals (..., 4, 2).

    Their corners within each other and their edges' crossings, sorted by angle around the mean; the shoelace formula.
    """
    pairs = (first[..., 0, 0] + second[..., 0, 0]).shape
    first, second = first.expand(*pairs, 4, 2), second.expand(*pairs, 4, 2)
    first = torch.where((_signed_area(first) < 0)[..., None, None], first.flip(-2), first)
    second = torch.where((_signed_area(second) < 0)[..., None, None], second.flip(-2), second)
    d1 = (first.roll(-1, dims=-2) - first)[..., :, None, :]
    d2 = (second.roll(-1, dims=-2) - second)[..., None, :, :]
    gap = second[..., None, :, :] - first[..., :, None, :]
    det = _cross(d1, d2)
    safe = torch.where(det.abs() > 1e-12, det, torch.ones_like(det))
    t, u = _cross(gap, d2) / safe, _cross(gap, d1) / safe
    hit = (det.abs() > 1e-12) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    crossings = (first[..., :, None, :] + t[..., None] * d1).flatten(-3, -2)
    points = torch.cat([first, second, crossings], dim=-2)
    valid = torch.cat([_inside(first, second), _inside(second, first), hit.flatten(-2)], dim=-1)
    count = valid.sum(-1)
    mean = (points * valid[..., None]).sum(-2) / count.clamp(min=1)[..., None]
    local = (points - mean[..., None, :]) * valid[..., None]
    angle = torch.atan2(local[..., 1], local[..., 0]).masked_fill(~valid, math.inf)
    ring = local.gather(-2, angle.argsort(dim=-1)[..., None].expand_as(local))
    last = torch.arange(ring.shape[-2], device=ring.device) >= count[..., None]
    ring = torch.where(last[..., None], ring[..., :1, :], ring)
    return _signed_area(ring).abs() * (count > 2)


def _quad_overlaps(first, second, mode_flag=0):
    shift = 0.5 * (first.mean(-2, keepdim=True) + second.mean(-2, keepdim=True))
    inter = _common_area(first - shift, second - shift)
    area1, area2 = _signed_area(first - shift).abs(), _signed_area(second - shift).abs()
    base = area1 + area2 - inter if mode_flag == 0 else area1
    return torch.where((area1 < 1e-14) | (area2 < 1e-14), torch.zeros_like(inter), inter / base.clamp(min=1e-14))


def _fill_overlaps(first, second, ious, mode_flag, aligned):
    result = _quad_overlaps(first if aligned else first[:, None], second, mode_flag)
    return result if ious is None else ious.copy_(result.reshape(ious.shape))


def _greedy(corners, alive, suppressed):
    """Rows in the order of `alive`, without those that `suppressed` tells by their overlap with an earlier one."""
    kept = []
    while alive.numel():
        best, alive = alive[0], alive[1:]
        kept.append(best)
        alive = alive[~suppressed(_quad_overlaps(corners[best], corners[alive]))]
    return torch.stack(kept) if kept else alive


def box_iou_rotated(boxes1, boxes2, ious=None, mode_flag=0, aligned=False):
    """Overlaps of rotated boxes.

    With `ious`: angles in radians, clockwise, `ious` is filled (`mode_flag` 0 IoU, 1 over the first area). Without:
    angles in degrees, counter-clockwise, the (N, M) matrix is returned.
    """
    first, second = (_corners_of(boxes, ious is None) for boxes in (boxes1, boxes2))
    return _fill_overlaps(first, second, ious, mode_flag, aligned)


def nms_rotated(dets, scores, order, dets_sorted=None, labels=None, iou_threshold=0.5, multi_label=False):
    """Indices kept by greedy NMS of rotated boxes. A sixth column (labels) takes no part.

    Called `(boxes, scores, iou_threshold)`: angles in degrees; called with `order` and `dets_sorted`: radians.
    """
    degrees = not isinstance(order, torch.Tensor)
    threshold = order if degrees else iou_threshold
    by_score = scores.argsort(descending=True, stable=True)
    return _greedy(_corners_of(dets[:, :5], degrees), by_score, lambda iou: iou >= threshold)
