"""Inside the sandbox: the numbers of one network, for the judge of functional twins (`benchmarks.twins`).

Shares nothing with what the product measures: parameters are put in order by watching a run, or by registration, and
every tensor has its own numbers, which are compared with a tolerance, not rounded.
"""

import math
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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

_SEEDS = (1, 2, 3)
_SCALES = {1: 1.0, 2: 30.0, 3: 0.02}  # of the inputs, by seed
_WEIGHTS = 2**14  # numbers that are drawn; larger tensors repeat them


class _FirstUse(TorchFunctionMode):
    """Notes which parameters the functions of PyTorch are called with, in the order of the calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in net.named_parameters()}
        self.order: dict[str, None] = {}

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        used = [self._names[id(leaf)] for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._names]
        # What `.shape` and the like read is no use of the values.
        if not str(getattr(func, "__name__", "")).startswith("__get__") and getattr(func, "__name__", "") != "size":
            self.order |= dict.fromkeys(used)
        return func(*args, **(kwargs or {}))


class _OneDraw(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random operations on a tensor start from one seed: which of two dropouts comes first does not count.

    Those that make a tensor have seeds of their own: the difference of two draws is not 0.

    A conversion to float32, no step in a network of float32, is none in float64 either.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            makes = not any(isinstance(value, Tensor) for value in args) or "like" in str(func)
            self._made += makes
            torch.manual_seed(4 + 100 * self._made if makes else 4)
        wanted = {"dtype": torch.float64} if (kwargs or {}).get("dtype") is torch.float32 else {}
        return func(*args, **{**(kwargs or {}), **wanted})


def judge(payload: dict[str, Any]) -> dict[str, Any]:
    """Measure one network.

    Args: payload: `code`, `prm`, and `cases`, of which the first with which the network runs counts.

    Returns: `{"runs": true, "in_shape", "sizes", "numbers", "seconds"}`: the sizes of the parameters in use, sorted,
        and the numbers by the order of the parameters; or the failure as `NetError.answer` gives it.
    """
    stub_weights()
    started, default = process_time(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    failure: NetError | None = None
    try:
        for case in payload["cases"]:
            try:
                net = _build(payload, case)
                before = {name: buffer.clone() for name, buffer in net.named_buffers()}
                orders = _order_parameters(net, case)
                numbers = {name: _measure(net, case, order, before) for name, order in orders.items()}
            except NetError as error:
                failure = failure or error
                continue
            if case is not payload["cases"][-1]:  # what a small image does not reach
                try:
                    for name, rows in _measure_large(payload, orders).items():
                        numbers[name] += rows
                except NetError as error:
                    return error.answer()
            sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
            return {
                "runs": True,
                "in_shape": list(case["in_shape"]),
                "sizes": sorted(sizes[name] for name in orders["use"]),
                "numbers": numbers,
                "seconds": process_time() - started,
            }
    finally:
        torch.set_default_dtype(default)
    assert failure is not None
    return failure.answer()


def _build(payload: Mapping[str, Any], case: Mapping[str, Any]) -> nn.Module:
    install_vocabulary(case["words"])
    seed_all(0)
    module = execute(payload["code"])
    net: nn.Module = construct(
        module, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(payload["prm"])
    ).double()
    return net


def _order_parameters(net: nn.Module, case: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the trained parameters that a network uses, by first use and as they are registered."""
    used: dict[str, None] = {}
    reached: set[str] = set()
    for train in (False, True):
        with step("forward_failed"), _FirstUse(net) as watched, _OneDraw():
            try:
                outputs = [
                    one for one in tree_leaves(net.train(train)(_draw_inputs(case, 1))) if isinstance(one, Tensor)
                ]
                live = [torch.view_as_real(one) if one.is_complex() else one for one in outputs if one.requires_grad]
                if live:
                    torch.stack([one.sum() for one in live]).sum().backward()  # type: ignore[no-untyped-call]
            except Exception:
                if not train:
                    raise
        used |= watched.order
        reached |= {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    # A parameter may be read for what no output depends on.
    return {
        "use": [name for name in used if name in reached],
        "registration": [name for name, _ in net.named_parameters() if name in used and name in reached],
    }


def _measure(
    net: nn.Module,
    case: Mapping[str, Any],
    order: Sequence[str],
    before: Mapping[str, Tensor],
    seeds: Sequence[int] = _SEEDS,
    modes: Sequence[bool] = (False, True),
) -> list[list[float]]:
    """Return the numbers of the tensors that can be observed, by seed and mode: norm, and two sums with weights."""
    parameters = dict(net.named_parameters())
    rows: list[list[float]] = []
    for seed in seeds:
        with torch.no_grad():
            for place, name in enumerate(order):
                parameter = parameters[name]
                wide = parameter.numel() > max(parameter.shape, default=1)
                spread = math.sqrt(2 * parameter.squeeze().shape[0] / parameter.numel()) if wide else 0.3
                parameter.copy_(_repeat(100 * seed + place, parameter).mul_(spread).add_(0.0 if wide else 0.6))
        for train in modes:
            with torch.no_grad():
                for name, buffer in net.named_buffers():
                    if name in before and buffer.shape == before[name].shape:
                        buffer.copy_(before[name])
            rows += _run(net.train(train), case, seed, [parameters[name] for name in order])
            changed = [
                buffer
                for name, buffer in net.named_buffers()
                if name not in before or not torch.equal(buffer, before[name])
            ]
            # Buffers have names and an order of their own: sorted by their values.
            rows += sorted(map(_describe, changed))
    return rows


def _measure_large(payload: Mapping[str, Any], orders: Mapping[str, Sequence[str]]) -> dict[str, list[list[float]]]:
    """Return the numbers of the outputs at the size of the trace, in eval mode, for one seed."""
    case = payload["cases"][-1]
    net = _build(payload, case)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return {name: _measure(net, case, order, before, seeds=(1,), modes=(False,)) for name, order in orders.items()}


def _run(net: nn.Module, case: Mapping[str, Any], seed: int, parameters: Sequence[Tensor]) -> list[list[float]]:
    net.zero_grad(set_to_none=True)
    inputs = _draw_inputs(case, seed)
    leaf = inputs.requires_grad_() if inputs.is_floating_point() else inputs
    seed_all(seed)
    try:
        with step("forward_failed"), _OneDraw():
            outputs = [one for one in tree_leaves(net(leaf.clone())) if isinstance(one, Tensor)]
            live = [torch.view_as_real(one) if one.is_complex() else one for one in outputs if one.requires_grad]
            if live:
                total = sum((one * _repeat(7 + place, one)).sum() for place, one in enumerate(live))
                assert isinstance(total, Tensor)
                total.backward()  # type: ignore[no-untyped-call]
    except NetError:
        if not net.training:
            raise
        return [[math.nan] * 3]
    rows = [_describe(one.detach()) for one in outputs]
    return rows + [_describe(one.grad) if one.grad is not None else [0.0] * 3 for one in (leaf, *parameters)]


def _draw_inputs(case: Mapping[str, Any], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(500 + seed)
    if case["dtype"] == "int64":
        low, high = (int(bound) for bound in case["values"])
        return torch.randint(low, high, list(case["in_shape"]), generator=generator)
    values = torch.randn(list(case["in_shape"]), generator=generator, dtype=torch.float64) * _SCALES[seed]
    return values.to(torch.complex128) if "complex" in case["dtype"] else values


def _repeat(seed: int, like: Tensor) -> Tensor:
    """Return a tensor of normal numbers in the shape of another one."""
    row = torch.randn(_WEIGHTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return row.repeat(like.numel() // _WEIGHTS + 1)[: like.numel()].reshape(like.shape)


def _describe(tensor: Tensor) -> list[float]:
    real = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).to(torch.float64).flatten()
    return [float(torch.linalg.vector_norm(real)), float(real @ _repeat(1, real)), float(real @ _repeat(2, real))]
