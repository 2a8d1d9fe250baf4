"""Paired differences against scipy's own paired test, and with too few seeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from train.ablation import Difference, paired_difference

values = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8)


@given(values)
def test_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    base = {seed: pair[0] for seed, pair in enumerate(pairs)}
    other = {seed: pair[1] for seed, pair in enumerate(pairs)}
    if len({other[seed] - base[seed] for seed in base}) < 2:
        return  # scipy warns where nothing varies
    found = paired_difference(base, other)
    interval = ttest_rel(list(other.values()), list(base.values())).confidence_interval(0.95)
    assert found.n == len(pairs)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_seeds_are_paired_by_number() -> None:
    found = paired_difference({0: 0.5, 1: 0.6, 7: 0.9}, {1: 0.7, 0: 0.7, 3: 0.1})
    assert found.n == 2
    assert found.mean == pytest.approx(0.15)
    assert found.low is not None
    assert not found.decided


@pytest.mark.parametrize("seeds", [0, 1])
def test_too_few_seeds_have_no_interval(seeds: int) -> None:
    found = paired_difference(dict.fromkeys(range(seeds), 0.5), dict.fromkeys(range(seeds), 0.75))
    assert found == Difference(seeds, 0.25 if seeds else None, None, None)
    assert not found.decided


def test_a_difference_that_never_varies_is_decided() -> None:
    assert paired_difference({0: 0.25, 1: 0.5}, {0: 0.5, 1: 0.75}).decided
