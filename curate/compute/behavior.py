"""Measure what networks compute, in numbers: a second opinion on their graphs (`docs/graphs.md`).

Only networks whose parameters have the sizes of another one's can compute the same, so only those are measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from curate.compute.runs import NetFailure
from lemur_core.files import Json
from lemur_core.sandbox import Limits
from lemur_core.sandbox.stage import Retries, SandboxStage
from manifests.records.common import Behavior

#: Images are measured at these sizes first, then at the size of the trace: the same computation for less.
_SIZES = (32, 64, 128)
_BATCH = 3
_IMAGE = 4  # dimensions


@dataclass(frozen=True, slots=True)
class BehaviorRequest:
    """A network to measure, as `lemur_core.graphs.networks.behavior.measure_behavior` takes it."""

    code: str
    prm: Json
    cases: Sequence[Json]
    eval: str
    train: str | None


@dataclass(frozen=True, slots=True)
class NetBehavior:
    """The answer about a network that runs: a digest of rounded numbers, None if they say nothing of its parameters.

    Behind the digest, after "@", are the sizes of the inputs: one computation may take smaller ones in one spelling.
    """

    runs: Literal[True]
    behavior: Behavior | None


MEASURE = SandboxStage[NetBehavior | NetFailure](
    "lemur_core.graphs.networks.behavior:measure_behavior",
    NetBehavior | NetFailure,
    Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=8 * 2**30),
    Retries.NONE,
    label="behavior",
    unit="networks",
)


def build_request(payload: Json, answer: Mapping[str, Any]) -> BehaviorRequest:
    """Return the request of a network that was traced.

    Args: payload: `code`, `cases` and `prm`, as it was traced with; answer: of the trace.
    """
    traced = list(answer["in_shape"])  # its batch may be its own
    case = next({**case, "in_shape": traced} for case in payload["cases"] if list(case["in_shape"])[1:] == traced[1:])
    smaller: list[Json] = []
    if len(traced) == _IMAGE:
        _, channels, height, _ = traced
        smaller = [{**case, "in_shape": [_BATCH, channels, size, size]} for size in _SIZES if size < height]
    return BehaviorRequest(payload["code"], payload["prm"], [*smaller, case], answer["eval"], answer.get("train"))


def find_candidates(answers: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the networks that may compute what another one does and were not measured, by their numbers.

    Args: answers: of the traces; those without a graph, or with one that is unique to its code, compare with none.
    Returns: numbers of `answers`, ascending.
    """
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, answer in answers.items():
        if answer.get("weights") and not answer.get("varies"):
            groups[answer["weights"]].append(number)
    return sorted(
        number
        for members in groups.values()
        if len(members) > 1
        for number in members
        if "behavior" not in answers[number]
    )


def compare_behaviors(one: str | None, other: str | None) -> bool | None:
    """Return whether two networks have equal numbers; None if inputs of equal sizes were not measured."""
    if one is None or other is None or one.partition("@")[2] != other.partition("@")[2]:
        return None
    return one == other


def find_faults(traces: Iterable[tuple[str | None, str | None]]) -> list[str]:
    """Return the graphs that have several behaviors: they do not say all that the networks compute.

    Args: traces: graph and behavior of each network.
    """
    behaviors: defaultdict[str, set[str]] = defaultdict(set)
    for graph, behavior in traces:
        if graph is not None and behavior is not None:
            behaviors[graph].add(behavior)
    return sorted(
        graph
        for graph, several in behaviors.items()
        if any(compare_behaviors(*pair) is False for pair in combinations(several, 2))
    )
