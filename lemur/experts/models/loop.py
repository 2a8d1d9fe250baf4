"""The training loop of all stages: AdamW, a cosine schedule, and checkpoints to resume a killed run."""

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

_WARM = 0.05  # fraction of all steps
_KEEP_SECONDS = 20.0
_CLIP = 1.0


def fit(
    module: torch.nn.Module,
    compute_loss: Callable[[random.Random], Tensor],
    training: Training,
    *,
    label: str,
    key: str,
    seed: int,
) -> float:
    """Train a module in place. Returns: the mean loss of the last 5 % of the steps, in nats.

    Each step has its own random generator, so a resumed run ends in the same weights.

    Args:
        compute_loss: computes the loss of one step from its generator; draws the batch.
        key: cache key of the run: a digest of everything that it depends on.
    """
    module.train()
    chosen = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(chosen, training.rate, (0.9, 0.98), weight_decay=training.decay)
    kept = cache_folder("experts") / f"{key}.pt"
    start, losses = _resume(kept, module, optimizer)
    last = time.monotonic()
    with progress(label, training.steps - start, "steps") as advance:
        for step in range(start, training.steps):
            for group in optimizer.param_groups:
                group["lr"] = training.rate * _factor(step, training.steps)
            loss = compute_loss(random.Random(f"{seed} {step}"))
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


def _resume(path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    with contextlib.suppress(OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError):
        checkpoint = torch.load(path, weights_only=True)
        module.load_state_dict(checkpoint["module"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        losses = [float(loss) for loss in checkpoint["losses"]]
        return len(losses), losses
    return 0, []
