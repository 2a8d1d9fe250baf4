"""CIFAR-10 as a table of PNG or JPEG bytes and labels: the Hub's Parquet files, or the Hub itself through `datasets`.

Images are decoded in threads; an error names the file and row of the first broken image.
"""

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from manifests.publish.hub import hub_errors, parse_dataset
from train.data.sources import (
    JPEG_COPY,
    ORIGINAL,
    SHAPE,
    ImageFiles,
    ImageRows,
    ImageSource,
    check_labels,
    digest_files,
)

_PLACES = (".", "data", "plain_text")
_NAME = re.compile(r"(train|test)\b.*\.parquet")
_IMAGE_NAMES = ("img", "image")
_ADVICE = "check the network and run again, or pass a folder"
_SPLITS = ("train", "test")

# Decoding such small images is mostly Python code under the GIL: more than two threads are slower.
_THREADS = 2
_CHUNK = 500
_JPEG = b"\xff\xd8\xff"

Encoded = tuple[bytes, str]  # an image, and its location for messages


def find_parquet(folder: Path, name: str) -> ImageSource | None:
    """Find the Parquet files of both splits in a folder, or in `data/` or `plain_text/` below it; None without any.

    Raises: UserError if only one split has files, or a file cannot be read.
    """
    for location in (folder / subfolder for subfolder in _PLACES):
        paths = sorted(file for file in location.glob("*") if file.is_file())
        matches = [(match[1], file) for file in paths if (match := _NAME.fullmatch(file.name))]
        files = {split: [file for of, file in matches if of == split] for split in _SPLITS}
        for split, other in (_SPLITS, _SPLITS[::-1]):
            if files[split] and not files[other]:
                raise UserError(
                    f"{location}: holds {split}-*.parquet and no {other}-*.parquet; put the files of both splits there"
                )
        if matches:
            paths = [*files["train"], *files["test"]]
            origin = "Parquet: " + ", ".join(file.name for file in paths)
            digest = digest_files("parquet", location, paths)
            tables = {split: {str(file): partial(_read_table, file) for file in files[split]} for split in _SPLITS}
            return ImageSource(name, origin, digest, partial(_read_tables, tables))
    return None


def find_hub(spec: str) -> ImageSource:
    """Load a dataset from the Hub; it is downloaded unless `datasets` has cached it.

    Its digest is over the fingerprints that `datasets` gives its splits, which differ between revisions.

    Raises: RetryableError if the Hub cannot be reached; UserError if the dataset does not exist or lacks a split.
    """
    import datasets

    repo, revision = parse_dataset(spec)
    with hub_errors(spec, _ADVICE):
        loaded = datasets.load_dataset(repo, revision=revision)
    missing = [split for split in _SPLITS if split not in loaded]
    if missing:
        raise UserError(f"{spec}: no split {' and '.join(missing)}; it has {', '.join(sorted(loaded))}")
    marks = [f"{split}={loaded[split]._fingerprint}" for split in _SPLITS]
    digest = hashlib.sha256("\0".join(["hub", spec, *marks]).encode()).hexdigest()

    def read(split: str) -> Any:
        rows = loaded[split]
        with hub_errors(spec, _ADVICE):
            image, label = _choose_columns(rows.column_names, f"{spec}, split {split}")
            rows = rows.select_columns([image, label])
            if isinstance(rows.features[image], datasets.Image):
                rows = rows.cast_column(image, datasets.Image(decode=False))
            return rows.with_format("arrow")[:]

    tables = {split: {f"{spec}, split {split}": partial(read, split)} for split in _SPLITS}
    return ImageSource(spec, spec, digest, partial(_read_tables, tables))


def _read_tables(tables: Mapping[str, Mapping[str, Callable[[], Any]]]) -> ImageFiles:
    """Read labels and encoded images from Arrow tables.

    Args: tables: by split and by location, which messages name, a function that reads one.
    Raises: UserError for columns that are missing, ambiguous or of the wrong type, and for the first row without an
        image, or with a label that is not 0..9.
    """
    splits, jpeg = [], False
    for split in _SPLITS:
        parts = [_cells(read(), where) for where, read in tables[split].items()]
        images = [image for _, part in parts for image in part]
        splits.append(ImageRows(np.concatenate([labels for labels, _ in parts]), partial(decode_images, images)))
        jpeg = jpeg or any(image.startswith(_JPEG) for image, _ in images)
    return ImageFiles(JPEG_COPY if jpeg else ORIGINAL, *splits)


def _choose_columns(names: Sequence[str], where: str) -> tuple[str, str]:
    """Return the names of the image column and the label column. Raises: UserError if one is missing or ambiguous."""
    images = [name for name in names if name in _IMAGE_NAMES]
    if len(images) > 1:
        raise UserError(f"{where}: columns {' and '.join(images)} may both hold the images; keep one of them")
    if names.count("label") > 1:
        raise UserError(f"{where}: {names.count('label')} columns are named label; keep one of them")
    for wanted, matches in (("img or image", images), ("label", "label" in names)):
        if not matches:
            raise UserError(
                f"{where}: no column {wanted}; it has {', '.join(names) or 'none'}: is it another data set?"
            )
    return images[0], "label"


def _read_table(file: Path) -> Any:
    try:
        with pq.ParquetFile(file) as opened:
            columns = _choose_columns(opened.schema_arrow.names, str(file))
            return opened.read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(f"{file}: not a complete Parquet file: {reason}; get it again") from error


def _cells(table: Any, where: str) -> tuple[NDArray[np.int64], list[Encoded]]:
    image, label = _choose_columns(table.column_names, where)
    labels = table.column(label)
    if not pa.types.is_integer(labels.type):
        raise UserError(f"{where}: column {label} holds {labels.type}, not integers from 0 to 9")
    _refuse_null(labels, f"{label} is missing", where)
    images = table.column(image)
    if pa.types.is_struct(images.type) and "bytes" in {field.name for field in images.type}:
        images = pc.struct_field(images, "bytes")
    if not (pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type)):
        raise UserError(f"{where}: column {image} holds {images.type}, not images as PNG or JPEG bytes")
    _refuse_null(images, f"{image} holds no bytes", where)
    encoded = [(image, f"{where}, row {row}") for row, image in enumerate(images.to_pylist())]
    return check_labels(labels.to_numpy(), where), encoded


def _refuse_null(column: Any, fault: str, where: str) -> None:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise UserError(f"{where}, row {row}: {fault}; get the file again")


def decode_images(images: Sequence[Encoded]) -> NDArray[np.uint8]:
    """Decode all images to one array (N, 3, 32, 32).

    Raises: UserError that names the first image that is broken, not 32 x 32 or not RGB.
    """
    Image.preinit()  # here, because threads would race to do it
    out = np.empty((len(images), *SHAPE), np.uint8)

    def decode(start: int) -> int:
        chunk = images[start : start + _CHUNK]
        for index, (image, where) in enumerate(chunk, start):
            out[index] = _pixels(image, where)
        return len(chunk)

    with ThreadPoolExecutor(_THREADS) as pool, progress("decoding", len(images), "images") as advance:
        for count in pool.map(decode, range(0, len(images), _CHUNK)):
            advance(count)
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
