"""Checks of LEMUR's other tasks by nn-dataset's own trainer on generated data, and what a check leaves in a database."""

import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms

from lemur_core.files.errors import UserError
from tests.builders.suites import table
from tests.builders.training import TINY
from train.lemur.check import LABEL, TASKS, CheckSettings, check_file, check_task, package_code
from train.lemur.check_guest import _GENERATORS
from train.model.contract import lemur_digest, lemur_name
from train.runs.register import archive

PRM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "dropout": 0.0, "batch": 16, "transform": "norm_flip"}
CIFAR10 = "cifar-10 (JPEG copy, harder)"


# --- generated data, in the form that LEMUR's loaders give it -------------------------------------------------------------


def items(task: str, count: int = 3) -> list[Any]:
    torch.manual_seed(0)
    items = _GENERATORS[task][0](count, transforms.Compose([transforms.ToTensor()]), "echo_32")
    assert len(items) == count
    return [items[index] for index in range(count)]


def test_segments() -> None:
    for image, classes in items("img-segmentation"):
        assert (image.shape, classes.shape, classes.dtype) == ((3, 32, 32), (32, 32), torch.int64)
        assert 0 <= int(classes.min()) <= int(classes.max()) < _GENERATORS["img-segmentation"][1][0]
        assert len(classes.unique()) > 1


def test_boxes() -> None:
    items = _GENERATORS["obj-detection"][0](4, transforms.Compose([transforms.ToTensor()]), "echo_32")
    assert items.collate_fn is not None
    images, targets = items.collate_fn([items[index] for index in range(4)])
    assert images.shape == (4, 3, 32, 32)
    assert len(targets.to(torch.device("cpu"))) == 4
    for index in range(4):
        target = targets[index]
        assert set(target) == {"boxes", "labels", "area", "iscrowd", "image_id", "orig_size"}
        left, top, right, bottom = target["boxes"].T
        assert bool(((left >= 0) & (left < right) & (right <= 32) & (top >= 0) & (top < bottom) & (bottom <= 32)).all())
        assert bool((target["area"] == (right - left) * (bottom - top)).all())
        assert len(target["labels"]) == len(target["boxes"]) >= 1
        assert bool((target["labels"] > 0).all())


def test_captions_and_text() -> None:
    for image, words in items("img-captioning"):
        assert image.shape == (3, 32, 32)
        assert bool((words[:, 0] == 1).all())
        assert bool((words[:, -2] == 2).all())
        assert 0 <= int(words.min()) <= int(words.max()) < _GENERATORS["img-captioning"][1][0]
    windows = items("txt-generation", 5)
    for index, (letters, following) in enumerate(windows):
        assert torch.equal(letters[1:], following[:-1])
        assert int(letters.max()) < _GENERATORS["txt-generation"][1][0]
        if index:
            assert torch.equal(letters, windows[index - 1][1])


def test_each_task_has_its_data() -> None:
    assert set(TASKS) == set(_GENERATORS)


# --- what is refused ----------------------------------------------------------------------------------------------------


@table(__file__, "tasks.md", "What is no task", globals())
def test_what_is_no_task(task: str, metric: str | None, said: str) -> None:
    with pytest.raises(UserError) as raised:
        check_task(TINY, PRM, task, metric=metric)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_a_metric_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UserError, match="img-captioning: its metric bleu needs nltk: pip install nltk"):
        check_task(TINY, PRM, "img-captioning")


def test_a_smoke_test_is_not_archived(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(TINY)
    db = tmp_path / "ab.nn.db"
    for asked, said in (
        ({"data": "synthetic:640"}, r"--data is synthetic .*; only checks on real CIFAR-10 are archived"),
        ({"data": "nowhere", "task": "img-segmentation"}, "--archive: a smoke test is not archived"),
    ):
        with pytest.raises(UserError, match=said):
            check_file(net, '{"batch": 16, "transform": "norm"}', db=db, **asked)
    assert not db.exists()


# --- the archive --------------------------------------------------------------------------------------------------------


def test_an_archived_check_is_the_trial_that_lemur_would_store(tmp_path: Path) -> None:
    db = tmp_path / "ab.nn.db"
    outcome: dict[str, Any] = {"data": CIFAR10, "epoch": 2, "accuracy": 0.5, "duration": 123}
    name = lemur_name(TINY, "tiny")
    assert archive(db, TINY, name, PRM, **outcome)
    assert not archive(db, TINY, name, PRM, **outcome)
    assert archive(db, TINY, name, PRM, **outcome | {"accuracy": 0.6})
    with closing(sqlite3.connect(db)) as database:
        assert database.execute("SELECT name, code, id FROM nn").fetchall() == [(name, TINY, lemur_digest(TINY))]
        row = "SELECT id, transform, prm, task, dataset, metric, nn, epoch, duration, accuracy FROM stat"
        trials = database.execute(f"{row} ORDER BY accuracy").fetchall()
        assert len(trials) == 2
        key, *values = trials[0]
        assert key == lemur_digest(values)  # as nn-dataset makes it
        assert values[2:] == ["img-classification", "cifar-10", "acc", name, 2, 123, 0.5]
        stored = dict(database.execute("SELECT name, value FROM prm WHERE uid = ?", (values[1],)).fetchall())
        assert stored == PRM | {"data": CIFAR10, "accuracy_on": "test images"}
        assert database.execute("SELECT name FROM transform").fetchall() == [("norm_flip",)]


def test_what_the_archive_refuses(tmp_path: Path) -> None:
    outcome: dict[str, Any] = {"epoch": 1, "accuracy": 0.5, "duration": 1}
    db = tmp_path / "ab.nn.db"
    for asked, said in (
        ({"data": "synthetic (smoke test only)"}, "only checks on real CIFAR-10 are archived"),
        ({"data": CIFAR10, "prm": PRM | {"lr": float("nan")}}, "prm: lr is nan; LEMUR stores only numbers and strings"),
        ({"data": CIFAR10, "db": tmp_path}, "is a folder; pass the file of a LEMUR database"),
    ):
        given: dict[str, Any] = {"db": db, "prm": PRM} | asked
        with pytest.raises(UserError, match=said):
            archive(code=TINY, name="tiny", **given, **outcome)
    assert archive(db, TINY, "tiny", PRM, data=CIFAR10, **outcome)
    with pytest.raises(UserError, match="the database has other code under the name tiny"):
        archive(db, TINY + "\n", "tiny", PRM, data=CIFAR10, **outcome)


# --- the package's own code, in the sandbox -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_of_lemur_by_its_own_trainer(lemur_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(lemur_wheel) as release:
        code = release.read("ab/nn/nn/LSTM.py").decode()
    net = tmp_path / "lstm.py"
    net.write_text(code)
    prm = '{"lr": 0.5, "momentum": 0.9, "batch": 8, "transform": "echo"}'
    settings = CheckSettings(images=16, threads=1, wall_seconds=300)
    found = check_file(net, prm, data="nowhere", task="txt-generation", metric="ppl", settings=settings)
    assert 0 < float(str(found["ppl"])) < 1
    assert (found["smoke_test"], found["data"], found["name"]) == (True, LABEL, lemur_name(code))
    assert not (package_code() / "ab" / "nn" / "nn").exists()
    broken = code.replace("        self.train()\n", "        raise KeyError('lost')\n", 1)
    result = check_task(
        broken, {"lr": 0.5, "momentum": 0.9, "batch": 8, "transform": "echo"}, "txt-generation", settings=settings
    )
    assert result.status == "learn_failed"
    assert "KeyError: 'lost' (in nn-dataset's train_n_eval, txt-generation)" in (result.error or "")
