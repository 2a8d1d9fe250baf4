"""CIFAR-10 in all its forms gives the same arrays; the cache is believed only when whole; held-out images; real data."""

import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from tests.builders import cifar_files
from tests.builders.suites import table
from tests.builders.training import Attack
from train.data import Cifar10, open_cache, sources, split
from train.data.sources import decode_images, load_cifar10

MADE = cifar_files.make()
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def same(data: Cifar10) -> bool:
    return all(np.array_equal(getattr(data, name).numpy(), getattr(MADE, name)) for name in ARRAYS)


def original_root(tmp: Path) -> Path:
    cifar_files.write_python(tmp, MADE)
    return tmp


@pytest.fixture(scope="module", autouse=True)
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.data.sources._EXPECTED", {"train": cifar_files.TRAIN, "test": cifar_files.TEST})
        cifar_files.pass_for_originals(cifar_files.write_python(tmp_path_factory.mktemp("original"), MADE), patch)
        yield


@table(__file__, "data.md", "Forms", globals())
def test_every_form_gives_the_same_arrays(tmp_path: Path, form: Callable[[Path], Path | str]) -> None:
    source = form(tmp_path / "in")
    if isinstance(source, Path) and source.is_dir():
        source.chmod(0o555)  # nothing is written there
    first = load_cifar10(source, cache=tmp_path / "cache")
    assert same(first)
    assert first.label == "cifar-10"
    assert first.train_images.dtype == torch.uint8
    assert first.train_labels.dtype == torch.int64
    written = (first.folder / "meta.json").stat().st_mtime_ns
    second = load_cifar10(source, cache=tmp_path / "cache")
    assert same(second)
    assert (second.sha256, second.folder) == (first.sha256, first.folder)
    assert (first.folder / "meta.json").stat().st_mtime_ns == written
    assert str(tmp_path) not in (first.folder / "meta.json").read_text()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.folder.name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return cifar_files.write_parquet(tmp_path / "in", MADE)  # type: ignore[no-any-return]


def test_digest_is_of_the_pixels_and_the_folder_of_the_input(folder: Path, tmp_path: Path) -> None:
    def load(source: Path) -> Cifar10:
        return load_cifar10(source, cache=tmp_path / "cache")

    parquet, batches = load(folder), load(cifar_files.write_python(tmp_path, MADE))
    assert parquet.sha256 == batches.sha256
    assert parquet.folder != batches.folder
    other = load(cifar_files.write_parquet(tmp_path / "other", cifar_files.make(1)))
    assert other.sha256 != parquet.sha256
    moved = load(folder.rename(tmp_path / "moved"))
    assert moved.folder == parquet.folder
    moved.train_images.zero_()  # what is written to the tensors does not reach the files
    assert same(open_cache(moved.folder))
    jpeg = load(cifar_files.write_parquet(tmp_path / "jpeg", MADE, kind="JPEG"))
    assert jpeg.label == "cifar-10 (JPEG copy, harder)"
    assert np.array_equal(jpeg.test_labels.numpy(), MADE.test_labels)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@table(__file__, "data.md", "Damage", globals())
def test_a_damaged_cache_is_built_anew(
    folder: Path, tmp_path: Path, name: str, harm: Callable[[Path], object], said: str | None
) -> None:
    data = load_cifar10(folder, cache=tmp_path / "cache")
    before = {path.name: path.read_bytes() for path in data.folder.iterdir()}
    harm(data.folder / name)
    if said:
        with pytest.raises(UserError, match=f"^{data.folder}: not a complete cache of CIFAR-10: ") as caught:
            open_cache(data.folder)
        assert said in str(caught.value)
    again = load_cifar10(folder, cache=tmp_path / "cache")
    assert same(again)
    assert {path.name: path.read_bytes() for path in data.folder.iterdir()} == before


def test_loads_side_by_side_agree(folder: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load_cifar10(folder, cache=tmp_path / "cache"), range(4)))
    assert all(same(data) for data in found)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*; free space, or set LEMUR_CURATOR_CACHE"):
        load_cifar10(folder, cache=tmp_path / "file")


def test_synthetic_is_the_same_everywhere(tmp_path: Path, curator_cache: Path) -> None:
    few = load_cifar10("synthetic:40")
    assert few.folder.parent == curator_cache / "cifar10", "by default"
    assert (few.label, len(few.train_images), len(few.test_images)) == ("synthetic (smoke test only)", 40, 10)
    assert torch.bincount(few.train_labels).tolist() == [4] * 10
    assert not torch.equal(few.train_images[:10], few.test_images)
    data = load_cifar10("synthetic", cache=tmp_path)
    assert (len(data.train_images), len(data.test_images)) == (2_000, 500)
    assert data.sha256 == "4a9170daf130631eec2b0f937c0f978ffedfa520a10d26ae1129de31cc609067"
    assert load_cifar10("synthetic:2000", cache=tmp_path).folder == data.folder


def test_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def download(_api: object, repo: str, **named: object) -> str:
        asked.append((repo, named["repo_type"], named["revision"]))
        return str(tmp_path / repo)

    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", download)
    cifar_files.write_parquet(tmp_path / "uoft-cs" / "cifar10" / "plain_text", MADE)
    for _ in range(2):
        data = load_cifar10("hf://datasets/uoft-cs/cifar10@main", cache=tmp_path / "cache")
        assert same(data)
        assert data.label == "cifar-10"
    assert asked == [("uoft-cs/cifar10", "dataset", "main")] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 1
    (tmp_path / "o" / "n").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^hf://datasets/o/n: no CIFAR-10 found; pass a folder"):
        load_cifar10("hf://datasets/o/n", cache=tmp_path)


