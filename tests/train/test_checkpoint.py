"""Checkpoints: whole or absent, of one run alone, and never code."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from train.job import load_checkpoint, loose_buffers, put_back, save_checkpoint, tensors_only, weights_digest


class Attack:
    """A pickle that would make a folder if it was run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    state = {"net": {"w": torch.arange(3.0)}, "steps": 7, "history": [{"epoch": 1, "val_accuracy": None}]}
    save_checkpoint(tmp_path / "c.pt", "key", {"steps": 1})
    save_checkpoint(tmp_path / "c.pt", "key", state)
    loaded, note = load_checkpoint(tmp_path / "c.pt", "key")
    assert note == ""
    assert loaded is not None
    assert torch.equal(loaded.pop("net")["w"], torch.arange(3.0))
    assert loaded == {"steps": 7, "history": state["history"]}
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


def test_none_is_no_fault(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "c.pt", "key") == (None, "")


def test_that_of_another_run_does_not_count(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c.pt", "one", {"steps": 1})
    assert load_checkpoint(tmp_path / "c.pt", "two") == (
        None,
        "the checkpoint is one of another run, so training starts anew",
    )


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_damaged_one_does_not_count(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint(path, "key", {"net": {"w": torch.zeros(100)}})
    path.write_bytes(path.read_bytes()[:kept])
    loaded, note = load_checkpoint(path, "key")
    assert loaded is None
    assert note.startswith("the checkpoint cannot be read, so training starts anew (")


def test_it_never_runs_code(tmp_path: Path) -> None:
    path, made = tmp_path / "c.pt", tmp_path / "made"
    torch.save({"key": "key", "net": Attack(made)}, path)
    loaded, note = load_checkpoint(path, "key")
    assert loaded is None
    assert "UnpicklingError" in note
    assert not made.exists()
    torch.load(path, weights_only=False)  # the attack is a real one
    assert made.is_dir()


def test_the_digest_is_that_of_the_values() -> None:
    weights = {"b": torch.ones(2, 3, 4, 4), "a": torch.zeros(()), "n": torch.tensor(3)}
    other = {name: value.clone() for name, value in reversed(weights.items())}
    other["b"] = other["b"].to(memory_format=torch.channels_last)
    assert weights_digest(weights) == weights_digest(other)
    assert weights_digest(tensors_only({**other, "extra": "text"})) == weights_digest(weights)
    other["b"][0, 0, 0, 0] += 1e-6
    assert weights_digest(weights) != weights_digest(other)
    assert weights_digest({"a": torch.zeros(2)}) != weights_digest({"a": torch.zeros(1, 2)})


def test_buffers_outside_the_state_come_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2), persistent=False)
            self.inner = nn.BatchNorm1d(2)

    before, after = Counting(), Counting()
    before.seen += 3
    before.inner.register_buffer("made_late", torch.arange(4), persistent=False)
    loose = loose_buffers(before)
    assert sorted(loose) == ["inner.made_late", "seen"]
    put_back(after, loose)
    assert torch.equal(after.seen, torch.full((2,), 3.0))
    assert torch.equal(after.inner.made_late, torch.arange(4))
    assert after.state_dict().keys() == Counting().state_dict().keys()
