"""Non-maximum suppression of axis-aligned boxes: hard, soft, and hard with the list of what each box suppressed."""

import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, offset: int = 0) -> torch.Tensor:
    """Indices of the boxes kept by greedy NMS, best score first; widths and heights are `x2 - x1 + offset`."""
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    kept: torch.Tensor = torchvision.ops.nms(boxes, scores, float(iou_threshold))
    return kept


def _nms_iou_one_to_many(box: torch.Tensor, others: torch.Tensor, offset: int) -> torch.Tensor:
    sides = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2]) + offset).clamp(min=0)
    inter = sides[:, 0] * sides[:, 1]
    areas = (others[:, 2] - others[:, 0] + offset) * (others[:, 3] - others[:, 1] + offset)
    return inter / ((box[2] - box[0] + offset) * (box[3] - box[1] + offset) + areas - inter)


def softnms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    dets: torch.Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> torch.Tensor:
    """Fill `dets` with (box, decayed score) rows in the order of choice; return the indices of these rows.

    `method`: 0 hard, 1 linear, 2 Gaussian decay. Source: Bodla et al., "Soft-NMS", ICCV 2017.
    """
    scores = scores.clone()
    alive = torch.arange(len(boxes), device=boxes.device)
    chosen: list[torch.Tensor] = []
    while alive.numel():
        best = alive[scores[alive].argmax()]
        dets[len(chosen), :4] = boxes[best]
        dets[len(chosen), 4] = scores[best]
        chosen.append(best)
        alive = alive[alive != best]
        iou = _nms_iou_one_to_many(boxes[best], boxes[alive], offset)
        if method == 2:
            scores[alive] *= torch.exp(-iou * iou / sigma)
        else:
            scores[alive] *= torch.where(iou >= iou_threshold, 1 - iou if method == 1 else torch.zeros_like(iou), 1.0)
        alive = alive[scores[alive] >= min_score]
    return torch.stack(chosen) if chosen else alive


def nms_match(dets: torch.Tensor, iou_threshold: float) -> list[list[int]]:
    """For each kept box its index followed by the indices that it suppressed, kept boxes by falling score."""
    alive = dets[:, 4].argsort(descending=True, stable=True)
    groups: list[list[int]] = []
    while alive.numel():
        best, rest = alive[0], alive[1:]
        hit = _nms_iou_one_to_many(dets[best, :4], dets[rest, :4], 0) >= iou_threshold
        groups.append([int(best), *rest[hit].tolist()])
        alive = rest[~hit]
    return groups
