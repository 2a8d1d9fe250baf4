"""CIFAR-10 in all its forms gives the same arrays; the cache is believed only when whole; held-out images; real data."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from tests.builders import cifar_files
from tests.builders.suites import read_table
from train.data import Cifar10, open_cache, split
from train.data.sources import load_cifar10

MADE = cifar_files.make()
REAL = Path(__file__).parents[3] / "shared" / "data" / "cifar10-jpeg"
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def same(data: Cifar10) -> bool:
    return all(np.array_equal(getattr(data, name).numpy(), getattr(MADE, name)) for name in ARRAYS)


def original_root(tmp: Path) -> Path:
    cifar_files.write_python(tmp, MADE)
    return tmp


FORMS: dict[str, Callable[[Path], Path | str]] = read_table(__file__, "data.md", "Forms", globals())


@pytest.fixture(scope="module", autouse=True)
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.data.sources._EXPECTED", {"train": cifar_files.TRAIN, "test": cifar_files.TEST})
        cifar_files.pass_for_originals(cifar_files.write_python(tmp_path_factory.mktemp("original"), MADE), patch)
        yield


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_arrays(tmp_path: Path, form: str) -> None:
    source = FORMS[form](tmp_path / "in")
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


def halve(path: Path) -> None:
    path.write_text(path.read_text()[:80])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def lie(path: Path) -> None:
    path.write_text(path.read_text().replace('"train": 50', '"train": 49'))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str | None]] = read_table(
    __file__, "data.md", "Damage", globals()
)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_built_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    data = load_cifar10(folder, cache=tmp_path / "cache")
    before = {path.name: path.read_bytes() for path in data.folder.iterdir()}
    name, harm, said = DAMAGE[damage]
    harm(data.folder / name)
    if said:
        with pytest.raises(UserError, match=f"^{data.folder}: not a complete cache of CIFAR-10: ") as caught:
            open_cache(data.folder)
        assert said in str(caught.value)
    again = load_cifar10(folder, cache=tmp_path / "cache")
    assert same(again)
    assert {path.name: path.read_bytes() for path in data.folder.iterdir()} == before


def test_loads_side_by_side_agree(folder: Path, tmp_path: Path) -> None:
    found: list[Cifar10] = []
    load = lambda: found.append(load_cifar10(folder, cache=tmp_path / "cache"))  # noqa: E731
    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(same(data) for data in found)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*; free space, or set LEMUR_CURATOR_CACHE"):
        load_cifar10(folder, cache=tmp_path / "file")


def test_opening_needs_torch_and_numpy_only(folder: Path, tmp_path: Path) -> None:
    data = load_cifar10(folder, cache=tmp_path / "cache")
    code = (
        "import sys; from pathlib import Path; from train.data import open_cache; "
        f"data = open_cache(Path({str(data.folder)!r})); assert data.verify(); print(data.label, len(data.test_labels)); "
        "print([name for name in ('PIL', 'pyarrow', 'datasets', 'pandas') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "cifar-10 20\n[]\n"


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
        with pytest.raises(UserError, match=f"^held out: {wrong} of {count} images; hold out 0 or more"):
            split(count, wrong, 0)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/cifar10-jpeg")
def test_real_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.data.sources._EXPECTED", {"train": 50_000, "test": 10_000})
    first = load_cifar10(REAL, cache=tmp_path)
    data = load_cifar10(REAL, cache=tmp_path)
    assert data.label == first.label == "cifar-10 (JPEG copy, harder)"
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.train_labels).tolist() == [5_000] * 10
    mean = data.train_images[:5_000].float().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.02)  # of CIFAR-10's training images
