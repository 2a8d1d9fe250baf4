"""What is said of data that are missing, broken or something else: one line with the file, the row and what to do."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from tests.builders import cifar_files
from tests.builders.suites import read_table, table
from train.data import sources
from train.data.sources import decode_images, load_cifar10

MADE = cifar_files.make()
FIND_FAULT = sources._find_fault
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
FORMS = (
    "pass a folder with train-*.parquet and test-*.parquet, the folder cifar-10-batches-py, torchvision:ROOT, "
    "hf://datasets/uoft-cs/cifar10, or synthetic"
)


@pytest.fixture(scope="module", autouse=True)
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cifar_files.pass_for_originals(cifar_files.write_python(tmp_path_factory.mktemp("original"), MADE), patch)
        yield


def error_of(source: Path | str, tmp: Path, *, counted: bool = False) -> str:
    """Args: counted: see to it that the images are as many as those of CIFAR-10, too."""
    cache = tmp / "cache"
    with pytest.MonkeyPatch.context() as patch:
        if not counted:
            patch.setattr(sources, "_find_fault", lambda *of: None if len(of[1]) else FIND_FAULT(*of))
        with pytest.raises(UserError) as caught:
            load_cifar10(source, cache=cache)
    assert "\n" not in str(caught.value)
    assert not cache.exists() or not any(cache.iterdir())  # nothing half is left
    return str(caught.value)


@table(__file__, "data_faults.md", "No known form", globals())
def test_no_known_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert error_of(source, tmp_path) == said


def test_files_that_are_missing(tmp_path: Path) -> None:
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    assert error_of(folder / TRAIN, tmp_path).startswith(f"{folder / TRAIN}: is not a folder")
    (folder / TRAIN).rename(folder / "all.parquet")
    assert error_of(folder, tmp_path) == (
        f"{folder}: holds test-*.parquet and no train-*.parquet; put the files of both splits there"
    )
    folder = cifar_files.write_python(tmp_path, MADE)
    (folder / "data_batch_4").unlink()
    (folder / "test_batch").unlink()
    said = f"{folder}/data_batch_4: No such file or directory; get the complete data set, and make it readable"
    assert error_of(folder, tmp_path) == error_of(f"torchvision:{tmp_path}", tmp_path) == said


IMAGES = [cifar_files.encode(image) for image in MADE.train_images[:3]]
GREY = cifar_files.encode(MADE.train_images[0], mode="L")
LARGE = cifar_files.encode(np.zeros((3, 40, 36), np.uint8))
BROKEN: dict[str, tuple[bytes | None, str]] = read_table(__file__, "data_faults.md", "Broken", globals())


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_image_is_named_by_file_and_row(tmp_path: Path, fault: str) -> None:
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    image, said = BROKEN[fault]
    pq.write_table(cifar_files.table([IMAGES[0], image, LARGE], [0, 1, 2]), folder / TEST)
    assert error_of(folder, tmp_path).startswith(f"{folder / TEST}, {said}")


def labels_of(*labels: Any) -> pa.Table:
    return cifar_files.table(IMAGES, list(labels))


GOOD = labels_of(0, 1, 2)
TABLES: dict[str, tuple[pa.Table, str]] = read_table(__file__, "data_faults.md", "Tables", globals())


@pytest.mark.parametrize("fault", TABLES)
def test_wrong_tables(tmp_path: Path, fault: str) -> None:
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    table, said = TABLES[fault]
    pq.write_table(table, folder / TEST)
    where = f"{folder}: " if fault == "no rows" else f"{folder / TEST}"
    assert error_of(folder, tmp_path) == where + said


def test_damaged_parquet(tmp_path: Path) -> None:
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    whole = (folder / TRAIN).read_bytes()
    for kept in (0, 4, 3_000, -1):
        (folder / TRAIN).write_bytes(whole[:kept])
        found = error_of(folder, tmp_path)
        assert found.startswith(f"{folder / TRAIN}: not a complete Parquet file: ")
        assert found.endswith("; get it again")
    (folder / TRAIN).write_bytes(whole[:4] + bytes(2_000) + whole[2_004:])  # a page
    assert error_of(folder, tmp_path).startswith(f"{folder / TRAIN}")


def test_wrong_counts(tmp_path: Path) -> None:
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    said = "CIFAR-10 has 50,000, 5,000 of each: get the whole data set"
    found = f"{folder}: the train split has 50 images, 5 to 5 of a label; {said}"
    assert error_of(folder, tmp_path, counted=True) == found
    folder = cifar_files.write_parquet(tmp_path / "in", MADE)
    labels = np.arange(50_000) % 10
    labels[0] = 7
    for name, count in ((TRAIN, 50_000), (TEST, 10_000)):
        images = pa.repeat(pa.scalar(cifar_files.encode(np.zeros((3, 32, 32), np.uint8)), pa.binary()), count)
        pq.write_table(pa.table({"img": images, "label": labels[:count]}), folder / name)
    found = f"{folder}: the train split has 50,000 images, 4,999 to 5,001 of a label; {said}"
    assert error_of(folder, tmp_path, counted=True) == found


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.system, (f"touch '{self.mark}'",)


@pytest.mark.parametrize("name", ["data_batch_1", "batches.meta"])
@pytest.mark.parametrize("change", ["code", "one byte", "empty"])
def test_only_the_original_is_unpickled(tmp_path: Path, name: str, change: str) -> None:
    mark = tmp_path / "ran"
    folder = cifar_files.write_python(tmp_path, MADE)
    whole = (folder / name).read_bytes()
    contents = {"code": pickle.dumps(Attack(mark), 4), "one byte": whole[:-9] + b"!" + whole[-8:], "empty": b""}
    (folder / name).write_bytes(contents[change])
    if change == "code":
        pickle.loads(contents[change])
        assert mark.exists()  # this is what plain unpickling does
        mark.unlink()
    said = "not the original files of CIFAR-10, so they are not unpickled; get them again"
    assert error_of(folder, tmp_path) == f"{folder}: {said}"
    assert not mark.exists()


@given(st.sampled_from(["PNG", "JPEG"]), st.integers(8, 700), st.integers(0, 255))
def test_a_changed_byte_in_an_image(kind: str, place: int, value: int) -> None:
    whole = cifar_files.encode(MADE.train_images[0], kind)
    changed = whole[:place] + bytes([value]) + whole[place + 1 :]
    said = "file, row 0: "
    try:
        pixels = decode_images([(changed, "file, row 0")])
        assert pixels.shape == (1, 3, 32, 32)
    except UserError as error:
        said = str(error)
    assert said.startswith("file, row 0: ")
    assert "\n" not in said
