"""Muon in float32: momentum, orthogonalised, as the step of a matrix.

torch.optim.Muon multiplies in bfloat16 whatever the processor; on one without such instructions a step of it takes a
hundred times as long as this one.

Source: https://kellerjordan.github.io/posts/muon/
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# The polynomial's coefficients, and how often it is applied, are those of the source and of torch.optim.Muon.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
_LEAST = 1e-7  # of a norm to divide by


class Muon(Optimizer):
    """Steps along the orthogonalised Nesterov momentum of matrices; weight decay apart from it."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        """Train these (rows, columns) parameters."""
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient."""
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
        matrix.mul_(1 - lr * weight_decay)
        matrix.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix (rows, columns) with the same singular vectors, and singular values between about 0.7 and 1.2.

    Five times X <- (a + b XX' + c (XX')^2) X. As these polynomials of XX' commute, their product and XX' are followed
    instead of X: multiplications of small squares, and only two of the long matrix instead of ten.

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
    """a + b G + c G^2 of a square G."""
    value: Tensor = torch.addmm(gram, gram, gram, beta=_B, alpha=_C)
    value.diagonal().add_(_A)
    return value
