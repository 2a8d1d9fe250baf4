"""The optimizer of a recipe and its schedule: torch's own, and Muon in float32.

Muon steps along the orthogonalised momentum of a matrix. A convolution's weight (out, in, height, width) is a matrix
with one row per output channel, as in K. Jordan's airbench. torch.optim.Muon always multiplies in bfloat16; on a
processor without such instructions its step takes a hundred times as long as ours.

Source: https://kellerjordan.github.io/posts/muon/
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from train.model.recipe import Training

#: With fewer input or output channels there is little to orthogonalise, and SGD works as well.
_CHANNELS = 24

# Coefficients and number of iterations are those of the source and of torch.optim.Muon.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
_LEAST = 1e-7  # lower bound of a norm that is a divisor

_Tensors = tuple[Tensor, ...] | list[Tensor]


def make_optimizer(parameters: Iterable[nn.Parameter], training: Training) -> Optimizer:
    """Return SGD with Nesterov momentum, AdamW, or Muon with SGD; weights with fewer than two dimensions do not decay.

    Source: the split is that of T. He et al. 2019, "Bag of Tricks", arXiv:1812.01187, section 3.1
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if training.optimizer == "muon":
        return MuonWithSgd(trained, training)
    fused = all(each.device.type in ("cpu", "cuda") and each.is_floating_point() for each in trained)
    if training.optimizer == "adamw":
        return AdamW(_groups(trained, training), lr=training.learning_rate, fused=fused)
    return _sgd(trained, training, fused=fused)


def _groups(trained: list[nn.Parameter], training: Training) -> list[dict[str, Any]]:
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _sgd(trained: list[nn.Parameter], training: Training, *, fused: bool | None = None) -> SGD:
    nesterov = training.momentum > 0
    groups = _groups(trained, training)
    for group in groups:
        if group["params"][0].ndim < 2:
            group["lr"] = training.learning_rate * training.bias_rate
    return SGD(groups, lr=training.learning_rate, momentum=training.momentum, nesterov=nesterov, fused=fused)


def make_schedule(optimizer: Optimizer, training: Training, steps: int) -> LRScheduler:
    """Return the schedule for this many steps; call `step()` after each of them.

    All but `onecycle`, which has its own form, grow linearly from near 0 during the warm-up, then fall to 0 by a cosine
    or linearly, or remain constant.
    """
    if training.schedule == "onecycle":
        total = steps + 1  # it refuses the call after its last step, whose rate is never used
        rates, start = [group["lr"] for group in optimizer.param_groups], training.warmup_fraction
        if start * total == 1:  # torch divides by the steps of the warm-up minus 1
            start *= 1 - 1e-6
        return OneCycleLR(optimizer, max_lr=rates, total_steps=total, pct_start=start, cycle_momentum=False)
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


