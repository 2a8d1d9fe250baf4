"""The trained and measured parts around a language model: codebook, router, and the training loop of all stages.

The codebook (stage II) has vectors for each number, which make the frozen base say it. The router
sends a question to the nearest prototype of a domain or of the general set; nothing in it is trained. The loop trains
with AdamW and a cosine schedule, and keeps checkpoints, from which a killed run resumes.
"""

import contextlib
import math
import pickle
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lemur.experts.language import Language
from lemur.experts.settings import GENERAL, TuningSettings
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.progress import progress

_ROUNDS = 50  # of k-means; it ends earlier once no center moves
_WARM = 0.05  # fraction of all steps
_KEEP_SECONDS = 20.0  # between checkpoints
_CLIP = 1.0  # norm of the whole gradient


class Codebook(nn.Module):
    """Vectors for each number, with a length of their own: the base says the number that it gets as its background.

    At first they are the mean embeddings of equal parts of its digits.
    """

    def __init__(self, numbers: Sequence[str], slots: int, base: Language) -> None:
        super().__init__()
        self._numbers = [int(number) for number in numbers]
        table = base.model.get_input_embeddings().weight.detach().float()
        (blank,) = base.bare_ids(" ")[:1]
        starts = []
        for number in numbers:
            own = base.bare_ids(number)
            # Blanks before a short one: a digit that stands twice is read twice.
            parts = table[[blank] * (slots - len(own)) + own].tensor_split(slots)
            starts.append(torch.stack([part.mean(0) for part in parts]))
        self._length = float(table.norm(dim=1).mean())
        self.scale = nn.Parameter(torch.zeros(len(numbers), slots, 1))
        self.free = nn.Parameter(normalize(torch.stack(starts), dim=-1) * table.shape[1] ** 0.5)

    def forward(self, numbers: Sequence[str]) -> Tensor:
        """Return the vectors of these numbers, or of the nearest that have some, (numbers, slots, width)."""
        marks = self._numbers
        at = [min(range(len(marks)), key=lambda at: abs(marks[at] - int(number))) for number in numbers]
        return normalize(self.free[at], dim=-1) * self._length * (self.scale[at] / 10).exp()


def centres(states: Tensor, number: int, seed: int) -> Tensor:
    """Return prototypes: spherical k-means of L2-normalized states, each center of length 1.

    Args: states: (questions, width). Returns: (at most number, width), float32; depends only on these states.
    Source: k-means++ (Arthur and Vassilvitskii, 2007) for the starts.
    """
    points = normalize(states.double(), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < min(number, len(points)):
        away = (1 - (points @ points[chosen].T).amax(1)).clamp(min=0)
        # Only copies of the chosen points are left.
        if float(away.max()) < 1e-12:
            break
        chosen.append(int(torch.multinomial(away, 1, generator=generator)))
    prototypes = points[chosen]
    for _ in range(_ROUNDS):
        nearest = (points @ prototypes.T).argmax(1)
        sums = torch.zeros_like(prototypes).index_add_(0, nearest, points)
        moved = torch.where((sums.norm(dim=1) > 1e-12)[:, None], normalize(sums, dim=-1), prototypes)
        if torch.equal(moved, prototypes):
            break
        prototypes = moved
    return prototypes.float()


@dataclass(frozen=True, slots=True)
class PrototypeRouter:
    """Prototypes by domain, including `general`. Add or remove an entry to add or remove a domain."""

    prototypes: Mapping[str, Tensor]
    margin: float = 0.0
    least: float = -1.0

    def cosines(self, states: Tensor) -> dict[str, Tensor]:
        """Return the largest cosine of each state with a prototype of each domain. Args: states: (questions, width)."""
        points = normalize(states.double(), dim=-1)
        return {
            name: (points @ normalize(prototypes.double(), dim=-1).T).amax(1)
            for name, prototypes in sorted(self.prototypes.items())
        }

    def route(self, states: Tensor) -> list[str]:
        """Return the domain of each state: the one with the largest cosine, the first by name among equal ones.

        A state is routed to general if its cosine is below `least`, or its best two domains differ by less than a
        margin.
        """
        cosines = self.cosines(states)
        names = list(cosines)
        scores = torch.stack([cosines[name] for name in names], 1)
        first, at = scores.max(1)
        certain = first >= self.least
        if self.margin and len(names) > 1:
            certain &= first - scores.topk(2, dim=1).values[:, 1] >= self.margin
        return [names[best] if sure else GENERAL for best, sure in zip(at.tolist(), certain.tolist(), strict=True)]


def fit(
    module: nn.Module,
    compute_loss: Callable[[random.Random], Tensor],
    training: TuningSettings,
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
    # In the cache: the folder of a stage is complete or absent.
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
            nn.utils.clip_grad_norm_(chosen, _CLIP)
            optimizer.step()
            losses.append(float(loss.detach()))
            advance(1)
            if time.monotonic() - last > _KEEP_SECONDS:
                _keep(kept, module, optimizer, losses)
                last = time.monotonic()
    module.eval()
    remove_path(kept)
    tail = losses[-max(1, training.steps // 20) :]
    return sum(tail) / max(1, len(tail))


def _factor(step: int, steps: int) -> float:
    warm = max(1, round(_WARM * steps))
    return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def _keep(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    with atomic_file(path) as part:
        torch.save({"module": _trained(module), "optimizer": optimizer.state_dict(), "losses": losses}, part)


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are trained; the others, with LoRA most of a model, stay as they are."""
    return {name: own.detach() for name, own in module.named_parameters() if own.requires_grad}


def _resume(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    # A checkpoint that is missing or damaged, or fits another model, only costs time.
    with contextlib.suppress(OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError):
        checkpoint = torch.load(path, weights_only=True)
        for name, own in _trained(module).items():
            own.copy_(checkpoint["module"][name])
        optimizer.load_state_dict(checkpoint["optimizer"])
        losses = [float(loss) for loss in checkpoint["losses"]]
        return len(losses), losses
    return 0, []
