"""Graphs of points against a loop over the definition."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.neighbours import radius_graph


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
