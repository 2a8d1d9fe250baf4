"""Inside the sandbox: does a block run at the sizes of a site? Built anew for each call, run without gradients.

First on the meta device, where width costs nothing; a block that needs values on its way is run on the CPU.
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

_SECONDS = 5.0  # of CPU, for one attempt
_MOST_SECONDS = 20.0  # for all of one site
_ALL_SECONDS = 80.0  # for all sites; the sandbox ends the job some time later
_MOST_ON_CPU = 2**23  # elements that go in, where a block has to be run with values
_CHARACTERS = 200  # of an error
_THREADS = 1


def fit(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Try a block at several sites.

    Args:
        payload: `code`, a closed file, and `name`, of its class; `sites`, each as
            `extract.migrate.insertion_points.question` gives it.

    Returns: `answers`, for each site `{"fits": true, "args", "kwargs", "width", "gives"}`: the first call that needs
        fewest changes of channels, the width that the block is handed and the one that it gives; or
        `{"fits": false, "reason"}`, of the attempt that came furthest.
    """
    torch.set_num_threads(_THREADS)
    compile_nothing()
    cls, stopped = define(dict(payload))
    if cls is None:
        return {"answers": [{"fits": False, "reason": stopped["error"]} for _ in payload["sites"]]}
    names = namespace(vars(sys.modules[cls.__module__]), [])
    answers: list[dict[str, Any]] = []
    for site in payload["sites"]:
        late = time.process_time() > _ALL_SECONDS
        answers.append({"fits": False, "reason": "not tried: other sites took too long"} if late else _fit(names, site))
    return {"answers": answers}


def _fit(names: Namespace, site: Mapping[str, Any]) -> dict[str, Any]:
    axis = site["axis"]
    best: dict[str, Any] | None = None
    furthest: tuple[bool, tuple[int, ...]] = (False, (-1,))
    reason, cut = "no call of its constructor is known", False
    started = time.process_time()
    for one in site["attempts"]:
        try:
            gives = _gives(names, site, one)
        except (AttemptError, MemoryError) as failure:
            came, told = _told_of(failure, str(one["call"]))
            cut = cut or LEFT_OUT in told
            if came > furthest:
                furthest, reason = came, told
            if time.process_time() - started > _MOST_SECONDS:
                break
            continue
        adapters = (one["width"] != site["before"][0][axis]) + (gives != site["after"][0][axis])
        found = {"fits": True, **{n: one[n] for n in ("args", "kwargs", "width")}, "gives": gives, "adapters": adapters}
        if not adapters:
            return found
        if best is None or adapters < best["adapters"]:
            best = found
    if best is None and cut and LEFT_OUT not in reason:
        reason += f" (another call met what is {LEFT_OUT})"
    return best or {"fits": False, "reason": reason}


def _told_of(failure: AttemptError | MemoryError, call: str) -> tuple[tuple[bool, tuple[int, ...]], str]:
    """How far an attempt came, and why no further."""
    if isinstance(failure, MemoryError):
        return (False, (0,)), f"{call}: out of memory"
    if isinstance(failure.cause, Mismatch):
        return (True, ()), f"{call} {failure.cause}"
    return (False, failure.progress), f"{call}: {failure.message[:_CHARACTERS]}"


class Mismatch(Exception):  # noqa: N818 (an outcome, not a fault)
    """What comes out is not what the site hands on."""


def _gives(names: Namespace, site: Mapping[str, Any], one: Mapping[str, Any]) -> int:
    """The channels that the block gives, at all sizes. Raises: AttemptError, MemoryError."""
    found = set()
    for before, after in zip(site["before"], site["after"], strict=True):
        given = [one["width"] if place == site["axis"] else size for place, size in enumerate(before)]
        try:
            found.add(attempt(partial(_run, names, one["call"], given, after, site["axis"], "meta"), _SECONDS))
        except AttemptError as failure:
            if not only_on_meta(failure) or torch.Size(given).numel() > _MOST_ON_CPU:
                raise
            found.add(attempt(partial(_run, names, one["call"], given, after, site["axis"], "cpu"), _SECONDS))
    if len(found) > 1:
        raise AttemptError(Mismatch(f"gives {' and '.join(map(str, sorted(found)))} channels at two sizes"))
    return int(found.pop())


def _run(names: Namespace, call: str, given: list[int], after: list[int], axis: int, device: str) -> int:
    seed_all()
    with torch.device(device), torch.no_grad():
        module = names.value(call)
        if not isinstance(module, nn.Module):
            raise Mismatch(f"gives {type(module).__name__}")
        return _width(module.train()(torch.zeros(given)), given, after, axis)


def _width(output: object, given: list[int], after: list[int], axis: int) -> int:
    """The channels of what comes out, where all other sizes are those of the site. Raises: Mismatch."""
    if not isinstance(output, Tensor):
        raise Mismatch(f"gives {type(output).__name__}, not a tensor")
    shape = list(output.shape)
    others = [place for place in range(len(after)) if place != axis]
    if len(shape) != len(after) or any(shape[place] != after[place] for place in others):
        raise Mismatch(f"makes {sizes(shape, 'a scalar')} of {sizes(given)}, and {sizes(after)} is wanted")
    return shape[axis]
