"""Runs in the sandbox: construct a filler and check that it meets its slot's contract; run an assembled network.

The check of a slot runs its filler in eval and train mode, backward, and in bfloat16. It returns its observations, or
raises a SlotMismatch.
"""

import ast
import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lemur_core.files import Json
from lemur_core.sandbox.loader import load
from lemur_core.sandbox.net import NetError, seed_all
from lemur_core.sandbox.server.foreign import name_type, one_line, read_message
from train.model.check_guest import explain, train_as_lemur

#: Constructs a new module on each call; the argument is the rate at which a branch is dropped.
Make = Callable[..., nn.Module]

_SEED = 0
_MESSAGE_CHARACTERS = 200
BATCH = 4
SQUARES, SIZES = ((16, 16), (8, 8)), ((16, 16), (12, 8))  # heights and widths

_ALIAS_LIMIT = 0.1  # of |output|, for an input of size 1 at the Nyquist frequency
_BORDER = 2
_DROP_BATCH, _DROP_RATES, _DEVIATIONS = 512, (0.5, 0.25), 5.0
_MOST_CHILDREN = 48  # of a block, whose outputs are zeroed one after another
_RATE = 0.2
_MOST_GATE, _ROUNDING = 2.0, 1e-4  # what a gate multiplies with: twice a sigmoid is in use
_SCALES = ((1.0, 8.0), (64.0, 512.0))  # at the larger ones, what saturates has saturated
_CLOSE = 0.05


class SlotMismatch(Exception):  # noqa: N818 (an outcome, not a fault)
    """The reason why a filler does not fit, and its stage: 0 construction, 1 execution, 2 shapes, 3 behavior."""

    def __init__(self, depth: int, reason: str) -> None:
        self.depth, self.reason = depth, reason


def require(holds: bool, reason: str, depth: int = 3) -> None:
    """Raise SlotMismatch unless it holds."""
    if not holds:
        raise SlotMismatch(depth, reason)


@contextlib.contextmanager
def trying(depth: int, reason: str) -> Iterator[None]:
    """Raise SlotMismatch with this reason for whatever foreign code raises in the `with` block."""
    try:
        yield
    except Exception as error:
        raise SlotMismatch(depth, f"{reason}: {name_error(error)}") from error


def name_error(error: BaseException) -> str:
    """Return type and message of a foreign exception."""
    return f"{name_type(error)}: {one_line(read_message(error), _MESSAGE_CHARACTERS)}"


# --- fillers and networks ---------------------------------------------------------------------------------------------


