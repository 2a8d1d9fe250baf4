"""The original batches of CIFAR-10, Python and binary version, in a folder or a tar archive; never unpacked to disk.

A batch of the Python version is a pickle, which may run any code: it is loaded only if its bytes have the MD5 digest
that torchvision states for the original file. (Nobody knows how to make another file of a given MD5 digest.)
"""

import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.errors import UserError
from train.data.source import ORIGINAL, SHAPE, VALUES, Contents, Rows, Source, check_labels, digest_files

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
_LARGEST_BYTES = 1 << 28  # a batch has 31 MB; an archive may say anything


@dataclass(frozen=True, slots=True)
class _Version:
    kind: str
    folder: str
    suffix: str
    parse: Callable[[bytes, Path], _Batch]

    @property
    def train(self) -> list[str]:
        return [f"data_batch_{number}{self.suffix}" for number in range(1, 6)]

    @property
    def test(self) -> str:
        return f"test_batch{self.suffix}"

    @property
    def files(self) -> list[str]:
        return [*self.train, self.test]


def _parse_pickle(data: bytes, where: Path) -> _Batch:
    """Images (N, 3, 32, 32) and labels of one batch of the Python version.

    Raises: UserError if it is not the original file.
    """
    from torchvision.datasets import CIFAR10

    digests = dict((*CIFAR10.train_list, *CIFAR10.test_list))
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != digests[where.name]:
        said = f"MD5 {found}, that of CIFAR-10 has {digests[where.name]}"
        raise UserError(f"{where}: is not the original file ({said}), so it is not unpickled; get the file again")
    batch = pickle.loads(data, encoding="latin1")
    return batch["data"].reshape(-1, *SHAPE), np.array(batch["labels"], np.int64)


def _parse_records(data: bytes, where: Path) -> _Batch:
    """Images (N, 3, 32, 32) and labels of one binary batch: records of one byte label, 3,072 bytes image.

    Raises: UserError if it is no whole number of records, or a label is not 0..9.
    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    size = VALUES + 1
    if len(data) % size or not data:
        raise UserError(f"{where}: {len(data):,} bytes are no whole number of records of {size:,}; get the file again")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, 1:].reshape(-1, *SHAPE), check_labels(records[:, 0], str(where))


_VERSIONS = (
    _Version("Python", "cifar-10-batches-py", "", _parse_pickle),
    _Version("binary", "cifar-10-batches-bin", ".bin", _parse_records),
)


def find_batches(folder: Path, name: str) -> Source | None:
    """The batches in a folder, or in the folder of the original name below it; None if there are none.

    Raises: UserError if some are missing or cannot be read.
    """
    for version in _VERSIONS:
        for place in (folder, folder / version.folder):
            paths = {file: place / file for file in version.files}
            there = {file for file, path in paths.items() if path.is_file()}
            if there:
                _check_names(version, there, place)
                digest = digest_files(version.kind, place, list(paths.values()))
                origin = f"{version.kind} version: {version.folder}"
                return Source(name, origin, digest, _folder_reader(version, place))
    return None


def find_archive(path: Path) -> Source:
    """The batches in a tar archive, compressed or not.

    Raises: UserError if it cannot be read.
    """
    digest = digest_files("archive", path.parent, [path])
    return Source(str(path), f"archive: {path.name}", digest, lambda: _read_archive(path))


def _check_names(version: _Version, there: set[str], where: Path) -> None:
    missing = [name for name in version.files if name not in there]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing; get the whole {version.kind} version of CIFAR-10")


def _folder_reader(version: _Version, place: Path) -> Callable[[], Contents]:
    def read(name: str) -> bytes:
        try:
            return (place / name).read_bytes()
        except OSError as error:
            raise UserError(f"{place / name}: {error.strerror}; make it readable") from error

    return lambda: _contents(version, read, place)


def _read_archive(path: Path) -> Contents:
    wanted = {name for version in _VERSIONS for name in version.files}
    found: dict[str, bytes] = {}
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
                found[name] = opened.read()
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass  # to the end, where the checksum is
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: not a whole tar archive: {said}; get it again") from error
    for version in _VERSIONS:
        if there := found.keys() & {*version.files}:
            _check_names(version, there, path)
            return _contents(version, found.__getitem__, path)
    raise UserError(f"{path}: no data_batch_1 in it; give cifar-10-python.tar.gz or cifar-10-binary.tar.gz")


def _contents(version: _Version, read: Callable[[str], bytes], where: Path) -> Contents:
    def rows(names: Sequence[str]) -> Rows:
        parsed = [version.parse(read(name), where / name) for name in names]
        labels = np.concatenate([labels for _, labels in parsed])
        return Rows(labels, lambda: np.concatenate([images for images, _ in parsed]))

    return Contents(ORIGINAL, rows(version.train), rows([version.test]))
