"""Inside the sandbox: what a network computes, in numbers, for parameters of our choice.

Trainable parameters are filled in the order in which the graph meets them, by position alone, so that two networks of
one computation get the same values whatever their names and initialization. Frozen parameters and buffers keep their
values, except for the state that a train run updates. Everything runs in float64, where rounding is far below what two
different computations differ by; a network that insists on float32 has no numbers to compare.

Inputs of both signs: small ones in eval and train mode; in eval mode images as long, then as wide, as those that the
network was traced with, or those themselves where it takes no others. The norms and random projections of outputs, of
the gradients of inputs and parameters, and of the state after the run, rounded to `DIGITS` digits. They are added up
before they are rounded: few numbers, so that hardly one is so near to the middle between two that the order in which a
processor adds decides how it is rounded.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import fsum, isfinite, log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lemur_core.graphs.composites import PlainDispatchMode
from lemur_core.graphs.graph import RANDOM, Graph, unpack
from lemur_core.graphs.identity import order_parameters
from lemur_core.graphs.memory import read_facts
from lemur_core.graphs.trace import flatten_tensors
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    install_vocabulary,
    keep_memory,
    seed_all,
    step,
    stub_weights,
    tuples,
)

#: Digits that two measurements of one computation share, of a norm, and of a direction.
DIGITS = 7

_FILLS = frozenset({torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default})
_MASKS = frozenset({torch.ops.aten.native_dropout, torch.ops.aten.bernoulli, torch.ops.aten.bernoulli_})
_PERIOD = 16_381  # a prime: rows of a filled matrix are not aligned with the repeated block
_NOISE = 1e-7  # gradients below this share of the largest one are rounding noise


@dataclass(frozen=True, slots=True)
class _Setting:
    """How one run is made: `scale`, of the inputs; `gradients`, whether they are measured, too."""

    seed: int
    train: bool
    scale: float
    gradients: bool


#: What is added to avoid a division by 0 shows with small inputs, bounds show with large ones.
_SMALL = (_Setting(0, False, 1.0, True), _Setting(0, True, 0.01, True))
#: At the size that the network is traced with: crops and windows may reach beyond a smaller one.
_LARGE = (_Setting(1, False, 1000.0, False),)
_STRIPS = 2  # images in a batch of strips
_IMAGE = 4  # dimensions


def measure_behavior(payload: dict[str, Any]) -> dict[str, Any]:
    """Measure one network.

    Args:
        payload: `code`; `prm`; `cases`, from small to large inputs, each as for `run_network`: the first with which the
            network runs counts, and the last one, of the trace; `eval` and `train`, its packed graphs, `train` perhaps
            null.

    Returns: `{"runs": true, "behavior", "behavior_eval"}`: digests of all numbers and of those of eval mode, each with
        "@" and the sizes of the inputs (only numbers of equal sizes compare); null if no gradient reaches a parameter.
        Or the failure as `NetError.answer` gives it.
    """
    stub_weights()
    keep_memory()
    forms = {mode: Graph.from_json(unpack(payload[mode])) for mode in ("eval", "train") if payload[mode] is not None}
    order, state = order_parameters(forms)
    # A draw that changes nothing yet may do so later in a training: a rate that grows, say.
    draws = [sum(n.op in RANDOM or n.get("draw") is not None for n in form.nodes) for form in forms.values()]
    failure: NetError | None = None
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for case in payload["cases"]:
            try:
                net = _Measured(payload, case, order, state)
                in_eval, in_train = (list(net.measure(case, [setting])) for setting in _SMALL)
            except NetError as error:
                failure = failure or error
                continue
            lines = in_eval + in_train
            known = any(line.startswith("gradients") and not line.startswith("gradients 0") for line in lines)
            try:
                large, more = _measure_large(payload, net, case)
            except NetError as error:
                return error.answer()
            sizes = ",".join("x".join(map(str, one["in_shape"])) for one in (case, *large))
            both, alone = (
                f"{hashlib.sha256(json.dumps(numbers).encode()).hexdigest()}@{sizes}" if known else None
                for numbers in ([draws, lines, more], [in_eval, more])
            )
            return {"runs": True, "behavior": both, "behavior_eval": alone}
    finally:
        torch.set_default_dtype(default)
    assert failure is not None
    return failure.answer()


def _measure_large(
    payload: Mapping[str, Any], net: "_Measured", small: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the large inputs and the numbers of a network, built for the small ones, for them.

    Of images two strips, as long and as wide as those of the trace, tell what these do for a fraction of the seconds.

    Raises: NetError if it fails for those of the trace.
    """
    traced = payload["cases"][-1]
    if small is not traced and len(traced["in_shape"]) == _IMAGE:
        _, channels, height, width = traced["in_shape"]
        side = small["in_shape"][-1]
        shapes = [_STRIPS, channels, height, side], [_STRIPS, channels, side, width]
        strips: list[Mapping[str, Any]] = [{**traced, "in_shape": shape} for shape in shapes]
        try:
            return strips, [line for strip in strips for line in net.measure(strip, _LARGE)]
        except NetError:  # a size of its own
            net = _Measured(payload, traced, net.order, net.state)
    return [traced], list(net.measure(traced, _LARGE))


