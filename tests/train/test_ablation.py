"""What an ablation compares (standard variants, written ones, what is refused), and the paired differences of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from lemur_core.files.errors import UserError
from tests.builders.suites import table
from train.ablation import FULL, Difference, list_variants, mean_difference
from train.model.recipe import Recipe, read_changes

WHOLE = Recipe().changed(
    slots__attention="timm::SEModule", slots__downsample="timm::BlurPool2d", slots__stochastic_depth="timm::DropPath",
    augmentation__randaugment_ops=1, augmentation__cutmix_alpha=1.0,
)  # fmt: skip
STANDARD = ["no attention", "no anti-aliasing", "no stochastic depth", "plain augmentation"]


def test_each_standard_variant_leaves_one_ingredient_out_that_the_recipe_has() -> None:
    found = list_variants(WHOLE)
    assert list(found) == [FULL, *STANDARD]
    assert found["no attention"].slots.attention.use == "none"
    assert found["no attention"].slots.downsample == WHOLE.slots.downsample
    assert found["no anti-aliasing"].slots.downsample.use == "subsample"
    max_pool = list_variants(WHOLE.changed(slots__downsample="max_pool"))  # which aliases, too
    assert list(max_pool) == [FULL, *STANDARD[:1], *STANDARD[2:]]
    plain = found["plain augmentation"].augmentation
    assert (plain.randaugment_ops, plain.cutmix_alpha) == (0, 0)
    assert plain.crop_padding == WHOLE.augmentation.crop_padding
    assert list(list_variants(WHOLE.changed(slots__attention="none"))) == [FULL, *STANDARD[1:]]
    with pytest.raises(UserError, match="no attention, anti-aliasing"):
        list_variants(Recipe())
    written = list_variants(WHOLE, ["wide: model.widths=[64, 64, 64], model.name='w'", "long: training.epochs=99,"])
    assert list(written) == [FULL, "wide", "long"]
    assert (written["wide"].model.widths, written["long"].training.epochs) == ((64, 64, 64), 99)
    assert read_changes("c.d=\"x, y\", e.f={ g = 1, h = 'i' },") == {"c__d": "x, y", "e__f": {"g": 1, "h": "i"}}


@table(__file__, "ablation.md", "What is refused", globals())
def test_what_is_refused(written: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        list_variants(WHOLE, written)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    base, other = ({seed: pair[place] for seed, pair in enumerate(pairs)} for place in (0, 1))
    if len({other[seed] - base[seed] for seed in base}) < 2:
        return  # scipy warns where nothing varies
    found = mean_difference(base, other)
    interval = ttest_rel(list(other.values()), list(base.values())).confidence_interval(0.95)
    assert found.n == len(pairs)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_differences_of_few_seeds() -> None:
    found = mean_difference({0: 0.5, 1: 0.6, 7: 0.9}, {1: 0.7, 0: 0.7, 3: 0.1})  # paired by number
    assert (found.n, found.mean, found.is_significant) == (2, pytest.approx(0.15), False)
    assert found.low is not None
    assert mean_difference({0: 0.25, 1: 0.5}, {0: 0.5, 1: 0.75}).is_significant, "it never varies"
    for seeds, mean in ((0, None), (1, 0.25)):
        few = mean_difference(dict.fromkeys(range(seeds), 0.5), dict.fromkeys(range(seeds), 0.75))
        assert (few, few.is_significant) == (Difference(seeds, mean, None, None), False)
