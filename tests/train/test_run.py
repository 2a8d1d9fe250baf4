"""Whole training runs in the real sandbox: how each one ends, what it leaves, how it goes on, and that it repeats."""

import hashlib
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox.cached import SharedSandbox
from manifests.records import Ingredient, TrainingRecord
from tests.builders.suites import read_files, table
from train.ablation import ablate, check_study_folder, open_study, train_runs
from train.compose.assemble import assemble
from train.data import Cifar10
from train.data.sources import load_cifar10
from train.model.recipe import Network, Recipe
from train.runs.job import read_history
from train.runs.run import Resources, TrainingRun, open_sandbox, own_scratch, train_once

pytestmark = pytest.mark.slow

TEXTS = read_files(__file__, "run.md")
NET = TEXTS["NET"]
PLAIN = Recipe().changed(training__epochs=2, training__batch_size=32, training__learning_rate=0.05)
RECIPE = PLAIN.changed(augmentation__randaugment_ops=1, augmentation__flip="alternate", augmentation__cutmix_alpha=1.0)
ONE = Resources(threads=1, step_limit=60)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Cifar10:
    return load_cifar10("synthetic:320", cache=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def box(data: Cifar10) -> Iterator[SharedSandbox]:
    with open_sandbox(data.folder, ONE.resolve()) as opened:
        yield opened


def run(
    data: Cifar10, box: SharedSandbox | None, out: Path, line: str = "pass  # HERE", **options: object
) -> TrainingRecord:
    """Train the tiny network, with that line run in its fourth call."""
    net = Network("tiny", NET.replace("pass  # HERE", line), {"lr": 0.1})
    what = {name: options.pop(name) for name in ("recipe", "seed", "held_out", "images") if name in options}
    training_run = TrainingRun(net, **{"recipe": RECIPE, "seed": 0, "data": data, "held_out": 64, **what})  # type: ignore[arg-type]
    return train_in(box, training_run, out, **options)


def train_in(box: SharedSandbox | None, training_run: TrainingRun, out: Path, **options: object) -> TrainingRecord:
    """Train in the sandbox of all these tests: each run would start its own, and import torch once more."""
    return train_once(training_run, out, **{"resources": ONE, "box": box, **options})  # type: ignore[arg-type]


def identity_key(data: Cifar10, line: str = "pass  # HERE", recipe: Recipe = RECIPE) -> str:
    net = Network("tiny", NET.replace("pass  # HERE", line), {"lr": 0.1})
    return TrainingRun(net, recipe, 0, data, 64).key("cpu")


def digest(out: Path) -> str:
    return hashlib.sha256((out / "weights.pt").read_bytes()).hexdigest()


def epochs(out: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


def test_a_run_and_its_folder(data: Cifar10, box: SharedSandbox, tmp_path: Path) -> None:
    out = tmp_path / "out"
    longer = RECIPE.changed(training__epochs=6, augmentation__cutmix_alpha=0.0, augmentation__randaugment_ops=0)
    record = run(data, box, out, recipe=longer)
    assert (record.status, record.error) == ("ok", None)
    assert (record.epochs, record.steps, record.train_images, record.parameters) == (6, 48, 256, 13_050)
    assert record.val_accuracy is not None
    assert (record.test_accuracy or 0) > 0.2
    assert 0 < record.data_seconds < record.train_seconds
    assert (record.peak_bytes or 0) > 2**27
    assert re.fullmatch("cpu, .*, 1 thread", record.device)
    assert record.data == "synthetic (smoke test only)"
    assert json.loads(record.recipe)["model"] is None
    names = "history.jsonl index.html manifest.json net.py page record.json weights.pt"
    assert sorted(path.name for path in out.iterdir()) == names.split()
    assert TrainingRecord.model_validate_json((out / "record.json").read_text()) == record
    history = epochs(out)
    losses = [float(str(epoch["train_loss"])) for epoch in history]
    assert losses[-1] < losses[0] - 0.2
    assert history[-1]["val_accuracy"] == record.val_accuracy
    assert all(epoch["train_accuracy"] is not None for epoch in history)
    assert (out / "net.py").read_text() == NET
    assert digest(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    data: Cifar10, box: SharedSandbox, tmp_path: Path
) -> None:
    records = [run(data, box, tmp_path / str(number), seed=seed) for number, seed in enumerate((0, 0, 1))]
    assert {record.status for record in records} == {"ok"}
    first, again, other = (digest(tmp_path / str(number)) for number in range(3))
    assert first == again != other
    assert epochs(tmp_path / "0") == epochs(tmp_path / "1")
    assert records[0].test_accuracy == records[1].test_accuracy


def test_all_images_and_few_images(data: Cifar10, box: SharedSandbox, tmp_path: Path) -> None:
    whole = run(data, box, tmp_path / "whole", held_out=0)
    assert (whole.train_images, whole.steps, whole.val_accuracy, whole.status) == (320, 20, None, "ok")
    few = run(data, box, tmp_path / "few", images=20)
    assert (few.train_images, few.steps, few.status) == (20, 2, "ok")
    for said, many in (("images: 257, but 256 are left", {"images": 257}), ("held out: 320 of 320", {"held_out": 320})):
        with pytest.raises(UserError, match=said):
            run(data, box, tmp_path / "many", **many)


FILES = {
    "import no_such_library": "ModuleNotFoundError: No module named 'no_such_library' (line 1: import no_such_library)",
    "class Net(: pass": "SyntaxError: invalid syntax (network.py, line 1)",
    "x = 1": "the file defines no class Net",
}


@table(__file__, "run.md", "Ends", globals())
def test_every_end_is_a_record(
    data: Cifar10, box: SharedSandbox, tmp_path: Path, line: str, status: str, reason: str
) -> None:
    record = run(data, box, tmp_path / "out", line)
    assert record.status == status, record
    assert re.search(reason, record.error or ""), record.error
    assert "\n" not in (record.error or "")
    assert (record.epochs, record.test_accuracy) == (0, None)
    if status != "error" or "KeyError" in line:
        assert (record.steps, record.parameters) == (3, 13_050)
    assert TrainingRecord.model_validate_json((tmp_path / "out" / "record.json").read_text()) == record
    assert not (tmp_path / "out" / "weights.pt").exists()


def test_other_networks(data: Cifar10, box: SharedSandbox, tmp_path: Path) -> None:
    for number, (code, reason) in enumerate(FILES.items()):
        odd = TrainingRun(Network("odd", code, {}), RECIPE, 0, data, held_out=0)
        record = train_in(box, odd, tmp_path / str(number))
        assert (record.status, record.error, record.steps, record.parameters) == ("error", reason, 0, None)
    part = Ingredient(
        slot="stem", block="a::b", source="a", path="b.py", swhid="swh:1:cnt:0", license="MIT", code_sha256="0" * 64
    )
    short = RECIPE.changed(training__epochs=1)
    made = TrainingRun(Network("made", NET, {"lr": 0.1}, (part,), short), short, 0, data, held_out=64)
    record = train_in(box, made, tmp_path / "made")
    assert (record.status, record.ingredients) == ("ok", (part,))
    assert (record.recipe, record.recipe_sha256) == (short.to_json(), short.sha256), "of a recipe's own network"


@pytest.mark.parametrize("line", ["while True: pass", "re.match('(a+)+$', 'a' * 60 + 'b')"])  # that holds the lock
def test_a_step_without_end(data: Cifar10, box: SharedSandbox, tmp_path: Path, line: str) -> None:
    record = run(data, box, tmp_path / "out", line, resources=Resources(threads=1, step_limit=2))
    assert record.status == "timeout"
    assert record.error == "nothing was finished within 2 s (line 19, in forward)"
    assert (tmp_path / "out").is_dir()


SLOW = "self.calls = 3; time.sleep(0.1)"  # in every call from the fourth on
LONGER = RECIPE.changed(training__epochs=3)


@pytest.fixture(scope="module")
def whole(data: Cifar10, box: SharedSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(data, box, out, SLOW, recipe=LONGER).status == "ok"
    return out


def test_a_time_limit_leaves_what_the_next_run_goes_on_from(
    data: Cifar10, box: SharedSandbox, tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    limited = Resources(threads=1, time_limit=1.6, step_limit=60)
    cut = run(data, box, out, SLOW, recipe=LONGER, resources=limited)
    assert cut.status == "timeout"
    assert str(cut.error).startswith("stopped after 1.6 s; ")
    assert cut.test_accuracy is None
    assert not out.exists()
    other = run(data, box, tmp_path / "seed", SLOW, recipe=LONGER, resources=limited)
    assert (other.status, capsys.readouterr().err.count("resuming")) == ("timeout", 0), "of another folder"
    rest = run(data, box, out, SLOW, recipe=LONGER)
    assert (rest.status, rest.epochs, rest.steps) == ("ok", 3, 24)
    assert digest(out) == digest(whole)
    assert epochs(out) == epochs(whole)
    assert rest.test_accuracy == json.loads((whole / "record.json").read_text())["test_accuracy"]
    if cut.epochs:
        assert f"tiny: resuming after epoch {cut.epochs} of 3" in capsys.readouterr().err
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out"]


def test_what_is_no_run_is_left_alone(
    data: Cifar10, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "mounted")
    with pytest.raises(UserError, match="mounted: is a mount point"):
        run(data, None, tmp_path / "mounted", SLOW, recipe=LONGER)
    shutil.copytree(whole, tmp_path / "mounted", dirs_exist_ok=True)
    assert run(data, None, tmp_path / "mounted", SLOW, recipe=LONGER).status == "ok", "it is there already"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for force in (False, True):
        for name, said in (("mine", "not the folder of a complete training run"), ("file", "is a file, not a folder")):
            with pytest.raises(UserError, match=said):
                run(data, None, tmp_path / name, force=force)
    shutil.copytree(whole, tmp_path / "ours")
    (tmp_path / "ours" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"ours: holds notes\.txt, which lemur did not write"):
        run(data, None, tmp_path / "ours", seed=1, force=True)
    assert (tmp_path / "ours" / "notes.txt").read_text() == "mine"
    with own_scratch(tmp_path / "busy", identity_key(data)), pytest.raises(UserError, match="another run trains there"):
        run(data, None, tmp_path / "busy")
    for wrong, reason in (
        (Resources(threads=0), "threads: 0; it must be greater than 0"),
        (Resources(time_limit=-1.0), "time limit: -1.0"),
        (Resources(device="tpu"), "device 'tpu': choose from auto, cpu, cuda, mps"),
    ):
        with pytest.raises(UserError, match=reason):
            run(data, None, tmp_path / "new", resources=wrong)
    assert not (tmp_path / "new").exists()


def test_a_killed_run_goes_on_to_the_same_bits(data: Cifar10, box: SharedSandbox, tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    with own_scratch(out, identity_key(data, SLOW, LONGER)) as scratch:
        pass

    def kill_child() -> None:
        deadline = time.monotonic() + 60
        while not read_history(scratch) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert box._box is not None
        (link,) = box._box._links
        (child,) = psutil.Process(link._process.pid).children()
        child.kill()

    killer = threading.Thread(target=kill_child, daemon=True)
    killer.start()
    killed = run(data, box, out, SLOW, recipe=LONGER)
    killer.join()
    assert killed.status == "error"
    assert str(killed.error).startswith("ended by SIGKILL")
    assert 1 <= killed.epochs < 3
    assert not out.exists()
    again = run(data, box, out, SLOW, recipe=LONGER)
    assert (again.status, again.steps) == ("ok", 24)
    assert digest(out) == digest(whole)
    assert epochs(out) == epochs(whole)
    assert again.train_seconds >= killed.train_seconds * 0.9


def test_a_result_that_cannot_be_written_loses_no_epoch(
    data: Cifar10, box: SharedSandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.runs.run.write_run", refuse)
        with pytest.raises(UserError, match=r"out: the result cannot be written: No space left .* again to resume"):
            run(data, box, out)
    assert not out.exists()
    assert run(data, box, out).status == "ok"
    assert "tiny: resuming after epoch 2 of 2" in capsys.readouterr().err


def test_a_whole_run_is_not_trained_again(
    data: Cifar10, box: SharedSandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    first = run(data, box, out)
    inode = out.stat().st_ino
    for force in (False, True):
        assert run(data, box, out, force=force) == first
    assert out.stat().st_ino == inode
    with pytest.raises(
        UserError, match=r"out: contains another run \(it differs in seed\); choose another --out, or add --force"
    ):
        run(data, box, out, seed=1)
    with pytest.raises(UserError, match=r"contains another run \(it differs in recipe\)"):
        run(data, box, out, recipe=RECIPE.changed(training__epochs=1))
    assert run(data, box, out, seed=1, force=True).seed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    failed = run(data, box, tmp_path / "bad", "raise KeyError('mine')")
    assert failed.status == "error"
    capsys.readouterr()
    assert run(data, box, tmp_path / "bad", "raise KeyError('mine')") == failed, "it is not trained again"
    assert "it ended with error: --force trains it again" in capsys.readouterr().err
    assert run(data, box, tmp_path / "bad", "raise KeyError('mine')", force=True).status == "error"
    assert run(data, box, tmp_path / "bad").status == "ok", "another run that failed is not in the way"


# An ablation from end to end, on synthetic images in the real sandbox; run again, nothing is trained.


SMALL = Recipe().changed(model__widths=(8, 8), model__depths=(0, 1), slots__downsample="avg_pool")
TINY = SMALL.changed(training__epochs=1, training__batch_size=50)
RESOURCES = Resources(threads=1, memory_gib=4.0)


def study_in(out: Path, data: Cifar10, *seeds: int) -> Path:
    ablate(TINY, None, data=data, out=out, seeds=seeds, held_out=50, images=100, resources=RESOURCES)
    return out


@pytest.fixture(scope="module")
def study(data: Cifar10, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_in(tmp_path_factory.mktemp("study") / "ablation", data, 0, 1)


def test_each_variant_is_trained_with_each_seed_once(study: Path, data: Cifar10) -> None:
    records = [json.loads(line) for line in (study / "records.jsonl").read_text().splitlines()]
    assert [record["seed"] for record in records] == [0, 1] * 2
    assert {record["status"] for record in records} == {"ok"}
    assert len({record["recipe_sha256"] for record in records}) == 2
    page = (study / "ablation.md").read_text()
    told = "| no anti-aliasing | 2 |; synthetic (smoke test only); on the 80 test images; epoch on 100 images"
    assert [part for part in told.split("; ") if part not in page] == []
    before = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")}
    study_in(study, data, 0, 1)
    assert {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in study.glob("runs/*/weights.pt")} == times


def test_another_study_or_folder_is_left_alone(
    study: Path, data: Cifar10, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "plan.json").write_text('{"chapters": 5}')
    for out, said in ((study, "contains a study with another plan"), (tmp_path, "is not the folder of such a study")):
        with pytest.raises(UserError, match=said):
            study_in(out, data, 0, 1, 2)
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