@given(st.data(), st.integers(1, 300), st.integers(-(2**63), 2**63 - 1))
def test_split_is_disjoint_complete_sorted_and_repeatable(data: st.DataObject, count: int, seed: int) -> None:
    held_out = data.draw(st.integers(0, count - 1))
    kept, held = split(count, held_out, seed)
    assert (len(kept), len(held)) == (count - held_out, held_out)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(count))
    assert kept.tolist() == sorted(kept.tolist())
    assert held.tolist() == sorted(held.tolist())
    again = split(count, held_out, seed)
    assert torch.equal(kept, again[0])
    assert torch.equal(held, again[1])
    before = torch.get_rng_state()
    assert count < 100 or held_out in (0, count - 1) or not torch.equal(held, split(count, held_out, ~seed)[1])
    assert torch.equal(torch.get_rng_state(), before), "the global one stays"
    for wrong in (count, -1):
        with pytest.raises(UserError, match=f"^held out: {wrong} of {count} images; --held-out: 0 or more"):
            split(count, wrong, 0)


# What is said of data that are missing, broken or something else: one line with the file, the row and what to do.


FIND_FAULT = sources._find_fault
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
KNOWN = (
    "pass a folder with train-*.parquet and test-*.parquet, the folder cifar-10-batches-py, torchvision:ROOT, "
    "hf://datasets/uoft-cs/cifar10, or synthetic"
)


def error_of(source: Path | str, tmp: Path, *, counted: bool = False) -> str:
    """Args: counted: see to it that the images are as many as those of CIFAR-10, too."""
    cache = tmp / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_EXPECTED", {"train": 50_000, "test": 10_000})
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


def test_files_that_are_missing(folder: Path, tmp_path: Path) -> None:
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


@table(__file__, "data_faults.md", "Broken", globals())
def test_a_broken_image_is_named_by_file_and_row(folder: Path, tmp_path: Path, image: bytes | None, said: str) -> None:
    pq.write_table(cifar_files.table([IMAGES[0], image, LARGE], [0, 1, 2]), folder / TEST)
    assert error_of(folder, tmp_path).startswith(f"{folder / TEST}, {said}")


def labels_of(*labels: Any) -> pa.Table:
    return cifar_files.table(IMAGES, list(labels))


GOOD = labels_of(0, 1, 2)
IMG = "img (struct<bytes: binary, path: string>)"
HAS = "CIFAR-10 has label, an integer, and img or image, bytes of PNG or JPEG"


@table(__file__, "data_faults.md", "Tables", globals())
def test_wrong_tables(folder: Path, tmp_path: Path, held: pa.Table, said: str) -> None:
    pq.write_table(held, folder / TEST)
    where = folder / TEST if len(held) else f"{folder}: "
    assert error_of(folder, tmp_path) == f"{where}{said}"


def test_damaged_parquet_and_wrong_counts(folder: Path, tmp_path: Path) -> None:
    whole = (folder / TRAIN).read_bytes()
    for kept in (0, 4, 3_000, -1):
        (folder / TRAIN).write_bytes(whole[:kept])
        found = error_of(folder, tmp_path)
        assert found.startswith(f"{folder / TRAIN}: not a complete Parquet file: ")
        assert found.endswith("; get it again")
    (folder / TRAIN).write_bytes(whole[:4] + bytes(2_000) + whole[2_004:])  # a page
    assert error_of(folder, tmp_path).startswith(f"{folder / TRAIN}")
    cifar_files.write_parquet(folder, MADE)
    said = "CIFAR-10 has 50,000, 5,000 of each: get the whole data set"
    found = f"{folder}: the train split has 50 images, 5 to 5 of a label; {said}"
    assert error_of(folder, tmp_path, counted=True) == found
    labels = np.arange(50_000) % 10
    labels[0] = 7
    for name, count in ((TRAIN, 50_000), (TEST, 10_000)):
        images = pa.repeat(pa.scalar(cifar_files.encode(np.zeros((3, 32, 32), np.uint8)), pa.binary()), count)
        pq.write_table(pa.table({"img": images, "label": labels[:count]}), folder / name)
    found = f"{folder}: the train split has 50,000 images, 4,999 to 5,001 of a label; {said}"
    assert error_of(folder, tmp_path, counted=True) == found


@pytest.mark.parametrize("name", ["data_batch_1", "batches.meta"])
def test_only_the_original_is_unpickled(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "ran"
    attack = pickle.dumps(Attack(mark), 4)
    pickle.loads(attack)
    mark.rmdir()  # plain unpickling has made it
    folder = cifar_files.write_python(tmp_path, MADE)
    whole = (folder / name).read_bytes()
    said = "not the original files of CIFAR-10, so they are not unpickled; get them again"
    for content in (attack, whole[:-9] + b"!" + whole[-8:], b""):
        (folder / name).write_bytes(content)
        assert error_of(folder, tmp_path) == f"{folder}: {said}"
        assert not mark.exists()


@given(st.sampled_from(["PNG", "JPEG"]), st.integers(8, 700), st.integers(0, 255))
def test_a_changed_byte_in_an_image(kind: str, place: int, value: int) -> None:
    whole = cifar_files.encode(MADE.train_images[0], kind)
    changed = whole[:place] + bytes([value]) + whole[place + 1 :]
    said = "file, row 0: read"
    try:
        assert decode_images([(changed, "file, row 0")]).shape == (1, 3, 32, 32)
    except UserError as error:
        said = str(error)
    assert re.fullmatch("file, row 0: .+", said)
