"""An ablation from end to end, on synthetic images in the real sandbox; run again, nothing is trained."""

import json
import tempfile
from pathlib import Path

import pytest

from lemur_core.files.errors import UserError
from train.ablation import ablate, check_study_folder, open_study, train_runs
from train.compose.assemble import assemble
from train.data import Cifar10
from train.data.sources import load_cifar10
from train.model.recipe import Recipe
from train.runs.run import Resources, TrainingRun

TINY = Recipe().changed(
    model__widths=(8, 8),
    model__depths=(0, 1),
    training__epochs=1,
    training__batch_size=50,
    slots__downsample="avg_pool",
)
RESOURCES = Resources(threads=1, memory_gib=4.0)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> Cifar10:
    return load_cifar10("synthetic:200")


@pytest.fixture(scope="module")
def study(data: Cifar10, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "ablation"
    ablate(TINY, None, data=data, out=out, seeds=(0, 1), held_out=50, images=100, resources=RESOURCES)
    return out


def test_each_variant_is_trained_with_each_seed_once(study: Path, data: Cifar10) -> None:
    records = [json.loads(line) for line in (study / "records.jsonl").read_text().splitlines()]
    assert [record["seed"] for record in records] == [0, 1] * 2
    assert {record["status"] for record in records} == {"ok"}
    assert len({record["recipe_sha256"] for record in records}) == 2
    page = (study / "ablation.md").read_text()
    assert "| no anti-aliasing | 2 |" in page
    assert "synthetic (smoke test only)" in page
    assert "on the 50 test images" in page
    assert "epochs on 100 images" in page
    assert (study / "ablation.png").read_bytes().startswith(b"\x89PNG")
    before = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")}
    ablate(TINY, None, data=data, out=study, seeds=(0, 1), held_out=50, images=100, resources=RESOURCES)
    assert {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")} == times


def test_another_study_or_folder_is_left_alone(
    study: Path, data: Cifar10, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "plan.json").write_text('{"chapters": 5}')
    for out, said in ((study, "contains a study with another plan"), (tmp_path, "is not the folder of such a study")):
        with pytest.raises(UserError, match=said):
            ablate(TINY, None, data=data, out=out, seeds=(0, 1, 2), held_out=50, resources=RESOURCES)
    plan = {"study": "ablation"}
    open_study(tmp_path / "study", plan)
    monkeypatch.setattr("lemur_core.files.atomic.os.access", lambda *_: False)
    check_study_folder(tmp_path / "study", plan)  # its own folder can be written, the one around it cannot
    with pytest.raises(UserError, match=r"new: cannot be written: .*: Permission denied; choose another --out"):
        check_study_folder(tmp_path / "new", plan)


def test_an_interrupted_study_leaves_no_temporary_folder(
    tmp_path: Path, data: Cifar10, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))  # of the workers
    net = assemble(TINY, None)
    runs = {f"run{seed}": TrainingRun(net, TINY, seed, data, held_out=50) for seed in range(3)}

    def interrupt(line: str) -> None:
        assert line.startswith("1 of 3  run0: test ")
        raise KeyboardInterrupt

    monkeypatch.setattr("train.ablation.note", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_runs(tmp_path / "out", runs, data, RESOURCES)
    assert list(temporary.iterdir()) == []
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["run0"]