class _Measured:
    """A network built for one case. Raises: NetError if it cannot be built.

    Args: order, state: its parameters and buffers, from `order_parameters`.
    """

    def __init__(
        self, payload: Mapping[str, Any], case: Mapping[str, Any], order: Sequence[str], state: Sequence[str]
    ) -> None:
        install_vocabulary(case["words"])
        seed_all(0)
        module = execute(payload["code"])
        sizes = tuples(case["in_shape"]), tuples(case["out_shape"])
        with _FastFills():  # type: ignore[no-untyped-call]
            self._net = construct(module, *sizes, dict(payload["prm"]), contract=False).double()
        if any(map(is_lazy, [*self._net.parameters(), *self._net.buffers()])):  # they have no sizes before a run
            with step("forward_failed", "before lazy modules have sizes"), torch.no_grad():
                self._net.eval()(_inputs(case, _SMALL[0]))
            self._net.double()
        # Frozen values take no place in the order: they may be buffers in the other network.
        frozen = {name for name, tensor in self._net.named_parameters() if not tensor.requires_grad}
        self.order, self.state = [name for name in order if name not in frozen], state
        self._initial = {name: tensor.clone() for name, tensor in self._net.named_buffers()}
        self._filled: int | None = None  # the seed of its parameters' values

    def measure(self, case: Mapping[str, Any], settings: Sequence[_Setting]) -> Iterator[str]:
        """Yield its numbers for inputs of a case, run by run.

        Raises: NetError if it fails in eval mode; a failure in train mode alone is a run without numbers.
        """
        for setting in settings:
            if setting.seed != self._filled:
                fill(self._net, self.order, setting.seed)
                self._filled = setting.seed
            reset(self._net, self.state, self._initial, setting.seed)
            try:
                yield from _run(self._net, self.order, self.state, _inputs(case, setting), setting)
            except NetError:
                if not setting.train:
                    raise
                yield "no train mode"


def fill(net: nn.Module, order: Sequence[str], seed: int) -> None:
    """Fill parameters by position: equal computations get equal values under any names.

    Args: order: names of trainable parameters, as the graph meets them; the others, which nothing reads, are left.
    """
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        for position, name in enumerate(order):
            tensor = parameters.get(name)
            if tensor is None or not tensor.numel():
                continue
            # A weight keeps the scale of what it is applied to; a scale or shift is of one sign for most channels.
            sizes = [size for size in tensor.shape if size > 1]
            spread = (tensor.numel() / sizes[0]) ** -0.5 if len(sizes) > 1 else 0.4
            center = 0.0 if len(sizes) > 1 else 0.5 if seed % 2 == 0 else -0.5
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


@cache
def _weights() -> Tensor:
    """Return the weights of all projections."""
    return _draw(_PERIOD, 0, 11)


def _tile(tensor: Tensor, block: Tensor) -> None:
    """Fill a tensor with a row that is repeated, in the order of its elements."""
    flat = tensor.view(-1) if tensor.is_contiguous() else torch.empty(tensor.numel(), dtype=tensor.dtype)
    whole = flat.numel() // len(block)
    flat[: whole * len(block)].view(whole, len(block)).copy_(block)
    flat[whole * len(block) :].copy_(block[: flat.numel() - whole * len(block)])
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _inputs(case: Mapping[str, Any], setting: _Setting) -> Tensor:
    """Return inputs of both signs; tokens within their range."""
    shape = [int(size) for size in case["in_shape"]]
    generator = torch.Generator().manual_seed(7_919 + setting.seed)
    if case["dtype"] == "int64":
        low, high = (int(bound) for bound in case["values"])
        return torch.randint(low, high, shape, generator=generator)
    values = setting.scale * torch.randn(shape, generator=generator)
    return values.to(torch.complex128) if "complex" in case["dtype"] else values