def probe_filler(payload: Json) -> Json:
    """Try the builds of one filler in turn until one meets the slot's contract at all sizes.

    Args:
        payload: `slot`; `code`, a closed file or empty; `target` and `builds`, as in `train.model.slots.Filler`;
            `support`, the text of the factories that builds may name; `sizes`, the values that they may name.

    Returns: the build that fits, parameters and facts; else the reason of the build that got furthest.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    target = payload["target"]
    try:
        scope = vars(load(payload["support"], "factories")).copy()
        if payload["code"]:
            scope[target] = getattr(load(payload["code"], "filler"), target)
    except Exception as error:  # noqa: BLE001 (whatever foreign code raises is an outcome)
        return _refuse(f"its file cannot be executed: {name_error(error)}")
    values = set(payload["sizes"][0]) | {"rate"}
    reason, tried, furthest = "no known constructor argument takes the values of this slot", "", (False, -1)
    for build in payload["builds"]:
        try:
            return _fit_at_all_sizes(payload, scope, build)
        except SlotMismatch as mismatch:
            # A build that only repeats recorded values is the least informative about why the block does not fit.
            came = (bool(names_in(build) & values), mismatch.depth)
            if came > furthest:
                reason, tried, furthest = mismatch.reason, build, came
    return _refuse(reason, tried)


def _refuse(reason: str, build: str = "") -> Json:
    """Return the answer that it does not fit."""
    return {"fits": False, "reason": reason, "build": build}


def _fit_at_all_sizes(payload: Json, scope: dict[str, Any], build: str) -> Json:
    """Return the answer for a build that fits at all sizes: what is true there, and what is the same."""
    facts: Json = {}
    for values in payload["sizes"]:
        make = _constructor(f"{payload['target']}({build})", scope, values)
        observed = CHECKS[payload["slot"]](make, {**values, "names": names_in(build)})
        for name, value in observed.items():
            before = facts.setdefault(name, value)
            what = f"{name.replace('_', ' ')} {before} and {value}"
            require(isinstance(value, bool) or value == before, f"varies with the width: {what}")
            facts[name] = value and before if isinstance(value, bool) else value
    count = sum(parameter.numel() for parameter in make().parameters())
    return {"fits": True, "build": build, "parameters": count, "facts": facts}


def _constructor(text: str, scope: dict[str, Any], values: Mapping[str, int]) -> Make:
    """Return a function that constructs a new instance of one filler, each with the same seed."""

    def make(rate: float = 0.0) -> nn.Module:
        random.seed(_SEED)
        torch.manual_seed(_SEED)
        with trying(0, f"cannot be constructed as {text}"):
            module = eval(text, scope, {**values, "rate": rate})
        if not isinstance(module, nn.Module):
            raise SlotMismatch(0, f"{text} gives {type(module).__name__}, which is not a torch.nn.Module")
        return module

    return make


def names_in(build: str) -> set[str]:
    """Return the names that arguments use."""
    return {node.id for node in ast.walk(ast.parse(f"call({build})")) if isinstance(node, ast.Name)}


def probe_network(payload: Json) -> Json:
    """Train an assembled network for one epoch of four random images, as LEMUR's trainer does, and evaluate it.

    Args: payload: `code`, `prm`.
    Returns: `{"fits": true}`, or `{"fits": false, "reason": …}`.
    """
    torch.set_num_threads(1)
    seed_all(_SEED)
    images, labels = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (BATCH,))
    prm = {**payload["prm"], "batch": BATCH, "transform": "norm", "epoch": 1}
    try:
        train_as_lemur(payload["code"], prm, (images, labels), (images, labels), 1)
    except NetError as error:
        return _refuse(explain(error))
    return {"fits": True}


# --- what every filler must do ----------------------------------------------------------------------------------------


def random_input(shape: Sequence[int], seed: int = 0) -> Tensor:
    """Return values of both signs, the same each time."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def size_text(shape: Sequence[int]) -> str:
    """Format a shape."""
    return "×".join(map(str, shape))


def run_once(module: nn.Module, inputs: Tensor, mode: str = "") -> Tensor:
    """Run the module and return its output. Raises: SlotMismatch if it does not run, or does not return a tensor."""
    with trying(1, f"does not run on {size_text(inputs.shape)}{mode}"):
        output = module(inputs)
    if not isinstance(output, Tensor):
        raise SlotMismatch(1, f"gives {type(output).__name__}, not a tensor")
    return output


def run_filler(make: Make, shape: Sequence[int], expected: Sequence[int] | None = None, gradients: bool = True) -> None:
    """Run it in eval and train mode, backward to inputs and parameters, in bfloat16 channels_last.

    Raises: SlotMismatch.
    """
    expected = shape if expected is None else expected
    for mode in ("eval mode", "train mode", "bfloat16 and channels_last"):
        training, narrow = mode != "eval mode", mode.startswith("bfloat16")
        module, inputs = make().train(training), random_input(shape)
        if narrow:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            module = module.to(memory_format=torch.channels_last)
        inputs.requires_grad_(training)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow), torch.set_grad_enabled(training):
            # Times one: a module that works in place cannot take a leaf that requires gradients.
            output = run_once(module, inputs * 1.0, f" in {mode}")
        given = f"gives {size_text(output.shape)} for {size_text(shape)}, not {size_text(expected)}"
        require(tuple(output.shape) == tuple(expected), given, 2)
        require(bool(torch.isfinite(output).all()), f"gives values that are not finite in {mode}")
        if not training:
            continue
        with trying(1, f"has no backward pass in {mode}"):
            torch.autograd.backward((output.float() * random_input(output.shape, seed=1)).sum())
        require(_is_finite(inputs.grad), f"gives its input no finite gradient in {mode}")
        for name, parameter in module.named_parameters() if gradients else ():
            reached = not parameter.requires_grad or _is_finite(parameter.grad)
            require(reached, f"no finite gradient reaches its parameter {name} in {mode}")


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(torch.isfinite(gradient).all())


