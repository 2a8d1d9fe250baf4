"""Sandbox guest: test whether a block runs with the sizes at an insertion point, without gradients.

Each call constructs the block again, first on the meta device, where width costs nothing. A block that depends on
tensor values is run on the CPU.
"""

import sys
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from extract.arguments.constructing import fails_only_on_meta
from extract.arguments.search_guest import define, disable_denied, namespace
from extract.arguments.trials import AttemptError, BlockNamespace, attempt, seed_all
from extract.migrate.messages import BlockToFit, CallToTry, Fit, NoFit, PointToTry
from extract.minimize.cuts import LEFT_OUT
from lemur_core.sandbox.net import sizes

_SECONDS = 5.0  # CPU seconds for one attempt
_MOST_SECONDS = 20.0  # for all attempts at one insertion point
_ALL_SECONDS = 80.0  # for all insertion points; the sandbox ends the job some time later
_MOST_ON_CPU = 2**23  # maximum number of input elements for a run on the CPU
_CHARACTERS = 200  # maximum length of an error
_THREADS = 1


def fit(request: BlockToFit) -> Sequence[Fit | NoFit]:
    """Try a block at several insertion points, and return how it fits each of them."""
    torch.set_num_threads(_THREADS)
    disable_denied()
    cls, stopped = define({"code": request.code, "name": request.name})
    if cls is None:
        return [NoFit(stopped["error"])] * len(request.sites)
    names = namespace(vars(sys.modules[cls.__module__]), [])
    answers: list[Fit | NoFit] = []
    for site in request.sites:
        late = time.process_time() > _ALL_SECONDS
        answers.append(NoFit("not tried: other insertion points took too long") if late else _fit(names, site))
    return answers


def _fit(names: BlockNamespace, site: PointToTry) -> Fit | NoFit:
    axis = site["axis"]
    best: tuple[int, Fit] | None = None  # by the number of adapters
    furthest: tuple[bool, tuple[int, ...]] = (False, (-1,))
    reason, cut = "no call of its constructor is known", False
    started = time.process_time()
    for call in site["attempts"]:
        try:
            gives = _output_channels(names, site, call)
        except (AttemptError, MemoryError) as failure:
            progress, error = _describe_failure(failure, call["call"])
            cut = cut or LEFT_OUT in error
            if progress > furthest:
                furthest, reason = progress, error
            # Checked after failures alone: a call that works ends the loop soon.
            if time.process_time() - started > _MOST_SECONDS:
                break
            continue
        adapters = (call["width"] != site["before"][0][axis]) + (gives != site["after"][0][axis])
        result = Fit(tuple(call["args"]), call["kwargs"], call["width"], gives)
        # No other call can fit better, and each costs a run.
        if not adapters:
            return result
        if best is None or adapters < best[0]:
            best = adapters, result
    if best is None and cut and LEFT_OUT not in reason:
        reason += f" (another call met what is {LEFT_OUT})"
    return NoFit(reason) if best is None else best[1]


def _describe_failure(failure: AttemptError | MemoryError, call: str) -> tuple[tuple[bool, tuple[int, ...]], str]:
    """Return the progress of a failed attempt and its error."""
    if isinstance(failure, MemoryError):
        return (False, (0,)), f"{call}: out of memory"
    if isinstance(failure.cause, FitMismatch):
        return (True, ()), f"{call} {failure.cause}"
    return (False, failure.progress), f"{call}: {failure.message[:_CHARACTERS]}"


class FitMismatch(Exception):  # noqa: N818 (an outcome, not a fault)
    """The output does not have the form that the insertion point requires."""


def _output_channels(names: BlockNamespace, site: PointToTry, call: CallToTry) -> int:
    """Return the number of output channels, which must agree at all sizes. Raises: AttemptError, MemoryError."""
    channels = set()
    for before, after in zip(site["before"], site["after"], strict=True):
        # The batch and the image sizes of the point, and the width that this call is for.
        shape = [call["width"] if index == site["axis"] else size for index, size in enumerate(before)]
        try:
            channels.add(attempt(partial(_run, names, call["call"], shape, after, site["axis"], "meta"), _SECONDS))
        except AttemptError as failure:
            if not fails_only_on_meta(failure) or torch.Size(shape).numel() > _MOST_ON_CPU:
                raise
            channels.add(attempt(partial(_run, names, call["call"], shape, after, site["axis"], "cpu"), _SECONDS))
    if len(channels) > 1:
        raise AttemptError(FitMismatch(f"gives {' and '.join(map(str, sorted(channels)))} channels at two sizes"))
    return int(channels.pop())


def _run(names: BlockNamespace, call: str, in_shape: list[int], after: list[int], axis: int, device: str) -> int:
    seed_all()
    with torch.device(device), torch.no_grad():
        module = names.value(call)
        if not isinstance(module, nn.Module):
            raise FitMismatch(f"gives {type(module).__name__}")
        return _width(module.train()(torch.zeros(in_shape)), in_shape, after, axis)


def _width(output: object, in_shape: list[int], after: list[int], axis: int) -> int:
    """Return the output channels if all other sizes are as required. Raises: Mismatch."""
    if not isinstance(output, Tensor):
        raise FitMismatch(f"gives {type(output).__name__}, not a tensor")
    shape = list(output.shape)
    others = [index for index in range(len(after)) if index != axis]
    if len(shape) != len(after) or any(shape[index] != after[index] for index in others):
        raise FitMismatch(f"makes {sizes(shape, 'a scalar')} of {sizes(in_shape)}, and {sizes(after)} is wanted")
    return shape[axis]
