"""Which points lie in which rotated 3-D boxes (x, y, z of the bottom, three sizes, yaw), and pooling by it.

Source: Shi et al., "Part-A2 Net" (roi-aware pooling, TPAMI 2020) and "PointRCNN" (point pooling, CVPR 2019).
"""

import torch


def _boxed_local(points: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n, 3) in the frames of boxes (k, 7): (k, n, 3) from the bottom centre, and whether they are inside."""
    shift = points[None] - boxes[:, None, :3]
    cos, sin = boxes[:, None, 6].cos(), boxes[:, None, 6].sin()
    x, y = shift[..., 0] * cos + shift[..., 1] * sin, shift[..., 1] * cos - shift[..., 0] * sin
    half = boxes[:, None, 3:6] / 2
    inside = (
        (x.abs() < half[..., 0]) & (y.abs() < half[..., 1]) & ((shift[..., 2] - half[..., 2]).abs() <= half[..., 2])
    )
    return torch.stack([x, y, shift[..., 2]], -1), inside


def points_in_boxes_part_forward(
    boxes_tensor: torch.Tensor, pts_tensor: torch.Tensor, box_idx_of_points_tensor: torch.Tensor
) -> None:
    """Fill (B, points) with the first box around each point; left alone where there is none."""
    for boxes, points, index in zip(boxes_tensor, pts_tensor, box_idx_of_points_tensor, strict=True):
        inside = _boxed_local(points, boxes)[1]
        if len(boxes):
            index.copy_(torch.where(inside.any(0), inside.int().argmax(0).to(index.dtype), index))


def points_in_boxes_all_forward(
    boxes_tensor: torch.Tensor, pts_tensor: torch.Tensor, box_idx_of_points_tensor: torch.Tensor
) -> None:
    """Set (B, points, boxes) to 1 where the point is in the box."""
    for boxes, points, index in zip(boxes_tensor, pts_tensor, box_idx_of_points_tensor, strict=True):
        index.masked_fill_(_boxed_local(points, boxes)[1].T, 1)


def points_in_boxes_cpu_forward(
    boxes_tensor: torch.Tensor, pts_tensor: torch.Tensor, pts_indices_tensor: torch.Tensor
) -> None:
    """Fill (boxes, points) with 1 where the point is in the box, else 0."""
    pts_indices_tensor.copy_(_boxed_local(pts_tensor, boxes_tensor)[1])


def points_in_polygons_forward(points: torch.Tensor, polygons: torch.Tensor, output: torch.Tensor) -> None:
    """Fill `output` (points, polygons) with 1 where a ray from the point crosses the outline an odd number of times."""
    corner = polygons.view(1, -1, 4, 2)
    following = corner.roll(1, 2)
    x, y = points[:, None, None, 0], points[:, None, None, 1]
    rises = (corner[..., 1] < y) != (following[..., 1] < y)
    height = torch.where(rises, following[..., 1] - corner[..., 1], torch.ones_like(y))
    meets = corner[..., 0] + (y - corner[..., 1]) * (following[..., 0] - corner[..., 0]) / height
    output.copy_((rises & (meets > x)).sum(-1) % 2)


def roiaware_pool3d_forward(
    rois: torch.Tensor,
    pts: torch.Tensor,
    pts_feature: torch.Tensor,
    argmax: torch.Tensor,
    pts_idx_of_voxels: torch.Tensor,
    pooled_features: torch.Tensor,
    pool_method: int,
) -> None:
    """Fill `pooled_features` (boxes, X, Y, Z, C), `pool_method` 0 maximum (and `argmax`), 1 average; and the point
    numbers of every cell, the first entry being their count.
    """
    grid, most = pts_idx_of_voxels.shape[1:4], pts_idx_of_voxels.shape[4] - 1
    local, inside = _boxed_local(pts, rois)
    sizes = torch.tensor(grid, device=pts.device)
    corner = local + torch.nn.functional.pad(rois[:, None, 3:5] / 2, (0, 1))
    cells = (corner / (rois[:, None, 3:6] / sizes)).long().clamp(min=0).minimum(sizes - 1)
    if pool_method == 0:
        argmax.fill_(-1)
    for k in range(len(rois)):
        members = inside[k].nonzero().squeeze(1)
        filled = cells[k, members].unique(dim=0)  # type: ignore[no-untyped-call, unused-ignore]
        for cell in filled.tolist():
            own = members[(cells[k, members] == torch.tensor(cell, device=pts.device)).all(1)][:most]
            place = (k, *cell)
            pts_idx_of_voxels[place][0] = len(own)
            pts_idx_of_voxels[place][1 : len(own) + 1] = own.to(pts_idx_of_voxels.dtype)
            if pool_method == 0:
                value, best = pts_feature[own].max(0)
                pooled_features[place] = value
                argmax[place] = own[best].to(argmax.dtype)
            else:
                pooled_features[place] = pts_feature[own].mean(0)


def roiaware_pool3d_backward(
    pts_idx_of_voxels: torch.Tensor,
    argmax: torch.Tensor,
    grad_out: torch.Tensor,
    grad_in: torch.Tensor,
    pool_method: int,
) -> None:
    """Add to `grad_in` (points, C)."""
    channels = grad_in.shape[1]
    grad = grad_out.reshape(-1, channels)
    if pool_method == 0:
        chosen = argmax.reshape(-1, channels).long()
        grad_in.scatter_add_(0, chosen.clamp(min=0), grad * (chosen >= 0))
        return
    index = pts_idx_of_voxels.reshape(len(grad), -1).long()
    count = index[:, :1]
    used = torch.arange(index.shape[1] - 1, device=index.device) < count
    share = (used / count.clamp(min=1)).to(grad.dtype)[..., None] * grad[:, None]
    grad_in.index_add_(0, (index[:, 1:] * used).flatten(), share.flatten(0, 1))


def roipoint_pool3d_forward(
    xyz: torch.Tensor,
    boxes3d: torch.Tensor,
    pts_feature: torch.Tensor,
    pooled_features: torch.Tensor,
    pooled_empty_flag: torch.Tensor,
) -> None:
    """Fill (B, boxes, samples, 3 + C) with the first points in each box, repeated in turn; flag the empty boxes."""
    samples = pooled_features.shape[2]
    for b in range(len(xyz)):
        both = torch.cat([xyz[b], pts_feature[b]], 1)
        for k, inside in enumerate(_boxed_local(xyz[b], boxes3d[b])[1]):
            own = inside.nonzero().squeeze(1)[:samples]
            if len(own):
                turn = torch.arange(samples, device=own.device) % len(own)
                pooled_features[b, k] = both[own[turn]]
            else:
                pooled_empty_flag[b, k] = 1
