"""IoU and NMS of rotated boxes (centre, size, angle) and of convex quadrilaterals (four corners)."""

import math

import torch


def _rotated_corners(boxes: torch.Tensor, degrees: bool) -> torch.Tensor:
    """Corners (..., 4, 2) of (cx, cy, w, h, angle): degrees turn counter-clockwise on the screen, radians clockwise."""
    angle = boxes[..., 4] * (-math.pi / 180) if degrees else boxes[..., 4]
    cos, sin = angle.cos(), angle.sin()
    signs = boxes.new_tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    x, y = (signs * boxes[..., None, 2:4]).unbind(-1)
    turned = torch.stack(
        [x * cos[..., None] - y * sin[..., None], x * sin[..., None] + y * cos[..., None]],
        dim=-1,
    )
    return turned + boxes[..., None, :2]


def _rotated_cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _rotated_area(quads: torch.Tensor) -> torch.Tensor:
    """Signed area of polygons (..., n, 2) by the shoelace formula."""
    return 0.5 * _rotated_cross(quads, quads.roll(-1, dims=-2)).sum(-1)


def _rotated_inside(points: torch.Tensor, quads: torch.Tensor) -> torch.Tensor:
    """Whether points (..., p, 2) lie in counter-clockwise convex polygons (..., q, 2), border included."""
    edges = quads.roll(-1, dims=-2) - quads
    side = _rotated_cross(edges[..., None, :, :], points[..., :, None, :] - quads[..., None, :, :])
    slack = 16 * torch.finfo(quads.dtype).eps * (edges * edges).sum(-1).amax(-1)
    return (side >= -slack[..., None, None]).all(-1)


