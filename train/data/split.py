"""Which training images are held out to choose on."""

import torch
from torch import Tensor

from lemur_core.files.errors import UserError


def split(count: int, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on, and indices held out: a seeded permutation cut in two, each part sorted.

    Args:
        count: how many images there are.
        held_out: how many of them are held out; 0 holds out none.
        seed: of the permutation; the same one gives the same two parts.

    Returns: two int64 tensors, disjoint, together 0..count-1.
    Raises: UserError if nothing would be left to train on.
    """
    if not 0 <= held_out < count:
        raise UserError(f"held out: {held_out:,} of {count:,} images; hold out at least 0, and fewer than there are")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[held_out:].sort().values, order[:held_out].sort().values
