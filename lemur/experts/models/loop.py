"""The training loop of all stages: AdamW, a cosine, and what is needed to go on where a killed run stopped."""

import contextlib
import math
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lemur.experts.domains.settings import Training
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.progress import progress

_WARM = 0.05  # of all steps
_KEEP_SECONDS = 20.0
_CLIP = 1.0


def fit(
    module: torch.nn.Module,
    loss_of: Callable[[random.Random], Tensor],
    training: Training,
    *,
    label: str,
    key: str,
    seed: int,
) -> float:
    """Train a module in place. Returns: the mean loss of the last twentieth of the steps, nats.

    Each step draws from a generator of its own, so a run that goes on from what was kept ends in the same weights.

    Args:
        loss_of: of one step; draws its batch.
        key: of the run among those that are kept in the cache: a digest of all that it hangs on.
    """
    module.train()
    chosen = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(chosen, training.rate, (0.9, 0.98), weight_decay=training.decay)
    kept = cache_folder("experts") / f"{key}.pt"
    start, losses = _resumed(kept, module, optimizer)
    last = time.monotonic()
    with progress(label, training.steps - start, "steps") as advance:
        for step in range(start, training.steps):
            for group in optimizer.param_groups:
                group["lr"] = training.rate * _factor(step, training.steps)
            loss = loss_of(random.Random(f"{seed} {step}"))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(chosen, _CLIP)
            optimizer.step()
            losses.append(float(loss.detach()))
            advance(1)
            if time.monotonic() - last > _KEEP_SECONDS:
                _keep(kept, module, optimizer, losses)
                last = time.monotonic()
    module.eval()
    kept.unlink(missing_ok=True)
    tail = losses[-max(1, training.steps // 20) :]
    return sum(tail) / len(tail)


def _factor(step: int, steps: int) -> float:
    warm = max(1, round(_WARM * steps))
    return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def _keep(path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    with atomic_file(path) as part:
        torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, part)


def _resumed(path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    with contextlib.suppress(OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError):
        found = torch.load(path, weights_only=True)
        module.load_state_dict(found["module"])
        optimizer.load_state_dict(found["optimizer"])
        losses = [float(loss) for loss in found["losses"]]
        return len(losses), losses
    return 0, []
