"""The forms that CIFAR-10 comes in: the Hub's Parquet files, torchvision's copy of the original, and generated images.

Generated images are for smoke tests: a small network learns them in an epoch, a linear one does not. A class is a
direction and a spatial frequency of a wave across the image: 2 directions, 5 frequencies. Phase, color and contrast
are random, and there is noise, so the mean image of every class is the same grey. Flips, shifts and crops keep the
class.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from lemur_core.files.atomic import PathLike, sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from manifests.publishing.hub import Hub, parse_dataset
from train.data import SHAPE, SPLITS, Arrays, Cifar10, find_cache, open_cache, write_cache

#: Names of the data in records. Results on the JPEG copy are compared only with each other.
ORIGINAL = "cifar-10"
JPEG_COPY = "cifar-10 (JPEG copy, harder)"
SYNTHETIC = "synthetic (smoke test only)"

CLASSES = 10
_FORMS = (
    "pass a folder with train-*.parquet and test-*.parquet, the folder cifar-10-batches-py, torchvision:ROOT, "
    "hf://datasets/uoft-cs/cifar10, or synthetic"
)
_BATCHES = "cifar-10-batches-py"
_PLACES = (".", "data", "plain_text")
_NAME = re.compile(r"(train|test)\b.*\.parquet")
_IMAGE_NAMES = ("img", "image")
_EXPECTED = {"train": 50_000, "test": 10_000}
_JPEG = b"\xff\xd8\xff"

_SPEC = re.compile(r"synthetic(?::(?P<count>[0-9]{1,9}))?")
_COUNT, _LEAST, _MOST = 2_000, 20, 100_000
_CHUNK = 500
_CYCLES = (1.0, 2.0, 3.0, 4.5, 6.5)  # across the image
_NOISE = 0.2
_CONTRAST = (0.03, 0.3)

Encoded = tuple[bytes, str]  # an image, and its location for messages


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A source of images, of which only the digest has been computed. `read` returns the label and the arrays."""

    origin: str  #: without the folders of this machine, for records
    sha256: str
    read: Callable[[], tuple[str, Arrays]]


def load_cifar10(source: PathLike, *, cache: Path | None = None) -> Cifar10:
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
    opened = open_source(os.fspath(source))
    folder = (cache or cache_folder("cifar10")) / opened.sha256
    data = find_cache(folder)
    if data is None:
        label, arrays = opened.read()
        write_cache(folder, label, opened.origin, arrays)
        data = open_cache(folder)
    return data


def open_data(data: PathLike | Cifar10) -> Cifar10:
    """Return images as they are, or load them from their source."""
    return data if isinstance(data, Cifar10) else load_cifar10(data)


def open_source(name: str) -> ImageSource:
    """Find the source of the images, without decoding them.

    Args: name: as `source` of `load_cifar10`.
    Returns: the source with the digest of its input, which names the cache.
    Raises: UserError if the source has no known form, or one of its files is missing; RetryableError if the Hub cannot
        be reached.
    """
    if name.startswith("hf://"):
        return _open_parquet(_download(name), name)
    if name == "synthetic" or name.startswith("synthetic:"):
        return _open_synthetic(name)
    path = Path(name.removeprefix("torchvision:")).expanduser()
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such file or folder"
        raise UserError(f"{name if name.isprintable() else repr(name)}: {reason}; {_FORMS}") from error
    if not path.is_dir():
        raise UserError(f"{name}: is not a folder (unpack an archive first); {_FORMS}")
    for root in (path, path.parent) if path.name == _BATCHES else (path,):
        if (root / _BATCHES).is_dir():
            return _open_batches(root)
    return _open_parquet(path, name)


# --- torchvision's copy of the original -------------------------------------------------------------------------------


