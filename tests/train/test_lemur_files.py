"""A run's files for a LEMUR checkout: names and format of the package's own, and what is refused."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from lemur_core.files.errors import UserError
from train.contract import lemur_digest, lemur_name
from train.lemur_files import read_trials, write_lemur_files

_made_up = runpy.run_path(str(Path(__file__).with_name("lemur_record.py")))
made_up_record, history, TINY = _made_up["made_up_record"], _made_up["history"], _made_up["TINY"]

NAME = lemur_name(TINY, "tiny")
STATS = f"ab/nn/stat/train/img-classification_cifar-10_acc_{NAME}"

#: A whole file of release 2.1.0: img-classification_cifar-10_acc_rl-init-fc39cd17045c03d9657ff97dcd16ed79/1.json.
REAL = (
    '[\n    {\n        "accuracy": 0.6261,\n        "batch": 64,\n        "dropout": 0.2,\n        "duration": 3114262480,\n'
    '        "epoch": 1,\n        "lr": 0.01,\n        "momentum": 0.9,\n        "transform": "echo",\n'
    '        "uid": "fa5c873e06b6e25aa86d1b6f48125994"\n    }\n]'
)


def written(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_names_and_contents(tmp_path: Path) -> None:
    files = write_lemur_files(tmp_path, made_up_record(), TINY, history())
    found = written(tmp_path)
    assert list(found) == [f"ab/nn/nn/{NAME}.py", *(f"{STATS}/{epoch}.json" for epoch in (1, 2, 3))]
    assert [file.relative_to(tmp_path).as_posix() for file in files] == list(found)
    assert found[f"ab/nn/nn/{NAME}.py"] == TINY
    (first,), (last,) = (json.loads(found[f"{STATS}/{epoch}.json"]) for epoch in (1, 3))
    hyperparameters = {
        "batch": 64,
        "data": "cifar-10 (JPEG copy, harder)",
        "dropout": 0.1,
        "lr": 0.05,
        "momentum": 0.9,
        "recipe": made_up_record().recipe_sha256,
        "seed": 7,
        "transform": "norm_flip",
    }
    on_held_out = dict(sorted({**hyperparameters, "accuracy_on": "held-out training images"}.items()))
    on_test = dict(sorted({**hyperparameters, "accuracy_on": "test images"}.items()))
    assert first == {**on_held_out, "accuracy": 0.25, "duration": 10_250_000_000, "uid": lemur_digest(on_held_out)}
    assert last == {**on_test, "accuracy": 0.5512, "duration": 30_750_000_000, "uid": lemur_digest(on_test)}


def test_the_format_is_that_of_the_real_files(tmp_path: Path) -> None:
    """Same keys but for those that say more, same types, same order, same layout of the text."""
    write_lemur_files(tmp_path, made_up_record(), TINY, history())
    text = (tmp_path / STATS / "3.json").read_text(encoding="utf-8")
    (ours,), (real,) = json.loads(text), json.loads(REAL)
    assert set(real) - set(ours) == {"epoch"}  # in 6 % of the real trials only
    assert set(ours) - set(real) == {"accuracy_on", "data", "recipe", "seed"}
    assert all(type(ours[key]) is type(real[key]) for key in ours if key in real)
    assert list(ours) == sorted(ours)
    assert list(real) == sorted(real)
    assert json.dumps(json.loads(text), indent=4) == text
    assert json.dumps(json.loads(REAL), indent=4) == REAL
    assert len(ours["uid"]) == len(real["uid"])


def test_only_epochs_with_an_accuracy_are_written(tmp_path: Path) -> None:
    record = made_up_record(val_accuracy=None)
    write_lemur_files(tmp_path, record, TINY, history(None, None, None))
    assert [Path(name).name for name in written(tmp_path)] == [f"{NAME}.py", "3.json"]
    with pytest.raises(UserError, match="tiny: the run has no accuracy, on held-out or test images"):
        write_lemur_files(tmp_path, made_up_record(test_accuracy=None), TINY, history(None, None, None))
    write_lemur_files(tmp_path / "held-out", made_up_record(test_accuracy=None), TINY, history())
    (trial,) = read_trials(tmp_path / "held-out" / STATS / "3.json")
    assert (trial["accuracy"], trial["accuracy_on"]) == (0.5625, "held-out training images")


def test_writing_again_changes_nothing_and_another_run_joins(tmp_path: Path) -> None:
    better = made_up_record(seed=8, test_accuracy=0.57)
    for folder, runs in ((tmp_path / "a", (made_up_record(), better)), (tmp_path / "b", (better, made_up_record()))):
        for record in (*runs, *runs):
            write_lemur_files(folder, record, TINY, history())
    assert written(tmp_path / "a") == written(tmp_path / "b")
    trials = read_trials(tmp_path / "a" / STATS / "3.json")
    assert [(trial["seed"], trial["accuracy"]) for trial in trials] == [(8, 0.57), (7, 0.5512)]
    file = tmp_path / "c" / STATS / "3.json"  # with a trial of others
    file.parent.mkdir(parents=True)
    file.write_text(REAL, encoding="utf-8")
    write_lemur_files(tmp_path / "c", better, TINY, history())
    assert [trial["accuracy"] for trial in read_trials(file)] == [0.6261, 0.57]
    assert read_trials(file)[0] == json.loads(REAL)[0]


def test_a_trial_states_what_trained_it_whatever_the_networks_hyperparameters_say(tmp_path: Path) -> None:
    said = '{"lr": 0.5, "momentum": 0.1, "batch": 7, "transform": "mirror", "dropout": 0.3}'
    write_lemur_files(tmp_path, made_up_record(prm=said), TINY, history())
    (trial,) = json.loads(written(tmp_path)[f"{STATS}/1.json"])
    used = {"lr": 0.05, "momentum": 0.9, "batch": 64, "transform": "norm_flip", "dropout": 0.3}
    assert {name: trial[name] for name in used} == used


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "diverged", "error": "nan in epoch 2"}, "ended with status diverged: nan in epoch 2;"),
        ({"data": "synthetic"}, "trained on synthetic; only runs on real CIFAR-10 go to"),
        ({"code_sha256": "0" * 64}, "the code is not the one of this run (its SHA-256 differs from the record's)"),
        ({"epochs": 4}, "the history has 3 epochs, the record 4; give the run's own"),
        ({"prm": '{"widths": [1, 2]}'}, "prm: widths is [1, 2]; LEMUR stores numbers and texts only"),
        ({"rows": history()[1:]}, "row 1 of the history has epoch 2, seconds 10.25; expected epoch 1 and seconds"),
        ({"rows": [{"epoch": 1}]}, "row 1 of the history has epoch 1, seconds None; expected epoch 1 and seconds"),
        ({"code": TINY.replace("def learn", "def fit")}, "tiny: does not meet LEMUR's contract: line 12: class Net"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    given = {"code": TINY, "rows": history()} | changes
    code, rows = given.pop("code"), given.pop("rows")
    with pytest.raises(UserError) as raised:
        write_lemur_files(tmp_path, made_up_record(code, **given), code, rows)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
    assert written(tmp_path) == {}


def test_names_do_not_tell_white_space_apart(tmp_path: Path) -> None:
    write_lemur_files(tmp_path, made_up_record(), TINY, history())
    spaced = TINY + "\n\n"
    with pytest.raises(UserError, match=rf"{NAME}.py: holds other code; the names of networks do not tell white space"):
        write_lemur_files(tmp_path, made_up_record(spaced), spaced, history())
    assert (tmp_path / "ab" / "nn" / "nn" / f"{NAME}.py").read_text(encoding="utf-8") == TINY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "cannot be read as JSON"),
        ('{"accuracy": 1}', "holds dict, not a list of trials"),
        ("[3]", "trial 1: is int, not an object"),
        ('[{"uid": "a", "transform": "norm"}]', "trial 1: has no accuracy"),
        ('[{"accuracy": "0.5", "uid": "a", "transform": "norm"}]', "trial 1: accuracy is '0.5'"),
        ('[{"accuracy": NaN, "uid": "a", "transform": "norm"}]', "trial 1: accuracy is nan, which is no text and no"),
        ('[{"accuracy": 1, "uid": "a", "transform": "norm", "duration": "1 s"}]', "trial 1: duration is '1 s'"),
        ('[{"accuracy": 1, "uid": "a", "transform": "norm", "w": {}}]', "trial 1: w is {}, which is no text"),
        ('[{"accuracy": 1, "uid": "a", "transform": "norm", "w": 9223372036854775808}]', "trial 1: w is 922337203"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "1.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read_trials(file)
    assert reason in str(raised.value)
    assert str(file) in str(raised.value)