def _rotated_intersection(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Area common to two convex quadrilaterals (..., 4, 2): their corners within each other and edge crossings, sorted
    by angle around the mean, then the shoelace formula.
    """
    pairs = (first[..., 0, 0] + second[..., 0, 0]).shape
    first, second = first.expand(*pairs, 4, 2), second.expand(*pairs, 4, 2)
    first = torch.where((_rotated_area(first) < 0)[..., None, None], first.flip(-2), first)
    second = torch.where((_rotated_area(second) < 0)[..., None, None], second.flip(-2), second)
    d1 = (first.roll(-1, dims=-2) - first)[..., :, None, :]
    d2 = (second.roll(-1, dims=-2) - second)[..., None, :, :]
    gap = second[..., None, :, :] - first[..., :, None, :]
    det = _rotated_cross(d1, d2)
    safe = torch.where(det.abs() > 1e-12, det, torch.ones_like(det))
    t, u = _rotated_cross(gap, d2) / safe, _rotated_cross(gap, d1) / safe
    hit = (det.abs() > 1e-12) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    crossings = (first[..., :, None, :] + t[..., None] * d1).flatten(-3, -2)
    points = torch.cat([first, second, crossings], dim=-2)
    valid = torch.cat([_rotated_inside(first, second), _rotated_inside(second, first), hit.flatten(-2)], dim=-1)
    count = valid.sum(-1)
    mean = (points * valid[..., None]).sum(-2) / count.clamp(min=1)[..., None]
    local = (points - mean[..., None, :]) * valid[..., None]
    angle = torch.atan2(local[..., 1], local[..., 0]).masked_fill(~valid, math.inf)
    order = angle.argsort(dim=-1)
    ring = local.gather(-2, order[..., None].expand_as(local))
    last = torch.arange(ring.shape[-2], device=ring.device) >= count[..., None]
    ring = torch.where(last[..., None], ring[..., :1, :], ring)
    return torch.where(count > 2, _rotated_area(ring).abs(), torch.zeros_like(_rotated_area(ring)))


def _rotated_iou(first: torch.Tensor, second: torch.Tensor, mode_flag: int) -> torch.Tensor:
    shift = 0.5 * (first.mean(-2, keepdim=True) + second.mean(-2, keepdim=True))
    inter = _rotated_intersection(first - shift, second - shift)
    area1 = _rotated_area(first - shift).abs()
    area2 = _rotated_area(second - shift).abs()
    base = area1 + area2 - inter if mode_flag == 0 else area1
    return torch.where((area1 < 1e-14) | (area2 < 1e-14), torch.zeros_like(inter), inter / base.clamp(min=1e-14))


def _rotated_pairs(
    first: torch.Tensor, second: torch.Tensor, ious: torch.Tensor | None, mode_flag: int, aligned: bool
) -> torch.Tensor:
    result = _rotated_iou(first, second, mode_flag) if aligned else _rotated_iou(first[:, None], second, mode_flag)
    if ious is None:
        return result
    ious.copy_(result.reshape(ious.shape))
    return ious


def _rotated_greedy(corners: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    alive = scores.argsort(descending=True, stable=True)
    kept: list[torch.Tensor] = []
    while alive.numel():
        best, alive = alive[0], alive[1:]
        kept.append(best)
        alive = alive[_rotated_iou(corners[best], corners[alive], 0) < iou_threshold]
    return torch.stack(kept) if kept else alive


def box_iou_rotated(
    boxes1: torch.Tensor,
    boxes2: torch.Tensor,
    ious: torch.Tensor | None = None,
    mode_flag: int = 0,
    aligned: bool = False,
) -> torch.Tensor:
    """Overlaps of rotated boxes. With `ious`: angles in radians, clockwise, `ious` is filled (`mode_flag` 0 IoU, 1 over
    the first area). Without: angles in degrees, counter-clockwise, the (N, M) matrix is returned.
    """
    degrees = ious is None
    return _rotated_pairs(
        _rotated_corners(boxes1, degrees), _rotated_corners(boxes2, degrees), ious, mode_flag, aligned
    )


def nms_rotated(
    dets: torch.Tensor,
    scores: torch.Tensor,
    order: torch.Tensor | float,
    dets_sorted: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    iou_threshold: float = 0.5,
    multi_label: bool = False,
) -> torch.Tensor:
    """Indices kept by greedy NMS of rotated boxes. Called `(boxes, scores, iou_threshold)`: angles in degrees; called
    with `order` and `dets_sorted`: radians. A sixth column (labels) takes no part.
    """
    degrees = not isinstance(order, torch.Tensor)
    threshold = float(order) if degrees else iou_threshold
    return _rotated_greedy(_rotated_corners(dets[:, :5], degrees), scores, threshold)


def box_iou_quadri(
    boxes1: torch.Tensor, boxes2: torch.Tensor, ious: torch.Tensor, mode_flag: int = 0, aligned: bool = False
) -> torch.Tensor:
    """Fill `ious` with overlaps of convex quadrilaterals (x1, y1, ..., x4, y4)."""
    return _rotated_pairs(boxes1.reshape(-1, 4, 2), boxes2.reshape(-1, 4, 2), ious, mode_flag, aligned)


def nms_quadri(
    dets: torch.Tensor,
    scores: torch.Tensor,
    order: torch.Tensor,
    dets_sorted: torch.Tensor,
    iou_threshold: float,
    multi_label: bool,
) -> torch.Tensor:
    """Indices kept by greedy NMS of convex quadrilaterals. A ninth column (labels) takes no part."""
    return _rotated_greedy(dets[:, :8].reshape(-1, 4, 2), scores, iou_threshold)


def _rotated_from_above(boxes: torch.Tensor) -> torch.Tensor:
    """Corners (..., 4, 2) of 3-D boxes (x, y, z, three sizes, heading) seen from above."""
    return _rotated_corners(boxes[..., [0, 1, 3, 4, 6]], degrees=False)


def iou3d_boxes_overlap_bev_forward(boxes_a: torch.Tensor, boxes_b: torch.Tensor, ans_iou: torch.Tensor) -> None:
    """Fill `ans_iou` (N, M) with the common areas, seen from above, of 3-D boxes."""
    ans_iou.copy_(_rotated_intersection(_rotated_from_above(boxes_a)[:, None], _rotated_from_above(boxes_b)[None]))


def _rotated_fill_kept(kept: list[int], keep: torch.Tensor, num_out: torch.Tensor) -> None:
    keep[: len(kept)] = torch.tensor(kept, dtype=keep.dtype, device=keep.device)
    num_out.fill_(len(kept))


def iou3d_nms3d_forward(
    boxes: torch.Tensor, keep: torch.Tensor, num_out: torch.Tensor, nms_overlap_thresh: float
) -> None:
    """Fill `keep` and `num_out` with the rows kept of 3-D boxes sorted by score; overlap from above, with heading."""
    corners = _rotated_from_above(boxes)
    alive, kept = torch.arange(len(boxes), device=boxes.device), []
    while alive.numel():
        best, alive = alive[0], alive[1:]
        kept.append(int(best))
        alive = alive[_rotated_iou(corners[best], corners[alive], 0) <= nms_overlap_thresh]
    _rotated_fill_kept(kept, keep, num_out)


def iou3d_nms3d_normal_forward(
    boxes: torch.Tensor, keep: torch.Tensor, num_out: torch.Tensor, nms_overlap_thresh: float
) -> None:
    """The same as `iou3d_nms3d_forward` without the heading."""
    iou3d_nms3d_forward(boxes * boxes.new_tensor([1, 1, 1, 1, 1, 1, 0]), keep, num_out, nms_overlap_thresh)
