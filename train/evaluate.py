"""Loss and accuracy of a network on images that it was not trained on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from train.augment import Pixels
from train.process import Place

BATCH = 500


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean cross entropy, and the part of the images whose class was told; one view of each, no augmentation."""

    loss: float
    accuracy: float


def evaluate(
    net: nn.Module, images: Tensor, labels: Tensor, *, pixels: Pixels, place: Place, tick: Callable[[], None]
) -> Measured:
    """Measure a network in eval mode; the mode that it had is put back.

    Args:
        images: (N, 3, H, W) uint8, at least one.
        tick: called before each batch.
    """
    was_training = net.training
    net.eval()
    loss, correct = 0.0, 0
    try:
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(labels)), BATCH):
                tick()
                batch, wanted = place.move(pixels.normalise(images[rows])), labels[rows].to(place.device)
                with place.autocast():
                    outputs = net(batch)
                outputs = outputs.float()
                loss += float(nn.functional.cross_entropy(outputs, wanted, reduction="sum"))
                correct += int((outputs.argmax(1) == wanted).sum())
    finally:
        net.train(was_training)
    return Measured(loss / len(labels), correct / len(labels))
