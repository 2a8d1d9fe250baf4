"""Train a network by a recipe, in the sandbox: images, augmentation, optimizer, schedule, steps, epochs, evaluation.

Every random draw depends only on (seed, epoch, step), and a checkpoint has all state that passes from one epoch to the
next: a killed run resumes after its last complete epoch and ends in the same bits.
"""

import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import json
import math
import os
import pickle
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torchvision.transforms import v2

from lemur_core.files import Json
from lemur_core.sandbox.net import NetError, check_output, construct
from lemur_core.sandbox.server.foreign import is_kind
from train.data import open_cache, split
from train.model.check_guest import explain, open_network
from train.model.recipe import Augmentation, Recipe, Training
from train.runs.job import CHECKPOINT, HISTORY, PROGRESS, WEIGHTS, TrainingJob

#: The held-out training images do not depend on the seed of a run, so that runs can be compared.
SPLIT_SEED = 0
CLASSES = 10
#: Images that share a random draw: torchvision's transforms draw once a call. On one core at 32 x 32, crop, flip and
#: two operations of RandAugment take 0.6 ms an image one by one, and 0.1 ms in groups of 8; larger groups gain little.
GROUP = 8

_STDERR = 2
_EVALUATED = 500  # images at a time
_MEASURED = 2000  # images that a whitening stem is measured on
_UNSEEN = 16  # steps on an accelerator between reads of the losses: a read waits for the device
_PROGRESS_SECONDS = 1.0
_NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc")
#: What a checkpoint keeps of a loop's own values.
_COUNTED = ("history", "steps", "train_seconds", "data_seconds", "images_seen", "flop")


# --- the process: its memory, seeds and device, and its arithmetic ----------------------------------------------------

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


