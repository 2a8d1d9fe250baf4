"""Points to voxels and back (Zhou and Tuzel, "VoxelNet", CVPR 2018; dynamic form: Zhou et al., CoRL 2019)."""
# ruff: noqa: N803

import torch


def _voxel_coordinates(
    points: torch.Tensor, voxel_size: torch.Tensor, coors_range: torch.Tensor, NDim: int
) -> torch.Tensor:
    """Voxel of every point, last axis first; -1 for points outside the range."""
    size, low, high = (torch.as_tensor(v).to(points) for v in (voxel_size, coors_range[:NDim], coors_range[NDim:]))
    place = ((points[:, :NDim] - low) / size).floor()
    inside = ((place >= 0) & (place < ((high - low) / size).round())).all(1)
    return torch.where(inside[:, None], place.flip(1), -torch.ones_like(place)).long()


def dynamic_voxelize_forward(
    points: torch.Tensor, voxel_size: torch.Tensor, coors_range: torch.Tensor, coors: torch.Tensor, NDim: int = 3
) -> None:
    """Fill `coors` (n, 3) with the voxel (z, y, x) of every point, -1 outside."""
    coors.copy_(_voxel_coordinates(points, voxel_size, coors_range, NDim))


def hard_voxelize_forward(
    points: torch.Tensor,
    voxel_size: torch.Tensor,
    coors_range: torch.Tensor,
    voxels: torch.Tensor,
    coors: torch.Tensor,
    num_points_per_voxel: torch.Tensor,
    voxel_num: torch.Tensor,
    max_points: int,
    max_voxels: int,
    NDim: int = 3,
    deterministic: bool = True,
) -> None:
    """Fill voxels (V, max_points, C), their places, point counts and number; first come, first served."""
    place = _voxel_coordinates(points, voxel_size, coors_range, NDim)
    known = (place[:, 0] >= 0).nonzero().squeeze(1)
    unique, voxel = place[known].unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call, unused-ignore]
    first = torch.full((len(unique),), len(points), device=points.device)
    first = first.scatter_reduce(0, voxel, known, "amin")
    rank = first.argsort().argsort()[voxel]
    order = rank.argsort(stable=True)
    counts = torch.bincount(rank, minlength=len(unique))
    turn = torch.arange(len(rank), device=points.device) - (counts.cumsum(0) - counts)[rank[order]]
    keep = (turn < max_points) & (rank[order] < max_voxels)
    rows, slots, taken = rank[order][keep], turn[keep], known[order][keep]
    voxels[rows, slots] = points[taken]
    coors[rows] = place[taken].to(coors.dtype)
    number = min(len(unique), max_voxels)
    num_points_per_voxel[:number] = counts[:number].clamp(max=max_points).to(num_points_per_voxel.dtype)
    voxel_num.fill_(number)


def dynamic_point_to_voxel_forward(feats: torch.Tensor, coors: torch.Tensor, reduce_type: str) -> list[torch.Tensor]:
    """Features reduced ("max", "sum", "mean") per distinct voxel, the voxels, the voxel of each point, the counts."""
    if len(feats) == 0:
        nothing = coors.new_empty(0, dtype=torch.int32)
        return [feats.clone().detach(), coors.clone().detach(), nothing, nothing.clone()]
    clean = coors.masked_fill((coors < 0).any(-1, keepdim=True), -1)
    found = clean.unique(dim=0, return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call, unused-ignore]
    places, index, counts = found
    if places[0, 0] < 0:
        places, counts, index = places[1:], counts[1:], index - 1
    known = index >= 0
    name = {"max": "amax", "sum": "sum", "mean": "mean"}[reduce_type]
    target = index[known][:, None].expand(-1, feats.shape[1])
    reduced = feats.new_zeros(len(places), feats.shape[1])
    reduced = reduced.scatter_reduce(0, target, feats[known], name, include_self=False)
    return [reduced, places, index.int(), counts.int()]


def dynamic_point_to_voxel_backward(
    grad_feats: torch.Tensor,
    grad_reduced_feats: torch.Tensor,
    feats: torch.Tensor,
    reduced_feats: torch.Tensor,
    coors_idx: torch.Tensor,
    reduce_count: torch.Tensor,
    reduce_type: str,
) -> None:
    """Fill `grad_feats`; a maximum passes its gradient to the first point that reaches it."""
    known = coors_idx >= 0
    index = coors_idx.long().clamp(min=0)
    if len(reduced_feats) == 0:
        grad_feats.zero_()
        return
    grad = grad_reduced_feats[index] * known[:, None]
    if reduce_type == "mean":
        grad = grad / reduce_count[index][:, None]
    if reduce_type == "max":
        rows = torch.arange(len(feats), device=feats.device)[:, None].expand_as(feats)
        hit = (feats == reduced_feats[index]) & known[:, None]
        candidate = torch.where(hit, rows, len(feats))
        first = torch.full_like(reduced_feats, len(feats), dtype=torch.long)
        first = first.scatter_reduce(0, index[:, None].expand_as(feats), candidate, "amin")
        grad = grad * (hit & (first[index] == rows))
    grad_feats.copy_(grad)
