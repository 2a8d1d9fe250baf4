"""The process that trains: its memory, seeds and device, and the network in it, which is foreign code."""

import contextlib
import ctypes
import functools
import hashlib
import linecache
import os
import platform
import random
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from train.contract import TRAINER_PARAMETERS

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1  # as a threshold without sign: the largest there is


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next step, where it is glibc.

    By default it gives large tensors back to the kernel at once, and each step pays for the same pages again.
    Source: mallopt(3)
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, _NEVER)


def compute_the_same_twice() -> None:
    """Ask for deterministic kernels where there is a choice; a network that needs another one is only warned."""
    # What torch.use_deterministic_algorithms sets, which imports the compiler to set its flag too: seconds in each run.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def stable_seed(*parts: object) -> int:
    """A seed that depends on these parts alone: the same in every process and release."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def seed_everything(*parts: object) -> None:
    """Set the global generators of torch, NumPy and Python, which a network may draw from."""
    seed = stable_seed(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@dataclass(frozen=True, slots=True)
class Place:
    """Where tensors live and how precise multiplications are."""

    device: torch.device
    precision: Literal["float32", "bfloat16"]

    def move(self, images: Tensor) -> Tensor:
        """Images there, channels last in memory."""
        return images.to(self.device, memory_format=torch.channels_last, non_blocking=True)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context in which a network is called."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def describe(self) -> str:
        """Kind, model, threads."""
        if self.device.type == "cuda":
            return f"cuda, {torch.cuda.get_device_name(self.device)}"
        threads = torch.get_num_threads()
        return f"{self.device.type}, {_processor()}, {threads} thread{'s' if threads != 1 else ''}"


def choose_place(kind: str) -> Place:
    """The device of that kind; bfloat16 where it multiplies in it by itself."""
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported()
    elif kind == "cpu":
        native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # not on processors without AVX-512
    else:
        native = False
    return Place(torch.device(kind), "bfloat16" if native else "float32")


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


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
