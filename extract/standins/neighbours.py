"""Graphs of points by distance, which others leave to compiled packages."""

import torch


def radius_graph(
    x,
    r,
    batch=None,
    loop=False,
    max_num_neighbors=32,
    flow="source_to_target",
    num_workers=1,
    batch_size=None,
):
    """Edges (2, E) between the points (N, F) of one example that are no more than `r` apart, by centre.

    A centre with more neighbours than `max_num_neighbors` keeps those of the smallest numbers; None keeps all.
    """
    points = x[:, None] if x.dim() == 1 else x
    near = (points[:, None] - points[None]).square().sum(-1) <= r * r
    if batch is not None:
        near &= batch[:, None] == batch[None]
    if not loop:
        near.fill_diagonal_(False)
    if max_num_neighbors is not None:
        near &= near.cumsum(1) <= max_num_neighbors
    centre, neighbour = near.nonzero(as_tuple=True)
    return torch.stack((neighbour, centre) if flow == "source_to_target" else (centre, neighbour))
