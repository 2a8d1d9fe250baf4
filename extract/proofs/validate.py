"""Validation: find the level that each emitted file reaches. All foreign code runs in the sandbox."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Unpack

from extract.arguments.messages import MOST_CHARACTERS, BlockRun, CallsToRun, CompanionCode, Original, Originals
from extract.emit.emit import Emitted
from extract.model.results import at_least
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION
from lemur_core.files.markdown import make_visible
from lemur_core.sandbox import Failure, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import Reply, Retries, SandboxOptions, SandboxStage, open_sandbox
from lemur_core.source.text import parse_expression
from manifests.records import Level, Observed

_BACK_OFF_SECONDS = 0.5
_MAX_ERROR = 400  # characters
_TRANSIENT = frozenset({Status.CRASHED})  # a search would exceed its limits again

# Executing a file takes milliseconds, the search for arguments a few seconds; anything longer hangs. CPU seconds
# decide, so that a busy machine changes no result; what sleeps is ended by `idle_seconds`.
LIMITS = Limits(wall_seconds=900, cpu_seconds=30)
_SEARCH_LIMITS = Limits(wall_seconds=900, cpu_seconds=30, memory_bytes=4 * 2**30)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A file to validate up to a goal; `origin`: packages to hide; `folders`: to append to sys.path."""

    code: str
    name: str
    origin: Sequence[str]
    folders: Sequence[str]
    goal: Level
    hints: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class WorkingCall:
    """The arguments of one call, as Python expressions."""

    args: list[str]
    kwargs: Mapping[str, str]

    def __post_init__(self) -> None:
        """Raise ValueError unless each argument is an expression, and each keyword an identifier."""
        for text in (*self.args, *self.kwargs.values()):
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"an argument has more than {MOST_CHARACTERS:,} characters")
            try:
                parse_expression(text)
            except SyntaxError:
                raise ValueError("an argument is not an expression") from None
        if not all(map(str.isidentifier, self.kwargs)):
            raise ValueError("an argument has no name")


@dataclass(frozen=True, slots=True)
class ReportedCalls:
    """The call that constructs a block and, if it runs, the call that runs it."""

    init: WorkingCall
    forward: WorkingCall | None = None


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The level that a file reached; `kind` and `error` if it stopped before the goal.

    From `constructed` on, with the arguments that work, and the observations as an Observed record.
    """

    level: Level
    kind: str | None = None
    error: str | None = None
    arguments: ReportedCalls | None = None
    observed: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the level was not reached, or `observed` is not an Observed record."""
        if self.observed is not None:
            Observed.model_validate_json(json.dumps(self.observed), strict=True)
        if at_least(self.level, "constructed") and None in (self.arguments, self.observed):
            raise ValueError(f"{self.level} without arguments")
        if at_least(self.level, "forward") and (self.arguments is None or self.arguments.forward is None):
            raise ValueError(f"{self.level} without a call of forward")


