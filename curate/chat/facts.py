"""What the sandbox measured of one network."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Child:
    """A top-level child: its output is that of its first call, None where it was not called as a module."""

    name: str
    kind: str
    parameters: int
    output: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """A network that runs, as it was built and run once.

    Parameters are elements, each tensor counted once. Multiply-adds are those of calls of convolution and linear
    modules for the whole batch, without biases; functional calls and attention products are not counted. `layers` are
    modules of libraries by class, composite ones of torch.nn as one, losses left out; `own` are modules of classes that
    the file defines, the network itself not counted; `functions` are calls of activation functions in one forward pass,
    through modules or not.
    """

    parameters: int
    trainable: int
    buffers: int
    multiply_adds: int
    output: str
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
