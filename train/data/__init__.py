"""CIFAR-10 as a folder of arrays and a `meta.json`, which is written once and then mapped.

The arrays are plain .npy files, mapped copy-on-write: only pages in use are read, processes share them, and torch
accepts the mapping without a warning because it is writable. Writes stay in the process and never reach the file.
`train.data.sources` reads the forms that the images come in; a job in the sandbox needs none of that.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.atomic import atomic_folder
from lemur_core.files.cache import remove_path
from lemur_core.files.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# `torch` is imported in functions: `lemur verify` imports this module, and takes seconds less without it.

#: Folders of another format count as damaged: increase it when the cached content or the decoding changes.
FORMAT = 1
SPLITS = ("train", "test")
#: One image: channels, height, width.
SHAPE = (3, 32, 32)
#: Arrays by name: train_images, train_labels, test_images, test_labels.
Arrays = dict[str, NDArray[Any]]
_NAMES = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, slots=True, eq=False)
class Cifar10:
    """Images and labels of both splits, mapped from the files of `folder`; do not write to them."""

    label: str  #: what the data are: "cifar-10", "cifar-10 (JPEG copy, harder)", "synthetic (smoke test only)"
    sha256: str  #: of the decoded images and labels
    folder: Path
    train_images: "Tensor"  #: (50000, 3, 32, 32) uint8
    train_labels: "Tensor"  #: (50000,) int64
    test_images: "Tensor"  #: (10000, 3, 32, 32) uint8
    test_labels: "Tensor"  #: (10000,) int64

    def verify(self) -> bool:
        """Return whether the arrays are as they were written; reads all of them."""
        return arrays_sha256({name: getattr(self, name).numpy() for name in _NAMES}) == self.sha256


def open_cache(folder: Path) -> Cifar10:
    """Open the data in a cache folder, checking file sizes and headers only.

    Raises: UserError if it is missing or damaged.
    """
    import torch

    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']!r}, not {FORMAT}")
        arrays: dict[str, Tensor] = {}
        for name in _NAMES:
            split, what = name.split("_")
            count = (int(meta["counts"][split]),)
            shape, dtype = ((*count, *SHAPE), "u1") if what == "images" else (count, "<i8")
            array = np.load(folder / f"{name}.npy", mmap_mode="c")  # np.load refuses pickles
            if (array.shape, array.dtype) != (shape, np.dtype(dtype)):
                raise ValueError(f"{name}.npy does not hold {shape} of {np.dtype(dtype)}")
            arrays[name] = torch.from_numpy(array)
        return Cifar10(label=str(meta["label"]), sha256=str(meta["sha256"]), folder=folder, **arrays)
    except (OSError, EOFError, ValueError, KeyError, TypeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        more = "delete it and load the data again"
        raise UserError(f"{folder}: not a complete cache of CIFAR-10: {reason}; {more}") from error


def write_cache(folder: Path, label: str, origin: str, arrays: Arrays) -> None:
    """Write the arrays to `folder` atomically, in place of a damaged one.

    An intact one that another process has written meanwhile is kept.

    Raises: UserError if it cannot be written.
    """
    if find_cache(folder) is not None:
        return
    try:
        # Damaged, or of an older format: `find_cache` has refused it.
        remove_path(folder)
        with atomic_folder(folder) as part:
            for name in _NAMES:
                np.save(part / f"{name}.npy", np.ascontiguousarray(arrays[name]))
            meta = {
                "format": FORMAT,
                "label": label,
                "sha256": arrays_sha256(arrays),
                "counts": {split: len(arrays[f"{split}_labels"]) for split in SPLITS},
                "source": origin,
            }
            (part / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    except (OSError, UserError) as error:
        if find_cache(folder) is None:  # otherwise another process was faster
            reason = error.strerror if isinstance(error, OSError) else str(error)
            more = "free space, or set LEMUR_CURATOR_CACHE to a writable folder"
            raise UserError(f"{folder}: cannot be written: {reason}; {more}") from error


def find_cache(folder: Path) -> Cifar10 | None:
    """Return the data in a cache folder if it exists and every byte is as it was written; takes about 0.3 s."""
    try:
        data = open_cache(folder)
    except UserError:
        return None
    return data if data.verify() else None


def arrays_sha256(arrays: Arrays) -> str:
    """Return SHA-256 over train images, train labels, test images, test labels: C order, labels as `<i8`."""
    digest = hashlib.sha256()
    for name in _NAMES:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def split(count: int, held_out: int, seed: int) -> "tuple[Tensor, Tensor]":
    """Return indices to train on and indices held out: a seeded permutation cut in two, each part sorted.

    Returns: two int64 tensors, disjoint, together 0..count-1.
    Raises: UserError if nothing would be left to train on.
    """
    import torch

    _check_held_out(held_out, count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[held_out:].sort().values, order[:held_out].sort().values


def count_images(data: Cifar10, held_out: int, images: int | None) -> int:
    """Return the number of training images. Raises: UserError if there are fewer than requested."""
    count = len(data.train_labels)
    _check_held_out(held_out, count)
    if images is not None and not 1 <= images <= count - held_out:
        raise UserError(f"images: {images:,}, but {count - held_out:,} are left to train on; use at most that many")
    return count - held_out if images is None else images


def _check_held_out(held_out: int, count: int) -> None:
    if not 0 <= held_out < count:
        raise UserError(f"held out: {held_out:,} of {count:,} images; --held-out: 0 or more, but fewer than all")
