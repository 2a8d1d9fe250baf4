"""The common interface of all data sources, generated data, and the original batches of CIFAR-10.

Generated images are for smoke tests: a small network learns them in an epoch, a linear one does not. A class is a
direction and a spatial frequency of a wave across the image: 2 directions, 5 frequencies. Phase, color and contrast
are random, and there is noise, so the mean image of every class is the same grey. Flips, shifts and crops keep the
class.

The batches (Python and binary version) are read from a folder or from a tar archive, which is never unpacked to disk. A
batch of the Python version is a pickle, which could run any code: it is loaded only if its bytes have the MD5 digest
that torchvision lists for the original file. (No practical way is known to build another file with the same MD5
digest.)
"""

import hashlib
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError

#: Names of the data in records. Results on the JPEG copy are compared only with each other.
ORIGINAL = "cifar-10"
JPEG_COPY = "cifar-10 (JPEG copy, harder)"
SYNTHETIC = "synthetic (smoke test only)"

#: One image: channels, height, width.
SHAPE = (3, 32, 32)
VALUES = 3 * 32 * 32
CLASSES = 10

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
_LARGEST_BYTES = 1 << 28  # a batch has 31 MB; sizes in an archive are not trusted

_SPEC = re.compile(r"synthetic(?::(?P<count>[0-9]{1,9}))?")
_TRAIN, _LEAST, _MOST = 2_000, 20, 100_000
_CYCLES = (1.0, 2.0, 3.0, 4.5, 6.5)  # across the image
_NOISE = 0.2
_CONTRAST = (0.03, 0.3)
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class ImageRows:
    """One split: its checked labels, and a function that decodes its pixels (N, 3, 32, 32), which may take seconds."""

    labels: NDArray[np.int64]
    decode: Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The content of a source; `label` names it in records."""

    label: str
    train: ImageRows
    test: ImageRows


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A source of images, of which only the digest has been computed."""

    name: str  #: as the user wrote it, for messages
    origin: str  #: without the folders of this machine, for records
    sha256: str
    read: Callable[[], ImageFiles]


def digest_files(kind: str, root: Path, files: Sequence[Path]) -> str:
    """Return SHA-256 over the kind of source, the files' names below `root` and their contents.

    Raises: UserError if a file cannot be read.
    """
    digest = hashlib.sha256(kind.encode())
    for file in sorted(files):
        try:
            contents = sha256_file(file)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; make it readable") from error
        digest.update(f"\0{file.relative_to(root).as_posix()}\0{contents}".encode())
    return digest.hexdigest()


def check_labels(labels: NDArray[np.integer], where: str) -> NDArray[np.int64]:
    """Return the labels as int64. Raises: UserError that names the first row (from 0) whose label is not 0..9."""
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"{where}, row {row}: label {labels[row]}; those of CIFAR-10 are 0 to 9: is it another data set?"
        )
    return labels.astype(np.int64)


def find_synthetic(spec: str) -> ImageSource:
    """Return generated data: `synthetic` (2,000 + 500 images) or `synthetic:COUNT` (COUNT training, COUNT/4 test).

    Raises: UserError if the count is not a number, or is out of range.
    """
    match = _SPEC.fullmatch(spec)
    count = int(match["count"] or _TRAIN) if match else -1
    if not _LEAST <= count <= _MOST:
        raise UserError(f"{spec}: write synthetic, or synthetic:COUNT with COUNT from {_LEAST} to {_MOST:,}")
    name = f"synthetic:{count}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ImageSource(spec, name, digest, lambda: ImageFiles(SYNTHETIC, _rows(count, 1), _rows(count // 4, 2)))


def _rows(count: int, seed: int) -> ImageRows:
    # NumPy guarantees the same numbers in every release for RandomState, but not for newer generators.
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count, dtype=np.int64) % CLASSES)
    chunks = [labels[start : start + _CHUNK] for start in range(0, count, _CHUNK)]
    return ImageRows(labels, lambda: np.concatenate([_draw(chunk, random) for chunk in chunks]))


def _draw(labels: NDArray[np.int64], random: np.random.RandomState) -> NDArray[np.uint8]:
    count = len(labels)
    line = np.linspace(-1, 1, 32)
    waves = np.array(_CYCLES)[labels % len(_CYCLES)][:, None] * np.pi * line + random.uniform(0, 2 * np.pi, (count, 1))
    across = np.broadcast_to(np.sin(waves)[:, None, :], (count, 32, 32))
    upright = (labels >= len(_CYCLES))[:, None, None]
    wave = np.where(upright, across.transpose(0, 2, 1), across)[:, None]
    color = random.uniform(*_CONTRAST, (count, 3))[:, :, None, None]
    values = 0.5 + color * wave + _NOISE * random.standard_normal((count, 3, 32, 32))
    return np.clip(np.rint(255 * values), 0, 255).astype(np.uint8)


