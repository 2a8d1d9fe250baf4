"""Runs in the sandbox for a smoke test: nn-dataset's own trainer, metric and transform, on generated data.

`ab.nn.util.Train.Train` of the released package trains the network and measures it, as `check_nn` does. Its loaders are
not used, since they download data sets: here the data are generated in the same form.

Source: `ab/nn/util/Train.py`, `ab/nn/loader/coco_/*.py` and `ab/nn/loader/wikitext.py` of
https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from lemur_core.sandbox.net import NetError, execute, hand_over_vocabulary, seed_all, step, stub_weights
from train.lemur.check_guest import category_of_error, check_parameters, error_line

#: Mean and standard deviation as the COCO loaders pass them.
_MEAN, _DEVIATION = (104.01362025, 114.03422265, 119.9165958), (73.6027665, 69.89082075, 70.9150767)
_CLASSES = 6  # of COCO, as many as LEMUR keeps; 0 is the background
_WORDS, _CAPTIONS, _CAPTION = 60, 5, 12  # vocabulary size; captions per image; tokens per caption
_LETTERS, _WINDOW = 40, 32  # length of the text and of a window; LEMUR's windows have 128
_SIDE = 64  # of an image, if the transform's name has no size
_FOREVER = 10**6  # minutes allowed per epoch: the sandbox sets the real limit


def run_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Train a network with nn-dataset's trainer on generated data of its task, and measure it with the task's metric.

    Args:
        payload: `code`; `prm`; `task`, `dataset` and `metric`; `package`, a folder with the package's code; `samples`;
            `epochs`; `seed`; `threads`.

    Returns: `accuracy` and `duration` (nanoseconds), or `category` and `error`, the reason in one line.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    seed_all(int(payload["seed"]))
    torch.set_num_threads(int(payload["threads"]))
    stub_weights()
    sys.path.insert(0, payload["package"])
    Path("db").mkdir(exist_ok=True)
    Path("db", "ab.nn.db").touch()  # otherwise importing the package fills a database
    try:
        return _run(payload)
    except NetError as error:
        return {"category": category_of_error(error), "error": error_line(error)}


def _run(payload: dict[str, Any]) -> dict[str, Any]:
    task, prm = payload["task"], payload["prm"]
    if task == "img-captioning":
        hand_over_vocabulary(_WORDS)
    trainers = importlib.import_module("ab.nn.util.Train")
    too_low = importlib.import_module("ab.nn.util.Exception").AccuracyException
    module = execute(payload["code"])
    with step("contract", "in supported_hyperparameters()"):
        names = sorted({str(name) for name in module.__dict__["supported_hyperparameters"]()})
    check_parameters(prm, names)
    with step("prm", f"in the transform {prm['transform']}"):
        transform = importlib.import_module(f"ab.nn.transform.{prm['transform']}").transform((_MEAN, _DEVIATION))
    make, out_shape = _MAKERS[task]
    train, test = (make(payload["samples"], transform, prm["transform"]) for _ in range(2))
    config = (task, payload["dataset"], payload["metric"], module.__name__)
    with step("construct_failed", f"Net for {task}, batch {prm['batch']}"):
        trainer = trainers.Train(
            config,
            out_shape,
            0.0,
            int(prm["batch"]),
            module.__name__,
            task,
            train,
            test,
            payload["metric"],
            0,
            prm,
            False,
        )
    try:
        with step("learn_failed", f"in nn-dataset's train_n_eval, {task}"):
            accuracy, _, duration = trainer.train_n_eval(int(payload["epochs"]), _FOREVER, False)
    except NetError as error:
        if not isinstance(error.__cause__, too_low):
            raise
        accuracy, duration = error.__cause__.accuracy, error.__cause__.duration  # 0, which the package does not store
    return {"accuracy": float(accuracy), "duration": int(duration)}


class _Items(Dataset[Any]):
    """A dataset of ready items, with the attributes that the trainer reads from its loader's dataset."""

    num_workers = 0

    def __init__(self, items: Sequence[Any], collate_fn: Callable[[Any], Any] | None = None) -> None:
        self._items, self.collate_fn = items, collate_fn

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> Any:
        return self._items[place]


Maker = Callable[[int, Any, str], _Items]


def _pictures(count: int, transform: Any, name: str) -> list[tuple[Tensor, Tensor]]:
    """Return images of coloured rectangles after the package's transform, and the class of each pixel (0: none)."""
    side = int((re.findall(r"\d+", name) or [_SIDE])[-1])
    pictures = []
    for _ in range(count):
        pixels = torch.randint(0, 64, (side, side, 3))
        shown = torch.zeros(side, side, dtype=torch.int64)
        for kind in torch.randint(1, _CLASSES, (2,)).tolist():
            top, left = (int(torch.randint(0, side // 2, ())) for _ in range(2))
            area = slice(top, top + side // 3), slice(left, left + side // 3)
            pixels[area] = torch.tensor([40 * kind, 255 - 40 * kind, 20 * kind])
            shown[area] = kind
        pictures.append((transform(Image.fromarray(pixels.numpy().astype(np.uint8))), shown))
    return pictures


def _segments(count: int, transform: Any, name: str) -> _Items:
    """Return images with the class of each pixel."""
    pictures = _pictures(count, transform, name)
    return _Items(
        [
            (image, transforms.functional.resize(shown[None], list(image.shape[-2:]), _NEAREST)[0])
            for image, shown in pictures
        ]
    )


_NEAREST = transforms.InterpolationMode.NEAREST


def _boxes(count: int, transform: Any, name: str) -> _Items:
    """Return images with the boxes and classes of their objects, in the form of LEMUR's dataset."""
    items = []
    for place, (image, shown) in enumerate(_pictures(count, transform, name)):
        kinds = [kind for kind in range(1, _CLASSES) if bool((shown == kind).any())]
        corners = []
        for kind in kinds:
            rows, columns = torch.nonzero(shown == kind, as_tuple=True)
            corners.append([int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1])
        boxes = torch.tensor(corners, dtype=torch.float32)
        target = {
            "boxes": boxes,
            "labels": torch.tensor(kinds),
            "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            "iscrowd": torch.zeros(len(kinds), dtype=torch.int64),
            "image_id": torch.tensor([place]),
            "orig_size": torch.tensor(shown.shape),
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

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return self.targets[place]

    def __len__(self) -> int:
        return len(self.targets)


def _captions(count: int, transform: Any, name: str) -> _Items:
    """Return images with captions as word ids: `<SOS>` is 1, `<EOS>` 2, padding 0."""
    items = []
    for image, _ in _pictures(count, transform, name):
        words = torch.randint(4, _WORDS, (_CAPTIONS, _CAPTION))
        words[:, 0], words[:, -2], words[:, -1] = 1, 2, 0
        items.append((image, words))
    return _Items(items)


def _text(count: int, transform: Any, name: str) -> _Items:  # noqa: ARG001 (same signature as the others)
    """Return windows over a text in which each letter is drawn near the previous one, and targets one letter later."""
    letters = torch.randint(1, 4, (count + _WINDOW + 1,)).cumsum(0) % _LETTERS
    return _Items([(letters[at : at + _WINDOW], letters[at + 1 : at + _WINDOW + 1]) for at in range(count)])


#: By task: the function that generates its data, and the output shape that its loader states.
_MAKERS: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "img-segmentation": (_segments, (_CLASSES,)),
    "obj-detection": (_boxes, (_CLASSES,)),
    "img-captioning": (_captions, (_WORDS,)),
    "txt-generation": (_text, (_LETTERS,)),
}