def _open_batches(root: Path) -> ImageSource:
    """Return the Python version, which torchvision unpickles only if its files have the digests of the original."""
    from torchvision.datasets import CIFAR10

    def read() -> tuple[str, Arrays]:
        arrays: Arrays = {}
        for split in SPLITS:
            try:
                found = CIFAR10(root, train=split == "train")
            except RuntimeError as error:
                what = "not the original files of CIFAR-10, so they are not unpickled"
                raise UserError(f"{root / _BATCHES}: {what}; get them again") from error
            arrays[f"{split}_images"] = found.data.transpose(0, 3, 1, 2)
            arrays[f"{split}_labels"] = np.array(found.targets, np.int64)
        return ORIGINAL, arrays

    files = [root / _BATCHES / name for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
    return ImageSource(f"Python version: {_BATCHES}", _digest_files("Python", root / _BATCHES, files), read)


def _digest_files(kind: str, root: Path, files: Sequence[Path]) -> str:
    """Return SHA-256 over the kind of source, the files' names below `root` and their contents.

    Raises: UserError if a file cannot be read.
    """
    digest = hashlib.sha256(kind.encode())
    for file in sorted(files):
        try:
            contents = sha256_file(file)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; get the complete data set, and make it readable") from error
        digest.update(f"\0{file.relative_to(root).as_posix()}\0{contents}".encode())
    return digest.hexdigest()


# --- Parquet: PNG or JPEG bytes and labels ----------------------------------------------------------------------------


def _download(spec: str) -> Path:
    """Return a folder with the Parquet files of a dataset on the Hub; they are downloaded unless they are cached.

    Raises: RetryableError if the Hub cannot be reached; UserError if the dataset does not exist.
    """
    repo, revision = parse_dataset(spec)
    files = [f"{place}{split}*.parquet" for place in ("", "*/") for split in SPLITS]
    hub = Hub()
    fetch = partial(hub.api().snapshot_download, repo, repo_type="dataset", revision=revision, allow_patterns=files)
    return Path(hub.call(spec, fetch, again="finished downloads are kept; or pass a folder"))


def _open_parquet(folder: Path, name: str) -> ImageSource:
    """Return the Parquet files of both splits in a folder, or in `data/` or `plain_text/` below it.

    Raises: UserError if there are none, only one split has files, or a file cannot be read.
    """
    for place in (folder / below for below in _PLACES):
        named = [(match[1], file) for file in sorted(place.glob("*")) if (match := _NAME.fullmatch(file.name))]
        files = {split: [file for of, file in named if of == split] for split in SPLITS}
        for split, other in (SPLITS, SPLITS[::-1]):
            if files[split] and not files[other]:
                raise UserError(
                    f"{place}: holds {split}-*.parquet and no {other}-*.parquet; put the files of both splits there"
                )
        if named:
            paths = [*files["train"], *files["test"]]
            origin = "Parquet: " + ", ".join(file.name for file in paths)
            return ImageSource(origin, _digest_files("parquet", place, paths), partial(_read_parquet, files, name))
    raise UserError(f"{name}: no CIFAR-10 found; {_FORMS}")


def _read_parquet(files: dict[str, list[Path]], name: str) -> tuple[str, Arrays]:
    """Read labels and images, labels first, since decoding takes seconds.

    Raises: UserError for columns that are missing, ambiguous or of the wrong type, for the first row without an image
        or with a label that is not 0..9, for counts that are not those of CIFAR-10, and for the first broken image.
    """
    arrays: Arrays = {}
    images: dict[str, list[Encoded]] = {}
    for split in SPLITS:
        cells = [_read_cells(file) for file in files[split]]
        labels = arrays[f"{split}_labels"] = np.concatenate([part for part, _ in cells])
        images[split] = [image for _, part in cells for image in part]
        if fault := _find_fault(split, labels):
            raise UserError(f"{name}: {fault}")
    for split in SPLITS:
        arrays[f"{split}_images"] = decode_images(images[split])
    jpeg = any(image.startswith(_JPEG) for split in SPLITS for image, _ in images[split])
    return JPEG_COPY if jpeg else ORIGINAL, arrays


def _find_fault(split: str, labels: NDArray[np.int64]) -> str | None:
    """Return a message if there are not as many images as CIFAR-10 has, of each class."""
    expected, counts = _EXPECTED[split], np.bincount(labels, minlength=CLASSES)
    if bool((counts == expected // CLASSES).all()):
        return None
    found = f"{len(labels):,} images, {counts.min():,} to {counts.max():,} of a label"
    right = f"{expected:,}, {expected // CLASSES:,} of each"
    return f"the {split} split has {found}; CIFAR-10 has {right}: get the whole data set"


def _read_cells(file: Path) -> tuple[NDArray[np.int64], list[Encoded]]:
    """Return the labels and the encoded images of a file, with their rows."""
    try:
        with pq.ParquetFile(file) as opened:
            schema = opened.schema_arrow
            named = [field.name for field in schema if _is_image(field)]
            kinds = [field.type for field in schema if field.name == "label"]
            if len(named) != 1 or len(kinds) != 1 or not pa.types.is_integer(kinds[0]):
                columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
                wanted = "CIFAR-10 has label, an integer, and img or image, bytes of PNG or JPEG"
                raise UserError(f"{file}: has the columns {columns}; {wanted}")
            table = opened.read(columns=[*named, "label"])
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(f"{file}: not a complete Parquet file: {reason}; get it again") from error
    labels, images = table.column("label").to_pylist(), table.column(named[0]).to_pylist()
    for row, (label, image) in enumerate(zip(labels, images, strict=True)):
        if label not in range(CLASSES):
            raise UserError(f"{file}, row {row}: label {label}; those of CIFAR-10 are 0 to 9")
        encoded = image["bytes"] if isinstance(image, dict) else image
        if encoded is None:
            raise UserError(f"{file}, row {row}: {named[0]} holds no bytes; get the file again")
        images[row] = encoded, f"{file}, row {row}"
    return np.array(labels, np.int64), images


def _is_image(field: pa.Field) -> bool:
    kind = field.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return field.name in _IMAGE_NAMES and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def decode_images(images: Sequence[Encoded]) -> NDArray[np.uint8]:
    """Decode all images to one array (N, 3, 32, 32).

    Raises: UserError that names the first image that is broken, not 32 x 32 or not RGB.
    """
    out = np.empty((len(images), *SHAPE), np.uint8)
    with progress("decoding", len(images), "images") as advance:
        for index, (image, where) in enumerate(images):
            out[index] = _pixels(image, where)
            advance(1)
    return out


def _pixels(encoded: bytes, where: str) -> NDArray[np.uint8]:
    channels, *size = SHAPE
    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
            if image.size != (32, 32):
                raise UserError(f"{where}: the image is {image.width} x {image.height}, those of CIFAR-10 are 32 x 32")
            if image.mode != "RGB":
                raise UserError(f"{where}: the image has mode {image.mode}, those of CIFAR-10 have RGB")
            pixels = np.frombuffer(image.tobytes(), np.uint8)
    except UserError:
        raise
    except Exception as error:  # whatever Pillow raises for broken data
        # PIL's message for unknown files contains a memory address.
        reason = "cannot be identified" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(f"{where}: broken image: {reason}; get the file again") from error
    return pixels.reshape(*size, channels).transpose(2, 0, 1)


# --- generated images -------------------------------------------------------------------------------------------------


def _open_synthetic(spec: str) -> ImageSource:
    """Return generated data: `synthetic` (2,000 + 500 images) or `synthetic:COUNT` (COUNT training, COUNT/4 test).

    Raises: UserError if the count is not a number, or is out of range.
    """
    match = _SPEC.fullmatch(spec)
    count = int(match["count"] or _COUNT) if match else -1
    if not _LEAST <= count <= _MOST:
        raise UserError(f"{spec}: write synthetic, or synthetic:COUNT with COUNT from {_LEAST} to {_MOST:,}")
    name = f"synthetic:{count}"

    def read() -> tuple[str, Arrays]:
        arrays: Arrays = {}
        for seed, (split, number) in enumerate({"train": count, "test": count // 4}.items(), 1):
            # NumPy guarantees the same numbers in every release for RandomState, but not for newer generators.
            random = np.random.RandomState(seed)
            labels = random.permutation(np.arange(number, dtype=np.int64) % CLASSES)
            chunks = [labels[start : start + _CHUNK] for start in range(0, number, _CHUNK)]
            arrays[f"{split}_images"] = np.concatenate([_draw(chunk, random) for chunk in chunks])
            arrays[f"{split}_labels"] = labels
        return SYNTHETIC, arrays

    return ImageSource(name, hashlib.sha256(name.encode()).hexdigest(), read)


def _draw(labels: NDArray[np.int64], random: np.random.RandomState) -> NDArray[Any]:
    count = len(labels)
    line = np.linspace(-1, 1, 32)
    waves = np.array(_CYCLES)[labels % len(_CYCLES)][:, None] * np.pi * line + random.uniform(0, 2 * np.pi, (count, 1))
    across = np.broadcast_to(np.sin(waves)[:, None, :], (count, 32, 32))
    upright = (labels >= len(_CYCLES))[:, None, None]
    wave = np.where(upright, across.transpose(0, 2, 1), across)[:, None]
    color = random.uniform(*_CONTRAST, (count, 3))[:, :, None, None]
    values = 0.5 + color * wave + _NOISE * random.standard_normal((count, 3, 32, 32))
    return np.clip(np.rint(255 * values), 0, 255).astype(np.uint8)