# --- images and their augmentation, all of torchvision ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pixels:
    """Mean and standard deviation of each channel, for pixels in 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: Tensor) -> Tensor:
        """Convert uint8 images to float32 with a mean of about 0 and a deviation of about 1."""
        scaled: Tensor = v2.functional.to_dtype(images, torch.float32, scale=True)
        normal: Tensor = v2.functional.normalize(scaled, list(self.mean), list(self.std), inplace=True)
        return normal


def measure_pixels(images: Tensor, chosen: Tensor) -> Pixels:
    """Measure the mean and deviation of the chosen images (N, C, H, W) uint8, from exact counts of the 256 values."""
    counts = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    for rows in torch.split(chosen, 4096):
        part = images[rows]
        for channel in range(images.shape[1]):
            counts[channel] += torch.bincount(part[:, channel].flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts.double() / counts.sum(1, keepdim=True)
    mean = weights @ values
    std = ((weights * (values - mean[:, None]) ** 2).sum(1)).sqrt().clamp_min(1 / 255)
    return Pixels(tuple(mean.tolist()), tuple(std.tolist()))


def flip_alternately(images: Tensor, first: Tensor, epoch: int) -> Tensor:
    """Mirror each image every other epoch, so that both views are equally frequent.

    Args: first: for each image, 1 if it is mirrored in the odd epochs (from 0), else 0.
    Source: Jordan 2024, arXiv:2404.00498, section 3.6
    """
    mirrored = (first + epoch) % 2 == 1
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


class Augment:
    """Turns a batch of uint8 images into the input of a training step. Draws only from torch's global generator."""

    def __init__(self, settings: Augmentation, pixels: Pixels, size: int, steps: int) -> None:
        """Build the transforms for images of this height and width, and a run of so many steps."""
        self._settings, self._pixels = settings, pixels
        self._first_plain = steps - round(settings.plain_fraction * steps)
        color = self._color = [round(255 * value) for value in pixels.mean]
        plain: list[v2.Transform] = []
        if settings.crop_padding and not settings.independent:
            plain.append(v2.RandomCrop(size))
        if settings.flip is True:
            plain.append(v2.RandomHorizontalFlip())
        more: list[v2.Transform] = []
        if settings.randaugment_ops:
            more.append(v2.RandAugment(settings.randaugment_ops, settings.randaugment_magnitude, fill=color))
        if settings.cutout and not settings.independent:
            part = settings.cutout**2 / size**2
            more.append(v2.RandomErasing(1.0, (part, part), (1.0, 1.0), [float(value) for value in color]))
        self._plain = v2.Compose(plain) if plain else None
        self._whole = v2.Compose([*plain, *more]) if plain or more else None
        mixers: list[v2.Transform] = []
        if settings.mixup_alpha:
            mixers.append(v2.MixUp(alpha=settings.mixup_alpha, num_classes=CLASSES))
        if settings.cutmix_alpha:
            mixers.append(v2.CutMix(alpha=settings.cutmix_alpha, num_classes=CLASSES))
        self._mix = v2.RandomChoice(mixers) if mixers else None

    def __call__(self, images: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the images of a step (from 0) and their targets.

        Returns: float32 images; the int64 labels unchanged, or (N, 10) float32 targets if the batch was mixed.
        """
        plain = step >= self._first_plain
        settings, size = self._settings, images.shape[-1]
        if settings.crop_padding:
            images = v2.functional.pad(images, [settings.crop_padding], padding_mode="reflect")
            if settings.independent:
                images = _crop_each(images, size)
        if transform := self._plain if plain else self._whole:
            images = torch.cat([transform(group) for group in torch.split(images, GROUP)])
        if settings.independent and settings.cutout and not plain:
            images = _erase_each(images, settings.cutout, self._color)
        images = self._pixels.normalise(images)
        if self._mix is None or plain or float(torch.rand(())) >= settings.mix_probability:
            return images, labels
        mixed: tuple[Tensor, Tensor] = self._mix(images, labels)
        return mixed


def _crop_each(images: Tensor, size: int) -> Tensor:
    """Return a square of that size of each image, each at a place of its own."""
    tops, lefts = _draw_corners(images, images.shape[-1] - size)
    steps = torch.arange(size, device=images.device)
    rows, columns = (tops[:, None] + steps)[:, :, None], (lefts[:, None] + steps)[:, None, :]
    which = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[which, rows, columns].permute(0, 3, 1, 2)


def _erase_each(images: Tensor, side: int, color: list[int]) -> Tensor:
    """Return the images with a square of this side in this color, in each at a place of its own."""
    corners = _draw_corners(images, images.shape[-1] - side)
    steps = torch.arange(images.shape[-1], device=images.device)
    rows, columns = ((steps >= first[:, None]) & (steps < first[:, None] + side) for first in corners)
    inside = (rows[:, :, None] & columns[:, None, :])[:, None]
    return torch.where(inside, torch.tensor(color, dtype=images.dtype, device=images.device)[:, None, None], images)


def _draw_corners(images: Tensor, most: int) -> Tensor:
    return torch.randint(0, most + 1, (2, len(images))).to(images.device, non_blocking=True)


# --- optimizer and schedule -------------------------------------------------------------------------------------------

#: With fewer input or output channels there is little to orthogonalise, and SGD works as well.
_CHANNELS = 24
_LEAST = 1e-7  # lower bound of a norm that is a divisor
# Coefficients and number of iterations of Muon are those of its source and of torch.optim.Muon.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Descent:
    """The optimizers of a recipe, under one schedule.

    SGD with Nesterov momentum, AdamW, or Muon for convolutions between many channels and SGD for all other weights.
    Weights with fewer than two dimensions do not decay.

    Source: the split is that of T. He et al. 2019, "Bag of Tricks", arXiv:1812.01187, section 3.1
    """

    def __init__(self, parameters: Iterable[nn.Parameter], training: Training, steps: int) -> None:
        """Build them for a run of so many steps."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        fused: bool | None = all(each.device.type in ("cpu", "cuda") and each.is_floating_point() for each in trained)
        self.optimizers: list[Optimizer] = []
        if training.optimizer == "muon":
            matrices, fused = [each for each in trained if _is_matrix(each)], None
            taken = {id(each) for each in matrices}
            trained = [each for each in trained if id(each) not in taken]
            rate, decay = training.muon_learning_rate, training.muon_weight_decay
            if matrices:
                self.optimizers.append(Muon(matrices, rate, training.momentum, decay, unit=training.muon_unit))
        groups: list[dict[str, Any]] = [
            {"params": [each for each in trained if each.ndim >= 2], "weight_decay": training.weight_decay},
            {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
        ]
        if training.optimizer != "adamw":
            groups[1]["lr"] = training.learning_rate * training.bias_rate
        groups = [group for group in groups if group["params"]]
        if groups and training.optimizer == "adamw":
            self.optimizers.append(AdamW(groups, lr=training.learning_rate, fused=fused))
        elif groups:
            rate, momentum = training.learning_rate, training.momentum
            self.optimizers.append(SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=fused))
        self._schedules = [make_schedule(optimizer, training, steps) for optimizer in self.optimizers]

    @property
    def rate(self) -> float:
        """The learning rate of the next step, of the first group."""
        return float(self._schedules[0].get_last_lr()[0])

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Take a step, and set the rates of the next."""
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self._schedules:
            schedule.step()

    def state_dict(self) -> list[Json]:
        """Return the states of optimizers and schedules."""
        return [part.state_dict() for part in self._parts()]

    def load_state_dict(self, states: list[Json]) -> None:
        """Load such states."""
        for part, state in zip(self._parts(), states, strict=True):
            part.load_state_dict(state)

    def _parts(self) -> list[Any]:
        return [*self.optimizers, *self._schedules]


def make_schedule(optimizer: Optimizer, training: Training, steps: int) -> LRScheduler:
    """Return the schedule for this many steps; call `step()` after each of them.

    The rate grows linearly from near 0 during the warm-up, then falls to 0 by a cosine or linearly.
    """
    warm = min(steps, round(training.warmup_fraction * steps))
    rest = max(1, steps - warm)
    after: LRScheduler
    if training.schedule == "cosine":
        after = CosineAnnealingLR(optimizer, T_max=rest)
    else:
        after = LinearLR(optimizer, 1.0, 0.0, total_iters=rest)
    if not warm:
        return after
    rising = LinearLR(optimizer, 1 / (warm + 1), 1.0, total_iters=warm)
    return SequentialLR(optimizer, [rising, after], milestones=[warm])


class Muon(Optimizer):
    """Steps along the orthogonalised Nesterov momentum of matrices, with decoupled weight decay, in float32.

    A convolution's weight (out, in, height, width) is a matrix with one row per output channel, as in airbench. With
    `unit`, a matrix is first brought to the norm of an orthogonal one, so that a rate means the same for each.
    torch.optim.Muon always multiplies in bfloat16: without such instructions its step takes a hundred times as long.

    Source: https://kellerjordan.github.io/posts/muon/
    """

    def __init__(
        self, weights: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, *, unit: bool = False
    ) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._unit = unit

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step of every weight that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, group["lr"], group["momentum"], group["weight_decay"])

    def _step(self, weight: nn.Parameter, lr: float, momentum: float, weight_decay: float) -> None:
        assert weight.grad is not None
        matrix, gradient, state = _to_rows(weight), _to_rows(weight.grad), self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonal(gradient.lerp(average, momentum))
        rows, columns = matrix.shape
        if self._unit:
            matrix.mul_(rows**0.5 / matrix.norm().clamp(min=_LEAST))
        else:
            matrix.mul_(1 - lr * weight_decay)
        matrix.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def _is_matrix(weight: nn.Parameter) -> bool:
    """Return whether Muon trains a weight: of a convolution between many channels, whose rows share its memory."""
    if weight.ndim != 4 or min(weight.shape[:2]) < _CHANNELS:
        return False
    return _to_rows(weight.detach()).data_ptr() == weight.data_ptr()


def _to_rows(weight: Tensor) -> Tensor:
    """Reshape (out, in, h, w) to (out, h * w * in), without a copy if the memory format is channels_last."""
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1) if weight.ndim == 4 else weight


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix (rows, columns) with the same singular vectors, and singular values between about 0.7 and 1.2.

    This applies X <- (a + b XX' + c (XX')^2) X five times. Because these polynomials of XX' commute, it iterates on
    their product and on XX' instead of X: small square products, and only two products with X instead of ten.

    Source: https://dao-ailab.github.io/blog/2026/gram-newton-schulz/
    """
    if matrix.size(0) > matrix.size(1):
        return orthogonal(matrix.T).T
    unit: Tensor = matrix / matrix.norm().clamp(min=_LEAST)
    gram = unit @ unit.T
    product = factor = _polynomial(gram)
    for _ in range(_ITERATIONS - 1):
        gram = factor @ (factor @ gram)
        factor = _polynomial(gram)
        product = factor @ product
    return product @ unit


def _polynomial(gram: Tensor) -> Tensor:
    """Return a + b G + c G^2 for a square matrix G."""
    value: Tensor = torch.addmm(gram, gram, gram, beta=_B, alpha=_C)
    value.diagonal().add_(_A)
    return value


# --- the mean of the weights, and how they begin ----------------------------------------------------------------------


class Lookahead:
    """Weights and buffers that follow those of a network, which returns to them every fifth step.

    The decay of the mean grows with the cube of the part of the steps done, and is 1 at the last: so early steps pass
    unchanged, and what remains is a mean.

    Source: Jordan 2024, arXiv:2404.00498, section 3.4, after Zhang et al. 2019, arXiv:1907.08610
    """

    _EVERY, _DECAY = 5, 0.95

    def __init__(self, net: nn.Module, steps: int) -> None:
        self._steps = steps
        self._fast = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
        self._slow = {name: value.clone() for name, value in self._fast.items()}

    @torch.no_grad()
    def step(self, done: int) -> None:
        """Follow the network, of which that many steps are done, and set it back, if it is time."""
        if done % self._EVERY and done < self._steps:
            return
        decay = 1.0 if done >= self._steps else self._DECAY**self._EVERY * (done / self._steps) ** 3
        slow, fast = list(self._slow.values()), list(self._fast.values())
        torch._foreach_lerp_(slow, fast, 1 - decay)
        torch._foreach_copy_(fast, slow)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean."""
        return self._slow

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the mean."""
        for name, value in self._slow.items():
            value.copy_(state[name])


def start_as_identity(net: nn.Module) -> None:
    """Set the first filters of each convolution that is trained to pass their channels on.

    Source: Jordan 2024, arXiv:2404.00498, section 3.3
    """
    for module in net.modules():
        if not isinstance(module, nn.Conv2d) or module.groups > 1 or min(module.kernel_size) == 1:
            continue
        if module.weight.requires_grad:
            nn.init.dirac_(module.weight.detach()[: module.in_channels])


def freeze_norm_weights(net: nn.Module) -> None:
    """Leave the norms of a network only their biases to learn."""
    for module in net.modules():
        norm = isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm)
        if norm and module.weight is not None:
            module.weight.requires_grad_(False)


