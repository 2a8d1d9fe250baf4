"""Inside the sandbox: what a network computes, in numbers, for parameters of our choice.

Trainable parameters are filled in the order in which the graph meets them, by position alone, so that two networks of
one computation get the same values whatever their names and initialization. Frozen parameters and buffers keep their
values, except for the state that a train run updates. Everything runs in float64, where rounding is far below what two
different computations differ by; a network that insists on float32 is measured in that, and compared more coarsely.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lemur_core.graphs.trace import flatten_tensors
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    install_vocabulary,
    seed_all,
    step,
    stub_weights,
    tuples,
)

#: Digits that two measurements of one computation share, by the type of the numbers; relative to a tensor's norm.
DIGITS = {torch.float64: 6, torch.float32: 2}

_FILLS = frozenset({torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default})
_PERIOD = 65_521  # a prime: rows of a filled matrix are not aligned with the repeated block
_SCALES = (1.0, 1000.0, 0.01)  # of inputs, by seed: a branch on the data may go another way
_NOISE = 1e-9  # gradients below this share of the largest one are rounding noise


@dataclass(frozen=True, slots=True)
class Observed:
    """The observable tensors of one run, in an order that the computation alone determines."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]  # of inputs, then of parameters in the order of the graph
    state: list[Tensor]  # buffers that a train run updates


def measure_behavior(payload: dict[str, Any]) -> dict[str, Any]:
    """Measure one network.

    Args:
        payload: `code`; `prm`; `cases`, from small to large inputs, each as for `run_network`: the first with which the
            network runs counts; `order`, the names of the parameters as the graph meets them; `state`, the names
            of the buffers that a train run updates; `seeds`.

    Returns: `{"runs": true, "behavior", "precision", "in_shape", "informative", "seconds"}`, or the failure as
        `NetError.answer` gives it.
    """
    stub_weights()
    failures: list[NetError] = []
    started, default = process_time(), torch.get_default_dtype()
    try:
        for dtype in DIGITS:
            torch.set_default_dtype(dtype)
            for case in payload["cases"]:
                try:
                    runs = list(observe(payload, case, dtype))
                except NetError as error:
                    failures.append(error)
                    continue
                lines = [line for run in runs for line in run]
                text = json.dumps([case["in_shape"], str(dtype), lines])
                return {
                    "runs": True,
                    "behavior": hashlib.sha256(text.encode()).hexdigest(),
                    "precision": str(dtype).removeprefix("torch."),
                    "in_shape": case["in_shape"],
                    "informative": any(line.startswith("gradient") and not line.endswith(" 0") for line in lines),
                    "seconds": process_time() - started,
                }
    finally:
        torch.set_default_dtype(default)
    return failures[-1].answer()


def observe(payload: Mapping[str, Any], case: Mapping[str, Any], dtype: torch.dtype) -> Iterator[list[str]]:
    """Yield the numbers of a network of this case, in eval and in train mode for each seed.

    Raises: NetError if it fails in eval mode; a failure in train mode alone is a run without numbers.
    """
    install_vocabulary(case["words"])
    seed_all(0)
    module = execute(payload["code"])
    with _FastFills():  # type: ignore[no-untyped-call]
        net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(payload["prm"]))
    if dtype == torch.float64:
        net = net.double()
    initial = {name: tensor.clone() for name, tensor in net.named_buffers()}
    for seed in payload["seeds"]:
        fill(net, payload["order"], seed)
        for train in (False, True):
            reset(net, payload["state"], initial, seed)
            try:
                yield describe(_run(net, payload, _inputs(case, dtype, seed), train, seed), dtype)
            except NetError:
                if not train:
                    raise
                yield []


def fill(net: nn.Module, order: Sequence[str], seed: int) -> None:
    """Fill trainable parameters by position: equal computations get equal values under any names.

    Args: order: names of the parameters, as the graph meets them; the others, which nothing reads, are left.
    """
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        for position, name in enumerate(order):
            tensor = parameters.get(name)
            if tensor is None or not tensor.requires_grad or not tensor.numel():
                continue
            # A weight keeps the scale of what it is applied to; a scale or shift is of one sign for most channels.
            spread = (tensor.numel() / tensor.shape[0]) ** -0.5 if tensor.dim() > 1 else 0.4
            center = 0.0 if tensor.dim() > 1 else 0.5 if seed % 2 == 0 else -0.5
            _tile(tensor, _draw(tensor.numel(), 2 * position + 1, seed) * spread + center)


def reset(net: nn.Module, state: Sequence[str], initial: Mapping[str, Tensor], seed: int) -> None:
    """Give all buffers their initial values; the state besides something positive, which suits means and variances.

    Args: state: names of the buffers that a train run updates. initial: of all buffers.
    """
    buffers = dict(net.named_buffers())
    with torch.no_grad():
        for name, tensor in buffers.items():
            if name in initial and initial[name].shape == tensor.shape:
                tensor.copy_(initial[name])
        for position, name in enumerate(state):
            held = buffers.get(name)
            if held is not None and held.is_floating_point():
                noise = torch.empty_like(held)
                _tile(noise, _draw(held.numel(), 2 * position, seed).abs())
                held.add_(noise, alpha=0.3)


