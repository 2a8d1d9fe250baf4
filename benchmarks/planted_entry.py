"""What `benchmarks.planted` runs inside the sandbox: a network's results and gradients, with weights that are told.

Weights follow from shapes alone, so that neither names nor the order of definitions play a part. Nothing of the graphs
that are judged is used here.
"""

from typing import Any

import torch

from lemur_core.sandbox.net import NetError, construct, execute, seed_all, step, stub_weights

_DIGITS = 4


def results_of(payload: dict[str, Any]) -> dict[str, Any]:
    """Run one network on the CPU, in eval mode, with its gradients.

    Args:
        payload: `code`, `prm`, `in_shape`, `out_shape`.

    Returns: `runs`; then `output`, projections of what comes out, and `gradients`, of each parameter that has one, in
        order of size; numbers to four digits.
    """
    seed_all(0)
    stub_weights()
    try:
        module = execute(payload["code"])
        net = construct(module, tuple(payload["in_shape"]), tuple(payload["out_shape"]), dict(payload["prm"])).eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(_wave(parameter.shape))
        given = torch.randn(tuple(payload["in_shape"]), generator=torch.Generator().manual_seed(1)).requires_grad_()
        with step("forward_failed"):
            output = net(given)
            (output * _wave(output.shape)).sum().backward()
    except NetError as error:
        return error.answer()
    found = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    told = [_told(value) for value in (output.detach(), given.grad) if value is not None]
    return {"runs": True, "output": told, "gradients": sorted(_told(value) for value in found if bool(value.any()))}


def _wave(shape: torch.Size) -> torch.Tensor:
    count = shape.numel()
    fan = max(1, count // max(1, shape[0] if shape else 1))
    values = torch.sin(1.7 * torch.arange(count, dtype=torch.float64) + 0.3) + 0.1
    return (values * (2 / fan) ** 0.5 if len(shape) > 1 else values).reshape(shape).float()  # of both signs


def _told(value: torch.Tensor) -> list[float]:
    flat = value.double().flatten()
    steps = torch.arange(len(flat), dtype=torch.float64)
    projections = (flat.sum(), (flat * torch.cos(0.9 * steps)).sum(), flat.abs().sum())
    return [len(flat), *(float(f"{float(number):.{_DIGITS}g}") for number in projections)]
