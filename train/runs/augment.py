"""Augmentation of training images: crops, flips, RandAugment, erased squares, MixUp and CutMix, all of torchvision.

A torchvision v2 transform draws its random parameters once per call, so a batch is split into groups of `GROUP` images
with separate draws. On one core at 32 x 32, crop, flip and two operations of RandAugment take 0.6 ms per image one at a
time, and 0.1 ms per image in groups of 8; larger groups gain little more.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms import v2

from train.model.recipe import Augmentation

#: Number of images that share a random draw.
GROUP = 8
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Pixels:
    """Mean and standard deviation of each channel, for pixels in 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: Tensor) -> Tensor:
        """Convert uint8 images to float32 with a mean of about 0 and a deviation of about 1."""
        scaled: Tensor = v2.functional.to_dtype(images, torch.float32, scale=True)
        normal: Tensor = v2.functional.normalize(scaled, list(self.mean), list(self.std), inplace=True)
        return normal


def measure_pixels(images: Tensor, chosen: Tensor) -> Pixels:
    """Measure the mean and deviation of the chosen images (N, C, H, W) uint8, from exact counts of the 256 values."""
    counts = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    for rows in torch.split(chosen, 4096):
        part = images[rows]
        for channel in range(images.shape[1]):
            counts[channel] += torch.bincount(part[:, channel].flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts.double() / counts.sum(1, keepdim=True)
    mean = weights @ values
    std = ((weights * (values - mean[:, None]) ** 2).sum(1)).sqrt().clamp_min(1 / 255)
    return Pixels(tuple(mean.tolist()), tuple(std.tolist()))


class AlternatingFlip:
    """Mirrors each image every other epoch, starting with about half of them, so that both views are equally frequent.

    Source: Jordan 2024, arXiv:2404.00498, section 3.6
    """

    def __init__(self, count: int, seed: int, device: torch.device | str = "cpu") -> None:
        """Draw which of the `count` images, which are on that device, are mirrored in the first epoch."""
        self._first = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(seed)).to(device)

    def __call__(self, images: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Return the images with the indices `rows`, mirrored as in this epoch (from 0)."""
        mirrored = (self._first[rows] + epoch) % 2 == 1
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)


class Augment:
    """Turns a batch of uint8 images into the input of a training step. Draws only from torch's global generator."""

    def __init__(self, settings: Augmentation, pixels: Pixels, size: int, steps: int) -> None:
        """Build the transforms for images of this height and width, and a run of so many steps."""
        self._settings, self._pixels = settings, pixels
        self._first_plain = steps - round(settings.plain_fraction * steps)
        self._first_large = round(settings.small_fraction * steps)
        color = self._color = [round(255 * value) for value in pixels.mean]
        plain: list[v2.Transform] = []
        if settings.crop_padding and not settings.independent:
            plain.append(v2.RandomCrop(size))
        if settings.flip is True:
            plain.append(v2.RandomHorizontalFlip())
        more: list[v2.Transform] = []
        if settings.randaugment_ops:
            more.append(v2.RandAugment(settings.randaugment_ops, settings.randaugment_magnitude, fill=color))
        if settings.cutout and not settings.independent:
            part = settings.cutout**2 / size**2
            more.append(v2.RandomErasing(1.0, (part, part), (1.0, 1.0), [float(value) for value in color]))
        self._plain, self._whole = _chain(plain), _chain([*plain, *more])
        mixers: list[v2.Transform] = []
        if settings.mixup_alpha:
            mixers.append(v2.MixUp(alpha=settings.mixup_alpha, num_classes=CLASSES))
        if settings.cutmix_alpha:
            mixers.append(v2.CutMix(alpha=settings.cutmix_alpha, num_classes=CLASSES))
        self._mix = v2.RandomChoice(mixers) if mixers else None

    def __call__(self, images: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the images of a step (from 0) and their targets.

        Returns: float32 images; the int64 labels unchanged, or (N, 10) float32 targets if the batch was mixed.
        """
        plain = step >= self._first_plain
        chain = self._plain if plain else self._whole
        settings, size = self._settings, images.shape[-1]
        if settings.crop_padding:
            images = v2.functional.pad(images, [settings.crop_padding], padding_mode="reflect")
            if settings.independent:
                images = crop_each(images, size)
        if chain is not None:
            images = torch.cat([chain(group) for group in torch.split(images, GROUP)])
        if settings.independent and settings.cutout and not plain:
            images = erase_each(images, settings.cutout, self._color)
        images = self._pixels.normalise(images)
        if step < self._first_large:
            images = v2.functional.resize(images, [settings.small_size] * 2, antialias=True)
        if self._mix is None or plain or float(torch.rand(())) >= self._settings.mix_probability:
            return images, labels
        mixed: tuple[Tensor, Tensor] = self._mix(images, labels)
        return mixed


def crop_each(images: Tensor, size: int) -> Tensor:
    """Return a square of that size of each image, each at a place of its own."""
    tops, lefts = _draw_corners(images, images.shape[-1] - size)
    steps = torch.arange(size, device=images.device)
    rows, columns = (tops[:, None] + steps)[:, :, None], (lefts[:, None] + steps)[:, None, :]
    which = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[which, rows, columns].permute(0, 3, 1, 2)


def erase_each(images: Tensor, side: int, color: list[int]) -> Tensor:
    """Return the images with a square of this side in this color, in each at a place of its own."""
    corners = _draw_corners(images, images.shape[-1] - side)
    steps = torch.arange(images.shape[-1], device=images.device)
    rows, columns = ((steps >= first[:, None]) & (steps < first[:, None] + side) for first in corners)
    inside = (rows[:, :, None] & columns[:, None, :])[:, None]
    return torch.where(inside, torch.tensor(color, dtype=images.dtype, device=images.device)[:, None, None], images)


def _draw_corners(images: Tensor, most: int) -> Tensor:
    return torch.randint(0, most + 1, (2, len(images))).to(images.device, non_blocking=True)


def _chain(transforms: list[v2.Transform]) -> v2.Compose | None:
    return v2.Compose(transforms) if transforms else None
