"""Neighbour search, sampling and grouping of point sets (Qi et al., "PointNet++", NeurIPS 2017).

Dense tensors are (B, n, 3); stacked ones hold the points of all clouds in one tensor, with the number of each cloud.
"""
# ruff: noqa: N803

import torch


def _points_square_distances(queries: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """(..., m, n) squared distances, summed axis by axis."""
    return (queries[..., :, None, :] - points[..., None, :, :]).square().sum(-1)


def _points_first_hits(hit: torch.Tensor, nsample: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of the first `nsample` hits along the last axis, the first one repeated; and which rows have any."""
    count = hit.shape[-1]
    order = torch.where(hit, torch.arange(count, device=hit.device), count)
    order = torch.nn.functional.pad(order, (0, max(nsample - count, 0)), value=count).sort(-1).values[..., :nsample]
    first = order[..., :1]
    return torch.where(order < count, order, first), first[..., 0] < count


def ball_query_forward(
    new_xyz_tensor: torch.Tensor,
    xyz_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    b: int,
    n: int,
    m: int,
    min_radius: float,
    max_radius: float,
    nsample: int,
) -> None:
    """Fill `idx_tensor` (B, m, nsample) with the first points in the ring around each centre; left alone if none."""
    d2 = _points_square_distances(new_xyz_tensor, xyz_tensor)
    hits, found = _points_first_hits((d2 == 0) | ((d2 >= min_radius**2) & (d2 < max_radius**2)), nsample)
    idx_tensor.copy_(torch.where(found[..., None], hits.to(idx_tensor.dtype), idx_tensor))


def stack_ball_query_forward(
    new_xyz_tensor: torch.Tensor,
    new_xyz_batch_cnt: torch.Tensor,
    xyz_tensor: torch.Tensor,
    xyz_batch_cnt: torch.Tensor,
    idx_tensor: torch.Tensor,
    max_radius: float,
    nsample: int,
) -> None:
    """Fill `idx_tensor` (M, nsample) with indices inside the own cloud; the first is -1 where there is none."""
    start = first = 0
    for centres, points in zip(new_xyz_batch_cnt.tolist(), xyz_batch_cnt.tolist(), strict=True):
        queries = new_xyz_tensor[first : first + centres]
        d2 = _points_square_distances(queries, xyz_tensor[start : start + points])
        hits, found = _points_first_hits(d2 < max_radius**2, nsample)
        rows = idx_tensor[first : first + centres]
        rows.copy_(torch.where(found[:, None], hits.to(rows.dtype), rows))
        rows[~found, 0] = -1
        start, first = start + points, first + centres


def knn_forward(
    xyz_tensor: torch.Tensor,
    new_xyz_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    dist2_tensor: torch.Tensor,
    b: int,
    n: int,
    m: int,
    nsample: int,
) -> None:
    """Fill the indices and squared distances (B, m, k) of the nearest points, near to far."""
    d2 = _points_square_distances(new_xyz_tensor, xyz_tensor)
    near = d2.topk(min(nsample, d2.shape[-1]), dim=-1, largest=False)
    missing = (0, nsample - near.values.shape[-1])
    idx_tensor.copy_(torch.nn.functional.pad(near.indices, missing))
    dist2_tensor.copy_(torch.nn.functional.pad(near.values, missing, value=1e10))


def three_nn_forward(
    unknown_tensor: torch.Tensor,
    known_tensor: torch.Tensor,
    dist2_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    b: int,
    n: int,
    m: int,
) -> None:
    """Fill squared distances and indices (B, n, 3) of the three nearest known points."""
    d2 = _points_square_distances(unknown_tensor, known_tensor)
    near = d2.topk(min(3, d2.shape[-1]), dim=-1, largest=False)
    missing = (0, 3 - near.values.shape[-1])
    dist2_tensor.copy_(torch.nn.functional.pad(near.values, missing, value=torch.inf))
    idx_tensor.copy_(torch.nn.functional.pad(near.indices, missing))


def _points_farthest(distance_from: torch.Tensor, temp: torch.Tensor, idx: torch.Tensor, pairwise: bool) -> None:
    """Greedy choice: start with point 0, then always the point farthest from all chosen ones."""
    rows = torch.arange(len(idx), device=idx.device)
    chosen = torch.zeros(len(idx), dtype=torch.long, device=idx.device)
    for step in range(idx.shape[1]):
        idx[:, step] = chosen.to(idx.dtype)
        if step + 1 == idx.shape[1]:
            break
        if pairwise:
            d2 = distance_from[rows, chosen]
        else:
            d2 = (distance_from - distance_from[rows, chosen][:, None]).square().sum(-1)
        temp.copy_(torch.minimum(temp, d2.to(temp.dtype)))
        chosen = temp.argmax(1)


def furthest_point_sampling_forward(
    points_tensor: torch.Tensor, temp_tensor: torch.Tensor, idx_tensor: torch.Tensor, b: int, n: int, m: int
) -> None:
    """Fill `idx_tensor` (B, m) from points (B, n, 3); `temp_tensor` holds the squared distances to the choice."""
    _points_farthest(points_tensor, temp_tensor, idx_tensor, pairwise=False)


def furthest_point_sampling_with_dist_forward(
    points_tensor: torch.Tensor, temp_tensor: torch.Tensor, idx_tensor: torch.Tensor, b: int, n: int, m: int
) -> None:
    """Fill `idx_tensor` (B, m) from pairwise distances (B, n, n)."""
    _points_farthest(points_tensor, temp_tensor, idx_tensor, pairwise=True)


def _points_scatter(grad: torch.Tensor, idx: torch.Tensor, target: torch.Tensor) -> None:
    """Add `grad` (B, C, *S) to `target` (B, C, n) at `idx` (B, *S)."""
    places = idx.long().flatten(1)[:, None].expand(-1, target.shape[1], -1)
    target.scatter_add_(2, places, grad.flatten(2))


def gather_points_forward(
    points_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    out_tensor: torch.Tensor,
    b: int,
    c: int,
    n: int,
    npoints: int,
) -> None:
    """Fill `out_tensor` (B, C, m) with the features (B, C, n) at `idx_tensor` (B, m)."""
    out_tensor.copy_(points_tensor.gather(2, idx_tensor.long()[:, None].expand(-1, c, -1)))


def gather_points_backward(
    grad_out_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    grad_points_tensor: torch.Tensor,
    b: int,
    c: int,
    n: int,
    npoints: int,
) -> None:
    """Add to `grad_points_tensor` (B, C, n)."""
    _points_scatter(grad_out_tensor, idx_tensor, grad_points_tensor)


def group_points_forward(
    points_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    out_tensor: torch.Tensor,
    b: int,
    c: int,
    n: int,
    npoints: int,
    nsample: int,
) -> None:
    """Fill `out_tensor` (B, C, m, k) with the features (B, C, n) at `idx_tensor` (B, m, k)."""
    places = idx_tensor.long().flatten(1)[:, None].expand(-1, c, -1)
    out_tensor.copy_(points_tensor.gather(2, places).view_as(out_tensor))


def group_points_backward(
    grad_out_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    grad_points_tensor: torch.Tensor,
    b: int,
    c: int,
    n: int,
    npoints: int,
    nsample: int,
) -> None:
    """Add to `grad_points_tensor` (B, C, n)."""
    _points_scatter(grad_out_tensor, idx_tensor, grad_points_tensor)


def _points_stacked_rows(idx: torch.Tensor, idx_count: torch.Tensor, features_count: torch.Tensor) -> torch.Tensor:
    """Rows of the stacked features that the per-cloud indices (M, k) mean."""
    starts = (features_count.cumsum(0) - features_count).long()
    return idx.long() + starts.repeat_interleave(idx_count.long())[:, None]


def stack_group_points_forward(
    features_tensor: torch.Tensor,
    features_batch_cnt_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    idx_batch_cnt_tensor: torch.Tensor,
    out_tensor: torch.Tensor,
    b: int,
    c: int,
    m: int,
    nsample: int,
) -> None:
    """Fill `out_tensor` (M, C, k) with features (N, C) at per-cloud indices (M, k)."""
    rows = _points_stacked_rows(idx_tensor, idx_batch_cnt_tensor, features_batch_cnt_tensor)
    out_tensor.copy_(features_tensor[rows].transpose(1, 2))


def stack_group_points_backward(
    grad_out_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    idx_batch_cnt_tensor: torch.Tensor,
    features_batch_cnt_tensor: torch.Tensor,
    grad_features_tensor: torch.Tensor,
    b: int,
    c: int,
    m: int,
    n: int,
    nsample: int,
) -> None:
    """Add to `grad_features_tensor` (N, C)."""
    rows = _points_stacked_rows(idx_tensor, idx_batch_cnt_tensor, features_batch_cnt_tensor)
    grad_features_tensor.index_add_(0, rows.flatten(), grad_out_tensor.transpose(1, 2).flatten(0, 1))


def three_interpolate_forward(
    points_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    weight_tensor: torch.Tensor,
    out_tensor: torch.Tensor,
    b: int,
    c: int,
    m: int,
    n: int,
) -> None:
    """Fill `out_tensor` (B, C, n) with weighted sums of the features (B, C, m) at three places (B, n, 3)."""
    places = idx_tensor.long().flatten(1)[:, None].expand(-1, c, -1)
    taken = points_tensor.gather(2, places).view(*out_tensor.shape, 3)
    out_tensor.copy_((taken * weight_tensor[:, None]).sum(-1))


def three_interpolate_backward(
    grad_out_tensor: torch.Tensor,
    idx_tensor: torch.Tensor,
    weight_tensor: torch.Tensor,
    grad_points_tensor: torch.Tensor,
    b: int,
    c: int,
    n: int,
    m: int,
) -> None:
    """Add to `grad_points_tensor` (B, C, m)."""
    _points_scatter(grad_out_tensor[..., None] * weight_tensor[:, None], idx_tensor, grad_points_tensor)


def chamfer_distance_forward(
    xyz1: torch.Tensor,
    xyz2: torch.Tensor,
    dist1: torch.Tensor,
    dist2: torch.Tensor,
    idx1: torch.Tensor,
    idx2: torch.Tensor,
) -> None:
    """Fill, for each point of either set, the squared distance to and the index of the nearest of the other."""
    d2 = _points_square_distances(xyz1, xyz2)
    for axis, distance, index in ((2, dist1, idx1), (1, dist2, idx2)):
        value, place = d2.min(axis)
        distance.copy_(value)
        index.copy_(place)


def chamfer_distance_backward(
    xyz1: torch.Tensor,
    xyz2: torch.Tensor,
    idx1: torch.Tensor,
    idx2: torch.Tensor,
    graddist1: torch.Tensor,
    graddist2: torch.Tensor,
    gradxyz1: torch.Tensor,
    gradxyz2: torch.Tensor,
) -> None:
    """Add the gradients of both point sets."""
    pairs = ((xyz1, xyz2, idx1, graddist1, gradxyz1, gradxyz2), (xyz2, xyz1, idx2, graddist2, gradxyz2, gradxyz1))
    for own, other, idx, grad, grad_own, grad_other in pairs:
        places = idx.long()[..., None].expand(-1, -1, own.shape[-1])
        pull = 2 * grad[..., None] * (own - other.gather(1, places))
        grad_own.add_(pull)
        grad_other.scatter_add_(1, places, -pull)


def assign_score_withk_forward(
    points: torch.Tensor,
    centers: torch.Tensor,
    scores: torch.Tensor,
    knn_idx: torch.Tensor,
    output: torch.Tensor,
    B: int,
    N0: int,
    N1: int,
    M: int,
    K: int,
    O: int,  # noqa: E741
    aggregate: int,
) -> None:
    """Add to `output` (B, O, N1, K) the scored sum over M of neighbour minus centre ("PAConv", CVPR 2021)."""
    output.add_(_points_assign_score(points, centers, scores, knn_idx))


def _points_assign_score(
    points: torch.Tensor, centers: torch.Tensor, scores: torch.Tensor, knn_idx: torch.Tensor
) -> torch.Tensor:
    """Points and centres (B, N0, M, O), scores (B, N1, K, M), neighbours (B, N1, K), the first being the centre."""
    known = (knn_idx >= 0) & (knn_idx < points.shape[1])
    batch = torch.arange(len(points), device=points.device)[:, None, None]
    place = knn_idx.long().clamp(0, points.shape[1] - 1)
    taken = points[batch, place] - centers[batch, place[:, :, :1]]
    return torch.einsum("bnkmo,bnkm->bonk", taken, scores * known[..., None])


def assign_score_withk_backward(
    grad_out: torch.Tensor,
    points: torch.Tensor,
    centers: torch.Tensor,
    scores: torch.Tensor,
    knn_idx: torch.Tensor,
    grad_points: torch.Tensor,
    grad_centers: torch.Tensor,
    grad_scores: torch.Tensor,
    B: int,
    N0: int,
    N1: int,
    M: int,
    K: int,
    O: int,  # noqa: E741
    aggregate: int,
) -> None:
    """Add the gradients of points, centres and scores."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (points, centers, scores)]
        output = _points_assign_score(leaves[0], leaves[1], leaves[2], knn_idx)
    for target, grad in zip(
        (grad_points, grad_centers, grad_scores), torch.autograd.grad(output, leaves, grad_out), strict=True
    ):
        target.add_(grad)
