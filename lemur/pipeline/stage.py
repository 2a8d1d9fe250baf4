"""One stage of the way: what it reads, what it writes, what else decides what comes out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Told:
    """What a finished stage holds: counts for programs, the same in a few words for people."""

    counts: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage writes its outputs below the folder of the run, and reads nothing there but the outputs of its parents.

    Args:
        outputs: files or folders, relative to the folder of the run; each is whole or absent.
        parents: names of stages before this one.
        packages: ours, whose code decides what comes out.
        parameters: what else decides it, as JSON can hold it.
        make: writes the outputs into the folder of the run, in place of older ones.
        tell: reads the outputs again.
        resumes: an output that is there already is taken for the same thing's (a training run is known by its
            identity), so one that is to be made anew must go first.
    """

    name: str
    outputs: tuple[str, ...]
    make: Callable[[Path], object]
    tell: Callable[[Path], Told]
    parents: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a stage in one run. `why` is None, and `seconds` 0, where it was left as it is."""

    stage: Stage
    why: str | None
    seconds: float
    told: Told