def run_on_maps(
    make: Make, channels: int, sizes: Sequence[tuple[int, int]], out: int | None = None, divisor: int = 1
) -> None:
    """Run it on maps of these sizes, of which it makes maps with `out` channels. Raises: SlotMismatch."""
    for height, width in sizes:
        made = (BATCH, out or channels, height // divisor, width // divisor)
        run_filler(make, (BATCH, channels, height, width), made)


def with_nonzero_parameters(module: nn.Module) -> nn.Module:
    """Set eval mode and replace parameters that are all zero: a branch that starts at zero would look absent."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.1)
    return module.eval()


# --- the slots --------------------------------------------------------------------------------------------------------


def check_residual(make: Make, values: Json) -> Json:
    """Check that it keeps the shape, and that zeroing the output of one child, the branch's end, makes it the identity.

    Then the shortcut is the identity and nothing follows the addition: the pre-activation form.
    Source: He et al. 2016, arXiv:1603.05027
    """
    channels = values["channels"]
    run_on_maps(make, channels, SQUARES)
    if "rate" in values["names"]:
        run_on_maps(lambda: make(rate=_RATE), channels, SQUARES[:1])
    module, inputs = with_nonzero_parameters(make()), random_input((2, channels, 8, 8))
    for name in reversed(_children_run(module, inputs)[-_MOST_CHILDREN:]):
        if _is_identity_without(module, name, inputs):
            _attach(make().eval(), name, inputs)
            return {"branch_end": name, "empty_end": type(module.get_submodule(name)) is nn.Identity}
    what = "its shortcut is not the identity, several children end its branch, or an activation follows the addition"
    raise SlotMismatch(3, f"zeroing the output of no single child makes it the identity: {what}")


def _children_run(module: nn.Module, inputs: Tensor) -> list[str]:
    """Return the children that ran once and returned a tensor of the input's shape, in the order of completion."""
    ended: list[tuple[str, bool]] = []

    def note(name: str, output: object) -> None:
        ended.append((name, isinstance(output, Tensor) and output.shape == inputs.shape))

    with torch.no_grad(), _hooks(module, [name for name, _ in module.named_modules() if name], note):
        module(inputs.clone())
    names = [name for name, _ in ended]
    return [name for name, keeps in ended if keeps and names.count(name) == 1]


def _is_identity_without(module: nn.Module, name: str, inputs: Tensor) -> bool:
    """Return whether it returns its input when the output of this child is zeroed."""
    try:
        with torch.no_grad(), _hooks(module, [name], lambda _name, output: torch.zeros_like(output)):
            output = module(inputs.clone())
    except Exception:  # noqa: BLE001 (foreign code: this child does not end the branch)
        return False
    return isinstance(output, Tensor) and torch.equal(output, inputs)


@contextlib.contextmanager
def _hooks(module: nn.Module, names: Sequence[str], call: Callable[[str, Any], Tensor | None]) -> Iterator[None]:
    """Call a function with the name and output of each of these children; what it returns replaces the output."""
    with contextlib.ExitStack() as stack:
        for name in names:
            hook = lambda _module, _arguments, output, name=name: call(name, output)  # noqa: E731
            stack.enter_context(module.get_submodule(name).register_forward_hook(hook))
        yield


def _attach(module: nn.Module, name: str, inputs: Tensor) -> None:
    """Check that a module can be appended to the end of the branch. Raises: SlotMismatch."""
    with torch.no_grad():
        before = module(inputs.clone())
        module.set_submodule(name, nn.Sequential(module.get_submodule(name), nn.Identity()))
        with trying(3, f"nothing can follow its branch's end {name}"):
            same = torch.equal(module(inputs.clone()), before)
    require(same, f"nothing can follow its branch's end {name}: the output changes")


def check_attention(make: Make, values: Json) -> Json:
    """Check that it keeps the shape of maps of several sizes, and attends.

    It attends if it gates (each output value is the input value times a factor from 0 to 2 that depends on other
    values) or sees all (one corner of the map influences the opposite one). A normalization does neither: its output
    does not depend on the scale. Returns: which of the two, and whether zeros give zeros.
    """
    channels = values["channels"]
    run_on_maps(make, channels, SIZES)
    module, inputs = with_nonzero_parameters(make()), random_input((BATCH, channels, *SIZES[0]))
    with torch.no_grad():
        output = module(inputs.clone())
        require(not torch.equal(output, inputs), "gives its input back unchanged")
        for small, large in _SCALES:
            one, other = module(inputs * large), module(inputs * small)
            close = float((one - other).abs().max()) <= _CLOSE * float(other.abs().max())
            require(not close, f"normalises: {large:g} times its input gives the same output as {small:g} times")
        zero = module(torch.zeros_like(inputs))
        moved = inputs.clone()
        moved[:, :, 0, 0] += 10.0
        sees_all = not torch.equal(module(moved)[:, :, -1, -1], output[:, :, -1, -1])
        gates = _gates(module, inputs, output)
    require(gates or sees_all, "attends to nothing: it neither gates its input nor sees all of the map")
    return {"gates": gates, "sees_all": sees_all, "zero_to_zero": bool((zero == 0).all())}


def _gates(module: nn.Module, inputs: Tensor, output: Tensor) -> bool:
    ratio = output / inputs
    if not bool(((ratio >= -_ROUNDING) & (ratio <= _MOST_GATE + _ROUNDING)).all()):
        return False
    some = torch.zeros_like(inputs, dtype=torch.bool)
    some[:, ::2, ::3, ::3] = True
    without = module(inputs.masked_fill(some, 0.0))
    return not bool(without[some].any()) and not torch.equal(without[~some], output[~some])


def check_downsample(make: Make, values: Json) -> Json:
    """Check that it halves height and width and keeps the channels or changes to those of the next stage.

    Returns: also whether it aliases.

    Source: the input at the Nyquist frequency must be attenuated before sampling, Zhang 2019, arXiv:1904.11486
    """
    channels, changes = values["channels"], "out_channels" in values["names"]
    wanted = values["out_channels" if changes else "channels"]
    run_on_maps(make, channels, SQUARES, wanted, 2)
    return {"antialiased": _is_antialiased(make().eval(), channels), "changes_channels": changes}


def _is_antialiased(module: nn.Module, channels: int) -> bool:
    """Return whether a constant stays constant, and the fastest waves hardly come out beside it."""
    side = 32
    rows = (-1.0) ** torch.arange(side)
    images = [torch.ones(side, side), rows[:, None] * rows, rows[:, None].expand(side, side), rows.expand(side, side)]
    inside = slice(_BORDER, -_BORDER)  # padding changes what comes out at the border
    with torch.no_grad():
        silent = module(torch.zeros(1, channels, side, side))  # a bias does not answer the input
        level, *waves = (
            (module(image.expand(1, channels, side, side).clone()) - silent)[:, :, inside, inside] for image in images
        )
    constant = float(level.abs().mean())
    # One without parameters must leave a constant as it is.
    steady = any(True for _ in module.parameters()) or abs(constant - 1) < 1e-3
    even = bool(torch.allclose(level, level[:, :, :1, :1].expand_as(level), atol=1e-4))
    return even and steady and max(float(wave.abs().mean()) for wave in waves) < _ALIAS_LIMIT * constant


def check_stochastic_depth(make: Make, values: Json) -> Json:
    """Check that it is the identity in eval mode and at rate 0, and in train mode drops samples but keeps the mean.

    Source: Huang et al. 2016, arXiv:1603.09382
    """
    shape = (_DROP_BATCH, values["channels"], 2, 2)
    inputs = random_input(shape)
    for rate in (0.0, *_DROP_RATES):
        module = make(rate=rate)
        run_filler(lambda rate=rate: make(rate=rate), (BATCH, *shape[1:]), gradients=False)
        with torch.no_grad():
            same = torch.equal(module.eval()(inputs.clone()), inputs)
            require(same, f"is not the identity in eval mode (rate {rate})")
            output = module.train()(inputs.clone())
        if rate:
            _check_dropping(inputs, output, rate)
        else:
            require(torch.equal(output, inputs), "is not the identity at rate 0")
    return {}


def _check_dropping(inputs: Tensor, output: Tensor, rate: float) -> None:
    zero = (output == 0).flatten(1)
    dropped = zero.all(1)
    require(torch.equal(dropped, zero.any(1)), "drops parts of a sample, not whole samples")
    share = float(dropped.float().mean())
    what = "nothing" if share == 0 else "the whole batch"
    require(0 < share < 1, f"drops {what} at rate {rate}, not samples by themselves")
    kept = (output / inputs).flatten(1)[~dropped]
    factor = float(kept.mean())
    even = torch.allclose(kept, torch.full_like(kept, factor), rtol=1e-3)
    require(even, "scales the samples that it keeps by different factors")
    mean = f"does not keep the mean: samples are scaled by {factor:.4g} at rate {rate}"
    require(abs(factor * (1 - rate) - 1) <= 1e-3, mean)
    spread = (rate * (1 - rate) / len(inputs)) ** 0.5
    require(abs(share - rate) <= _DEVIATIONS * spread, f"drops {share:.0%} of the samples at rate {rate}")


CHECKS: dict[str, Callable[[Make, Json], Json]] = {
    "residual": check_residual,
    "attention": check_attention,
    "downsample": check_downsample,
    "stochastic_depth": check_stochastic_depth,
}
