"""How LEMUR calls a network: the shapes and values that its trainer hands over, told from task, dataset and transform.

The trainer constructs `Net(in_shape, out_shape, prm, device)`, moves it to the device, and evaluates `net(inputs)` in
eval mode without gradients. `in_shape` is the shape of the first batch, batch size included; `out_shape` comes from the
data loader: the number of classes, or of words. `prm` holds the hyperparameters of the trial, `batch` and `transform`
among them; the name of the transform tells the size of the images.

Source: `ab/nn/util/Train.py`, `ab/nn/loader` and `ab/nn/transform` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import re
from dataclasses import dataclass
from typing import Literal

#: Two: the least that shows a network which mixes up the samples of a batch.
BATCH = 2

#: Sizes that LEMUR's loaders take from the data, which are not here; networks get them as an argument, so any will do.
CAPTION_WORDS = 1_000
TEXT_CHARACTERS = 256

_TEXT_LENGTH = 128  # characters of a sample of wikitext
_COCO_CLASSES = 6  # of segmentation and detection, in this release
_TEXT2IMAGE_SIZE = 256  # where the transform names none
_PADDED = 800  # soft_pad pads to this

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Images:
    """An image classification dataset; `size` is None where its images differ in size."""

    channels: int
    size: Size | None
    classes: int


DATASETS = {
    "celeba-gender": Images(3, (218, 178), 2),
    "cifar-10": Images(3, (32, 32), 10),
    "cifar-100": Images(3, (32, 32), 100),
    "imagenette": Images(3, None, 10),
    "mnist": Images(1, (28, 28), 10),
    "places365": Images(3, (256, 256), 365),
    "svhn": Images(3, (32, 32), 10),
}

_RESIZED = re.compile(r"(?:norm|echo|complex)_(\d+)(?:_flip)?")
_KEEPS_SIZE = re.compile(r"(?:norm|echo|complex)(?:_flip)?")
_FIXED = {"center_crop": 64, "random_horizontal_flip": 64, "random_vertical_flip": 64}


@dataclass(frozen=True, slots=True)
class Case:
    """What one network is given, and what must come out."""

    in_shape: tuple[int, ...]
    out_shape: tuple[object, ...]
    dtype: Literal["float32", "complex64", "int64"] = "float32"
    values: tuple[float, float] = (0.0, 1.0)  # drawn evenly from this range, the end excluded
    output: tuple[int, ...] | None = None  # its shape; None where the task does not fix it
    words: int = 0  # of the vocabulary that the caption loader fills


def case_of(task: str | None, dataset: str | None, transform: object) -> Case | str:
    """What LEMUR hands a network of this benchmark, or why that cannot be told."""
    if task is None or dataset is None:
        return "the record names no task and dataset"
    if (task, dataset) == ("txt-generation", "wikitext"):
        values = (0.0, float(TEXT_CHARACTERS))
        return Case((BATCH, _TEXT_LENGTH), (TEXT_CHARACTERS,), "int64", values)
    if not isinstance(transform, str):
        return "prm names no transform, which tells the size of the images"
    if task == "img-classification" and dataset in DATASETS:
        return _classification(DATASETS[dataset], dataset, transform)
    if dataset == "coco":
        return _coco(task, transform)
    return f"the inputs of task {task} on {dataset} are not known"


def _classification(images: Images, dataset: str, transform: str) -> Case | str:
    size = _size(transform, images.size, dataset)
    if isinstance(size, str):
        return size
    out = (images.classes,)
    return Case((BATCH, images.channels, *size), out, *_values(transform), output=(BATCH, images.classes))


def _coco(task: str, transform: str) -> Case | str:
    if task == "txt-image":
        named = _size(transform, None, "coco")
        size = (_TEXT2IMAGE_SIZE, _TEXT2IMAGE_SIZE) if isinstance(named, str) else named
        # The loader builds a transform of its own, so the images are normalised floats whatever the name says.
        out: tuple[object, ...] = ({"vocab_size": 30_000}, (3, *size), None)
        return Case((BATCH, 3, *size), out, "float32", (-1.0, 1.0))
    found = _size(transform, None, "coco")
    if isinstance(found, str):
        return found
    shape = (BATCH, 3, *found)
    if task in ("img-segmentation", "obj-detection"):
        return Case(shape, (_COCO_CLASSES,), *_values(transform))
    if task == "img-captioning":
        return Case(shape, (CAPTION_WORDS,), *_values(transform), words=CAPTION_WORDS)
    return f"the inputs of task {task} on coco are not known"


def _size(transform: str, native: Size | None, dataset: str) -> Size | str:
    """Height and width after a transform."""
    if found := _RESIZED.fullmatch(transform):
        return int(found[1]), int(found[1])
    if transform in _FIXED:
        return _FIXED[transform], _FIXED[transform]
    if transform == "soft_pad":
        height, width = native or (0, 0)
        return max(height, _PADDED), max(width, _PADDED)
    if not _KEEPS_SIZE.fullmatch(transform):
        return f"the transform {transform} is not known"
    if native is None:
        return f"the images of {dataset} differ in size, and the transform {transform} leaves them so"
    return native


def _values(transform: str) -> tuple[Literal["float32", "complex64"], tuple[float, float]]:
    """Type and range of pixels: `norm` moves them to about zero mean and unit deviation."""
    if transform.startswith("complex"):
        return "complex64", (0.0, 1.0)
    return "float32", (-2.0, 2.0) if transform.startswith("norm") else (0.0, 1.0)
