"""The process that trains: its memory, its chance, its device."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

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
