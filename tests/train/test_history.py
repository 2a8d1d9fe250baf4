"""The figures of a run as its job leaves them: plain files alone are read, and shown as lines."""

import json
import os
from pathlib import Path

import pytest

from tests.builders.suites import table
from train.runs.job import TrainingReport, copy_plain, read_history, read_progress, watching

LINE = {
    "epoch": 1, "steps": 8, "train_loss": 1.5, "train_accuracy": None, "learning_rate": 0.1,
    "val_loss": 2.0, "val_accuracy": 0.25, "seconds": 2.0, "data_seconds": 0.5,
}  # fmt: skip


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    scratch, secret = tmp_path / "scratch", tmp_path / "secret"
    scratch.mkdir()
    secret.write_text(json.dumps(LINE) + "\n")
    (scratch / "history.jsonl").symlink_to(secret)
    os.mkfifo(scratch / "progress.json")
    (scratch / "weights.pt").mkdir()
    assert read_history(scratch) == []
    assert read_progress(scratch) == TrainingReport()
    assert not copy_plain(scratch, "weights.pt", tmp_path / "copy", 10)
    (scratch / "some").write_bytes(b"x" * 100)
    assert not copy_plain(scratch, "some", tmp_path / "copy", 99)
    assert not (tmp_path / "copy").exists()
    assert copy_plain(scratch, "some", tmp_path / "copy", 100)
    (tmp_path / "link").symlink_to(scratch)
    (scratch / "history.jsonl").unlink()
    (scratch / "history.jsonl").write_text(json.dumps(LINE) + "\n")
    assert len(read_history(scratch)) == 1
    assert read_history(tmp_path / "link") == []


@table(__file__, "history.md", "Odd histories end the reading", globals())
def test_odd_histories_end_the_reading(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "history.jsonl").write_text(text)
    assert len(read_history(tmp_path)) == count


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