def _run(
    net: nn.Module, order: Sequence[str], state: Sequence[str], inputs: Tensor, setting: _Setting
) -> Iterator[str]:
    """Yield the numbers of one run as text, rounded: equal for one computation, whatever its parameters are called."""
    net.train(setting.train)
    net.zero_grad(set_to_none=True)
    live = setting.gradients and inputs.is_floating_point()
    leaf = inputs.requires_grad_() if live else inputs
    seed_all(setting.seed)
    mode = f"in {'train' if setting.train else 'eval'} mode"
    with step("forward_failed", mode), _Neutral(setting.seed), torch.set_grad_enabled(setting.gradients):
        # An in-place operation may not write to a leaf.
        outputs = flatten_tensors(net(leaf * 1 if live else leaf))
        _backward([output for output in outputs if output.requires_grad and output.numel()])
    parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    ordered = (parameters.get(name) for name in order)
    gradients = [leaf.grad, *(None if tensor is None else tensor.grad for tensor in ordered)]
    held = [buffers[name].detach().clone() for name in state if name in buffers]
    for tensor in outputs:
        norm, direction = _take_numbers(tensor.detach())
        yield f"output {list(tensor.shape)} {_round(norm)} {direction:.{DIGITS - 1}f}"
    numbers = [(0.0, 0.0) if one is None else _take_numbers(one) for one in gradients]
    least = max((norm for norm, _ in numbers if isfinite(norm)), default=0.0) * _NOISE
    count, size, direction = 0, 0.0, 0.0
    for factor, (norm, one) in zip(_draw(len(numbers), 0, 13).tolist(), numbers, strict=True):
        if norm > least:
            count, size, direction = count + 1, size + factor * log(norm), direction + factor * one
    yield f"gradients {count} {_round(size)} {direction:.{DIGITS - 1}f}"
    # Which buffer is met first may depend on how a computation is written: a sum does not.
    states = [_take_numbers(tensor) for tensor in held]
    size, direction = (fsum(column) for column in zip(*states, strict=True)) if states else (0.0, 0.0)
    yield f"state {len(states)} {_round(size)} {direction:.{DIGITS - 1}f}"


def _backward(outputs: Sequence[Tensor]) -> None:
    if not outputs:
        return
    total = torch.zeros(())
    for number, tensor in enumerate(outputs):
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
        weights = torch.empty_like(flat, requires_grad=False)
        _tile(weights, _draw(flat.numel(), number, 5))
        total = total + (flat * weights).sum()
    total.backward()  # type: ignore[no-untyped-call]


class _FastFills(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Initializes large tensors with a repeated row of random numbers: most are filled again anyway."""

    def __torch_dispatch__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].numel() > 2 * _PERIOD and args[0].is_contiguous():
            _tile(args[0], func(torch.empty(_PERIOD, dtype=args[0].dtype), *args[1:], **kwargs))
            return args[0]
        return func(*args, **kwargs)


class _Neutral(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Makes a run depend on what is computed alone.

    The generator is seeded before each draw. All masks are of one seed, so that the order in which two branches drop
    does not matter; any other draw has a seed of its own: the difference of two is not 0. What is converted to float32,
    the type that the network is written for, stays as precise as it is.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._draws = seed, 0

    def __torch_dispatch__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        if read_facts(func).is_random:
            is_mask = func.overloadpacket in _MASKS
            self._draws += not is_mask
            torch.default_generator.manual_seed(self._seed if is_mask else self._seed + 1_000 * self._draws)
        kwargs = kwargs or {}
        if kwargs.get("dtype") is torch.float32:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def _take_numbers(tensor: Tensor) -> tuple[float, float]:
    """Return the norm of a tensor and a projection of its direction, 0 if it has none."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor.to(torch.float64)
    norm = float(torch.linalg.vector_norm(real))
    return norm, _project(real.flatten()) / norm if norm and isfinite(norm) else 0.0


def _round(number: float) -> str:
    return f"{number:.{DIGITS - 1}e}"


def _project(flat: Tensor) -> float:
    """Return the sum of a row's numbers, each times a normal number that its position alone determines."""
    block = _weights()
    whole = flat.numel() // _PERIOD
    total = float(flat[whole * _PERIOD :] @ block[: flat.numel() - whole * _PERIOD])
    return total + float((flat[: whole * _PERIOD].view(whole, _PERIOD) @ block).sum()) if whole else total
