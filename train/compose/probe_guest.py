"""Runs in the sandbox: construct a filler, run it, and check that it meets its slot's contract."""

import ast
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lemur_core.files import Json
from lemur_core.sandbox.loader import load
from lemur_core.sandbox.net import NetError, construct, execute, seed_all, step
from train.compose.slot_checks import CHECKS, Make, SlotMismatch, error_text

_SEED = 0
#: In the reasons that a branch, a table entry or a method which a minimized form lacks may have.
_CUT = ("left out of the lean form", "KeyError", "AttributeError")
#: Messages for failures of the sandbox's own steps.
_STEPS = {
    "import_failed": "its file cannot be executed",
    "no_net": "it cannot be constructed",
    "construct_failed": "it cannot be constructed",
}


def probe_filler(payload: Json) -> Json:
    """Try the forms of one filler, and the builds of each, in turn until one meets the slot's contract at all sizes.

    Args:
        payload: `slot`; `codes`, closed files or one empty text: a further one is tried only if the first fails by what
            a minimized form leaves out; `target` and `builds`, as in `train.model.slots.Filler`; `support`, the text of
            the factories that builds may name; `sizes`, the values that they may name; `strict`.

    Returns: the form and the build that fit, parameters and facts; else the reason of the first form's build that got
        furthest.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failed: Json = {}
    for form, code in enumerate(payload["codes"]):
        answer = _fit(payload, code)
        if answer["fits"]:
            return answer | {"form": form}
        failed = failed or answer
        if not failed["cut"]:
            break
    return failed


def _fit(payload: Json, code: str) -> Json:
    """Return the answer about one form of a filler."""
    try:
        scope = _scope(code, payload["target"], payload["support"])
    except Exception as error:  # noqa: BLE001 (whatever foreign code raises is an outcome)
        return _refuse(f"its file cannot be executed: {error_text(error)}")
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
    """Return the answer that it does not fit. What a minimized form leaves out may explain some of the errors."""
    return {"fits": False, "reason": reason, "build": build, "cut": any(word in reason for word in _CUT)}


def _fit_at_all_sizes(payload: Json, scope: dict[str, Any], build: str) -> dict[str, Any]:
    """Return the answer for a build that fits at all sizes. Raises: SlotMismatch."""
    facts: Json = {}
    for values in payload["sizes"]:
        make = _constructor(payload["target"], build, scope, values)
        more = {"strict": payload["strict"], "names": names_in(build)}
        observed = CHECKS[payload["slot"]](make, values | more)
        facts = _common(facts, observed) if facts else observed
    count = sum(parameter.numel() for parameter in make().parameters())
    return {"fits": True, "build": build, "parameters": count, "facts": facts}


def _common(facts: Json, observed: Json) -> Json:
    """Return the facts that hold at both sizes. Raises: SlotMismatch."""
    for name, value in observed.items():
        if not isinstance(value, bool) and value != facts[name]:
            raise SlotMismatch(3, f"varies with the width: {name.replace('_', ' ')} {facts[name]} and {value}")
    return {name: value and facts[name] if isinstance(value, bool) else value for name, value in observed.items()}


def _constructor(target: str, build: str, scope: dict[str, Any], values: Mapping[str, int]) -> Make:
    """Return a function that constructs a new instance of one filler, each with the same seed."""
    text = f"{target}({build})"

    def make(rate: float = 0.0) -> nn.Module:
        random.seed(_SEED)
        torch.manual_seed(_SEED)
        try:
            module = eval(text, scope, {**values, "rate": rate})
        except Exception as error:
            raise SlotMismatch(0, f"cannot be constructed as {text}: {error_text(error)}") from error
        if not isinstance(module, nn.Module):
            raise SlotMismatch(0, f"{text} gives {type(module).__name__}, which is not a torch.nn.Module")
        return module

    return make


def names_in(build: str) -> set[str]:
    """Return the names that arguments use."""
    return {node.id for node in ast.walk(ast.parse(f"call({build})")) if isinstance(node, ast.Name)}


def _scope(code: str, target: str, support: str) -> dict[str, Any]:
    """Return the names that a build may use: those of the factories and of the target."""
    scope = vars(load(support, "factories")).copy()
    if code:
        scope[target] = getattr(load(code, "filler"), target)
    return scope


def probe_network(payload: Json) -> Json:
    """Construct an assembled network as LEMUR does, and run it in eval and train mode, and through one `learn`.

    Args: payload: `code`, `prm`, `in_shape`, `out_shape`.
    Returns: `{"fits": true, "parameters": …}`, or `{"fits": false, "reason": …}`.
    """
    torch.set_num_threads(1)
    seed_all(_SEED)
    shape, classes = tuple(payload["in_shape"]), int(payload["out_shape"][0])
    try:
        net = construct(execute(payload["code"]), shape, (classes,), payload["prm"])
        images, labels = torch.randn(shape), torch.randint(classes, shape[:1])
        with step("it does not run in eval mode"), torch.no_grad():
            _logits(net.eval()(images), (shape[0], classes))
        with step("it does not run in train mode"):
            logits = _logits(net.train()(images), (shape[0], classes))
            torch.autograd.backward(nn.functional.cross_entropy(logits, labels))
        with step("it does not learn"):
            net.train_setup(payload["prm"])
            net.learn([(images, labels)])
            _logits(net.eval()(images), (shape[0], classes))
    except NetError as error:
        failed = error.step or error.category
        return _refuse(f"{_STEPS.get(failed, failed)}: {error.what}")
    return {"fits": True, "parameters": sum(parameter.numel() for parameter in net.parameters())}


def _logits(output: Any, shape: Sequence[int]) -> torch.Tensor:
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != tuple(shape):
        raise ValueError(f"the output is {tuple(getattr(output, 'shape', ()))}, not {tuple(shape)}")
    if not bool(torch.isfinite(output).all()):
        raise ValueError("the output is not finite")
    return output
