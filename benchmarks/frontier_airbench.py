"""airbench's own scripts, run as they are but for what is said here, with their arithmetic counted.

The data are ours, in the file that a script looks for; `torch.compile` does nothing, since it changes how long a run
takes and not what it computes; the accuracy without test-time augmentation is read once, at the end, and not after
every epoch. On a CPU, half precision becomes single.
"""

import contextlib
import io
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train.data import Cifar10
from train.runs.loop import CountFlop

SCRIPTS = {
    "airbench94": "airbench94_muon.py",
    "airbench95": "legacy/airbench95.py",
    "airbench96": "airbench96_faster.py",
}
_EPOCHS = {  # where each script states them
    "airbench94": r"(?<=ceil\()8(?= \* len\(train_loader\)\))",
    "airbench95": r"(?<='train_epochs': )15",
    "airbench96": r"(?<='train_epochs': )45\.0",
}
_BATCHES = ((r"(?<=batch_size = )2000", 1), (r"(?<='batch_size': )1024", 1), (r"(?<='batch_size_masked': )512", 2))
_ON_CPU = ((r"\.cuda\(\)", ""), (r"\.half\(\)", ".float()"), (r"map_location=[^,)]*\)?\)", "map_location='cpu')"))


class Meter:
    """Counts what networks take in training, by torch's formulas, once for each kind of step."""

    def __init__(self) -> None:
        self.flop = self.optimizer_flop = self.images = 0
        self._each: dict[object, int] = {}
        self._last: object = None

    def watch(self, net: nn.Module, name: str, *, counts: bool = True) -> nn.Module:
        """Have every call of the network in training counted; its images too if it `counts`."""
        inner = net.forward

        def forward(x: Tensor, *more: Any, **named: Any) -> Any:
            if not net.training:
                return inner(x, *more, **named)
            learns = torch.is_grad_enabled()
            kind = (name, x.shape, learns, repr((more, named)), *(each.requires_grad for each in net.parameters()))
            self.images += len(x) if counts else 0
            if learns:
                self._last = kind
            return self._counted("forward", kind, lambda: inner(x, *more, **named))

        net.forward = forward
        object.__setattr__(net, "_orig_mod", net)  # what torch.compile would have put there
        return net

    def backward(self, inner: Callable[..., None]) -> Callable[..., None]:
        """Return the same backward pass, counted."""
        return lambda loss, *more, **named: self._counted("backward", self._last, lambda: inner(loss, *more, **named))

    def step(self, inner: Callable[..., None]) -> Callable[..., None]:
        """Return the same step of an optimizer, counted apart."""

        def step(optimizer: Any) -> None:
            before = self.flop
            self._counted("step", id(optimizer), lambda: inner(optimizer))
            self.optimizer_flop += self.flop - before
            self.flop = before

        return step

    def _counted(self, what: str, kind: object, call: Callable[[], Any]) -> Any:
        key = (what, kind)
        if key in self._each:
            result = call()
        else:
            with CountFlop() as counter:
                result = call()
            self._each[key] = counter.flop
        self.flop += self._each[key]
        return result


def write_data(data: Cifar10, place: Path, images: int | None = None) -> None:
    """Write the images as the scripts keep them: in `place/cifar10`."""
    folder = place / "cifar10"
    folder.mkdir(parents=True, exist_ok=True)
    for name, pictures, labels in (
        ("train", data.train_images[:images], data.train_labels[:images]),
        ("test", data.test_images[:images], data.test_labels[:images]),
    ):
        kept = {
            "images": pictures.permute(0, 2, 3, 1).contiguous(),
            "labels": labels.clone(),
            "classes": list("0123456789"),
        }
        torch.save(kept, folder / f"{name}.pt")


def run_script(
    name: str, path: Path, place: Path, seed: int, device: str, epochs: float | None, batch: int | None
) -> dict[str, Any]:
    """Run a script once.

    Args: name: one of `SCRIPTS`. path: the script. place: the folder of `write_data`. epochs, batch: instead of its
        own, to try it.
    Returns: accuracies without and with test-time augmentation, operations, images that the network learned from.
    """
    text = path.read_text(encoding="utf-8")
    if epochs is not None:
        text, count = re.subn(_EPOCHS[name], f"{epochs:g}", text)
        assert count == 1, f"{path}: does not state its epochs where they were"
    for pattern, parts in _BATCHES if batch else ():
        text = re.sub(pattern, str((batch or 0) // parts), text)
    for pattern, other in _ON_CPU if device == "cpu" else ():
        text = re.sub(pattern, other, text)
    found: dict[str, float] = {}
    with _patched(path, place, device) as meter, contextlib.redirect_stdout(io.StringIO()):
        script: dict[str, Any] = {"__name__": "airbench"}
        exec(compile(text, str(path), "exec"), script)
        inner = script["evaluate"]

        def evaluate(model: nn.Module, loader: object, tta_level: int = 0) -> float:
            if tta_level:
                found["plain"] = inner(model, loader, 0)
                found["views"] = inner(model, loader, tta_level)
            return found.get("views", 0.0)

        script["evaluate"] = evaluate
        if "Muon" in script:
            script["Muon"].step = meter.step(script["Muon"].step)
        random.seed(seed)
        torch.manual_seed(seed)
        _start(name, script, meter, device)
    return {**found, "flop": meter.flop, "optimizer_flop": meter.optimizer_flop, "images": meter.images}


def _start(name: str, script: dict[str, Any], meter: Meter, device: str) -> None:
    """Call the script's `main` as it does itself for one run."""
    if name == "airbench94":
        net = script["CifarNet"]()
        net = (net if device == "cpu" else net.cuda()).to(memory_format=torch.channels_last)
        script["main"](0, meter.watch(net, "net"))
        return
    make, hyp = script["make_net"], script["hyp"]
    if name == "airbench95":
        script["make_net"] = lambda: meter.watch(make(), "net")
        script["main"](0)
        return
    proxy, net, frozen = make(hyp["proxy"]), make(hyp["net"]), make(hyp["net"])
    for each in (proxy, frozen):
        each[0].bias.requires_grad = False
    nets = (meter.watch(proxy, "proxy", counts=False), meter.watch(net, "net"), meter.watch(frozen, "frozen"))
    script["main"](0, hyp, *nets)


class _NoEvent:
    """An event where there is no GPU."""

    def __init__(self, **_named: object) -> None:
        pass

    def record(self) -> None:
        pass

    def elapsed_time(self, _other: object) -> float:
        return 0.0


@contextlib.contextmanager
def _patched(path: Path, place: Path, device: str) -> Iterator[Meter]:
    """Set what a script looks at in its process, and set it back."""
    meter = Meter()
    before = (sys.argv, Path.cwd(), torch.compile, Tensor.backward, torch.cuda.Event, torch.cuda.synchronize)
    benchmark = torch.backends.cudnn.benchmark
    sys.argv = [str(path.resolve())]
    os.chdir(place)
    torch.compile = lambda made=None, **_named: made  # type: ignore[assignment]
    Tensor.backward = meter.backward(Tensor.backward)  # type: ignore[method-assign]
    if device == "cpu":
        torch.cuda.Event, torch.cuda.synchronize = _NoEvent, lambda *_each: None  # type: ignore[assignment,misc]
    try:
        yield meter
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
        torch.compile, Tensor.backward = before[2:4]  # type: ignore[method-assign]
        torch.cuda.Event, torch.cuda.synchronize = before[4:]  # type: ignore[misc]
        torch.backends.cudnn.benchmark = benchmark
