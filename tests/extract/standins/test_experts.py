"""Grouped products against one product a group, as the original fills its output."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.experts import grouped_mm_fallback


@given(st.integers(0, 2**31), st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_each_group_times_its_matrix(seed: int, counts: list[int], rest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    offs = torch.tensor(counts).cumsum(0)
    rows = torch.randn(sum(counts) + rest, 4, generator=generator)
    weight = torch.randn(len(counts), 4, 3, generator=generator)
    expected, start = torch.zeros(len(rows), 3), 0
    for place, end in enumerate(offs.tolist()):
        torch.mm(rows[start:end], weight[place], out=expected[start:end])
        start = end
    assert torch.equal(grouped_mm_fallback(rows, weight, offs), expected)


def test_gradients_reach_rows_and_matrices() -> None:
    rows = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    weight = torch.randn(3, 4, 2, dtype=torch.double, requires_grad=True)
    offs = torch.tensor([2, 2, 5])
    assert torch.autograd.gradcheck(lambda x, w: grouped_mm_fallback(x, w, offs), (rows, weight))
