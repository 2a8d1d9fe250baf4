"""Any form of CIFAR-10 to its cache: found by what the user wrote and what lies there, counted, decoded once."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from train.data.batches import find_archive, find_batches
from train.data.cache import Cifar10, find_cache, open_cache, write_cache
from train.data.parquet import find_hub, find_parquet, refuse_file
from train.data.source import CLASSES, SYNTHETIC, Contents, Source, find_synthetic

_FORMS = (
    "give a folder with train-*.parquet and test-*.parquet, cifar-10-python.tar.gz or cifar-10-binary.tar.gz or the "
    "folder in it, torchvision:ROOT, hf://datasets/uoft-cs/cifar10, or synthetic"
)
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
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


def open_source(name: str) -> Source:
    """The source of the images; nothing is decoded yet.

    Raises: UserError if there is none of a known form, or a file of it is missing; RetryableError if the Hub cannot be
        reached.
    """
    if name.startswith("hf://"):
        return find_hub(name)
    if name == "synthetic" or name.startswith("synthetic:"):
        return find_synthetic(name)
    root = name.removeprefix("torchvision:")
    path = Path(root).expanduser()
    try:
        path.stat()
        if path.is_dir():
            return _open_folder(path, name, only_batches=root != name)
    except ValueError as error:
        raise UserError(f"{name!r}: no such file or folder; {_FORMS}") from error
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; {_FORMS}") from error
    if root != name:
        raise UserError(f"{name}: {path} is not a folder; give the root folder that torchvision's CIFAR10 was given")
    if path.name.endswith(_ARCHIVES):
        return find_archive(path)
    if path.suffix == ".parquet":
        raise refuse_file(path)
    raise UserError(f"{name}: unknown kind of file; {_FORMS}")


def _open_folder(path: Path, name: str, *, only_batches: bool) -> Source:
    found = find_batches(path, name)
    if found is None and only_batches:
        raise UserError(
            f"{name}: no folder cifar-10-batches-py there; give the root that torchvision's CIFAR10 was given"
        )
    if found is None:
        found = find_parquet(path, name)
    if found is None:
        raise UserError(f"{name}: holds no CIFAR-10; {_FORMS}")
    return found


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
