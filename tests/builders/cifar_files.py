"""Small data sets in every form that CIFAR-10 comes in, written for the tests."""

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import CIFAR10

TRAIN, TEST = 50, 20
CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True)
class Made:
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def make(seed: int = 0) -> Made:
    random = np.random.RandomState(seed)
    train, test = (random.randint(0, 256, (count, 3, 32, 32)).astype(np.uint8) for count in (TRAIN, TEST))
    return Made(train, np.arange(TRAIN) % 10, test, np.arange(TEST)[::-1] % 10)


def encode(image: NDArray[np.uint8], kind: str = "PNG", mode: str = "RGB") -> bytes:
    made = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert(mode)
    made.save(out := io.BytesIO(), kind)
    return out.getvalue()


def table(images: list[bytes | None], labels: list[Any], column: str = "img") -> pa.Table:
    cells = [None if image is None else {"bytes": image, "path": f"{row}.png"} for row, image in enumerate(images)]
    return pa.table({column: pa.array(cells, CELL), "label": pa.array(labels)})


def write_parquet(folder: Path, made: Made, *, kind: str = "PNG", column: str = "img", shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        images, labels = getattr(made, f"{split}_images"), getattr(made, f"{split}_labels")
        for shard, rows in enumerate(np.array_split(np.arange(len(labels)), shards)):
            part = table([encode(images[row], kind) for row in rows], labels[rows].tolist(), column)
            pq.write_table(part, folder / f"{split}-{shard:05}-of-{shards:05}.parquet")
    return folder


def to_pickle(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bytes:
    return pickle.dumps({"labels": labels.tolist(), "data": images.reshape(len(images), -1)}, 2)


def write_python(root: Path, made: Made) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(TRAIN), 5), 1):
        (folder / f"data_batch_{number}").write_bytes(to_pickle(made.train_images[rows], made.train_labels[rows]))
    (folder / "test_batch").write_bytes(to_pickle(made.test_images, made.test_labels))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, 2))
    return folder


def pass_for_originals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision state the digests of these files for those of CIFAR-10."""
    meta, *found = [[file.name, hashlib.md5(file.read_bytes()).hexdigest()] for file in sorted(folder.iterdir())]
    monkeypatch.setattr(CIFAR10, "train_list", found[:-1])
    monkeypatch.setattr(CIFAR10, "test_list", found[-1:])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta[1]})