def make_average(net: nn.Module, decay: float) -> AveragedModel:
    """Return the network with averaged weights and buffers; call `update_parameters` after each step.

    After n steps, the decay is `decay` or (1 + n) / (10 + n), whichever is smaller: otherwise the untrained first
    weights would count for the first 1 / (1 - decay) steps. Integers (indices, counters) and values that are not finite
    (masks) are copied from the network instead of averaged.

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


def start_as_identity(net: nn.Module) -> None:
    """Set the first filters of each convolution that is trained to pass their channels on.

    Source: Jordan 2024, arXiv:2404.00498, section 3.3
    """
    for module in net.modules():
        if not isinstance(module, nn.Conv2d) or module.groups > 1 or min(module.kernel_size) == 1:
            continue
        if module.weight.requires_grad:
            nn.init.dirac_(module.weight.detach()[: module.in_channels])


def freeze_norm_weights(net: nn.Module) -> None:
    """Leave the norms of a network only their biases to learn."""
    for module in net.modules():
        norm = isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm)
        if norm and module.weight is not None:
            module.weight.requires_grad_(False)


class Lookahead:
    """Weights and buffers that follow those of a network, which returns to them every fifth step.

    The decay of the mean grows with the cube of the part of the steps done, and is 1 at the last: so early steps pass
    unchanged, and what remains is a mean.

    Source: Jordan 2024, arXiv:2404.00498, section 3.4, after Zhang et al. 2019, arXiv:1907.08610
    """

    _EVERY, _DECAY = 5, 0.95

    def __init__(self, net: nn.Module, steps: int) -> None:
        self._steps = steps
        self._fast = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
        self._slow = {name: value.clone() for name, value in self._fast.items()}

    @torch.no_grad()
    def step(self, done: int) -> None:
        """Follow the network, of which that many steps are done, and set it back, if it is time."""
        if done % self._EVERY and done < self._steps:
            return
        decay = 1.0 if done >= self._steps else self._DECAY**self._EVERY * (done / self._steps) ** 3
        slow, fast = list(self._slow.values()), list(self._fast.values())
        torch._foreach_lerp_(slow, fast, 1 - decay)
        torch._foreach_copy_(fast, slow)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean."""
        return self._slow

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the mean."""
        for name, value in self._slow.items():
            value.copy_(state[name])


class MuonWithSgd(Optimizer):
    """Muon and SGD under one list of parameter groups, so that one schedule sets both."""

    def __init__(self, parameters: Iterable[nn.Parameter], training: Training) -> None:
        weights = self._every = list(parameters)
        self._rows = [(each, rows) for each in weights if (rows := _as_rows(each)) is not None]
        taken = {id(each) for each, _ in self._rows}
        rest = [each for each in weights if id(each) not in taken]
        super().__init__(weights, {"lr": training.learning_rate})
        self._parts: list[Optimizer] = []
        if self._rows:
            matrices = [rows for _, rows in self._rows]
            rate, decay = training.muon_learning_rate, training.muon_weight_decay
            self._parts.append(Muon(matrices, rate, training.momentum, decay, unit=training.muon_unit))
        if rest:
            self._parts.append(_sgd(rest, training))
        self._gather()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step of both."""
        assert closure is None
        for each, rows in self._rows:
            rows.grad = None if each.grad is None else _to_rows(each.grad)
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the network's own parameters; the groups have only views of them."""
        assert set_to_none
        for each in self._every:
            each.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load both states."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._gather()

    def _gather(self) -> None:
        """Expose the groups of both as ours: they are the same objects, so a rate set here applies there."""
        self.param_groups = [group for part in self._parts for group in part.param_groups]


def _as_rows(weight: nn.Parameter) -> nn.Parameter | None:
    """Return a convolution's weight as a matrix that shares its memory; None for weights that Muon should not train."""
    if weight.ndim != 4 or min(weight.shape[:2]) < _CHANNELS:
        return None
    rows = _to_rows(weight.detach())
    return nn.Parameter(rows) if rows.data_ptr() == weight.data_ptr() else None


def _to_rows(weight: Tensor) -> Tensor:
    """Reshape (out, in, h, w) to (out, h * w * in), without a copy if the memory format is channels_last."""
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)


class Muon(Optimizer):
    """Steps along the orthogonalised Nesterov momentum of matrices, with decoupled weight decay.

    With `unit`, a matrix is first brought to the norm of an orthogonal one, so that a rate means the same for each.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, *, unit: bool = False
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._unit = unit

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step of every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._step(matrix, group["lr"], group["momentum"], group["weight_decay"])

    def _step(self, matrix: nn.Parameter, lr: float, momentum: float, weight_decay: float) -> None:
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonal(gradient.lerp(average, momentum))
        rows, columns = matrix.shape
        if self._unit:
            matrix.mul_(rows**0.5 / matrix.norm().clamp(min=_LEAST))
        else:
            matrix.mul_(1 - lr * weight_decay)
        matrix.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix (rows, columns) with the same singular vectors, and singular values between about 0.7 and 1.2.

    This applies X <- (a + b XX' + c (XX')^2) X five times. Because these polynomials of XX' commute, it iterates on
    their product and on XX' instead of X: small square products, and only two products with X instead of ten.

    Source: https://dao-ailab.github.io/blog/2026/gram-newton-schulz/
    """
    if matrix.size(0) > matrix.size(1):
        return orthogonal(matrix.T).T
    unit: Tensor = matrix / matrix.norm().clamp(min=_LEAST)
    gram = unit @ unit.T
    product = factor = _polynomial(gram)
    for _ in range(_STEPS - 1):
        gram = factor @ (factor @ gram)
        factor = _polynomial(gram)
        product = factor @ product
    return product @ unit


def _polynomial(gram: Tensor) -> Tensor:
    """Return a + b G + c G^2 for a square matrix G."""
    value: Tensor = torch.addmm(gram, gram, gram, beta=_B, alpha=_C)
    value.diagonal().add_(_A)
    return value
