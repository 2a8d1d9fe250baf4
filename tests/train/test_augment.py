"""Augmentation: shapes and types, one draw a group, what is left out when, targets that sum to 1."""

import pytest
import torch
from torch import Tensor

from train.model.recipe import Augmentation
from train.runs.loop import GROUP, Augment, Pixels, flip_alternately, measure_pixels

PIXELS = Pixels((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
NOTHING = Augmentation(crop_padding=0, flip=False)


def batch(count: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 10


def augment(given: Augmentation, images: Tensor, labels: Tensor, step: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return Augment(given, PIXELS, 32, 100)(images, labels, step)


ALL = Augmentation(randaugment_ops=2, cutout=8, mixup_alpha=0.2, cutmix_alpha=1.0, mix_probability=1.0)


@pytest.mark.parametrize("settings", [NOTHING, Augmentation(), Augmentation(randaugment_ops=2), ALL])
@pytest.mark.parametrize("count", [64, GROUP + 1])
def test_shapes_and_types(settings: Augmentation, count: int) -> None:
    images, labels = batch(count)
    before = images.clone()
    out, targets = augment(settings, images, labels)
    assert (out.shape, out.dtype) == ((count, 3, 32, 32), torch.float32)
    assert targets.shape in {(count,), (count, 10)}
    assert bool(out.isfinite().all())
    assert torch.equal(images, before)
    again, other = (augment(settings, images, labels, seed=seed) for seed in (0, 1))
    assert torch.equal(out, again[0])
    assert torch.equal(targets, again[1])
    assert settings == NOTHING or not torch.equal(out, other[0])


def test_normalisation_alone_and_squares() -> None:
    images, labels = batch()
    out, targets = augment(NOTHING, images, labels)
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (PIXELS.mean, PIXELS.std))
    torch.testing.assert_close(out, (images.float() / 255 - mean) / std)
    assert torch.equal(targets, labels)
    images = torch.full((GROUP, 3, 32, 32), 255, dtype=torch.uint8)
    out, _ = augment(NOTHING.model_copy(update={"cutout": 8}), images, torch.zeros(GROUP, dtype=torch.int64))
    erased = out.abs().amax(1) < 0.05
    assert erased.sum((1, 2)).tolist() == [64] * GROUP


def test_each_group_has_a_draw_of_its_own() -> None:
    one = torch.arange(32).repeat(32, 1).mul(7).to(torch.uint8).expand(3, 32, 32)
    images, labels = one.repeat(16 * GROUP, 1, 1, 1), torch.zeros(16 * GROUP, dtype=torch.int64)
    out, _ = augment(Augmentation(), images, labels)
    groups = [torch.unique(group, dim=0) for group in torch.split(out, GROUP)]
    assert {len(group) for group in groups} == {1}
    assert len(torch.unique(torch.cat(groups), dim=0)) >= 8


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_mixed_targets_sum_to_one(mixup: float, cutmix: float) -> None:
    settings = {"mixup_alpha": mixup, "cutmix_alpha": cutmix}
    _, targets = augment(NOTHING.model_copy(update={**settings, "mix_probability": 1.0}), *batch())
    assert (targets.shape, targets.dtype) == ((64, 10), torch.float32)
    torch.testing.assert_close(targets.sum(1), torch.ones(64))
    assert bool((targets > 0).sum(1).max() == 2)  # two images in one
    some = NOTHING.model_copy(update={**settings, "mix_probability": 0.3})
    assert 40 <= sum(augment(some, *batch(4), seed=seed)[1].ndim == 2 for seed in range(200)) <= 80


def test_the_last_steps_have_crop_and_flip_alone() -> None:
    settings = ALL.model_copy(update={"plain_fraction": 0.25, "crop_padding": 0, "flip": False})
    images, labels = batch()
    plain, _ = augment(NOTHING, images, labels)
    for step, expected in ((0, False), (74, False), (75, True), (99, True)):
        out, targets = augment(settings, images, labels, step)
        assert torch.equal(out, plain) == expected, step
        assert (targets.ndim == 1) == expected


def test_an_alternating_flip_shows_each_image_both_ways() -> None:
    images, _ = batch()
    starts = torch.arange(64) % 3 % 2
    first, second, third = (flip_alternately(images, starts, epoch) for epoch in range(3))
    mirrored = (first == images.flip(3)).all((1, 2, 3))
    assert torch.equal(mirrored, starts == 1)
    assert torch.equal(first[~mirrored], images[~mirrored])
    assert torch.equal(second, first.flip(3))
    assert torch.equal(third, first)
    plain, _ = augment(Augmentation(crop_padding=0, flip="alternate"), *batch())
    assert torch.equal(plain, PIXELS.normalise(images))


def test_pixels_are_those_of_the_chosen_images() -> None:
    images, _ = batch()
    images[32:] = 0
    chosen = torch.arange(32)
    pixels = measure_pixels(images, chosen)
    values = images[:32].double() / 255
    torch.testing.assert_close(torch.tensor(pixels.mean, dtype=torch.float64), values.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(pixels.std, dtype=torch.float64), values.std((0, 2, 3), unbiased=False))


def test_independent_crops_and_squares_have_a_draw_for_each_image() -> None:
    images, labels = batch(1)
    images, labels = images.repeat(64, 1, 1, 1), labels.repeat(64)
    settings = Augmentation(crop_padding=2, flip=False, independent=True)
    out, _ = augment(settings, images, labels)
    assert len(torch.unique(out, dim=0)) > 18  # of 25 places
    padded = torch.nn.functional.pad(PIXELS.normalise(images[:1]), (2, 2, 2, 2), mode="reflect")
    places = {tuple(padded[0, :, y : y + 32, x : x + 32].flatten().tolist()) for y in range(5) for x in range(5)}
    assert {tuple(image.flatten().tolist()) for image in out} <= places
    erased, _ = augment(settings.model_copy(update={"crop_padding": 0, "cutout": 12}), images, labels)
    changed = (erased != PIXELS.normalise(images)).any(1)
    assert all(int(each.sum()) in range(130, 145) for each in changed)  # less where a pixel had that color
    assert len(torch.unique(changed, dim=0)) > 50
