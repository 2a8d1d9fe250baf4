"""Stage II: project an expert's knowledge to one or a few vectors in the space of the base's input embeddings."""

import torch
from torch import Tensor, nn

from lemur.experts.domains.settings import ProjectorSettings


class Projector(nn.Module):
    """Maps background embeddings of an expert to slots of the base: a two-layer MLP.

    Several layers of the expert are mixed with learned weights; with a gate, the output is a linear map plus a learned
    share of the MLP. Outputs are scaled to the mean norm of the base's embeddings, times a learned factor.
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
            nn.init.eye_(self.straight.weight)  # an expert that started from the base shares its directions
        self.scale = nn.Parameter(torch.full((settings.slots, 1), norm))

    def forward(self, background: Tensor) -> Tensor:
        """Map (batch, layers, expert width) to (batch, slots, base width)."""
        mixed = self.enter((background * torch.softmax(self.mix, 0)[:, None]).sum(1))
        output = self.mlp(mixed)
        if self.straight is not None and self.gate is not None:
            output = self.straight(mixed) + torch.sigmoid(self.gate) * output
        slots = output.view(len(background), self._slots, self._width)
        return nn.functional.normalize(slots, dim=-1) * self.scale