EXECUTE = SandboxStage[SearchAnswer]("extract.arguments.search_guest:search_arguments", SearchAnswer, LIMITS)
SEARCH = replace(EXECUTE, limits=_SEARCH_LIMITS)


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """The level that a file reached."""

    level: Level
    kind: str | None = None  # category of the error that stopped it before the goal
    error: str | None = None
    arguments: str | None = None  # those that work, as JSON
    observed: str | None = None  # an Observed record as JSON
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to validate."""

    key: str
    name: str
    code: str
    origin: tuple[str, ...]  # top-level packages of its source
    hints: Mapping[str, Any] | None = None  # about its arguments, from the corpus


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
    candidates: Iterable[Candidate],
    index: FactsIndex,
    goal: Level,
    *,
    retry_failed: bool = False,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[tuple[Candidate, BlockVerdict]]:
    """Validate files up to `executed` or a higher level, each in its own sandbox; retried files come last.

    Outcomes are cached by content. A search that ends the process (a crash, a limit) shows nothing about the lower
    levels, so these are then validated separately.

    Args:
        goal: the highest level to try.
        retry_failed: run the files again whose cached outcome is a failure.

    Raises: UserError if no sandbox is available.
    """
    stage = EXECUTE if goal == "executed" else SEARCH

    def usable(job: Job, outcome: Outcome) -> bool:
        return not retry_failed or _judge(stage.read(outcome)).level == job.payload["goal"]

    runtime, pause = sandbox.get("runtime", ()), _BACK_OFF_SECONDS
    with open_sandbox(index, [stage], sandbox, transient=_TRANSIENT, back_off=pause, usable=usable) as box:
        candidates_by_key: dict[str, Candidate] = {}
        failed: dict[str, BlockVerdict] = {}

        def searches() -> Iterator[Job]:
            for candidate in candidates:
                candidates_by_key[candidate.key] = candidate
                yield stage.job(candidate.key, _request(candidate, runtime, goal))

        for reply in stage.run_jobs(box, searches()):
            verdict = _judge(reply)
            if reply.answer is not None or goal == "executed":
                yield candidates_by_key.pop(reply.key), verdict
            else:
                failed[reply.key] = verdict
        # The search ended the process: executing the file alone shows the level that it reaches without a search.
        lower = {key: _request(candidates_by_key[key], runtime, "executed") for key in failed}
        for reply in replace(EXECUTE, retries=Retries.NONE).run(box, lower):
            yield candidates_by_key[reply.key], _join(failed[reply.key], _judge(reply))


def _join(search: BlockVerdict, alone: BlockVerdict) -> BlockVerdict:
    """Combine the verdicts on a file whose search ended the process, and that was then executed alone."""
    if alone.level != "executed":
        return alone
    return replace(search, level="executed", reused=search.reused and alone.reused)


def _request(candidate: Candidate, runtime: Sequence[Path], goal: Level) -> SearchRequest:
    return SearchRequest(
        code=candidate.code,
        name=candidate.name,
        origin=[package for package in candidate.origin if package != FOUNDATION],
        folders=[str(folder) for folder in runtime],
        goal=goal,
        hints=candidate.hints if at_least(goal, "constructed") else None,
    )


def _judge(reply: Reply[SearchAnswer]) -> BlockVerdict:
    answer, outcome = reply.answer, reply.outcome
    if answer is None:
        error = reply.reason(_MAX_ERROR)
        return BlockVerdict("compiled", outcome.status.value, error, reused=outcome.reused)
    calls = answer.arguments and {name: call for name, call in asdict(answer.arguments).items() if call is not None}
    arguments, observed = (
        None if value is None else json.dumps(value, ensure_ascii=False) for value in (calls, answer.observed)
    )
    return BlockVerdict(answer.level, answer.kind, answer.error, arguments, observed, outcome.reused)


# --- equivalence: blocks and their originals --------------------------------------------------------------------------

_MAX_TOGETHER = 40  # originals of one package in one process
LIMITS_TOGETHER = Limits(wall_seconds=3600, cpu_seconds=400, memory_bytes=8 * 2**30)
_REASON_CHARACTERS = 200
_PARTS = ("state", "values", "eval", "train", "after")
_MISSING_PACKAGE = ("raises ImportError", "raises ModuleNotFoundError")  # the original's package is incomplete here


@dataclass(frozen=True, slots=True)
class Signature:
    """The digests of a class's state and outputs, by step."""

    state: tuple[str, ...]  # names and shapes
    values: str
    eval: str
    train: str
    after: str


@dataclass(frozen=True, slots=True)
class MissingOriginal:
    """Why an original cannot be imported, in one line."""

    missing: str

    def __post_init__(self) -> None:
        """Shorten the reason, and make control characters visible: foreign code determines the text."""
        object.__setattr__(self, "missing", make_visible(self.missing, _REASON_CHARACTERS))


Ours = Signature | Failure
Theirs = Signature | Failure | MissingOriginal

SIGN_BLOCK = SandboxStage[Ours](
    "extract.proofs.equivalence_guest:sign_block",
    Ours,
    Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=6 * 2**30),
    Retries.NONE,
)
SIGN_ORIGINALS = SandboxStage[Mapping[str, Theirs]](
    "extract.proofs.equivalence_guest:sign_originals", Mapping[str, Theirs], LIMITS_TOGETHER, Retries.NONE
)


@dataclass(frozen=True, slots=True)
class BlockWithOriginal:
    """A block to compare with its original."""

    block: str
    name: str
    code: str
    module: str  # the module to import for the original
    origin: tuple[str, ...]  # packages that the self-contained file must not import
    folders: tuple[Path, ...]  # with the original and its dependencies
    arguments: CallsToRun
    digest: str = ""  # of the source of the original
    companions: tuple[CompanionCode, ...] = ()
    original: str = ""  # the expression for the original in its module, if not its name

    def run(self, runtime: Sequence[Path]) -> BlockRun:
        """Return the block as guests run it. Args: runtime: folders with the requirements of self-contained files."""
        return BlockRun(self.code, self.name, self.origin, list(map(str, runtime)), self.arguments, self.companions)

    def as_original(self) -> Original:
        """Return the facts that guests need to run the original."""
        named = [{"name": item["name"], "qualname": item.get("qualname", "")} for item in self.companions]
        name = self.original or self.name
        return Original(
            block=self.block,
            module=self.module,
            name=name,
            arguments=self.arguments,
            companions=named,
            digest=self.digest,
        )


