"""Point clouds: neighbours, sampling and grouping (Qi et al., "PointNet++", NeurIPS 2017), voxels, points in boxes.

What ends in `_forward` takes the place of the operator itself: it fills what it is given. The rest is what the
author's `Function.apply` returns. Dense tensors are (B, n, 3); stacked ones hold the points of all clouds in one
tensor, with the number of each cloud.
"""

import torch
from torch.nn import functional


def _square_distances(queries, points):
    """(..., m, n) squared distances, summed axis by axis."""
    return (queries[..., :, None, :] - points[..., None, :, :]).square().sum(-1)


# -- neighbours --------------------------------------------------------------------------------------------------------


def _first_hits(hit, nsample):
    """Indices of the first `nsample` hits along the last axis, the first one repeated; and which rows have any."""
    count = hit.shape[-1]
    order = torch.where(hit, torch.arange(count, device=hit.device), count)
    order = functional.pad(order, (0, max(nsample - count, 0)), value=count).sort(-1).values[..., :nsample]
    first = order[..., :1]
    return torch.where(order < count, order, first), first[..., 0] < count


def ball_query_forward(new_xyz_tensor, xyz_tensor, idx_tensor, b, n, m, min_radius, max_radius, nsample):
    """Fill `idx_tensor` (B, m, nsample) with the first points in the ring around each centre; left alone if none."""
    d2 = _square_distances(new_xyz_tensor, xyz_tensor)
    hits, found = _first_hits((d2 == 0) | ((d2 >= min_radius**2) & (d2 < max_radius**2)), nsample)
    idx_tensor.copy_(torch.where(found[..., None], hits.to(idx_tensor.dtype), idx_tensor))


def stack_ball_query_forward(
    new_xyz_tensor, new_xyz_batch_cnt, xyz_tensor, xyz_batch_cnt, idx_tensor, max_radius, nsample
):
    """Fill `idx_tensor` (M, nsample) with indices inside the own cloud; the first is -1 where there is none."""
    centres, clouds = new_xyz_batch_cnt.tolist(), xyz_batch_cnt.tolist()
    for queries, points, rows in zip(
        new_xyz_tensor.split(centres), xyz_tensor.split(clouds), idx_tensor.split(centres), strict=True
    ):
        hits, found = _first_hits(_square_distances(queries, points) < max_radius**2, nsample)
        rows.copy_(torch.where(found[:, None], hits.to(rows.dtype), rows))
        rows[~found, 0] = -1


def knn_forward(xyz_tensor, new_xyz_tensor, idx_tensor, dist2_tensor, b, n, m, nsample):
    """Fill the indices and squared distances (B, m, k) of the nearest points, near to far; 1e10 where there are few."""
    d2 = _square_distances(new_xyz_tensor, xyz_tensor)
    near = d2.topk(min(nsample, d2.shape[-1]), dim=-1, largest=False)
    missing = (0, nsample - near.values.shape[-1])
    idx_tensor.copy_(functional.pad(near.indices, missing))
    dist2_tensor.copy_(functional.pad(near.values, missing, value=1e10))


def _fill_farthest(distances_to, temp_tensor, idx_tensor):
    """Greedy choice: start with point 0, then always the point farthest from all chosen ones."""
    chosen = torch.zeros(len(idx_tensor), dtype=torch.long, device=idx_tensor.device)
    for step in range(idx_tensor.shape[1]):
        idx_tensor[:, step] = chosen
        temp_tensor.copy_(torch.minimum(temp_tensor, distances_to(chosen).to(temp_tensor.dtype)))
        chosen = temp_tensor.argmax(1)


def furthest_point_sampling_forward(points_tensor, temp_tensor, idx_tensor, b, n, m):
    """Fill `idx_tensor` (B, m) from points (B, n, 3); `temp_tensor` holds the squared distances to the choice."""
    rows = torch.arange(len(points_tensor), device=points_tensor.device)
    _fill_farthest(
        lambda chosen: (points_tensor - points_tensor[rows, chosen][:, None]).square().sum(-1), temp_tensor, idx_tensor
    )


def furthest_point_sampling_with_dist_forward(points_tensor, temp_tensor, idx_tensor, b, n, m):
    """Fill `idx_tensor` (B, m) from pairwise distances (B, n, n)."""
    rows = torch.arange(len(points_tensor), device=points_tensor.device)
    _fill_farthest(lambda chosen: points_tensor[rows, chosen], temp_tensor, idx_tensor)


# -- features of points ------------------------------------------------------------------------------------------------


class GatherPoints:
    """Features (B, C, n) at indices (B, *S) -> (B, C, *S)."""

    @staticmethod
    def apply(features, indices):
        places = indices.long().flatten(1)[:, None].expand(-1, features.shape[1], -1)
        return features.gather(2, places).unflatten(2, indices.shape[1:])


