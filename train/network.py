"""A network's file as a module: foreign code, so only ever in the sandbox."""

import linecache
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from train.contract import TRAINER_PARAMETERS

#: What tracebacks call the file.
FILE = "net.py"
_MODULE = "lemur_network"


class NetworkError(Exception):
    """The file does not hold a network that can be trained; the message says why."""


def load_network(code: str, prm: Mapping[str, Any]) -> type[nn.Module]:
    """The class `Net` of LEMUR's contract, to be constructed with `prm`.

    Raises: NetworkError if there is none, or `prm` lacks what the file says it needs; whatever the code raises.
    """
    module = types.ModuleType(_MODULE)
    module.__file__ = FILE
    sys.modules[_MODULE] = module
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    exec(compile(code, FILE, "exec"), module.__dict__)  # noqa: S102 (in the sandbox)
    found = getattr(module, "Net", None)
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise NetworkError("the file defines no class Net(nn.Module)")
    supported = getattr(module, "supported_hyperparameters", None)
    missing = sorted(set(supported()) - TRAINER_PARAMETERS - set(prm)) if callable(supported) else []
    if missing:
        raise NetworkError(f"prm lacks {', '.join(missing)}, which supported_hyperparameters() names; give it a value")
    return found


def construct(network: type[nn.Module], batch: int, size: int, prm: dict[str, Any], device: torch.device) -> nn.Module:
    """A network by LEMUR's contract, on the device, channels last in memory.

    Raises: NetworkError if there is nothing to train; whatever the code raises.
    """
    net = network((batch, 3, size, size), (10,), dict(prm), device)
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise NetworkError("Net has no parameters to train")
    return net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def check_output(outputs: object, batch: int) -> None:
    """See that a network gave a score for each class.

    Raises: NetworkError with what it gave instead.
    """
    if not isinstance(outputs, torch.Tensor):
        raise NetworkError(f"forward returned {type(outputs).__name__}, not a tensor")
    if tuple(outputs.shape) != (batch, 10):
        raise NetworkError(f"forward returned a tensor of shape {tuple(outputs.shape)}, not {(batch, 10)}")


def place_of(error: BaseException) -> str:
    """Where in the network's file an error came from: `net.py:12 in forward`; empty if it did not."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == FILE:
            place = f"{FILE}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == FILE:
        place = f"{FILE}:{error.lineno}"
    return place