@dataclass(frozen=True, slots=True)
class EquivalenceResult:
    """The outcome of a comparison; `fidelity` is None if the block could not be compared."""

    block: str
    fidelity: Literal["match", "mismatch"] | None
    detail: str = ""


def compare_all(
    pairs: Sequence[BlockWithOriginal],
    index: FactsIndex,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[EquivalenceResult]:
    """Compare blocks with their originals; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    by_block = {pair.block: pair for pair in pairs}
    folders = (folder for pair in pairs for folder in pair.folders)
    with open_sandbox(index, [SIGN_BLOCK, SIGN_ORIGINALS], sandbox, folders=folders) as box:
        theirs = _sign_originals(box, list(_group_by_package(pairs)))
        missing = {block: answer for block, answer in theirs.items() if isinstance(answer, MissingOriginal)}
        for block, answer in missing.items():
            yield EquivalenceResult(block, None, f"no original: {answer.missing}")
        runs = {pair.block: pair.run(sandbox.get("runtime", ())) for pair in pairs if pair.block not in missing}
        doubtful: dict[str, Ours] = {}
        for reply in SIGN_BLOCK.run(box, runs):
            ours = reply.answer or Failure(reply.reason(_REASON_CHARACTERS))
            comparison = compare(reply.key, ours, theirs[reply.key])
            if comparison.fidelity == "mismatch":
                doubtful[reply.key] = ours
            else:
                yield comparison
        # Originals in one process share module state such as counters and caches, so mismatches are repeated alone.
        groups = [[by_block[block]] for block in doubtful]
        alone, again = _sign_originals(box, groups), _sign_originals(box, groups, stir=True)
        for block, ours in doubtful.items():
            comparison = compare(block, ours, alone[block])
            if comparison.fidelity == "mismatch" and alone[block] != again[block]:
                why = "the original is not the same twice: it reads memory that was not set"
                comparison = EquivalenceResult(block, None, why)
            yield comparison


def compare(block: str, ours: Ours, theirs: Theirs) -> EquivalenceResult:
    """Compare two signatures; the detail states where they first differ."""
    if isinstance(theirs, MissingOriginal):
        return EquivalenceResult(block, None, f"no original: {theirs.missing}")
    if isinstance(theirs, Failure):
        return EquivalenceResult(block, None, f"the original does not run: {theirs.error}")
    if isinstance(ours, Failure):
        return EquivalenceResult(block, "mismatch", f"only the original runs: {ours.error}")
    for step in _PARTS:
        own, original = getattr(ours, step), getattr(theirs, step)
        if own == original:
            continue
        # An import inside forward that fails here shows nothing about the copy.
        if original in _MISSING_PACKAGE:
            return EquivalenceResult(block, None, f"the original does not run: {step}: {original}")
        if isinstance(own, tuple):
            own, original = next(pair for pair in zip_longest(own, original, fillvalue="") if pair[0] != pair[1])
        else:
            own, original = own[:24], original[:24]
        return EquivalenceResult(block, "mismatch", f"{step}: {own or 'nothing'} here, {original or 'nothing'} there")
    return EquivalenceResult(block, "match")


def _sign_originals(
    box: CachedSandbox, groups: Sequence[list[BlockWithOriginal]], *, stir: bool = False
) -> dict[str, Theirs]:
    """Return the signatures of the originals, by block."""

    def request(group: Sequence[BlockWithOriginal]) -> Originals:
        return Originals([str(folder) for folder in group[0].folders], [pair.as_original() for pair in group], stir)

    return SIGN_ORIGINALS.run_groups(box, groups, request, lambda pair: pair.block)


def _group_by_package(pairs: Iterable[BlockWithOriginal]) -> Iterator[list[BlockWithOriginal]]:
    """Yield groups of blocks of one package, limited in size."""
    by_folders: dict[tuple[Path, ...], list[BlockWithOriginal]] = {}
    for pair in pairs:
        by_folders.setdefault(pair.folders, []).append(pair)
    for members in by_folders.values():
        # Sorted, so that neighbors share imports and every run has the same groups.
        members.sort(key=lambda pair: pair.module)
        for start in range(0, len(members), _MAX_TOGETHER):
            yield members[start : start + _MAX_TOGETHER]
