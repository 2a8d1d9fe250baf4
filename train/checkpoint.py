"""Where a training run goes on after it was ended: everything it knows at the end of an epoch, in one file.

Written and read in the sandbox alone: the file holds what foreign code made.
"""

import hashlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NAME = "checkpoint.pt"


def save_checkpoint(path: Path, key: str, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint by a newer one, at once or not at all.

    Args:
        key: of the run that may go on from it.
        state: tensors, numbers, text, lists and dictionaries.
    """
    save_whole({"key": key, **state}, path)


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
