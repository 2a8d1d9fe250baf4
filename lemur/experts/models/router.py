"""The router: a question goes to the nearest prototype of a domain or of the general set. Nothing is trained."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lemur.experts.domains.settings import GENERAL

_ROUNDS = 50


def centres(states: Tensor, number: int, seed: int) -> Tensor:
    """Return prototypes: spherical k-means of L2-normalised states, each centre of length 1.

    Args: states: (questions, width). Returns: (at most number, width), float32; depends only on these states.
    Source: k-means++ (Arthur and Vassilvitskii, 2007) for the starts.
    """
    points = normalize(states.double(), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < min(number, len(points)):
        away = (1 - (points @ points[chosen].T).amax(1)).clamp(min=0)
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

    def cosines(self, states: Tensor) -> dict[str, Tensor]:
        """Return the largest cosine of each state with a prototype of each domain. Args: states: (questions, width)."""
        points = normalize(states.double(), dim=-1)
        return {
            name: (points @ normalize(prototypes.double(), dim=-1).T).amax(1)
            for name, prototypes in sorted(self.prototypes.items())
        }

    def route(self, states: Tensor) -> list[str]:
        """Return the domain of each state: the one with the largest cosine, the first by name among equal ones.

        With a margin, a state whose best two domains differ by less is routed to general.
        """
        cosines = self.cosines(states)
        names = list(cosines)
        scores = torch.stack([cosines[name] for name in names], 1)
        best = scores.argmax(1)
        if self.margin and len(names) > 1:
            first, second = scores.topk(2, dim=1).values.T
            return [
                names[at] if lead >= self.margin else GENERAL
                for at, lead in zip(best.tolist(), (first - second).tolist(), strict=True)
            ]
        return [names[at] for at in best.tolist()]
