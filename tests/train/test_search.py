"""The search: what it draws, how many images each rung has, how trials are ranked."""

from hypothesis import given
from hypothesis import strategies as st

from tests.builders.suites import table
from tests.builders.training import made_up_record
from train import cli
from train.model.recipe import Recipe
from train.studies.search import SLOTS, SearchPlan, SearchTrial, draw_compositions, format_ranking, plan_rounds

CHOICES = {"attention": ["a::A", "b::B", "c::C"], "downsample": ["avg_pool", "d::D"], "stem": []}


def test_where_the_recipes_own_name_is_drawn_its_arguments_stay() -> None:
    slot = {"use": "b::B", "arguments": {"reduction": 4}, "float32": True}
    base = Recipe().changed(slots__attention=slot)
    drawn = draw_compositions(base, CHOICES, 100, seed=0)
    assert len(drawn) == 3 * 2 + 1
    kept = [recipe.slots.attention for recipe in drawn if recipe.slots.attention.use == "b::B"]
    assert kept == [base.slots.attention] * 3


@given(st.integers(0, 99), st.integers(1, 12))
def test_the_same_seed_draws_the_same(seed: int, budget: int) -> None:
    assert cli._VARIED == SLOTS, "the help names the slots that vary"
    one = draw_compositions(Recipe(), CHOICES, budget, seed)
    assert one[0] == Recipe()
    assert len({recipe.sha256 for recipe in one}) == min(budget, 7), "nothing twice, until the space is used up"
    assert all(recipe.slots.stem == Recipe().slots.stem for recipe in one)
    assert one == draw_compositions(Recipe(), CHOICES, budget, seed)
    assert one == draw_compositions(Recipe(), CHOICES, budget + 3, seed)[: len(one)]


@table(__file__, "search.md", "Rungs grow until one is left or all images are used", globals())
def test_rungs_grow_until_one_is_left_or_all_images_are_used(count: int, images: int, sizes: list[int]) -> None:
    assert plan_rounds(SearchPlan(budget=count, images=images), count, 45000) == sizes


def test_a_rung_that_failed_counts_for_nothing() -> None:
    sound, failed, never = (SearchTrial(name, Recipe(), None) for name in ("sound", "failed", "never"))
    sound.records = [made_up_record(val_accuracy=0.4), made_up_record(val_accuracy=0.5)]
    failed.records = [made_up_record(val_accuracy=0.9), made_up_record(status="diverged", val_accuracy=None)]
    never.records = [made_up_record(status="out_of_memory", val_accuracy=None)]
    low = SearchTrial("low", Recipe(), None, records=[made_up_record(val_accuracy=0.1)])
    unmade = SearchTrial("unmade", Recipe(), None, "does not fit")
    ranked = sorted([unmade, never, failed, low, sound], key=lambda trial: trial.rank)
    assert [trial.name for trial in ranked] == ["sound", "low", "failed", "never", "unmade"]
    (row,) = [line for line in format_ranking(ranked, "cifar-10", SearchPlan(budget=4)) if "`failed`" in line]
    assert "90.00 %" in row
    assert "diverged" in row
    assert not never.complete_runs
