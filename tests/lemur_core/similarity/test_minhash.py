"""MinHash signatures estimate the Jaccard, never change, and are cut so that hardly any pair is missed."""

import hashlib

import numpy as np
import pytest

from lemur_core.similarity.minhash import MISS_CHANCE, PERMUTATIONS, SCHEME, Banding, band_keys, banding_for, signature

GOLDEN_START = [155363496, 153058444, 225001600, 104049505]
GOLDEN_DIGEST = "815761c83d7a1038"


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def test_signatures_never_change() -> None:
    """They are cached and decide which pairs are proposed: other values need another name of their scheme."""
    assert SCHEME == "multiply-shift64"
    found = signature(np.arange(1, 11, dtype=np.uint64))
    assert found.shape == (PERMUTATIONS,)
    assert found.dtype == np.uint32
    assert found[:4].tolist() == GOLDEN_START
    assert hashlib.sha256(found.astype("<u4").tobytes()).hexdigest()[:16] == GOLDEN_DIGEST


@pytest.mark.parametrize("shared", [0, 100, 500, 900, 1000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_share_of_equal_values_estimates_the_jaccard(shared: int, seed: int) -> None:
    values = numbers(2000 - shared, seed)
    a, b = values[:1000], values[1000 - shared :]
    exact = len(np.intersect1d(a, b)) / len(np.union1d(a, b))
    estimate = np.count_nonzero(signature(a) == signature(b)) / PERMUTATIONS
    assert abs(estimate - exact) < 4 * max(0.005, (exact * (1 - exact) / PERMUTATIONS) ** 0.5)


def test_miss_chance_is_what_happens() -> None:
    banding, jaccard, trials, missed = Banding(8, 4), 0.6, 400, 0
    for seed in range(trials):
        values = numbers(1000, seed)  # 250 + 250 of their own, so that 600 of 1000 would be shared
        a, b = values[:800], values[200:]
        keys = band_keys(np.stack([signature(a), signature(b)]), banding)
        missed += not (keys[0] == keys[1]).any()
    expected = banding.miss_chance(jaccard)
    assert abs(missed / trials - expected) < 4 * (expected * (1 - expected) / trials) ** 0.5


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_the_coarsest_banding_that_is_safe(threshold: float) -> None:
    banding = banding_for(threshold)
    assert banding.bands == PERMUTATIONS // banding.rows
    assert banding.miss_chance(threshold) <= MISS_CHANCE
    if banding.rows < 32:
        coarser = Banding(PERMUTATIONS // (banding.rows + 1), banding.rows + 1)
        assert coarser.miss_chance(threshold) > MISS_CHANCE
    finer = banding_for(threshold, effort=1)
    assert finer.rows == max(1, banding.rows - 1)
    assert banding_for(threshold, effort=1000) == Banding(PERMUTATIONS, 1)


def test_band_keys_are_equal_just_where_bands_are() -> None:
    banding = Banding(5, 3)
    one = np.arange(PERMUTATIONS, dtype=np.uint32)
    two = one.copy()
    two[4] = 99  # band 1
    keys = band_keys(np.stack([one, two]), banding)
    assert keys.shape == (2, 5)
    assert (keys[0] == keys[1]).tolist() == [True, False, True, True, True]
    same = band_keys(np.zeros((1, PERMUTATIONS), np.uint32), banding)
    assert len(set(same[0].tolist())) == 5, "equal bands at different places share a key"
    swapped = one.copy()
    swapped[[0, 1]] = one[[1, 0]]
    assert band_keys(swapped[None], banding)[0, 0] != keys[0, 0], "the order of the values in a band counts"
