"""Validation: find the level that each emitted file reaches. All foreign code runs in the sandbox."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from extract.emit.emit import Emitted
from extract.model.results import at_least
from extract.proofs.visit import Visit
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION
from extract.specs.make import WorkingCalls
from lemur_core.files import Json
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.stage import Reply, SandboxOptions, SandboxStage, open_sandbox
from manifests.records import Level, Observed

_MAX_ERROR = 400  # characters
_TRANSIENT = frozenset({Status.CRASHED})  # a search would exceed its limits again

# Executing a file takes milliseconds, the search for arguments a few seconds; anything longer hangs. CPU seconds
# decide, so that a busy machine changes no result; what sleeps is ended by `idle_seconds`.
LIMITS = Limits(wall_seconds=900, cpu_seconds=30)
_SEARCH_LIMITS = replace(LIMITS, memory_bytes=4 * 2**30)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A file to validate up to a goal.

    Args:
        origin: packages to hide, of its source.
        folders: to append to sys.path.
        hints: about its arguments, from the corpus.
        visit: whether a block that runs is visited in the same process.
    """

    code: str
    name: str
    origin: Sequence[str]
    folders: Sequence[str] = ()
    goal: Level = "executed"
    hints: Mapping[str, Any] | None = None
    visit: bool = False


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """The level that a file reached; `kind` and `error` if it stopped before the goal: the guest's answer.

    From `constructed` on, with the arguments that work, and the observations as an Observed record; of a block that
    runs with what its visit shows, if that was asked for.
    """

    level: Level
    kind: str | None = None
    error: str | None = None
    arguments: WorkingCalls | None = None
    observed: Mapping[str, object] | None = None
    visit: Visit | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the level was not reached, or `observed` is not an Observed record."""
        if self.observed is not None:
            Observed.model_validate_json(json.dumps(self.observed), strict=True)
        if at_least(self.level, "constructed") and None in (self.arguments, self.observed):
            raise ValueError(f"{self.level} without arguments")
        if at_least(self.level, "forward") and (self.arguments is None or self.arguments.forward is None):
            raise ValueError(f"{self.level} without a call of forward")

    @property
    def arguments_text(self) -> str | None:
        """The arguments that work, as JSON."""
        if self.arguments is None:
            return None
        calls = {name: call for name, call in asdict(self.arguments).items() if call is not None}
        return json.dumps(calls, ensure_ascii=False)

    @property
    def observed_text(self) -> str | None:
        """The observations as JSON."""
        return None if self.observed is None else json.dumps(self.observed, ensure_ascii=False)


EXECUTE = SandboxStage[BlockVerdict]("extract.arguments.search_guest:search_arguments", BlockVerdict, LIMITS)
SEARCH = replace(EXECUTE, limits=_SEARCH_LIMITS)
#: Nothing is repeated: where it ends its process, the search is run alone.
SEARCH_AND_VISIT = replace(
    SEARCH,
    guest="extract.proofs.visit_guest:search_and_visit",
    limits=replace(_SEARCH_LIMITS, cpu_seconds=60),
    retries=False,
)


def check_text(emitted: Emitted, goal: Level) -> BlockVerdict:
    """Check the levels that do not require execution: parsed and compiled."""
    if goal == "emitted":
        return BlockVerdict("emitted")
    if emitted.undefined:
        names = ", ".join(emitted.undefined)
        return BlockVerdict("emitted", "undefined_name", f"undefined in the emitted file: {names}")
    if not emitted.fault:
        return BlockVerdict("parsed" if goal == "parsed" else "compiled")
    try:
        ast.parse(emitted.code)
    except (SyntaxError, ValueError, RecursionError) as error:
        return BlockVerdict("emitted", "syntax_error", f"does not parse: {error}")
    return BlockVerdict("parsed", "compile_error", f"does not compile: {emitted.fault}")


def validate_all(
    requests: Iterable[tuple[str, SearchRequest]],
    index: FactsIndex,
    goal: Level,
    *,
    retry_failed: bool = False,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[tuple[str, BlockVerdict]]:
    """Validate files, by key, up to `executed` or a higher level, each in its own sandbox; retried files come last.

    Outcomes are cached by content. Up to `backward`, a block that runs is visited in the process of its search. One
    that ends the process (a crash, a limit) shows nothing about the lower levels: the search is repeated alone, then
    the file is only executed.

    Args:
        requests: what differs from file to file; the rest follows from the goal and the sandbox.
        goal: the highest level to try.
        retry_failed: run the files again whose cached outcome is a failure.

    Raises: UserError if no sandbox is available.
    """
    stages = [*([SEARCH_AND_VISIT] * (goal == "backward")), *([SEARCH] * (goal != "executed")), EXECUTE]

    def usable(job: Job, outcome: Outcome) -> bool:
        if isinstance(outcome.value, dict) and outcome.value.get("kind") == "timeout_error":
            return False  # what a clock ended may come further another time
        return not retry_failed or _judge(EXECUTE.read(outcome)).level == job.payload["goal"]

    known: dict[str, SearchRequest] = {}
    folders = [str(folder) for folder in sandbox.get("runtime", ())]

    def jobs(stage: SandboxStage[BlockVerdict], waiting: Iterable[tuple[str, SearchRequest]]) -> Iterator[Job]:
        level: Level = "executed" if stage is EXECUTE else goal
        for key, request in waiting:
            known[key] = request
            origin = [package for package in request.origin if package != FOUNDATION]
            hints = request.hints if at_least(level, "constructed") else None
            about: Json = {"origin": origin, "folders": folders, "goal": level, "hints": hints}
            yield stage.job(key, replace(request, **about, visit=stage is SEARCH_AND_VISIT))

    kept: Json = {"transient": _TRANSIENT, "usable": usable}
    with open_sandbox(index, stages, sandbox, **kept) as box:
        ended: dict[str, BlockVerdict] = {}
        waiting = requests
        for stage in stages:
            again: list[tuple[str, SearchRequest]] = []
            for reply in stage.run_jobs(box, jobs(stage, waiting)):
                key, request, verdict = reply.key, known.pop(reply.key), _judge(reply)
                if reply.answer is None and stage is not EXECUTE:
                    again.append((key, request))
                    ended[key] = verdict
                else:
                    if stage is EXECUTE and verdict.level == "executed" and key in ended:
                        verdict = replace(ended[key], level="executed")
                    yield key, verdict
            waiting = again


def _judge(reply: Reply[BlockVerdict]) -> BlockVerdict:
    return reply.answer or BlockVerdict("compiled", reply.outcome.status.value, reply.reason(_MAX_ERROR))