class _Version(NamedTuple):
    kind: str
    folder: str
    suffix: str
    parse: Callable[[bytes, Path], _Batch]

    @property
    def files(self) -> list[str]:
        """Return the names of the batches, the test batch last."""
        return [f"{name}{self.suffix}" for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")]


def _parse_pickle(data: bytes, where: Path) -> _Batch:
    """Parse one batch of the Python version to images (N, 3, 32, 32) and labels.

    Raises: UserError if it is not the original file.
    """
    from torchvision.datasets import CIFAR10

    digests = dict((*CIFAR10.train_list, *CIFAR10.test_list))
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if digest != digests[where.name]:
        mismatch = f"MD5 {digest}, expected {digests[where.name]}"
        raise UserError(f"{where}: not the original file ({mismatch}), so it is not unpickled; get the file again")
    batch = pickle.loads(data, encoding="latin1")
    return batch["data"].reshape(-1, *SHAPE), np.array(batch["labels"], np.int64)


def _parse_records(data: bytes, where: Path) -> _Batch:
    """Parse one binary batch to images (N, 3, 32, 32) and labels; a record is 1 byte of label, 3,072 bytes of image.

    Raises: UserError if it is not a whole number of records, or a label is not 0..9.
    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    size = VALUES + 1
    if len(data) % size or not data:
        raise UserError(
            f"{where}: {len(data):,} bytes are not a whole number of records of {size:,} bytes; get the file again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, 1:].reshape(-1, *SHAPE), check_labels(records[:, 0], str(where))


_VERSIONS = (
    _Version("Python", "cifar-10-batches-py", "", _parse_pickle),
    _Version("binary", "cifar-10-batches-bin", ".bin", _parse_records),
)


def find_batches(folder: Path, name: str) -> ImageSource | None:
    """Find the batches in a folder, or in a folder with the original name below it; None if there are none.

    Raises: UserError if some are missing or cannot be read.
    """
    for version in _VERSIONS:
        for location in (folder, folder / version.folder):
            paths = {file: location / file for file in version.files}
            present = {file for file, path in paths.items() if path.is_file()}
            if present:
                _check_names(version, present, location)
                digest = digest_files(version.kind, location, list(paths.values()))
                origin = f"{version.kind} version: {version.folder}"
                read = partial(_contents, version, lambda path: path.read_bytes(), location)
                return ImageSource(name, origin, digest, read)
    return None


def find_archive(path: Path) -> ImageSource:
    """Find the batches in a tar archive, compressed or not. Raises: UserError if it cannot be read."""
    digest = digest_files("archive", path.parent, [path])
    return ImageSource(str(path), f"archive: {path.name}", digest, lambda: _read_archive(path))


def _check_names(version: _Version, present: set[str], where: Path) -> None:
    missing = [name for name in version.files if name not in present]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing; get the complete {version.kind} version of CIFAR-10")


def _read_archive(path: Path) -> ImageFiles:
    wanted = {name for version in _VERSIONS for name in version.files}
    batches: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in wanted or not member.isfile():
                    continue
                if member.size > _LARGEST_BYTES:
                    raise UserError(f"{path}: {name} has {member.size:,} bytes, a batch has 31 million; get it again")
                opened = archive.extractfile(member)
                assert opened is not None
                batches[name] = opened.read()
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass  # read to the end, where the checksum is
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: not a complete tar archive: {reason}; get it again") from error
    for version in _VERSIONS:
        if names := batches.keys() & {*version.files}:
            _check_names(version, names, path)
            return _contents(version, lambda batch: batches[batch.name], path)
    raise UserError(f"{path}: no data_batch_1 in it; pass cifar-10-python.tar.gz or cifar-10-binary.tar.gz")


def _contents(version: _Version, read: Callable[[Path], bytes], where: Path) -> ImageFiles:
    def rows(names: Sequence[str]) -> ImageRows:
        parsed = [version.parse(read(where / name), where / name) for name in names]
        labels = np.concatenate([labels for _, labels in parsed])
        return ImageRows(labels, lambda: np.concatenate([images for images, _ in parsed]))

    *train, test = version.files
    return ImageFiles(ORIGINAL, rows(train), rows([test]))
