"""The search: what it draws, how many images each rung has, how trials are ranked."""

import math
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train import cli
from train.recipe import Recipe
from train.search import SLOTS, Plan, Trial, compositions, page, rungs

made_up_record = runpy.run_path(str(Path(__file__).with_name("lemur_record.py")))["made_up_record"]

CHOICES = {"attention": ["a::A", "b::B", "c::C"], "downsample": ["avg_pool", "d::D"], "stem": []}


def test_the_recipe_itself_comes_first_and_nothing_twice() -> None:
    found = compositions(Recipe(), CHOICES, 5, seed=3)
    assert found[0] == Recipe()
    assert len({recipe.sha256 for recipe in found}) == 5
    assert all(recipe.slots.stem == Recipe().slots.stem for recipe in found)


def test_where_the_recipes_own_name_is_drawn_its_arguments_stay() -> None:
    slot = {"use": "b::B", "arguments": {"reduction": 4}, "float32": True}
    base = Recipe().changed(slots__attention=slot)
    drawn = compositions(base, CHOICES, 100, seed=0)
    assert len(drawn) == 3 * 2 + 1
    kept = [recipe.slots.attention for recipe in drawn if recipe.slots.attention.use == "b::B"]
    assert kept == [base.slots.attention] * 3


def test_the_help_names_the_slots_that_vary() -> None:
    assert cli._VARIED == SLOTS


def test_a_small_space_is_used_up() -> None:
    found = compositions(Recipe(), CHOICES, 100, seed=0)
    assert len(found) == 1 + 3 * 2


@given(st.integers(0, 99), st.integers(1, 12))
def test_the_same_seed_draws_the_same(seed: int, budget: int) -> None:
    one = compositions(Recipe(), CHOICES, budget, seed)
    assert one == compositions(Recipe(), CHOICES, budget, seed)
    assert one == compositions(Recipe(), CHOICES, budget + 3, seed)[: len(one)]


@pytest.mark.parametrize(
    ("count", "images", "sizes"),
    [
        (9, 5000, [5000, 15000, 45000]),
        (27, 5000, [5000, 15000, 45000]),
        (1, 5000, [5000]),
        (2, 20000, [20000, 45000]),
        (4, 90000, [45000]),
        (0, 5000, []),
    ],
)
def test_rungs_grow_until_one_is_left_or_all_images_are_used(count: int, images: int, sizes: list[int]) -> None:
    assert rungs(Plan(budget=count, images=images), count, 45000) == sizes


@given(st.integers(1, 200), st.integers(100, 45000), st.integers(2, 5))
def test_a_rung_never_has_fewer_images_than_the_one_before(count: int, images: int, eta: int) -> None:
    sizes = rungs(Plan(budget=count, images=images, eta=eta), count, 45000)
    assert sizes == sorted(sizes)
    assert sizes[-1] <= 45000
    assert len(sizes) <= 1 + math.ceil(math.log(count, eta)) if count > 1 else len(sizes) == 1


def test_a_rung_that_failed_counts_for_nothing() -> None:
    sound, failed, never = (Trial(name, Recipe(), None) for name in ("sound", "failed", "never"))
    sound.records = [made_up_record(val_accuracy=0.4), made_up_record(val_accuracy=0.5)]
    failed.records = [made_up_record(val_accuracy=0.9), made_up_record(status="diverged", val_accuracy=None)]
    never.records = [made_up_record(status="out_of_memory", val_accuracy=None)]
    low = Trial("low", Recipe(), None, records=[made_up_record(val_accuracy=0.1)])
    ranked = sorted([never, failed, low, sound], key=lambda trial: trial.rank)
    assert [trial.name for trial in ranked] == ["sound", "low", "failed", "never"]
    (row,) = [line for line in page(ranked, "cifar-10", Plan(budget=4)) if "`failed`" in line]
    assert "90.00 %" in row
    assert "diverged" in row
    assert not never.passed


def test_what_could_not_be_assembled_ranks_last() -> None:
    trials = [Trial("b", Recipe(), None, "does not fit"), Trial("a", Recipe(), None, "does not fit")]
    assert [trial.name for trial in sorted(trials, key=lambda trial: trial.rank)] == ["a", "b"]
