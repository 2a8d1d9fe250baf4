"""CIFAR-10 as the Parquet files of the Hugging Face Hub: an image column of PNG or JPEG bytes, and a label."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lemur_core.files.errors import UserError
from train.data.decode import Cells, decode_cells, is_jpeg
from train.data.source import JPEG_COPY, ORIGINAL, Contents, Rows, Source, check_labels, digest_files

_PLACES = (".", "data", "plain_text")
_NAME = re.compile(r"(train|test)\b.*\.parquet")
_IMAGE_NAMES = ("img", "image")


def find_parquet(folder: Path, name: str) -> Source | None:
    """The Parquet files of both splits in a folder, or in `data/` or `plain_text/` below it; None if there are none.

    Raises: UserError if there are files of one split only, or a file cannot be read.
    """
    for place in (folder / place for place in _PLACES):
        matches = [(match[1], file) for file in _listing(place) if (match := _NAME.fullmatch(file.name))]
        files = {split: [file for of, file in matches if of == split] for split in ("train", "test")}
        for split, other in (("train", "test"), ("test", "train")):
            if files[split] and not files[other]:
                raise UserError(
                    f"{place}: holds {split}-*.parquet and no {other}-*.parquet; put the files of both splits there"
                )
        if matches:
            every = [*files["train"], *files["test"]]
            origin = "Parquet: " + ", ".join(file.name for file in every)
            return Source(name, origin, digest_files("parquet", place, every), partial(_read, files))
    return None


def refuse_file(path: Path) -> UserError:
    """Why a single file will not do."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return UserError(f"{path}: one file holds one split; give a folder with train-*.parquet and test-*.parquet")
    missing = "test" if match[1] == "train" else "train"
    return UserError(
        f"{path}: holds the {match[1]} split only, the {missing} split is missing; "
        f"give the folder that has {missing}-*.parquet as well"
    )


def read_tables(train: Sequence[tuple[str, Any]], test: Sequence[tuple[str, Any]]) -> Contents:
    """Labels and encoded images from Arrow tables, each with the place to name in messages.

    Raises: UserError for columns that are missing, ambiguous or of the wrong type, and for the first row without an
        image, with one that is neither PNG nor JPEG, or with a label that is not 0..9.
    """
    splits = [[_cells(table, where) for where, table in tables] for tables in (train, test)]
    jpeg = any(is_jpeg(cell) for parts in splits for part in parts for cell in part.images)
    return Contents(JPEG_COPY if jpeg else ORIGINAL, *(_rows(parts) for parts in splits))


def choose_columns(names: Sequence[str], where: str) -> tuple[str, str]:
    """The names of the image column and the label column.

    Raises: UserError if one is missing, or there are two.
    """
    images = [name for name in names if name in _IMAGE_NAMES]
    if len(images) > 1:
        raise UserError(f"{where}: columns {' and '.join(images)} may both hold the images; keep one of them")
    if names.count("label") > 1:
        raise UserError(f"{where}: {names.count('label')} columns are called label; keep one of them")
    for wanted, found in (("img or image", images), ("label", "label" in names)):
        if not found:
            raise UserError(
                f"{where}: no column {wanted}; it has {', '.join(names) or 'none'}: is it another data set?"
            )
    return images[0], "label"


def _listing(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []


def _read(files: dict[str, list[Path]]) -> Contents:
    return read_tables(*([(str(file), _table(file)) for file in files[split]] for split in ("train", "test")))


def _table(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            columns = choose_columns(opened.schema_arrow.names, str(file))
            return opened.read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(f"{file}: not a whole Parquet file: {said}; get it again") from error


def _cells(table: Any, where: str) -> Cells:
    import pyarrow as pa
    import pyarrow.compute as pc

    image, label = choose_columns(table.column_names, where)
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
    return Cells(where, check_labels(labels.to_numpy(), where), images.to_pylist())


def _refuse_null(column: Any, said: str, where: str) -> None:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise UserError(f"{where}, row {row}: {said}; get the file again")


def _rows(parts: Sequence[Cells]) -> Rows:
    return Rows(np.concatenate([part.labels for part in parts]), lambda: decode_cells(parts))
