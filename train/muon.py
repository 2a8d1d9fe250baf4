"""Muon for the convolutions of a network, SGD for the rest, as one optimiser.

Muon steps along the orthogonalised momentum of a matrix. A convolution's weight (out, in, height, width) is one with a
row an output channel, as in K. Jordan's airbench.

Source: https://kellerjordan.github.io/posts/muon/
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from train.orthogonal import Muon
from train.recipe import Training

#: Below so many channels in or out there is little to orthogonalise, and SGD does as well.
_CHANNELS = 32


class MuonBesideSgd(Optimizer):
    """Both optimisers under one list of groups, so that one schedule sets both."""

    def __init__(self, parameters: Iterable[nn.Parameter], training: Training) -> None:
        """Share the parameters out."""
        every = self._every = list(parameters)
        self._rows = [(each, rows) for each in every if (rows := _as_rows(each)) is not None]
        taken = {id(each) for each, _ in self._rows}
        rest = [each for each in every if id(each) not in taken]
        super().__init__(every, {"lr": training.learning_rate})
        self._parts: list[Optimizer] = []
        if self._rows:
            matrices = [rows for _, rows in self._rows]
            rate, decay = training.muon_learning_rate, training.muon_weight_decay
            self._parts.append(Muon(matrices, rate, training.momentum, decay))
        groups = [
            {"params": [each for each in rest if each.ndim >= 2], "weight_decay": training.weight_decay},
            {"params": [each for each in rest if each.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if groups:
            nesterov = training.momentum > 0
            self._parts.append(SGD(groups, lr=training.learning_rate, momentum=training.momentum, nesterov=nesterov))
        self._gather()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both."""
        assert closure is None
        for each, rows in self._rows:
            rows.grad = None if each.grad is None else _rows_of(each.grad)
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the network's own parameters, of which the groups hold only views."""
        assert set_to_none
        for each in self._every:
            each.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take both states over."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._gather()

    def _gather(self) -> None:
        """Show the groups of both as ours: they are the same objects, so a rate set here counts there."""
        self.param_groups = [group for part in self._parts for group in part.param_groups]


def _as_rows(weight: nn.Parameter) -> nn.Parameter | None:
    """A convolution's weight as a matrix that shares its memory; None for what Muon should not train."""
    if weight.ndim != 4 or min(weight.shape[:2]) < _CHANNELS:
        return None
    rows = _rows_of(weight.detach())
    return nn.Parameter(rows) if rows.data_ptr() == weight.data_ptr() else None


def _rows_of(weight: Tensor) -> Tensor:
    """(out, in, h, w) as (out, h * w * in), which is no copy where channels lie last in memory."""
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)
