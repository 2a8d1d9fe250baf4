"""What runs inside the sandbox: a network is constructed as LEMUR constructs it, and run forward once on the CPU."""

import random
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from curate.runs.faults import ProbeError, describe, missing_module
from curate.runs.weights import stub_weights
from lemur_core.sandbox.foreign import NETWORK, load, message_of


def run_network(payload: dict[str, Any]) -> dict[str, Any]:
    """Construct a network and run it forward.

    Args:
        payload: `code`; `prm`; `case`, the fields of a `curate.runs.contract.Case`; `seed`, 0 where it is left out.

    Returns: `{"runs": true}`, or `{"runs": false, "category": …, "error": …, "missing": …}`: the error in one line, and
        the module that could not be found, if that was why.
    Raises: MemoryError and the like, which the sandbox tells.
    """
    seed = int(payload.get("seed", 0))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    warnings.simplefilter("ignore")
    stub_weights()
    case = payload["case"]
    _hand_over_vocabulary(case["words"])
    try:
        net = _construct(payload["code"], case, payload["prm"])
        inputs = _inputs(case)
        with _step("forward_failed", f"input {_told(inputs)}"), torch.no_grad():
            output = net(inputs)
        _check(output, case["output"])
    except ProbeError as error:
        return {"runs": False, "category": error.category, "error": error.detail, "missing": error.missing}
    return {"runs": True}


def _construct(code: str, case: dict[str, Any], prm: dict[str, Any]) -> torch.nn.Module:
    in_shape, out_shape = _tuples(case["in_shape"]), _tuples(case["out_shape"])
    with _step("import_failed", ""):
        module = load(code, NETWORK)
    build = getattr(module, "Net", None)
    if not callable(build):
        raise ProbeError("no_net", "the file defines no class Net")
    tried = f"Net(in_shape={in_shape}, out_shape={out_shape}, prm with {', '.join(sorted(prm)) or 'nothing'})"
    device = torch.device("cpu")
    with _step("construct_failed", tried):
        net = build(in_shape, out_shape, prm, device)
        if not isinstance(net, torch.nn.Module):
            raise ProbeError("no_net", f"Net gives {type(net).__name__}, which is no torch.nn.Module")
        return net.to(device).eval()


@contextmanager
def _step(category: str, tried: str) -> Iterator[None]:
    """What foreign code raises in here, as a ProbeError of that category."""
    try:
        yield
    except (ProbeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if "can't allocate memory" in message_of(error):  # PyTorch's allocator; the sandbox tells
            raise
        missing = missing_module(error)
        if missing:
            category = "missing_dependency"
        elif isinstance(error, PermissionError):
            category = "denied"
        raise ProbeError(category, describe(error, tried), missing) from error


def _inputs(case: dict[str, Any]) -> torch.Tensor:
    low, high = (float(bound) for bound in case["values"])
    shape = [int(size) for size in case["in_shape"]]
    if case["dtype"] == "int64":
        return torch.randint(int(low), int(high), shape)
    pixels = torch.rand(shape) * (high - low) + low
    return pixels.to(torch.complex64) if case["dtype"] == "complex64" else pixels


def _check(output: object, expected: list[int] | None) -> None:
    """Classification alone fixes the output: a row of class scores for each sample."""
    if expected is None:
        return
    if not isinstance(output, torch.Tensor):
        raise ProbeError("wrong_output", f"forward gives {type(output).__name__}, not a tensor of {_sizes(expected)}")
    if list(output.shape) != expected:
        raise ProbeError("wrong_output", f"forward gives {_told(output)}, not {_sizes(expected)}: samples x classes")
    if not bool(torch.isfinite(output).all()):
        raise ProbeError("not_finite", f"forward gives {_told(output)} with infinite values or NaN")


def _hand_over_vocabulary(words: int) -> None:
    """Put a vocabulary where LEMUR's caption loader puts it, in a global of its own module that networks import."""
    if not words:
        return
    names = ["<PAD>", "<SOS>", "<EOS>", "<UNK>", *(f"word{number}" for number in range(words - 4))]
    module = types.ModuleType("ab.nn.loader.coco_.Caption")
    numbers = {name: number for number, name in enumerate(names)}
    module.__dict__["GLOBAL_CAPTION_VOCAB"] = {"word2idx": numbers, "idx2word": dict(enumerate(names))}
    sys.modules[module.__name__] = module


def _tuples(value: object) -> Any:
    """Lists, which JSON made of tuples, as tuples again."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _told(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {_sizes(list(tensor.shape))}"


def _sizes(shape: list[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
