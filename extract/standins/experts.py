"""Mixtures of experts: operators that libraries register for their compiler's sake."""

import torch


def grouped_mm_fallback(input, weight, offs):
    """Rows (S, O): those of `input` (S, I), sorted by expert, times their expert's matrix of `weight` (E, I, O).

    `offs` (E,) counts the rows of the experts so far; rows after the last one stay zero.
    """
    output = torch.zeros(input.size(0), weight.size(2), device=input.device, dtype=input.dtype)
    start = 0
    for expert, end in enumerate(offs.tolist()):
        if end > start:
            output[start:end] = torch.mm(input[start:end], weight[expert])
            start = end
    return output
