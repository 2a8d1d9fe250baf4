"""Train a network with its own `train_setup` and `learn`, in the sandbox, for `check_nn` and `check_task`.

`run_check` follows LEMUR's trainer, on the CPU: `in_shape` is the shape of the first batch, the data can be iterated
once per epoch, and time is measured from `train_setup` to the end of the last evaluation.

`run_task`, a smoke test, calls `ab.nn.util.Train.Train` of the released package, with its metrics and transforms. Its
loaders are not used, since they download data sets: here the data are generated in the same form.

Source: `ab/nn/util/Train.py`, `ab/nn/loader/coco_/*.py` and `ab/nn/loader/wikitext.py` of
https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.functional import resize

from lemur_core.files import Json
from lemur_core.sandbox.net import NetError, construct, execute, install_vocabulary, seed_all, sizes, step, stub_weights
from lemur_core.sandbox.server.foreign import is_kind, list_causes
from train.data import open_cache
from train.model.contract import CIFAR10_DEVIATION, CIFAR10_MEAN, TRAINER_PARAMETERS, transform_module

CLASSES = 10
Steps = Sequence[Callable[[Tensor], Tensor]]


class TrainData:
    """The iterator passed to `learn`: batches of inputs and labels in random order, once, like LEMUR's."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, steps: Steps) -> None:
        self.n, self.total = 0, -(-len(images) // batch)
        self._batches = batches(images, labels, torch.randperm(len(images)), batch, steps)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> "TrainData":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        batch = next(self._batches)
        self.n += 1
        return batch


def run_check(payload: Json) -> Json:
    """Train a network with its own `learn` and evaluate it on the test images.

    Args: payload: `code`; `prm`; `data`, a cache folder; `images`, the maximum number to train on, or null; `epochs`;
        `seed`; `threads`.
    Returns: `accuracy` and `duration` (nanoseconds), or `category` and `error`, the reason in one line.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    data = open_cache(Path(payload["data"]))
    count = payload["images"] or len(data.train_images)
    train = (data.train_images[:count], data.train_labels[:count])
    tested = len(data.test_images) if payload["images"] is None else max(1, count // 5)
    test = (data.test_images[:tested], data.test_labels[:tested])
    return _run(payload, lambda: _train(payload["code"], payload["prm"], train, test, int(payload["epochs"])))


def _run(payload: Json, train: Callable[[], Json]) -> Json:
    """Train with the seed and threads of a payload; an error of the network becomes the answer."""
    seed_all(int(payload["seed"]))
    torch.set_num_threads(int(payload["threads"]))
    try:
        return train()
    except NetError as error:
        return {"category": _categorize(error), "error": _describe_error(error)}


def batches(images: Tensor, labels: Tensor, order: Tensor, batch: int, steps: Steps) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of transformed uint8 images and labels, in this order."""
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        yield prepare(images[chosen], steps), labels[chosen]


def read_steps(name: object) -> Steps:
    """Return the steps of one of LEMUR's transforms, from the module written to its database. Raises: UserError."""
    module: dict[str, Any] = {}
    exec(transform_module(name), module)  # noqa: S102 (our own text)
    composed: v2.Compose = module["transform"]((CIFAR10_MEAN, CIFAR10_DEVIATION))
    return list(composed.transforms)


def prepare(images: Tensor, steps: Steps) -> Tensor:
    """Apply a transform to a batch of uint8 images (N, 3, H, W); each image is flipped independently."""
    for transform in steps:
        if isinstance(transform, v2.RandomHorizontalFlip | v2.RandomVerticalFlip):
            chosen = torch.rand(len(images)) < transform.p
            images = torch.where(chosen[:, None, None, None], transform.transform(images, {}), images)
        else:
            images = transform(images)
    return images.as_subclass(Tensor)


def _train(code: str, prm: Json, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int) -> Json:
    module = _load(code, prm)
    batch, steps = int(prm["batch"]), read_steps(prm["transform"])
    in_shape = tuple(prepare(train[0][: min(batch, len(train[0]))], steps).shape)
    net = construct(module, in_shape, (CLASSES,), prm)
    started = time.perf_counter_ns()
    with step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup(prm)
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        net.train()
        with step("learn_failed", f"in learn(train_data), epoch {epoch}, batches {sizes(in_shape)}"):
            net.learn(TrainData(*train, batch, steps))
        accuracy = _evaluate(net, batches(*test, torch.arange(len(test[0])), batch, steps))
    return {"accuracy": accuracy, "duration": time.perf_counter_ns() - started}


def _load(code: str, prm: Json) -> ModuleType:
    """Execute a network's file. Raises: NetError if it fails, or a supported hyperparameter has no value in 0..1."""
    module = execute(code)
    with step("contract", "in supported_hyperparameters()"):
        supported = {str(name) for name in module.__dict__["supported_hyperparameters"]()}
    names = sorted(supported - TRAINER_PARAMETERS)
    missing = [name for name in names if name not in prm]
    if missing:
        present = ", ".join(sorted(prm))
        raise NetError("prm", f"prm: {', '.join(missing)} missing, which the network supports; present: {present}")
    for name in names:
        value = prm[name]
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise NetError("prm", f"prm: {name} is {value!r}; supported hyperparameters have values in 0..1")
    return module


def _evaluate(net: Any, data: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Return the share of images whose highest class score is that of their label."""
    net.eval()
    right = count = 0
    with torch.no_grad():
        for inputs, labels in data:
            with step("forward_failed", f"on an input of {sizes(inputs.shape)}"):
                scores = net(inputs)
            if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(labels):
                output = sizes(scores.shape, "a scalar") if isinstance(scores, Tensor) else type(scores).__name__
                raise NetError("wrong_output", f"forward gives {output}, not {len(labels)}x{CLASSES}: images x classes")
            if not bool(torch.isfinite(scores).all()):
                raise NetError("not_finite", "forward gives infinite values or NaN after training: it diverged")
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    return right / count


def _categorize(error: NetError) -> str:
    """Return the check's category of an error; an error caused by a missing permission is reported as such."""
    if any(is_kind(cause, PermissionError) for cause in list_causes(error)):
        return "denied"
    return "contract" if error.category == "no_net" else error.category


def _describe_error(error: NetError) -> str:
    """Return where the network's own file failed, the type and message of the error, and the attempted step."""
    if not error.step:
        return error.what
    tried = {"import_failed": "when the file is executed", "construct_failed": f"in {error.tried}"}
    line = f"line {error.line}: " if error.line else ""
    return f"{line}{error.what.removesuffix(': ')} ({tried.get(error.step, error.tried)})"


#: Mean and standard deviation as the COCO loaders pass them.
_MEAN, _DEVIATION = (104.01362025, 114.03422265, 119.9165958), (73.6027665, 69.89082075, 70.9150767)
_COCO_CLASSES = 6  # as many as LEMUR keeps; 0 is the background
_WORDS, _CAPTIONS, _TOKENS = 60, 5, 12  # vocabulary size; captions per image; tokens per caption
_LETTERS, _WINDOW = 40, 32  # length of the text and of a window; LEMUR's windows have 128
_SIDE = 64  # pixels of an image, if the transform's name states no size
_FOREVER = 10**6  # minutes allowed per epoch: the sandbox sets the real limit


def run_task(payload: Json) -> Json:
    """Train a network with nn-dataset's trainer on generated data for its task, and measure it with the task's metric.

    Args: payload: as for `run_check`, but `task`, `dataset` and `metric`; `package`, a folder with the package's code;
        `samples`.
    """
    stub_weights()
    sys.path.insert(0, payload["package"])
    Path("db").mkdir(exist_ok=True)
    Path("db", "ab.nn.db").touch()  # otherwise importing the package fills a database
    return _run(payload, lambda: _train_task(payload))


def _train_task(payload: Json) -> Json:
    task, prm = payload["task"], payload["prm"]
    if task == "img-captioning":
        install_vocabulary(_WORDS)
    trainers = importlib.import_module("ab.nn.util.Train")
    too_low = importlib.import_module("ab.nn.util.Exception").AccuracyException
    module = _load(payload["code"], prm)
    with step("prm", f"in the transform {prm['transform']}"):
        transform = importlib.import_module(f"ab.nn.transform.{prm['transform']}").transform((_MEAN, _DEVIATION))
    generate, out_shape = _GENERATORS[task]
    train, test = (generate(payload["samples"], transform, prm["transform"]) for _ in range(2))
    config = (task, payload["dataset"], payload["metric"], module.__name__)
    with step("construct_failed", f"Net for {task}, batch {prm['batch']}"):
        loaded = (module.__name__, task, train, test, payload["metric"], 0, prm, False)
        trainer = trainers.Train(config, out_shape, 0.0, int(prm["batch"]), *loaded)
    try:
        with step("learn_failed", f"in nn-dataset's train_n_eval, {task}"):
            accuracy, _, duration = trainer.train_n_eval(int(payload["epochs"]), _FOREVER, False)
    except NetError as error:
        if not isinstance(error.__cause__, too_low):
            raise
        accuracy, duration = error.__cause__.accuracy, error.__cause__.duration  # the package does not store it
    return {"accuracy": float(accuracy), "duration": int(duration)}


class _Items(Dataset[Any]):
    """A dataset of prepared items, with the attributes that the trainer reads from its loader's dataset."""

    num_workers = 0

    def __init__(self, items: Sequence[Any], collate_fn: Callable[[Any], Any] | None = None) -> None:
        self._items, self.collate_fn = items, collate_fn

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


Generate = Callable[[int, Any, str], _Items]


def _pictures(count: int, transform: Any, name: str) -> list[tuple[Tensor, Tensor]]:
    """Return images of colored rectangles after the package's transform, and the class of each pixel (0: none)."""
    side = int((re.findall(r"\d+", name) or [_SIDE])[-1])
    pictures = []
    for _ in range(count):
        pixels = torch.randint(0, 64, (side, side, 3))
        mask = torch.zeros(side, side, dtype=torch.int64)
        for kind in torch.randint(1, _COCO_CLASSES, (2,)).tolist():
            top, left = (int(torch.randint(0, side // 2, ())) for _ in range(2))
            area = slice(top, top + side // 3), slice(left, left + side // 3)
            pixels[area] = torch.tensor([40 * kind, 255 - 40 * kind, 20 * kind])
            mask[area] = kind
        pictures.append((transform(Image.fromarray(pixels.numpy().astype(np.uint8))), mask))
    return pictures


def _segments(count: int, transform: Any, name: str) -> _Items:
    """Return images with the class of each pixel."""
    pictures = _pictures(count, transform, name)
    return _Items(
        [(image, resize(mask[None], list(image.shape[-2:]), InterpolationMode.NEAREST)[0]) for image, mask in pictures]
    )


def _boxes(count: int, transform: Any, name: str) -> _Items:
    """Return images with the boxes and classes of their objects, in the form of LEMUR's dataset."""
    items = []
    for index, (image, mask) in enumerate(_pictures(count, transform, name)):
        kinds = [kind for kind in range(1, _COCO_CLASSES) if bool((mask == kind).any())]
        corners = []
        for kind in kinds:
            rows, columns = torch.nonzero(mask == kind, as_tuple=True)
            corners.append([int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1])
        boxes = torch.tensor(corners, dtype=torch.float32)
        target = {
            "boxes": boxes,
            "labels": torch.tensor(kinds),
            "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            "iscrowd": torch.zeros(len(kinds), dtype=torch.int64),
            "image_id": torch.tensor([index]),
            "orig_size": torch.tensor(mask.shape),
        }
        items.append((image, target))
    return _Items(items, lambda batch: (torch.stack([image for image, _ in batch]), _Targets([t for _, t in batch])))


class _Targets:
    """The targets of a batch, which can be moved to a device like a tensor."""

    def __init__(self, targets: list[dict[str, Tensor]]) -> None:
        self.targets = targets

    def to(self, device: torch.device) -> "_Targets":
        self.targets = [{name: value.to(device) for name, value in target.items()} for target in self.targets]
        return self

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.targets[index]

    def __len__(self) -> int:
        return len(self.targets)


def _captions(count: int, transform: Any, name: str) -> _Items:
    """Return images with captions as word ids: 1 is `<SOS>`, 2 `<EOS>`, 0 padding."""
    items = [(image, torch.randint(4, _WORDS, (_CAPTIONS, _TOKENS))) for image, _ in _pictures(count, transform, name)]
    for _, words in items:
        words[:, 0], words[:, -2], words[:, -1] = 1, 2, 0
    return _Items(items)


def _text(count: int, transform: Any, name: str) -> _Items:  # noqa: ARG001 (same signature as the others)
    """Return windows over a text in which each letter is drawn near the previous one, and targets one letter later."""
    letters = torch.randint(1, 4, (count + _WINDOW + 1,)).cumsum(0) % _LETTERS
    return _Items([(letters[n : n + _WINDOW], letters[n + 1 : n + _WINDOW + 1]) for n in range(count)])


#: By task: the function that generates its data, and the output shape that its loader states.
_GENERATORS: dict[str, tuple[Generate, tuple[int, ...]]] = {
    "img-segmentation": (_segments, (_COCO_CLASSES,)),
    "obj-detection": (_boxes, (_COCO_CLASSES,)),
    "img-captioning": (_captions, (_WORDS,)),
    "txt-generation": (_text, (_LETTERS,)),
}
