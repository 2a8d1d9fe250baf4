"""What the sandbox measured of one network."""

from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Child:
    """A top-level child, with the output of its first call that did not fail.

    `use` tells whether it was called, failed whenever it was, was used only by calling modules `inside` it, or neither.
    `use` and `output` are None where they depend on chance, `output` also where there is none.
    """

    name: str
    kind: str
    parameters: int
    use: Literal["called", "failed", "inside", "unused"] | None
    output: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """A network that runs, as it was built and run with two seeds.

    Parameters are elements, each tensor counted once. Multiply-adds are those of calls of convolution and linear
    modules and of the projections of nn.MultiheadAttention for the whole batch, without biases; `attention` tells
    whether there are such; functional calls and attention products are not counted. `layers` are modules of libraries
    by class, composite ones of torch.nn as one, losses left out; `own` are modules of classes that the file defines,
    the network itself not counted; `functions` are calls of activation functions in one forward pass, by modules or
    not, but for those inside composites of torch.nn. Where the seeds disagree, multiply-adds are 0, the output is None
    and `functions` are empty.
    """

    parameters: int
    trainable: int
    buffers: int
    multiply_adds: int
    attention: bool
    output: str | None
    layers: dict[str, int]
    own: dict[str, int]
    functions: dict[str, int]
    dropout: tuple[float, ...]
    children: tuple[Child, ...]
    optimizers: tuple[str, ...]
    losses: tuple[str, ...]
    setup_error: str | None


def read_facts(told: dict[str, Any]) -> Facts:
    """The facts in an answer of `curate.chat.probe.measure` whose `runs` is true."""
    values = {field.name: told[field.name] for field in fields(Facts)}
    for name in ("dropout", "optimizers", "losses"):
        values[name] = tuple(values[name])
    values["children"] = tuple(Child(**child) for child in values["children"])
    return Facts(**values)
