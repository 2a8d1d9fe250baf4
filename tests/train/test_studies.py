"""An ablation and a search from end to end, on synthetic images in the real sandbox; run again, nothing is trained."""

import json
from pathlib import Path

import pytest

from manifests.errors import UserError
from train.ablate import ablate
from train.data import Cifar10, load_cifar10
from train.recipe import Recipe
from train.run import Resources

TINY = Recipe().changed(
    model__widths=(8, 8),
    model__depths=(0, 1),
    training__epochs=1,
    training__batch_size=50,
    slots__downsample="avg_pool",
)
RESOURCES = Resources(threads=1, memory_bytes=4 * 2**30)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> Cifar10:
    return load_cifar10("synthetic:200")


@pytest.fixture(scope="module")
def study(data: Cifar10, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "ablation"
    ablate(TINY, None, data=data, out=out, seeds=(0, 1), held_out=50, resources=RESOURCES)
    return out


def test_each_variant_is_trained_with_each_seed(study: Path) -> None:
    records = [json.loads(line) for line in (study / "records.jsonl").read_text().splitlines()]
    assert [record["seed"] for record in records] == [0, 1] * 2
    assert {record["status"] for record in records} == {"ok"}
    assert len({record["recipe_sha256"] for record in records}) == 2
    page = (study / "ablation.md").read_text()
    assert "| strided convolution | 2 |" in page
    assert "synthetic (smoke test only)" in page
    assert (study / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_run_trains_nothing_and_writes_the_same(study: Path, data: Cifar10) -> None:
    before = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")}
    ablate(TINY, None, data=data, out=study, seeds=(0, 1), held_out=50, resources=RESOURCES)
    assert {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")} == times


def test_another_study_does_not_mix_with_it(study: Path, data: Cifar10) -> None:
    with pytest.raises(UserError, match="holds a study with another plan"):
        ablate(TINY, None, data=data, out=study, seeds=(0, 1, 2), held_out=50, resources=RESOURCES)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, data: Cifar10) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is not a folder of such a study"):
        ablate(TINY, None, data=data, out=tmp_path, seeds=(0,), held_out=50, resources=RESOURCES)
