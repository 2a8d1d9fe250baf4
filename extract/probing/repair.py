"""What an error says about the inputs: other inputs to try, the most telling ones first.

PyTorch's messages name what they wanted (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what they could
not unpack, and the failing line names the argument. Where an assertion compares two numbers, both are known.
"""

from collections.abc import Callable, Iterator

from extract.probing import repair_kinds, repair_sizes
from extract.probing.situation import Situation
from extract.probing.tensors import Inputs

__all__ = ["Situation", "repairs"]

_RULES: tuple[Callable[[Situation, str], Iterator[Inputs]], ...] = (
    repair_sizes.numbers,
    repair_sizes.ranks,
    repair_kinds.missing,
    repair_kinds.scalars,
    repair_kinds.kinds,
    repair_kinds.containers,
    repair_sizes.told_numbers,
    repair_sizes.misfits,
    repair_sizes.told_layout,
    repair_sizes.volumes,
    repair_sizes.any_pair,
    repair_sizes.other_sizes,
)


def repairs(at: Situation) -> Iterator[Inputs]:
    """Other inputs to try after a failure; may repeat itself."""
    text = " ".join(str(at.mistake.error).split())
    for rule in _RULES:
        yield from rule(at, text)