def _draw(count: int, position: int, seed: int) -> Tensor:
    """Return a row of normal numbers that depend on position and seed: at most `_PERIOD`, to be repeated."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + position)
    return torch.randn(min(count, _PERIOD), generator=generator, dtype=torch.float64)


def _tile(tensor: Tensor, block: Tensor) -> None:
    """Fill a tensor with a row that is repeated, in the order of its elements."""
    flat = tensor.view(-1) if tensor.is_contiguous() else torch.empty(tensor.numel(), dtype=tensor.dtype)
    whole = flat.numel() // len(block)
    flat[: whole * len(block)].view(whole, len(block)).copy_(block)
    flat[whole * len(block) :].copy_(block[: flat.numel() - whole * len(block)])
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _inputs(case: Mapping[str, Any], dtype: torch.dtype, seed: int) -> Tensor:
    """Return inputs of both signs; tokens within their range."""
    shape = [int(size) for size in case["in_shape"]]
    generator = torch.Generator().manual_seed(7_919 + seed)
    if case["dtype"] == "int64":
        low, high = (int(bound) for bound in case["values"])
        return torch.randint(low, high, shape, generator=generator)
    scale = _SCALES[seed % len(_SCALES)]
    values = scale * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return (
        values.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
        if "complex" in case["dtype"]
        else values
    )


def _run(net: nn.Module, payload: Mapping[str, Any], inputs: Tensor, train: bool, seed: int) -> Observed:
    net.train(train)
    net.zero_grad(set_to_none=True)
    real = inputs.is_floating_point()
    leaf = inputs.requires_grad_() if real else inputs
    seed_all(seed)
    with step("forward_failed", f"in {'train' if train else 'eval'} mode"), _SameDraws(seed):
        outputs = flatten_tensors(net(leaf * 1 if real else leaf))  # an in-place operation may not write to a leaf
        live = [output for output in outputs if output.requires_grad and output.numel()]
        if live:
            _backward(live)
    parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    ordered = (parameters.get(name) for name in payload["order"])
    gradients = [leaf.grad, *(None if tensor is None else tensor.grad for tensor in ordered)]
    state = [buffers[name].detach().clone() for name in payload["state"] if name in buffers]
    return Observed([output.detach() for output in outputs], gradients, state)


def _backward(outputs: Sequence[Tensor]) -> None:
    total = torch.zeros(())
    for number, tensor in enumerate(outputs):
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
        weights = torch.empty_like(flat, requires_grad=False)
        _tile(weights, _draw(flat.numel(), number, 5))
        total = total + (flat * weights).sum()
    total.backward()  # type: ignore[no-untyped-call]


class _FastFills(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Initializes large tensors with a repeated row of random numbers: most are filled again anyway."""

    def __torch_dispatch__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].numel() > 2 * _PERIOD and args[0].is_contiguous():
            _tile(args[0], func(torch.empty(_PERIOD, dtype=args[0].dtype), *args[1:], **kwargs))
            return args[0]
        return func(*args, **kwargs)


class _SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seeds the generator before each draw, so that the order in which two branches draw does not matter."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed

    def __torch_dispatch__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.manual_seed(self._seed)
        return func(*args, **(kwargs or {}))


def describe(run: Observed, dtype: torch.dtype) -> list[str]:
    """Return the numbers of one run as text, rounded: equal for one computation, whatever its parameters are called."""
    norms = [0.0 if one is None else _norm(one) for one in run.gradients]
    least = max(norms, default=0.0) * _NOISE
    lines = [f"output {list(tensor.shape)} {_round(tensor, _norm(tensor), dtype)}" for tensor in run.outputs]
    lines += [
        "gradient 0" if one is None or norm <= least else f"gradient {_round(one, norm, dtype)}"
        for one, norm in zip(run.gradients, norms, strict=True)
    ]
    return lines + sorted(f"state {_round(tensor, _norm(tensor), dtype)}" for tensor in run.state)


def _norm(tensor: Tensor) -> float:
    real = tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.to(torch.float64)
    return float(torch.linalg.vector_norm(real))


def _round(tensor: Tensor, norm: float, dtype: torch.dtype) -> str:
    """Return the norm of a tensor and a projection of its direction, rounded."""
    if norm == 0 or not isfinite(norm):
        return str(norm)
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
    digits = DIGITS[dtype]
    return f"{norm:.{digits - 1}e} {_project(flat) / norm:.{digits - 1}f}"


def _project(flat: Tensor) -> float:
    """Return the sum of a row's numbers, each times a normal number that its position alone determines."""
    real = flat if flat.is_floating_point() else flat.to(torch.float64)
    block = _draw(_PERIOD, 0, 11).to(real.dtype)
    whole = real.numel() // _PERIOD
    total = float(real[whole * _PERIOD :] @ block[: real.numel() - whole * _PERIOD])
    return total + float((real[: whole * _PERIOD].view(whole, _PERIOD) @ block).sum()) if whole else total
