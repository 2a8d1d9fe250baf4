"""The training process: its memory, seeds and device, its arithmetic and its checkpoints.

A checkpoint has the whole state of a run at the end of an epoch, in one file. It is written and read only in the
sandbox, because foreign code produced its content.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pickle
import platform
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lemur_core.files import Json

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1  # as an unsigned threshold: the largest value


def keep_freed_memory() -> None:
    """Make glibc, if it is the C library, keep freed memory for the next step.

    By default it returns large tensors to the kernel at once, and each step pays for the same pages again.
    Source: mallopt(3)
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, _NEVER)


def compute_the_same_twice() -> None:
    """Select deterministic kernels where there is a choice; a network without one only causes a warning."""
    # The settings of torch.use_deterministic_algorithms, which also imports the compiler: that takes seconds per run.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def stable_seed(*parts: object) -> int:
    """Return a seed that depends only on these parts: the same in every process and release."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def seed_everything(*parts: object) -> None:
    """Seed the global generators of torch, NumPy and Python, which a network may draw from."""
    seed = stable_seed(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """The device of the tensors, and the precision of multiplications."""

    device: torch.device
    precision: Literal["float32", "bfloat16"]

    def move(self, images: Tensor) -> Tensor:
        """Return the images on the device, in channels_last memory format."""
        return images.to(self.device, memory_format=torch.channels_last, non_blocking=True)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the autocast context in which a network is called."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def describe(self) -> str:
        """Return kind, model and threads of the device."""
        if self.device.type == "cuda":
            return f"cuda, {torch.cuda.get_device_name(self.device)}"
        threads = torch.get_num_threads()
        return f"{self.device.type}, {_processor()}, {threads} thread{'s' if threads != 1 else ''}"


def choose_context(kind: str) -> DeviceContext:
    """Return the context for that kind of device; bfloat16 if its hardware supports it."""
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported()
    elif kind == "cpu":
        native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # False without AVX-512
    else:
        native = False
    return DeviceContext(torch.device(kind), "bfloat16" if native else "float32")


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class CountFlop(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating-point operations of what runs inside, by the formulas of torch.utils.flop_counter.

    Its own mode follows every module with hooks, which foreign networks need not bear; the sum needs none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flop = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count it if there is a formula."""
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.flop += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Arithmetic:
    """The floating-point operations of a run: those of the first step of a kind stand for all of this kind."""

    def __init__(self) -> None:
        self._each: dict[object, int] = {}
        self.flop = 0

    @contextlib.contextmanager
    def counted(self, kind: object) -> Iterator[None]:
        """Count what runs in the `with` block, or what the first block of this kind took."""
        if kind not in self._each:
            with CountFlop() as counter:
                yield
            self._each[kind] = counter.flop
        else:
            yield
        self.flop += self._each[kind]


def save_whole(value: object, path: Path) -> None:
    """Call `torch.save` atomically: the file has either the old or the new content."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_checkpoint(path: Path, key: str) -> tuple[Json | None, str]:
    """Return the state at the end of the last complete epoch, or None and the reason (empty if there is no file).

    Code in the file is never executed (`weights_only`).
    """
    if not path.exists():
        return None, ""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        stored_key = state.pop("key")
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, pickle.UnpicklingError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        fault = f"{type(error).__name__}: {reason:.200}"
        return None, f"the checkpoint cannot be read, so training starts from scratch ({fault})"
    if stored_key != key:
        return None, "the checkpoint belongs to another run, so training starts from scratch"
    return state, ""


def loose_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that `state_dict` omits (`persistent=False`), by name; they are state too if they change."""
    kept = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in kept}


def put_back(module: nn.Module, loose: Mapping[str, Tensor]) -> None:
    """Restore such buffers in the module, including those that it creates only while it runs."""
    for name, value in loose.items():
        parent, _, own = name.rpartition(".")
        owner = module.get_submodule(parent)
        now = getattr(owner, own, None)
        if isinstance(now, Tensor) and now.shape == value.shape:
            now.copy_(value)
        else:
            owner.register_buffer(own, value, persistent=False)


def tensors_only(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the tensors of a state by name, on the CPU and contiguous."""
    return {
        name: value.detach().cpu().contiguous(memory_format=torch.contiguous_format)
        for name, value in sorted(state.items())
        if isinstance(value, torch.Tensor)
    }
