"""What an ablation compares: the standard variants, written ones, and what is refused."""

import re

import pytest

from lemur_core.files.errors import UserError
from train.ablation import FULL, variants
from train.recipe import Recipe, read_changes

WHOLE = Recipe().changed(
    slots__attention="timm::SEModule",
    slots__downsample="timm::BlurPool2d",
    slots__stochastic_depth="timm::DropPath",
    augmentation__randaugment_ops=1,
    augmentation__cutmix_alpha=1.0,
)


def test_each_standard_variant_leaves_one_ingredient_out() -> None:
    found = variants(WHOLE)
    assert list(found) == [FULL, "no attention", "strided convolution", "no stochastic depth", "plain augmentation"]
    assert found["no attention"].slots.attention.use == "none"
    assert found["no attention"].slots.downsample == WHOLE.slots.downsample
    assert found["strided convolution"].slots.downsample.use == "strided_conv"
    assert found["plain augmentation"].augmentation.randaugment_ops == 0
    assert found["plain augmentation"].augmentation.cutmix_alpha == 0
    assert found["plain augmentation"].augmentation.crop_padding == WHOLE.augmentation.crop_padding


def test_what_the_recipe_lacks_is_not_left_out() -> None:
    assert list(variants(WHOLE.changed(slots__attention="none"))) == [
        FULL,
        "strided convolution",
        "no stochastic depth",
        "plain augmentation",
    ]
    with pytest.raises(UserError, match="no attention, anti-aliasing"):
        variants(Recipe())


def test_written_variants_take_the_place_of_the_standard_ones() -> None:
    found = variants(WHOLE, ["wide: model.widths=[64, 64, 64], model.name='w'", "long: training.epochs=99"])
    assert list(found) == [FULL, "wide", "long"]
    assert found["wide"].model.widths == (64, 64, 64)
    assert found["wide"].model.name == "w"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lr", "lr"], "variant 'lr': is too like 'lr'"),
        (["+dropout", "-dropout"], "variant '-dropout': is too like '+dropout'"),
        (["Full"], "variant 'Full': is too like 'full'"),
        (["+"], "variant '+': has no letter or digit"),
    ],
)
def test_runs_of_two_variants_never_share_a_folder(names: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        variants(WHOLE, [f"{name}: training.epochs={number}" for number, name in enumerate(names, 90)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.widths=[1]", "write NAME: KEY=VALUE"),
        ("full: training.epochs=3", "write NAME: KEY=VALUE"),
        ("x: training.epochs=20", "changes nothing in this recipe"),
        ("x: training.epohs=20", "did you mean 'epochs'?"),
        ("x: training.schedule=linear", "the values as in TOML, texts in quotes"),
        ("x: epochs=3", "epochs: is no key of a recipe"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        variants(WHOLE, [text])


def test_commas_in_lists_and_texts_part_nothing() -> None:
    assert read_changes("a.b=[1, 2], c.d=\"x, y\", e.f={ g = 1, h = 'i' }") == {
        "a__b": [1, 2],
        "c__d": "x, y",
        "e__f": {"g": 1, "h": "i"},
    }
