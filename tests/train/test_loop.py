"""What the loop is made of: evaluation, losses, what a network must be, checkpoints."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lemur_core.sandbox.net import NetError
from tests.builders.training import Attack
from train.model.check_guest import explain, open_network
from train.runs import loop as loops
from train.runs.job import TrainingReport, copy_plain, read_history, read_progress, watching
from train.runs.loop import DivergedError, Loop, load_checkpoint


class Brightness(nn.Module):
    """Tells class 1 from class 0 by the mean of the image, and only in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        scores = torch.zeros(len(x), 10)
        scores[:, 1] = x.mean((1, 2, 3)) * 100
        return scores


def test_evaluation_counts_all_images_in_eval_mode() -> None:
    images = torch.zeros(1203, 3, 8, 8, dtype=torch.uint8)
    images[600:] = 255
    labels = torch.zeros(1203, dtype=torch.int64)
    labels[600:1100] = 1
    net, ticks = Brightness(), []
    given: dict[str, Any] = {"pixels": loops.Pixels((0.5,) * 3, (0.5,) * 3), "context": loops.choose_context("cpu")}
    loss, accuracy = loops.evaluate(net, images, labels, tick=lambda: ticks.append(1), **given)
    assert accuracy == 1100 / 1203
    assert loss == pytest.approx((600 * math.log(9) + 103 * 100) / 1203, rel=0.01)
    assert (net.training, len(ticks)) == (True, 3)


def test_losses_on_an_accelerator_are_read_later_and_say_the_same() -> None:
    loop = object.__new__(Loop)  # without images and network
    loop._context, loop._steps_an_epoch = loops.DeviceContext(torch.device("meta"), "float32"), 100
    loop.steps, loop.images_seen, loop.train_seconds, loop.data_seconds = 100, 0, 0.0, 0.0
    loop._begin_epoch()
    nothing = torch.zeros(4, 10)
    for loss in (1.0, 2.0, float("inf"), *[4.0] * 12):
        loop._note(torch.tensor(loss), nothing, nothing)
        loop.steps += 1
    with pytest.raises(DivergedError, match=r"^the loss is inf at epoch 2, step 3$"):
        loop._note(torch.tensor(4.0), nothing, nothing)


def test_a_network_is_opened_by_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the file is written
    text = 'def supported_hyperparameters(): return {"lr", "dropout", "batch"}'
    with pytest.raises(NetError, match=r"^prm: dropout missing, which the network supports; present: lr$"):
        open_network(text, {"lr": 0.1})
    open_network(text, {"lr": 0.1, "dropout": 0.0})
    with pytest.raises(NetError) as raised:
        open_network("1 / 0", {})
    assert explain(raised.value) == "ZeroDivisionError: division by zero (line 1: 1 / 0)"
    assert explain(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_only_a_whole_checkpoint_of_the_same_run_counts_and_no_code_of_it_runs(tmp_path: Path) -> None:
    path, made = tmp_path / "c.pt", tmp_path / "made"
    assert load_checkpoint(path, "key") == (None, "")
    loops.save_whole({"key": "one", "steps": 1}, path)
    said = "the checkpoint belongs to another run, so training starts from scratch"
    assert load_checkpoint(path, "two") == (None, said)
    whole = path.read_bytes()
    for kept in (0, 10, 300):
        path.write_bytes(whole[:kept])
        loaded, note = load_checkpoint(path, "one")
        assert loaded is None
        assert note.startswith("the checkpoint cannot be read, so training starts from scratch (")
    torch.save({"key": "key", "net": Attack(made)}, path)
    loaded, note = load_checkpoint(path, "key")
    assert loaded is None
    assert "UnpicklingError" in note
    assert not made.exists()
    torch.load(path, weights_only=False)  # the attack is a real one
    assert made.is_dir()


def test_buffers_outside_the_state_come_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2), persistent=False)
            self.inner = nn.BatchNorm1d(2)

    before, after = Counting(), Counting()
    before.seen += 3
    before.inner.register_buffer("made_late", torch.arange(4), persistent=False)
    loose = loops.loose_buffers(before)
    assert sorted(loose) == ["inner.made_late", "seen"]
    loops.put_back(after, loose)
    assert torch.equal(after.seen, torch.full((2,), 3.0))
    assert torch.equal(after.inner.made_late, torch.arange(4))
    assert after.state_dict().keys() == Counting().state_dict().keys()


# The figures of a run as its job leaves them: plain files alone are read, and shown as lines.

LINE = {"epoch": 1, "steps": 8, "train_loss": 1.5, "train_accuracy": None, "learning_rate": 0.1}
LINE |= {"val_loss": 2.0, "val_accuracy": 0.25, "seconds": 2.0, "data_seconds": 0.5}


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    scratch, secret = tmp_path / "scratch", tmp_path / "secret"
    scratch.mkdir()
    secret.write_text(json.dumps(LINE) + "\n")
    (scratch / "history.jsonl").symlink_to(secret)
    os.mkfifo(scratch / "progress.json")
    (scratch / "weights.pt").mkdir()
    assert read_history(scratch) == []
    assert read_progress(scratch) == TrainingReport()
    copy_plain(scratch, "weights.pt", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (tmp_path / "link").symlink_to(scratch)
    (scratch / "history.jsonl").unlink()
    (scratch / "history.jsonl").write_text(json.dumps(LINE) + "\n")
    assert len(read_history(scratch)) == 1
    assert read_history(tmp_path / "link") == []


def test_odd_histories_end_the_reading(tmp_path: Path) -> None:
    odd = ({"epoch": 3}, {"val_accuracy": 1.5}, {"train_loss": float("nan")}, {"more": 1})
    for last in (*(json.dumps({**LINE, "epoch": 2, **change}) for change in odd), "[" * 100_000, "\xff\x00"):
        (tmp_path / "history.jsonl").write_text(f"{json.dumps(LINE)}\n{last}\n")
        assert len(read_history(tmp_path)) == 1, last[:200]
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(LINE)}\n{json.dumps({**LINE, 'epoch': 2})}\n")
    assert len(read_history(tmp_path)) == 2


def test_lines_an_epoch_each_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*epochs: dict[str, object]) -> list[str]:
        with watching(tmp_path, "tiny", 2, 16, 32):
            (tmp_path / "history.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
            (tmp_path / "progress.json").write_text(json.dumps({"steps": 8, "images_per_second": 64.0, "more": 1.0}))
        return capsys.readouterr().err.splitlines()

    assert told(LINE) == ["tiny: epoch 1/2, loss 1.500, val 25.0%, 128 images/s, 4 s left"]
    assert told(LINE, {**LINE, "epoch": 2, "steps": 16}) == ["tiny: epoch 2/2, loss 1.500, val 25.0%, 128 images/s"]
    # from a checkpoint that is lost
    assert told({**LINE, "train_loss": 1.25}) == ["tiny: epoch 1/2, loss 1.250, val 25.0%, 128 images/s, 4 s left"]
