"""Any form of CIFAR-10 to its cache: found, counted, decoded once."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from train.data.cache import Cifar10, find_cache, open_cache, write_cache
from train.data.opening import open_source
from train.data.source import CLASSES, SYNTHETIC, Contents

_EXPECTED = {"train": 50_000, "test": 10_000}
_PART = " (part)"


def load_cifar10(source: str | Path, *, cache: Path | None = None, partial: bool = False) -> Cifar10:
    """CIFAR-10 from any of its forms: decoded at the first load, mapped from the cache later. Only `hf://` downloads.

    Args:
        source: a folder of the Hub's Parquet files (`train-*`, `test-*`; also below `data/` or `plain_text/`); the
            folder or .tar.gz of the Python or the binary version; `torchvision:ROOT`; `hf://datasets/OWNER/NAME`;
            `synthetic` or `synthetic:COUNT` (generated, for smoke tests).
        cache: where caches lie, each in a folder named by the digest of its input; by default the user's.
        partial: accept fewer or unevenly many images; the label then ends with " (part)".

    Raises: UserError (one line) for what is missing, not CIFAR-10, or broken, with the file and the row, counted from
        0; RetryableError if the Hub cannot be reached.
    """
    found = open_source(str(source))
    folder = (cache or cache_folder("cifar10")) / found.sha256
    data = find_cache(folder)
    if data is None:
        contents = found.read()
        fault = _fault(contents.label, contents.train.labels, contents.test.labels)
        if fault and not partial:
            raise UserError(f"{found.name}: {fault}")
        write_cache(folder, contents.label + (_PART if fault else ""), found.origin, _decode(contents, found.name))
        data = open_cache(folder)
    elif data.label.endswith(_PART) and not partial:
        label = data.label.removesuffix(_PART)
        raise UserError(f"{found.name}: {_fault(label, data.train_labels.numpy(), data.test_labels.numpy())}")
    return data


def _decode(contents: Contents, name: str) -> dict[str, NDArray[np.uint8] | NDArray[np.int64]]:
    arrays: dict[str, NDArray[np.uint8] | NDArray[np.int64]] = {}
    for split, rows in (("train", contents.train), ("test", contents.test)):
        if not len(rows.labels):
            raise UserError(f"{name}: the {split} split holds no images")
        arrays |= {f"{split}_images": rows.decode(), f"{split}_labels": rows.labels}
    return arrays


def _fault(label: str, train: NDArray[np.int64], test: NDArray[np.int64]) -> str | None:
    """What is wrong with the counts, if anything; generated data may have any."""
    if label == SYNTHETIC:
        return None
    for split, labels in (("train", train), ("test", test)):
        expected = _EXPECTED[split]
        if len(labels) != expected:
            return f"the {split} split has {len(labels):,} images, CIFAR-10 has {expected:,}; get the whole data set"
        counts = np.bincount(labels, minlength=CLASSES)
        uneven = np.flatnonzero(counts != expected // CLASSES)
        if len(uneven):
            first = int(uneven[0])
            more = f" ({len(uneven)} labels are off)" if len(uneven) > 1 else ""
            return (
                f"the {split} split has {counts[first]:,} images of label {first}{more}, "
                f"CIFAR-10 has {expected // CLASSES:,} of each; get the data set anew"
            )
    return None
