"""The hardest part of each batch, chosen by a small network that is trained together with the one that learns from it.

Source: K. Jordan's airbench96_faster: a proxy takes every batch forward, and a quarter of them backward.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from train.model.recipe import Training
from train.runs.optimizer import make_optimizer, make_schedule, start_as_identity
from train.runs.process import DeviceContext

_WIDTHS = (24, 32, 64, 64)
_SCALE = 1 / 9


class Proxy(nn.Module):
    """Three stages of two convolutions with a maximum of 2 x 2, for images of any size from 8 x 8."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, _WIDTHS[0], 3, padding=1, bias=False), *_norm_activation(_WIDTHS[0])]
        for before, width in pairwise(_WIDTHS):
            layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.MaxPool2d(2), *_norm_activation(width)]
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), *_norm_activation(width)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(_WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a value for each class."""
        scores: Tensor = self.head(self.layers(x).amax((-2, -1))) * _SCALE
        return scores


def _norm_activation(width: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(width), nn.GELU()


class HardestImages:
    """A proxy with its own optimizer, and what it chooses of each batch."""

    EVERY = 4  #: steps from one that the proxy learns from to the next

    def __init__(self, training: Training, context: DeviceContext, steps: int, classes: int) -> None:
        """Build the proxy for a run of so many steps; draws its weights from torch's global generator."""
        self._training, self._context = training, context
        self._last = round(training.kept_until * steps)
        proxy = Proxy(classes)
        start_as_identity(proxy)
        self._proxy = proxy.to(context.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = make_optimizer(self._proxy.parameters(), training)
        self._schedule = make_schedule(self._optimizer, training, math.ceil(max(1, self._last) / self.EVERY))

    def choose(self, images: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the part of the batch of this step (from 0) with the largest losses; the proxy learns from it."""
        if step >= self._last:
            return images, targets
        learns = step % self.EVERY == 0
        with torch.set_grad_enabled(learns), self._context.autocast():
            scores = self._proxy(images)
        smoothing = self._training.label_smoothing
        losses = cross_entropy(scores.float(), targets, reduction="none", label_smoothing=smoothing)
        kept = losses.detach().topk(max(2, round(self._training.kept_part * len(images))), sorted=False).indices
        if learns:
            self._optimizer.zero_grad(set_to_none=True)
            losses[kept].mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._schedule.step()
        return images[kept].contiguous(memory_format=torch.channels_last), targets[kept]

    def kind(self, step: int) -> str:
        """Return what a step takes of the proxy: nothing, its forward pass, or its backward pass, too."""
        return "rests" if step >= self._last else "learns" if step % self.EVERY == 0 else "looks"

    def state_dict(self) -> dict[str, object]:
        """Return the state of the proxy, its optimizer and its schedule."""
        return {"proxy": self._proxy.state_dict(), "rest": [self._optimizer.state_dict(), self._schedule.state_dict()]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load such a state."""
        self._proxy.load_state_dict(state["proxy"])
        for part, kept in zip((self._optimizer, self._schedule), state["rest"], strict=True):  # type: ignore[call-overload]
            part.load_state_dict(kept)
