"""Point clouds: sampling (Qi et al., "PointNet++", NeurIPS 2017) of dense tensors (B, n, 3).

Each function takes the place of the operator itself: it fills what it is given.
"""

import torch


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
