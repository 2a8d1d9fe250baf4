"""What every form of the data is read as: a digest of the input, then labels, then pixels."""

import hashlib
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
