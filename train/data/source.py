"""What every form of the data is read as: a digest of the input, then labels, then pixels; and the generated form.

Generated images are for smoke tests: a small network learns them in an epoch, a linear one not. A class is a direction
and a spatial frequency of a wave across the image: 2 directions, 5 frequencies. Phase, colour and contrast are random,
and there is noise, so the mean image of every class is the same grey. Mirroring, shifting and cutting keep the class.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.errors import UserError

#: Names of the data in records. Figures from the JPEG copy are compared with figures from it only.
ORIGINAL = "cifar-10"
JPEG_COPY = "cifar-10 (JPEG copy, harder)"
SYNTHETIC = "synthetic (smoke test only)"

#: One image: channels, height, width.
SHAPE = (3, 32, 32)
VALUES = 3 * 32 * 32
CLASSES = 10

_SPEC = re.compile(r"synthetic(?::(?P<count>[0-9]{1,9}))?")
_TRAIN, _LEAST, _MOST = 2_000, 20, 100_000
_PARTS_TEST = 4  # one test image to so many training images
_CYCLES = (1.0, 2.0, 3.0, 4.5, 6.5)  # across the image
_NOISE = 0.2
_CONTRAST = (0.03, 0.3)
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Rows:
    """One split: its labels, checked, and the way to its pixels (N, 3, 32, 32), which may take seconds."""

    labels: NDArray[np.int64]
    decode: Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a source holds; `label` names it in records."""

    label: str
    train: Rows
    test: Rows


@dataclass(frozen=True, slots=True)
class Source:
    """A source that was found; nothing but its digest has been worked out."""

    name: str  #: as the user wrote it, for messages
    origin: str  #: without the folders of this machine, for what is written down
    sha256: str
    read: Callable[[], Contents]


def digest_files(kind: str, root: Path, files: Sequence[Path]) -> str:
    """SHA-256 over the form, the files' names below `root` and their contents.

    Raises: UserError if one cannot be read.
    """
    digest = hashlib.sha256(kind.encode())
    for file in sorted(files):
        try:
            with file.open("rb") as opened:
                contents = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; make it readable") from error
        digest.update(f"\0{file.relative_to(root).as_posix()}\0{contents}".encode())
    return digest.hexdigest()


def check_labels(labels: NDArray[np.integer], where: str) -> NDArray[np.int64]:
    """The labels as int64.

    Raises: UserError naming the first row (from 0) whose label is not 0..9.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"{where}, row {row}: label {labels[row]}; those of CIFAR-10 are 0 to 9: is it another data set?"
        )
    return labels.astype(np.int64)


def find_synthetic(spec: str) -> Source:
    """Generated data: `synthetic` (2,000 + 500 images) or `synthetic:COUNT` (COUNT to train on, a quarter to test).

    Raises: UserError if the count is not one, or out of range.
    """
    match = _SPEC.fullmatch(spec)
    count = int(match["count"] or _TRAIN) if match else -1
    if not _LEAST <= count <= _MOST:
        raise UserError(f"{spec}: write synthetic, or synthetic:COUNT with COUNT from {_LEAST} to {_MOST:,}")
    name = f"synthetic:{count}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Source(spec, name, digest, lambda: Contents(SYNTHETIC, _rows(count, 1), _rows(count // _PARTS_TEST, 2)))


def _rows(count: int, seed: int) -> Rows:
    # RandomState, unlike newer generators, is promised to give the same numbers in every release of numpy.
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count, dtype=np.int64) % CLASSES)
    chunks = [labels[start : start + _CHUNK] for start in range(0, count, _CHUNK)]
    return Rows(labels, lambda: np.concatenate([_draw(chunk, random) for chunk in chunks]))


def _draw(labels: NDArray[np.int64], random: np.random.RandomState) -> NDArray[np.uint8]:
    count = len(labels)
    line = np.linspace(-1, 1, 32)
    waves = np.array(_CYCLES)[labels % len(_CYCLES)][:, None] * np.pi * line + random.uniform(0, 2 * np.pi, (count, 1))
    across = np.broadcast_to(np.sin(waves)[:, None, :], (count, 32, 32))
    upright = (labels >= len(_CYCLES))[:, None, None]
    wave = np.where(upright, across.transpose(0, 2, 1), across)[:, None]
    colour = random.uniform(*_CONTRAST, (count, 3))[:, :, None, None]
    values = 0.5 + colour * wave + _NOISE * random.standard_normal((count, 3, 32, 32))
    return np.clip(np.rint(255 * values), 0, 255).astype(np.uint8)
