"""Options that are declared once, on the fields of a dataclass; `parameters` makes the parameters of a command.

A dataclass of options must need neither the command line nor the tables, so nothing slow is imported here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

#: The levels of validation that a block can reach, each one including those before it.
Level = Literal["discovered", "emitted", "parsed", "compiled", "executed", "constructed", "forward", "backward"]

#: Longer conversations are dropped; counted as in `manifests.conversations.count_tokens`.
MAX_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class Option:
    """Describe how a field is set on the command line: `task: Annotated[tuple[str, ...], Option("Only rows ...")]`.

    Attributes:
        help: the sentence of `--help`.
        flag: the option, if it is not the name of the field.
        metavar: what stands for the value in `--help`.
        panel: the panel of `--help`; the general one by default.
        least: the smallest value that is accepted.
        most: the largest.
        after: the option that this one follows in `--help`, if that is not the one declared before it.
        read: parses one text, where a field holds something else than text and numbers.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    after: str | None = None
    read: Callable[[str], Any] | None = None


RUNTIME = Option(
    "A package that foreign code can import besides torch, torchvision and numpy, or lemur-nets: those that LEMUR's"
    " networks use (repeatable).",
    metavar="NAME",
    after="jobs",
)
