"""The job that trains, as both sides know it: what it is told, and what it keeps in its scratch folder.

A checkpoint holds all that the job knows at the end of an epoch, in one file. It is written and read in the sandbox
alone: foreign code made what is in it.
"""

import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HISTORY, PROGRESS, WEIGHTS, CHECKPOINT = "history.jsonl", "progress.json", "weights.pt", "checkpoint.pt"
_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training run. `key` says which one, to a checkpoint; `recipe` is the whole recipe as JSON.

    `tested`: whether the test images are read after the last epoch.
    """

    code: str
    prm: dict[str, Any]
    recipe: str
    seed: int
    data: str
    held_out: int
    images: int
    tested: bool
    device: str
    threads: int
    time_limit: float | None
    step_limit: float
    key: str


class ProgressWriter:
    """Keeps two small files in the scratch folder up to date: the epochs so far, and, once a second, the step."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._last, self._done = clock(), 0
        (folder / PROGRESS).unlink(missing_ok=True)

    def step(self, figures: Callable[[], dict[str, Any]], images: int) -> None:
        """Note a step of this many images; written when the last note is a second old."""
        self._done += images
        passed = self._clock() - self._last
        if passed >= _EVERY_SECONDS:
            self._write(PROGRESS, json.dumps({**figures(), "images_per_second": self._done / passed}))
            self._last, self._done = self._clock(), 0

    def epochs(self, history: list[dict[str, Any]]) -> None:
        """Write the figures of all epochs so far, one a line, and count the pace anew: validation is no training."""
        self._last, self._done = self._clock(), 0
        self._write(HISTORY, "".join(json.dumps(epoch) + "\n" for epoch in history))

    def _write(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)


def save_whole(value: object, path: Path) -> None:
    """`torch.save` to a file that is either the older or the newer one, whatever happens."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_checkpoint(path: Path, key: str) -> tuple[dict[str, Any] | None, str]:
    """The state at the end of the last whole epoch, or None and why there is none (empty: no file).

    Never runs code of the file: `weights_only`.
    """
    if not path.exists():
        return None, ""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = state.pop("key")
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return None, f"the checkpoint cannot be read, so training starts anew ({type(error).__name__}: {reason:.200})"
    if found != key:
        return None, "the checkpoint is one of another run, so training starts anew"
    return state, ""


def loose_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that its `state_dict` leaves out (`persistent=False`), by name; those that change are state too."""
    kept = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in kept}


def put_back(module: nn.Module, loose: Mapping[str, Tensor]) -> None:
    """Give the module such buffers again, also one that it makes only while it runs."""
    for name, value in loose.items():
        parent, _, own = name.rpartition(".")
        owner = module.get_submodule(parent)
        now = getattr(owner, own, None)
        if isinstance(now, Tensor) and now.shape == value.shape:
            now.copy_(value)
        else:
            owner.register_buffer(own, value, persistent=False)


def tensors_only(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state, on the CPU, in plain memory order, by name."""
    return {
        name: value.detach().cpu().contiguous(memory_format=torch.contiguous_format)
        for name, value in sorted(state.items())
        if isinstance(value, Tensor)
    }


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, hex: the same for the same weights however they were saved."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
