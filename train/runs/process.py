"""The training process: its memory, seeds and device; the network, which is foreign code; its metrics."""

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lemur_core.files import Json
from lemur_core.sandbox.loader import load
from lemur_core.sandbox.server.foreign import is_kind, list_frames
from train.model.contract import TRAINER_PARAMETERS
from train.runs.augment import Pixels

_EVALUATED = 500  # images at a time
_UNSEEN = 16  # steps on an accelerator between reads of the losses: a read waits for the device
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


#: The name of the file in tracebacks.
FILE = "net.py"


class NetworkError(Exception):
    """The file has no network that can be trained; the message says why."""


def load_network(code: str, prm: Mapping[str, object]) -> type[nn.Module]:
    """Load the class `Net` of LEMUR's contract, to be constructed with `prm`.

    Raises: NetworkError if there is none, or `prm` lacks a name that the file requires; anything that the code raises.
    """
    module = load(code, FILE.removesuffix(".py"))
    network = getattr(module, "Net", None)
    if not isinstance(network, type) or not issubclass(network, nn.Module):
        raise NetworkError("the file defines no class Net(nn.Module)")
    supported = getattr(module, "supported_hyperparameters", None)
    missing = sorted(set(supported()) - TRAINER_PARAMETERS - set(prm)) if callable(supported) else []
    if missing:
        raise NetworkError(f"prm lacks {', '.join(missing)}, required by supported_hyperparameters(); add a value")
    return network


def construct(network: type[nn.Module], batch: int, size: int, prm: Json, device: torch.device) -> nn.Module:
    """Construct a network by LEMUR's contract, on the device, in channels_last memory format.

    Raises: NetworkError if there is nothing to train; anything that the code raises.
    """
    net = network((batch, 3, size, size), (10,), dict(prm), device)
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise NetworkError("Net has no parameters to train")
    return net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def check_output(outputs: object, batch: int) -> None:
    """Check that a network returned a score for each class.

    Raises: NetworkError that describes the output otherwise.
    """
    if not isinstance(outputs, torch.Tensor):
        raise NetworkError(f"forward returned {type(outputs).__name__}, not a tensor")
    if tuple(outputs.shape) != (batch, 10):
        raise NetworkError(f"forward returned a tensor of shape {tuple(outputs.shape)}, not {(batch, 10)}")


def locate_error(error: Any) -> str:
    """Return the location of an error in the network's file, `net.py:12 in forward`; empty if it is elsewhere."""
    if is_kind(error, SyntaxError) and Path(str(error.filename or "")).name == FILE:
        return f"{FILE}:{error.lineno}"
    frames = [(line, function) for file, line, function in list_frames(error) if Path(file).name == FILE]
    return f"{FILE}:{frames[-1][0]} in {frames[-1][1]}" if frames else ""


@dataclass(frozen=True, slots=True)
class MeanScore:
    """Mean cross entropy and accuracy, on one view per image without augmentation."""

    loss: float
    accuracy: float


def evaluate(
    net: nn.Module, images: Tensor, labels: Tensor, *, pixels: Pixels, context: DeviceContext, tick: Callable[[], None]
) -> MeanScore:
    """Evaluate a network in eval mode on images (N, 3, H, W) uint8, then restore its mode; ticks before each batch."""
    was_training = net.training
    net.eval()
    loss, correct = 0.0, 0
    try:
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(labels)), _EVALUATED):
                tick()
                batch, wanted = context.move(pixels.normalise(images[rows])), labels[rows].to(context.device)
                with context.autocast():
                    outputs = net(batch)
                outputs = outputs.float()
                # Summed, not averaged: the last batch may be smaller.
                loss += float(nn.functional.cross_entropy(outputs, wanted, reduction="sum"))
                correct += int((outputs.argmax(1) == wanted).sum())
    finally:
        net.train(was_training)
    return MeanScore(loss / len(labels), correct / len(labels))


class SixViews(nn.Module):
    """Test-time augmentation: an image, its mirror image (half of the weight), and both moved by a pixel (half).

    Source: the views and weights of Jordan 2024, arXiv:2404.00498, section 3.5
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted mean of the network's outputs."""
        padded, (high, wide) = nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), x.shape[-2:]
        moved = self._both(padded[..., :high, :wide]) + self._both(padded[..., 2:, 2:])
        return 0.5 * self._both(x) + 0.25 * moved

    def _both(self, x: Tensor) -> Tensor:
        mean: Tensor = 0.5 * (self._net(x).float() + self._net(x.flip(-1)).float())
        return mean


class DivergedError(Exception):
    """The loss or a weight is no longer a number."""


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


_KEPT = ("history", "steps", "train_seconds", "data_seconds", "images_seen", "flop")


class RunMetrics:
    """Counts steps and epochs. Its state after an epoch is stored in the checkpoint and restored from it."""

    def __init__(self, steps_an_epoch: int, device: torch.device) -> None:
        self._steps_an_epoch = steps_an_epoch
        self._at_once = device.type == "cpu"
        self.history: list[Json] = []
        self.steps = 0
        self.train_seconds = self.data_seconds = 0.0
        self.images_seen = self.flop = 0
        self._unseen: list[tuple[int, Tensor, Tensor | None, int]] = []
        self._losses: list[float] = []
        self._begin_epoch()

    def note(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Record the loss of the current step, and the number of correct images if the batch was not mixed.

        Raises: DivergedError.
        """
        right = (outputs.detach().argmax(1) == targets).sum() if targets.ndim == 1 else None
        self._unseen.append((self.steps, loss.detach(), right, len(targets)))
        self.images_seen += len(targets)
        if self._at_once or len(self._unseen) >= _UNSEEN:
            self.settle()

    def settle(self) -> None:
        """Read the pending losses. Raises: DivergedError if one is not finite."""
        unseen = self._unseen
        self._unseen = []
        for step, loss, right, count in unseen:
            value = float(loss)
            if not math.isfinite(value):
                epoch, number = divmod(step, self._steps_an_epoch)
                raise DivergedError(f"the loss is {value} at epoch {epoch + 1}, step {number + 1}")
            self._losses.append(value)
            if right is not None:
                self._right += int(right)
                self._judged += count

    def end_step(self, seconds: float, data_seconds: float, flop: int = 0) -> None:
        """Count a step, its operations and its duration, of which loading the data took `data_seconds`."""
        self.steps += 1
        self.flop += flop
        self.train_seconds += seconds
        self.data_seconds += data_seconds

    def end_epoch(self, learning_rate: float, measured: MeanScore | None) -> None:
        """Add the epoch to the history."""
        self.history.append(
            {
                "epoch": len(self.history) + 1,
                "steps": self.steps,
                "train_loss": sum(self._losses) / len(self._losses),
                "train_accuracy": self._right / self._judged if self._judged else None,
                "learning_rate": learning_rate,
                "val_loss": measured.loss if measured and math.isfinite(measured.loss) else None,
                "val_accuracy": measured.accuracy if measured else None,
                "seconds": self.train_seconds - self._before[0],
                "data_seconds": self.data_seconds - self._before[1],
            }
        )
        self._begin_epoch()

    def to_state(self) -> Json:
        """Return the state for a checkpoint."""
        return {name: getattr(self, name) for name in _KEPT}

    def from_state(self, state: Json) -> None:
        """Restore the state of a checkpoint."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._before = (self.train_seconds, self.data_seconds)
        self._losses, self._unseen = [], []
        self._right = self._judged = 0
