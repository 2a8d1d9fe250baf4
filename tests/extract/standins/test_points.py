"""Point operators and graphs of points against loops over their definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import points as ops
from extract.standins.neighbours import radius_graph


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pairwise", [False, True])
def test_furthest_point_sampling(pairwise):
    xyz = random(2, 12, 3).float()
    distances = (xyz[:, :, None] - xyz[:, None]).square().sum(-1)
    temp, idx = torch.full((2, 12), 1e10), torch.zeros(2, 6, dtype=torch.int32)
    if pairwise:
        ops.furthest_point_sampling_with_dist_forward(distances, temp, idx, b=2, n=12, m=6)
    else:
        ops.furthest_point_sampling_forward(xyz, temp, idx, b=2, n=12, m=6)
    for b in range(2):
        chosen = [0]
        while len(chosen) < 6:
            chosen.append(max(range(12), key=lambda k: min(float(distances[b, k, c]) for c in chosen)))
        assert idx[b].tolist() == chosen


# --- graphs of points -------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.integers(1, 9), st.floats(0.1, 3), st.booleans(), st.sampled_from([1, 2, 32, None]))
@settings(max_examples=40, deadline=None)
def test_edges_of_near_points(seed: int, count: int, r: float, loop: bool, most: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, batch = torch.randn(count, 2, generator=generator), torch.randint(0, 2, (count,), generator=generator)
    expected = []
    for centre in range(count):
        near = [k for k in range(count) if batch[k] == batch[centre] and float((x[k] - x[centre]).norm()) <= r]
        near = [k for k in near if loop or k != centre]
        expected += [(k, centre) for k in near[:most]]
    found = radius_graph(x, r, batch, loop=loop, max_num_neighbors=most)
    assert [tuple(edge) for edge in found.T.tolist()] == expected
    back = radius_graph(x, r, batch, loop=loop, max_num_neighbors=most, flow="target_to_source")
    assert torch.equal(back, found.flip(0))


def test_one_example_and_one_coordinate() -> None:
    assert radius_graph(torch.tensor([0.0, 1.0, 9.0]), 1.0).tolist() == [[1, 0], [0, 1]]
