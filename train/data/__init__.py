"""CIFAR-10 from any of its common forms, decoded once."""

import os
from pathlib import Path

from lemur_core.files.atomic import PathLike
from lemur_core.files.cache import cache_folder
from train.data.arrays import Cifar10, count_images, find_cache, open_cache, split, write_cache

__all__ = ["Cifar10", "count_images", "load_cifar10", "open_cache", "open_data", "split"]


def load_cifar10(source: str | Path, *, cache: Path | None = None) -> Cifar10:
    """Load CIFAR-10 from any of its forms: decode at the first load, then map from the cache. Only `hf://` downloads.

    Args:
        source: a folder of the Hub's Parquet files (`train-*`, `test-*`; also below `data/` or `plain_text/`);
            `hf://datasets/OWNER/NAME`, which has such files; the folder of the Python version, or `torchvision:ROOT`;
            `synthetic` or `synthetic:COUNT` (generated, for smoke tests).
        cache: folder of the caches, each in a folder named by the digest of its input; the user's cache by default.

    Returns: images as bytes and labels, of training and test, as tensors that are mapped from files.
    Raises: UserError (one line) for data that are missing, not CIFAR-10, or broken, with the file and the row, counted
        from 0; RetryableError if the Hub cannot be reached.
    """
    # A job in the sandbox opens the decoded arrays, and must not wait for tables, pictures and the Hub's client.
    from train.data.sources import open_source

    opened = open_source(str(source))
    folder = (cache or cache_folder("cifar10")) / opened.sha256
    data = find_cache(folder)
    if data is None:
        label, arrays = opened.read()
        write_cache(folder, label, opened.origin, arrays)
        data = open_cache(folder)
    return data


def open_data(data: PathLike | Cifar10) -> Cifar10:
    """Return images as they are, or load them from their source."""
    return data if isinstance(data, Cifar10) else load_cifar10(os.fspath(data))