# --- the hardest part of each batch -----------------------------------------------------------------------------------


class Proxy(nn.Module):
    """Three stages of two convolutions with a maximum of 2 x 2, for images of any size from 8 x 8."""

    WIDTHS, SCALE = (24, 32, 64, 64), 1 / 9

    def __init__(self, classes: int) -> None:
        super().__init__()
        first = self.WIDTHS[0]
        layers: list[nn.Module] = [nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.GELU()]
        for before, width in pairwise(self.WIDTHS):
            layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.MaxPool2d(2)]
            layers += [nn.BatchNorm2d(width), nn.GELU(), nn.Conv2d(width, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(self.WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a value for each class."""
        scores: Tensor = self.head(self.layers(x).amax((-2, -1))) * self.SCALE
        return scores


class HardestImages:
    """Chooses of each batch by the losses of a proxy, which is trained on a quarter of the batches.

    Source: K. Jordan's airbench96_faster: a proxy takes every batch forward, and a quarter of them backward.
    """

    EVERY = 4  #: steps from one that the proxy learns from to the next

    def __init__(self, training: Training, context: DeviceContext, steps: int, classes: int) -> None:
        """Build the proxy for a run of so many steps; draws its weights from torch's global generator."""
        self._training, self._context = training, context
        self._last = round(training.kept_until * steps)
        proxy = Proxy(classes)
        start_as_identity(proxy)
        self._proxy = proxy.to(context.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._descent = Descent(self._proxy.parameters(), training, math.ceil(max(1, self._last) / self.EVERY))

    def choose(self, images: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the part of the batch of this step (from 0) with the largest losses; the proxy learns from it."""
        if step >= self._last:
            return images, targets
        learns = step % self.EVERY == 0
        with torch.set_grad_enabled(learns), self._context.autocast():
            scores = self._proxy(images)
        smoothing = self._training.label_smoothing
        losses = cross_entropy(scores.float(), targets, reduction="none", label_smoothing=smoothing)
        kept = losses.detach().topk(max(2, round(self._training.kept_part * len(images))), sorted=False).indices
        if learns:
            self._descent.zero_grad()
            losses[kept].mean().backward()  # type: ignore[no-untyped-call]
            self._descent.step()
        return images[kept].contiguous(memory_format=torch.channels_last), targets[kept]

    def kind(self, step: int) -> str:
        """Return what a step takes of the proxy: nothing, its forward pass, or its backward pass, too."""
        return "rests" if step >= self._last else "learns" if step % self.EVERY == 0 else "looks"

    def state_dict(self) -> Json:
        """Return the state of the proxy and its optimizer."""
        return {"proxy": self._proxy.state_dict(), "descent": self._descent.state_dict()}

    def load_state_dict(self, state: Json) -> None:
        """Load such a state."""
        self._proxy.load_state_dict(state["proxy"])
        self._descent.load_state_dict(state["descent"])


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluate(
    net: nn.Module, images: Tensor, labels: Tensor, *, pixels: Pixels, context: DeviceContext, tick: Callable[[], Any]
) -> tuple[float, float]:
    """Evaluate a network in eval mode on images (N, 3, H, W) uint8, then restore its mode; ticks before each batch.

    Returns: mean cross entropy and accuracy, on one view per image without augmentation.
    """
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
                loss += float(cross_entropy(outputs, wanted, reduction="sum"))
                correct += int((outputs.argmax(1) == wanted).sum())
    finally:
        net.train(was_training)
    return loss / len(labels), correct / len(labels)


# --- checkpoints: the state at the end of an epoch, written and read in the sandbox alone -----------------------------


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


# --- the run ----------------------------------------------------------------------------------------------------------


class DivergedError(Exception):
    """The loss or a weight is no longer a number."""


class TimeIsUpError(Exception):
    """The time limit is reached; the last complete epoch is kept."""


def train(job: TrainingJob) -> Json:
    """Train, evaluate, and return the fields of a `TrainingReport`; results are written to the working folder."""
    # Ends the process if no step finishes within the limit, even in a deadlock.
    tick = functools.partial(faulthandler.dump_traceback_later, job.step_limit, exit=True, file=_STDERR)
    tick()
    loop: Loop | None = None
    status, error, results = "ok", None, {}
    try:
        loop = Loop(job, Path.cwd(), tick)
        loop.build()
        loop.train()
        results = loop.finish()
    except DivergedError as end:
        status, error = "diverged", str(end)
    except TimeIsUpError as end:
        status, error = "timeout", str(end)
    except BaseException as end:  # noqa: BLE001 (any exception of foreign code is an outcome of the run)
        error = explain(end)
        # PyTorch reports a lack of memory as a RuntimeError, too.
        short = is_kind(end, MemoryError) or any(words in error for words in _NO_MEMORY)
        status = "out_of_memory" if short else "error"
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {"status": status, "error": error, **(loop.figures() if loop else {}), **results}


class Loop:
    """The state of a run, which is `build`, `train`, `finish`, with a `tick` before each step."""

    def __init__(self, job: TrainingJob, folder: Path, tick: Callable[[], Any] = lambda: None) -> None:
        self._tick = tick
        self._started = self._told = time.monotonic()
        self._job, self._folder, self._recipe = job, folder, Recipe.model_validate_json(job.recipe)
        training = self._training = self._recipe.training
        self._context = choose_context(job.device)
        keep_freed_memory()
        torch.set_num_threads(job.threads)
        compute_the_same_twice()
        self._data = open_cache(Path(job.data))
        rows, self._held = split(len(self._data.train_labels), job.held_out, SPLIT_SEED)
        # Drawn by a fixed seed, and cut: a smaller subset is part of every larger one.
        fewer = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SPLIT_SEED))[: job.images]
        self._rows = rows[fewer.sort().values]
        self.batch = min(training.batch_size, len(self._rows))
        self._steps_an_epoch = len(self._rows) // self.batch
        last = max(1, round(training.last_part * self._steps_an_epoch))
        self._last_step = self._steps_an_epoch * (training.epochs - 1) + last
        self._size = int(self._data.train_images.shape[-1])
        self._pixels = measure_pixels(self._data.train_images, self._rows)
        self._augment = Augment(self._recipe.augmentation, self._pixels, self._size, self._last_step)
        # All images fit on a GPU, where they are augmented much faster. Where they are is all that changes.
        self._place = self._context.device if job.device == "cuda" else torch.device("cpu")
        self._images, self._labels = (
            data.to(self._place) for data in (self._data.train_images, self._data.train_labels)
        )
        flips = torch.Generator().manual_seed(stable_seed(job.seed, "flip"))
        self._mirrored = torch.randint(0, 2, (len(self._labels),), generator=flips).to(self._place)
        self._arithmetic, self._optimizing = Arithmetic(), Arithmetic()
        self._notes: list[str] = []
        self._parameters: int | None = None
        self._kept_before = self._done = 0  # epochs finished before this run was resumed; images since the last report
        self.history: list[Json] = []
        self.steps = self.images_seen = self.flop = 0
        self.train_seconds = self.data_seconds = 0.0
        self._begin_epoch()
        (folder / PROGRESS).unlink(missing_ok=True)

    def build(self) -> None:
        """Build the network, its optimizer and its schedule, and resume from a checkpoint if there is one.

        To warm up the process, a first network takes one step on noise and is discarded.

        Raises: NetworkError, and anything that the network raises.
        """
        module, training = open_network(self._job.code, self._job.prm), self._training
        shape = (self.batch, 3, self._size, self._size)
        # The first step compiles kernels and allocates memory: one is taken before time is measured.
        for warm in (True, False):
            self._tick()
            seed_everything(self._job.seed, "network")
            net = construct(module, shape, (CLASSES,), dict(self._job.prm), self._context.device)
            self._net: nn.Module = net.to(memory_format=torch.channels_last)
            if not any(parameter.requires_grad for parameter in self._net.parameters()):
                raise NetError("contract", "Net has no parameters to train")
            self._prepare()
            self._descent = Descent(self._net.parameters(), training, self._last_step)
            if warm:
                self._parameters = sum(parameter.numel() for parameter in self._net.parameters())
                images, targets = self.noise()
                with self._context.autocast():
                    outputs = self._net(images)
                check_output(outputs, [self.batch, CLASSES])
                self._loss(outputs, targets).backward()  # type: ignore[no-untyped-call]
                self._descent.step()
        # The parts whose state changes with each step, by name.
        self._parts: dict[str, Any] = {"net": self._net, "descent": self._descent}
        if training.lookahead:
            self._parts["lookahead"] = Lookahead(self._net, self._last_step)
        if training.kept_part < 1:
            seed_everything(self._job.seed, "proxy")
            self._parts["selection"] = HardestImages(training, self._context, self._last_step, CLASSES)
        state, note = load_checkpoint(self._folder / CHECKPOINT, self._job.key)
        self._notes += [note] if note else []
        if state is not None:
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            put_back(self._net, state["loose"])
            for name in _COUNTED:
                setattr(self, name, state[name])
            self._kept_before = len(self.history)
            self._begin_epoch()

    def _prepare(self) -> None:
        """Set the network up for training as the recipe says."""
        self._net.train()
        if self._training.freeze_norm_weights:
            freeze_norm_weights(self._net)
        if self._training.dirac:
            start_as_identity(self._net)
        if self._training.whiten_on_plain:
            some = self._context.move(self._pixels.normalise(self._images[self._rows[:_MEASURED].to(self._place)]))
            for module in self._net.modules():
                measure = getattr(module, "measure", None)
                if callable(measure) and hasattr(module, "measured"):
                    measure(some)

    def train(self) -> None:
        """Train the remaining epochs. Raises: DivergedError, TimeIsUpError, and anything that the network raises."""
        self._write_history()
        while self.steps < self._last_step:
            for _ in range(min(self._steps_an_epoch, self._last_step - self.steps)):
                self._check_time()
                self.step()
            self._end_epoch()

    def step(self) -> None:
        """Take one training step. Raises: DivergedError, and anything that the network raises."""
        self._tick()
        started = time.perf_counter()
        images, targets = self._load()
        loaded = time.perf_counter()
        before, parts = self._arithmetic.flop, self._parts
        if "selection" in parts:
            with self._arithmetic.counted((parts["selection"].kind(self.steps), images.shape)):
                images, targets = parts["selection"].choose(images, targets, self.steps)
        self._descent.zero_grad()
        with self._arithmetic.counted(("learn", images.shape)):
            with self._context.autocast():
                outputs = self._net(images)
            loss = self._loss(outputs, targets)
            self._note(loss, outputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
        with self._optimizing.counted("step"):
            self._descent.step()
        if "lookahead" in parts:
            parts["lookahead"].step(self.steps + 1)
        self.steps += 1
        self.flop += self._arithmetic.flop - before
        self.train_seconds += time.perf_counter() - started
        self.data_seconds += loaded - started
        self._done += self.batch
        passed = time.monotonic() - self._told
        if passed >= _PROGRESS_SECONDS:
            self._write(PROGRESS, json.dumps({**self.figures(), "images_per_second": self._done / passed}))
            self._told, self._done = time.monotonic(), 0

    def _load(self) -> tuple[Tensor, Tensor]:
        """Load the batch of the next step."""
        epoch, number = divmod(self.steps, self._steps_an_epoch)
        if number == 0:
            order = torch.Generator().manual_seed(stable_seed(self._job.seed, "order", epoch))
            self._order = self._rows[torch.randperm(len(self._rows), generator=order)].to(self._place)
        seed_everything(self._job.seed, "step", epoch, number)
        rows = self._order[number * self.batch : (number + 1) * self.batch]
        images, labels = self._images[rows], self._labels[rows]
        if self._recipe.augmentation.flip == "alternate":
            images = flip_alternately(images, self._mirrored[rows], epoch)
        images, targets = self._augment(images, labels, self.steps)
        return self._context.move(images), targets.to(self._context.device)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.float(), targets, label_smoothing=self._training.label_smoothing)

    def _begin_epoch(self) -> None:
        self._before = (self.train_seconds, self.data_seconds)
        self._losses: list[float] = []
        self._unseen: list[tuple[int, Tensor, Tensor | None, int]] = []
        self._right = self._judged = 0

    def _note(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Note the loss of this step, and the number of correct images if the batch was not mixed."""
        right = (outputs.detach().argmax(1) == targets).sum() if targets.ndim == 1 else None
        self._unseen.append((self.steps, loss.detach(), right, len(targets)))
        self.images_seen += len(targets)
        if self._context.device.type == "cpu" or len(self._unseen) >= _UNSEEN:
            self._settle()

    def _settle(self) -> None:
        """Read the losses that were noted. Raises: DivergedError if one is not finite."""
        unseen, self._unseen = self._unseen, []
        for step, loss, right, count in unseen:
            value = float(loss)
            if not math.isfinite(value):
                epoch, number = divmod(step, self._steps_an_epoch)
                raise DivergedError(f"the loss is {value} at epoch {epoch + 1}, step {number + 1}")
            self._losses.append(value)
            if right is not None:
                self._right += int(right)
                self._judged += count

    def _end_epoch(self) -> None:
        """Validate, and keep the epoch's results."""
        self._settle()
        images, labels = self._images[self._held], self._labels[self._held]
        loss, accuracy = self._measure(images, labels) if len(labels) else (None, None)
        self.history.append(
            {
                "epoch": len(self.history) + 1,
                "steps": self.steps,
                "train_loss": sum(self._losses) / len(self._losses),
                "train_accuracy": self._right / self._judged if self._judged else None,
                "learning_rate": self._descent.rate,
                "val_loss": loss if loss is not None and math.isfinite(loss) else None,
                "val_accuracy": accuracy,
                "seconds": self.train_seconds - self._before[0],
                "data_seconds": self.data_seconds - self._before[1],
            }
        )
        self._begin_epoch()
        self._tick()
        state: Json = {name: part.state_dict() for name, part in self._parts.items()}
        state |= {"loose": loose_buffers(self._net), "key": self._job.key}
        save_whole(state | {name: getattr(self, name) for name in _COUNTED}, self._folder / CHECKPOINT)
        self._write_history()

    def finish(self) -> Json:
        """Evaluate on the test images, once, and write the weights.

        Returns: the final figures that `figures` does not have.
        Raises: DivergedError if a weight is not finite.
        """
        kept = tensors_only(self._net.state_dict())
        learned = {name for name, _ in self._net.named_parameters()}
        for name, value in kept.items():
            # A mask may contain infinities. Integers are finite.
            wrong = ~value.isfinite() if name in learned else value.isnan()
            if bool(wrong.any()):
                raise DivergedError(f"{name} is not finite after the last epoch")
        accuracy = self._measure(self._data.test_images, self._data.test_labels)[1]
        save_whole(kept, self._folder / WEIGHTS)
        return {"test_accuracy": accuracy}

    def figures(self) -> Json:
        """Return the progress of the run."""
        return {
            "steps": self.steps,
            "parameters": self._parameters,
            "train_seconds": self.train_seconds,
            "data_seconds": self.data_seconds,
            "images_seen": self.images_seen,
            "flop": self.flop,
            "device": self._context.describe(),
            "precision": self._context.precision,
            "notes": self._notes,
        }

    def noise(self) -> tuple[Tensor, Tensor]:
        """Return a batch of random noise."""
        images = torch.randn(self.batch, 3, self._size, self._size)
        return self._context.move(images), torch.randint(0, 10, (self.batch,)).to(self._context.device)

    def measure(self, wrap: Callable[[nn.Module], nn.Module]) -> float:
        """Return the accuracy of the final network within another module: on held-out images, else on test images."""
        images, labels = self._images[self._held], self._labels[self._held]
        seen = (images, labels) if len(labels) else (self._data.test_images, self._data.test_labels)
        return self._measure(*seen, wrap(self._net))[1]

    @property
    def optimizer_flop(self) -> int:
        """Floating-point operations of the optimizer since `build`, which `figures` does not count."""
        return self._optimizing.flop

    def _measure(self, images: Tensor, labels: Tensor, net: nn.Module | None = None) -> tuple[float, float]:
        return evaluate(net or self._net, images, labels, pixels=self._pixels, context=self._context, tick=self._tick)

    def _check_time(self) -> None:
        limit = self._job.time_limit
        if limit is not None and time.monotonic() - self._started >= limit:
            self._settle()
            kept = len(self.history)
            words = f"{kept} of {self._training.epochs} epochs are complete"
            more = "" if kept > self._kept_before else ", and the next needs a longer limit"
            raise TimeIsUpError(f"stopped after {limit:g} s; {words}{more}")

    def _write_history(self) -> None:
        """Write the figures of all epochs so far, one per line, and restart the pace, which excludes validation."""
        self._told, self._done = time.monotonic(), 0
        self._write(HISTORY, "".join(json.dumps(epoch) + "\n" for epoch in self.history))

    def _write(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)
