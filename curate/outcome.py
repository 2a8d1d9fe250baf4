"""What a profile decided, in the one form from which the snapshot is written."""

from dataclasses import dataclass, field
from typing import Any

from curate.chat.result import Chat
from curate.runs.check import RunResult


@dataclass(frozen=True, slots=True)
class RowDecision:
    """The fate of one input row; `canonical` is the code number of the kept record that stands for it."""

    kept: bool
    stage: str | None
    canonical: int | None
    similarity: float | None
    reason: str
    rescued: str | None = None


@dataclass(slots=True)
class Outcome:
    """Decisions for every row, and the kept records."""

    decisions: list[RowDecision]
    kept: list[int]  # codes, best first
    shown: dict[int, int]  # kept code -> row
    splits: dict[int, str]  # kept code -> split
    clusters: dict[int, str]  # kept code -> name of its leak-free group
    families: dict[int, str]  # code -> family, for every code that became a record
    scores: dict[int, float | None]  # code -> score, for every code that became a record
    weights: dict[int, float]
    runs: dict[int, RunResult] | None = None  # kept code -> whether it runs; None where that was not asked
    chat: Chat | None = None  # the conversations; None where they were not asked for
    notes: list[str] = field(default_factory=list)  # what could not be done as asked
    details: dict[str, Any] = field(default_factory=dict)  # for the manifest
