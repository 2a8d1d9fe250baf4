"""The optimiser of a recipe and its schedule, both of torch."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from train.muon import MuonBesideSgd
from train.recipe import Training

_Tensors = tuple[Tensor, ...] | list[Tensor]


def make_optimizer(parameters: Iterable[nn.Parameter], training: Training) -> Optimizer:
    """SGD with Nesterov momentum, AdamW, or Muon beside SGD; weights with fewer than two dimensions do not decay.

    Source: the split is that of T. He et al. 2019, "Bag of Tricks", arXiv:1812.01187, section 3.1
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if training.optimizer == "muon":
        return MuonBesideSgd(trained, training)
    return _plain_optimizer(trained, training)


def _plain_optimizer(trained: list[nn.Parameter], training: Training) -> Optimizer:
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    fused = all(each.device.type in ("cpu", "cuda") and each.is_floating_point() for each in trained)
    if training.optimizer == "adamw":
        return AdamW(groups, lr=training.learning_rate, fused=fused)
    nesterov = training.momentum > 0
    return SGD(groups, lr=training.learning_rate, momentum=training.momentum, nesterov=nesterov, fused=fused)


def make_schedule(optimizer: Optimizer, training: Training, steps: int) -> LRScheduler:
    """The schedule over this many steps; `step()` is to be called after each of them.

    All but `onecycle`, which has its own form, grow linearly from near 0 for the warm-up, then go down by a cosine or a
    line to 0, or stay.
    """
    if training.schedule == "onecycle":
        return OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=steps + 1,  # it refuses the step after its last one, which nothing is trained with
            pct_start=_not_one_step(training.warmup_fraction, steps + 1),
            cycle_momentum=False,
        )
    warm = min(steps, round(training.warmup_fraction * steps))
    rest = max(1, steps - warm)
    after: LRScheduler
    if training.schedule == "cosine":
        after = CosineAnnealingLR(optimizer, T_max=rest)
    elif training.schedule == "linear":
        after = LinearLR(optimizer, 1.0, 0.0, total_iters=rest)
    else:
        after = ConstantLR(optimizer, 1.0, total_iters=1)
    if not warm:
        return after
    rising = LinearLR(optimizer, 1 / (warm + 1), 1.0, total_iters=warm)
    return SequentialLR(optimizer, [rising, after], milestones=[warm])


def _not_one_step(fraction: float, steps: int) -> float:
    """The warm-up's part of all steps; less by a hair where it is one step, by whose length less 1 torch divides."""
    return fraction * (1 - 1e-6) if fraction * steps == 1 else fraction


def make_average(net: nn.Module, decay: float) -> AveragedModel:
    """The network with the averages of its weights and buffers; `update_parameters` is to be called after each step.

    After n steps, a step decays by `decay`, or by (1 + n) / (10 + n) where that is less: else the first weights, which
    know nothing, would weigh for the first 1 / (1 - decay) steps. Whole numbers (indices, counters) and what is not
    finite (masks) have no average: they are those of the network.

    Source: `num_updates` of tf.train.ExponentialMovingAverage
    """

    def average(averages: _Tensors, values: _Tensors, count: Tensor | int) -> None:
        steps = int(count)
        step = get_ema_multi_avg_fn(min(decay, (1 + steps) / (10 + steps)))  # type: ignore[no-untyped-call]
        if averages[0].is_floating_point():
            step(averages, values, count)
        for mean, value in zip(averages, values, strict=True):
            mean.copy_(torch.where(value.isfinite(), mean, value) if value.is_floating_point() else value)

    return AveragedModel(net, multi_avg_fn=average, use_buffers=True)
