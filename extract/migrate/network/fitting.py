"""Sandbox guest: test whether a block runs with the sizes at an insertion point, without gradients.

Each call constructs the block again, first on the meta device, where width costs nothing. A block that depends on
tensor values is run on the CPU.
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from extract.arguments.constructing import only_on_meta
from extract.arguments.search_guest import compile_nothing, define, namespace
from extract.arguments.trials import AttemptError, Namespace, attempt, seed_all
from extract.minimize.cuts import LEFT_OUT
from lemur_core.sandbox.net import sizes

_SECONDS = 5.0  # CPU seconds for one attempt
_MOST_SECONDS = 20.0  # for all attempts at one insertion point
_ALL_SECONDS = 80.0  # for all insertion points; the sandbox ends the job some time later
_MOST_ON_CPU = 2**23  # maximum number of input elements for a run on the CPU
_CHARACTERS = 200  # maximum length of an error
_THREADS = 1


def fit(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Try a block at several insertion points.

    Args:
        payload: `code`, a closed file, and `name`, its class; `sites`, each in the format of
            `extract.migrate.insertion_points.question`.

    Returns: `answers`, for each insertion point `{"fits": true, "args", "kwargs", "width", "gives"}`: the first call
        that needs the fewest adapters, and the input and output width of the block; or `{"fits": false, "reason"}`
        with the error of the attempt that came furthest.
    """
    torch.set_num_threads(_THREADS)
    compile_nothing()
    cls, stopped = define(dict(payload))
    if cls is None:
        return {"answers": [{"fits": False, "reason": stopped["error"]} for _ in payload["sites"]]}
    names = namespace(vars(sys.modules[cls.__module__]), [])
    answers: list[dict[str, Any]] = []
    for point in payload["sites"]:
        late = time.process_time() > _ALL_SECONDS
        answers.append(
            {"fits": False, "reason": "not tried: other sites took too long"} if late else _fit(names, point)
        )
    return {"answers": answers}


def _fit(names: Namespace, point: Mapping[str, Any]) -> dict[str, Any]:
    axis = point["axis"]
    best: dict[str, Any] | None = None
    furthest: tuple[bool, tuple[int, ...]] = (False, (-1,))
    reason, cut = "no call of its constructor is known", False
    started = time.process_time()
    for one in point["attempts"]:
        try:
            gives = _output_channels(names, point, one)
        except (AttemptError, MemoryError) as failure:
            progress, error = _describe_failure(failure, str(one["call"]))
            cut = cut or LEFT_OUT in error
            if progress > furthest:
                furthest, reason = progress, error
            if time.process_time() - started > _MOST_SECONDS:
                break
            continue
        adapters = (one["width"] != point["before"][0][axis]) + (gives != point["after"][0][axis])
        result = {
            "fits": True,
            **{n: one[n] for n in ("args", "kwargs", "width")},
            "gives": gives,
            "adapters": adapters,
        }
        if not adapters:
            return result
        if best is None or adapters < best["adapters"]:
            best = result
    if best is None and cut and LEFT_OUT not in reason:
        reason += f" (another call met what is {LEFT_OUT})"
    return best or {"fits": False, "reason": reason}


def _describe_failure(failure: AttemptError | MemoryError, call: str) -> tuple[tuple[bool, tuple[int, ...]], str]:
    """Return the progress of a failed attempt and its error."""
    if isinstance(failure, MemoryError):
        return (False, (0,)), f"{call}: out of memory"
    if isinstance(failure.cause, Mismatch):
        return (True, ()), f"{call} {failure.cause}"
    return (False, failure.progress), f"{call}: {failure.message[:_CHARACTERS]}"


class Mismatch(Exception):  # noqa: N818 (an outcome, not a fault)
    """The output does not have the form that the insertion point requires."""


def _output_channels(names: Namespace, point: Mapping[str, Any], one: Mapping[str, Any]) -> int:
    """Return the number of output channels, which must agree at all sizes. Raises: AttemptError, MemoryError."""
    channels = set()
    for before, after in zip(point["before"], point["after"], strict=True):
        shape = [one["width"] if index == point["axis"] else size for index, size in enumerate(before)]
        try:
            channels.add(attempt(partial(_run, names, one["call"], shape, after, point["axis"], "meta"), _SECONDS))
        except AttemptError as failure:
            if not only_on_meta(failure) or torch.Size(shape).numel() > _MOST_ON_CPU:
                raise
            channels.add(attempt(partial(_run, names, one["call"], shape, after, point["axis"], "cpu"), _SECONDS))
    if len(channels) > 1:
        raise AttemptError(Mismatch(f"gives {' and '.join(map(str, sorted(channels)))} channels at two sizes"))
    return int(channels.pop())


def _run(names: Namespace, call: str, in_shape: list[int], after: list[int], axis: int, device: str) -> int:
    seed_all()
    with torch.device(device), torch.no_grad():
        module = names.value(call)
        if not isinstance(module, nn.Module):
            raise Mismatch(f"gives {type(module).__name__}")
        return _width(module.train()(torch.zeros(in_shape)), in_shape, after, axis)


def _width(output: object, in_shape: list[int], after: list[int], axis: int) -> int:
    """Return the output channels if all other sizes are as required. Raises: Mismatch."""
    if not isinstance(output, Tensor):
        raise Mismatch(f"gives {type(output).__name__}, not a tensor")
    shape = list(output.shape)
    others = [index for index in range(len(after)) if index != axis]
    if len(shape) != len(after) or any(shape[index] != after[index] for index in others):
        raise Mismatch(f"makes {sizes(shape, 'a scalar')} of {sizes(in_shape)}, and {sizes(after)} is wanted")
    return shape[axis]
