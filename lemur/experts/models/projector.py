"""Stage II: what an expert knows, as one vector or a few in the space of the base's input embeddings."""

import torch
from torch import Tensor, nn

from lemur.experts.domains.settings import ProjectorSettings


class Projector(nn.Module):
    """Background embeddings of an expert to slots of the base: a two-layer MLP.

    Several layers of the expert are mixed with learned weights; with a gate, a linear map is added to what a learned
    share of the MLP gives. What comes out has the mean norm of the base's embeddings, times a learned factor.
    """

    def __init__(self, settings: ProjectorSettings, expert_width: int, base_width: int, norm: float) -> None:
        super().__init__()
        self._slots, self._width = settings.slots, base_width
        out = settings.slots * base_width
        self.mix = nn.Parameter(torch.zeros(len(settings.layers)))
        self.enter = nn.LayerNorm(expert_width)
        self.mlp = nn.Sequential(nn.Linear(expert_width, settings.width), nn.GELU(), nn.Linear(settings.width, out))
        self.straight = nn.Linear(expert_width, out) if settings.gate else None
        self.gate = nn.Parameter(torch.zeros(out)) if settings.gate else None
        if self.straight is not None:
            nn.init.eye_(self.straight.weight)  # an expert that began as the base has its directions
        self.scale = nn.Parameter(torch.full((settings.slots, 1), norm))

    def forward(self, background: Tensor) -> Tensor:
        """(batch, layers, expert width) to (batch, slots, base width)."""
        mixed = self.enter((background * torch.softmax(self.mix, 0)[:, None]).sum(1))
        made = self.mlp(mixed)
        if self.straight is not None and self.gate is not None:
            made = self.straight(mixed) + torch.sigmoid(self.gate) * made
        slots = made.view(len(background), self._slots, self._width)
        return nn.functional.normalize(slots, dim=-1) * self.scale