class GroupingOperation:
    """Features (B, C, n) at indices (B, m, k) -> (B, C, m, k); of stacked clouds (N, C) at (M, k) -> (M, C, k)."""

    @staticmethod
    def apply(features, indices, features_batch_cnt=None, indices_batch_cnt=None):
        if features_batch_cnt is None or indices_batch_cnt is None:
            return GatherPoints.apply(features, indices)
        assert features_batch_cnt.dtype == torch.int
        assert indices_batch_cnt.dtype == torch.int
        starts = (features_batch_cnt.cumsum(0) - features_batch_cnt).long()
        rows = indices.long() + starts.repeat_interleave(indices_batch_cnt.long())[:, None]
        return features[rows].transpose(1, 2).contiguous()


# -- voxels ------------------------------------------------------------------------------------------------------------


class _DynamicScatter:
    """Features reduced ("max", "sum", "mean") per distinct voxel, and the voxels (Zhou et al., CoRL 2019).

    A maximum passes its gradient to the first point that reaches it.
    """

    @staticmethod
    def apply(feats, coors, reduce_type="max"):
        assert feats.dim() == 2
        assert coors.dim() == 2
        assert feats.size(0) == coors.size(0)
        clean = coors.detach().masked_fill((coors < 0).any(-1, keepdim=True), -1)
        places, index = clean.unique(dim=0, return_inverse=True)
        outside = int(len(places) > 0 and places[0, 0] < 0)
        feats, index = feats[index >= outside], index[index >= outside] - outside
        target, places = index[:, None].expand_as(feats), places[outside:]
        empty = feats.new_zeros(len(places), feats.shape[1])
        if reduce_type != "max":
            return empty.scatter_reduce(0, target, feats, reduce_type, include_self=False), places
        best = empty.scatter_reduce(0, target, feats.detach(), "amax", include_self=False)
        rows = torch.arange(len(feats), device=feats.device)[:, None]
        reaching = torch.where(feats == best[index], rows, len(feats))
        first = torch.full_like(best, len(feats), dtype=torch.long).scatter_reduce(0, target, reaching, "amin")
        return feats.gather(0, first), places


# -- points in boxes (x, y, z of the bottom, three sizes, yaw) ---------------------------------------------------------


def _in_frames(points, boxes):
    """Points (n, 3) in the frames of boxes (k, 7): (k, n, 3) from the bottom centre, and whether they are inside."""
    shift = points[None] - boxes[:, None, :3]
    cos, sin = boxes[:, None, 6].cos(), boxes[:, None, 6].sin()
    x, y = shift[..., 0] * cos + shift[..., 1] * sin, shift[..., 1] * cos - shift[..., 0] * sin
    half = boxes[:, None, 3:6] / 2
    inside = (
        (x.abs() < half[..., 0]) & (y.abs() < half[..., 1]) & ((shift[..., 2] - half[..., 2]).abs() <= half[..., 2])
    )
    return torch.stack([x, y, shift[..., 2]], -1), inside


class RoIAwarePool3dFunction:
    """Features of the points in each cell of each box, `mode` 0 maximum, 1 average: (boxes, X, Y, Z, C).

    Source: Shi et al., "Part-A2 Net", TPAMI 2020.
    """

    @staticmethod
    def apply(rois, pts, pts_feature, out_size, max_pts_per_voxel, mode):
        grid = (out_size,) * 3 if isinstance(out_size, int) else tuple(out_size)
        assert len(grid) == 3
        local, inside = _in_frames(pts, rois)
        sizes = torch.tensor(grid, device=pts.device)
        corner = local + functional.pad(rois[:, None, 3:5] / 2, (0, 1))
        cells = (corner / (rois[:, None, 3:6] / sizes)).long().clamp(min=0).minimum(sizes - 1)
        pooled = pts_feature.new_zeros(len(rois), *grid, pts_feature.shape[1]) + 0 * pts_feature.sum()
        for k in range(len(rois)):
            members = inside[k].nonzero().squeeze(1)
            for cell in cells[k, members].unique(dim=0):
                own = members[(cells[k, members] == cell).all(1)][: max_pts_per_voxel - 1]
                values = pts_feature[own]
                pooled[(k, *cell.tolist())] = values.max(0).values if mode == 0 else values.mean(0)
        return pooled


def roipoint_pool3d_forward(xyz, boxes3d, pts_feature, pooled_features, pooled_empty_flag):
    """Fill (B, boxes, samples, 3 + C) with the first points in each box, repeated in turn; flag the empty boxes.

    Source: Shi et al., "PointRCNN", CVPR 2019.
    """
    samples = pooled_features.shape[2]
    for b in range(len(xyz)):
        both = torch.cat([xyz[b], pts_feature[b]], 1)
        for k, inside in enumerate(_in_frames(xyz[b], boxes3d[b])[1]):
            own = inside.nonzero().squeeze(1)[:samples]
            if len(own):
                turn = torch.arange(samples, device=own.device) % len(own)
                pooled_features[b, k] = both[own[turn]]
            else:
                pooled_empty_flag[b, k] = 1
