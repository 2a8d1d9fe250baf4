"""One visit of each block that runs, in the sandbox: its graphs, and what every known call executes and returns."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from extract.arguments.messages import MOST_CHARACTERS, BlockUses, CallsToRun, CallTexts, join_arguments, make_uses
from extract.proofs.equivalence import BlockWithOriginal
from lemur_core.describe.facts import count_tensors
from lemur_core.graphs.serialization import restore
from lemur_core.sandbox import Failure, Limits
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.stage import Retries, SandboxOptions, SandboxStage, open_sandbox
from lemur_core.source.text import parse_expression

_CHARACTERS = 300  # of an error


@dataclass(frozen=True, slots=True)
class BlockGraphs:
    """The graphs of a block, which go into its spec as they are."""

    route: Literal["meta", "cpu"]
    graph: str
    graph_widths: str
    graph_repeats: str
    train_error: str | None
    reads_values: bool
    initial: str
    dead_classes: list[str]
    unused_parameters: list[str]
    returns: object
    hidden: list[str]
    draws: Mapping[str, list[str]]
    sizes: Mapping[str, list[int | float]]
    fixed: str | None
    eval: Mapping[str, object]
    train: Mapping[str, object] | None

    def __post_init__(self) -> None:
        """Raise ValueError if a graph cannot be read."""
        # The answer is foreign: what cannot be read is refused here, not where it is used.
        sized = restore(self.to_json())
        count_tensors(self.returns)
        for graph in (sized.evaluated, sized.trained):
            if graph is not None:
                graph.check_references()

    def to_json(self) -> dict[str, Any]:
        """Return its facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Signed:
    """The results of a block in every known way: by step, the digest of all tensors, or the type of the error.

    Args: errors: the message of each step that raised one.
    """

    steps: Mapping[str, str]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a block cannot be constructed."""

    error: str


@dataclass(frozen=True, slots=True)
class Watched:
    """The executed parts of a file."""

    lines: frozenset[int]  # that ran
    # Functions that were called, by first line and name; `used`: those called after the file was loaded.
    entered: frozenset[tuple[int, str]]
    used: frozenset[tuple[int, str]]


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
class UsedCase:
    """One call that works: tensors of its inputs and, by mode, of its outputs in words; null for a mode that fails."""

    init: WorkingCall
    forward: WorkingCall
    inputs: Mapping[str, str]
    eval: tuple[str, ...] | None
    train: tuple[str, ...] | None

    def as_texts(self) -> CallsToRun:
        """Return both calls as payloads state them."""
        return CallsToRun(init=_texts(self.init), forward=_texts(self.forward))


@dataclass(frozen=True, slots=True)
class Uses:
    """Every known call of a block: the one of the search, then further ones. Args: sizes: of its further inputs."""

    cases: tuple[UsedCase, ...]
    sizes: list[list[list[int]]]
    signature: Signed
    watched: Watched

    def list_failing_modes(self) -> list[str]:
        """Return the modes in which the call of the search fails."""
        own = self.cases[0]
        return [mode for mode, outputs in (("eval", own.eval), ("train", own.train)) if outputs is None]


@dataclass(frozen=True, slots=True)
class Visit:
    """The answer of the guest. Either part may fail without the other."""

    graphs: BlockGraphs | Failure
    uses: Uses | Failure


#: CPU time and memory are the limits that matter, so that a busy machine changes no result; a job that reaches one
#: would reach it again.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=60, memory_bytes=4 * 2**30)
VISIT = SandboxStage[Visit](
    "extract.proofs.visit_guest:visit_block", Visit, replace(LIMITS, cpu_seconds=120), Retries.NONE, "runs and graphs"
)
SIGN = SandboxStage[Signed | Stopped]("extract.proofs.visit_guest:sign_results", Signed | Stopped, LIMITS, Retries.NONE)
TRACE = SandboxStage[BlockGraphs | Failure](
    "extract.proofs.trace_guest:trace_block", BlockGraphs | Failure, LIMITS, Retries.NONE
)


@dataclass(frozen=True, slots=True)
class RunnableBlock:
    """A block that runs forward, with everything known about how to run it."""

    pair: BlockWithOriginal
    observed: Mapping[str, Any] = field(default_factory=dict)  # an `Observed` record
    # Calls found in the corpus, in the format of `extract.arguments.hints.HintFinder.hints_for`.
    hints: Mapping[str, Any] = field(default_factory=dict)
    visit: "Visit | None" = None  # that of its search

    def request(self, runtime: Sequence[Path]) -> BlockUses:
        """Return the request for the guest."""
        return make_uses(self.pair.run(runtime), self.observed, self.hints)


@dataclass(frozen=True, slots=True)
class BlockVisit:
    """The visit of one block; of each part either the answer or the error."""

    block: str
    request: BlockUses
    graphs: Mapping[str, Any] | None = None  # as JSON
    no_graphs: str | None = None
    uses: Uses | None = None
    no_uses: str | None = None
    reused: bool = False

    @property
    def sets(self) -> tuple[CallsToRun, ...]:
        """Further arguments, for which both forms must do the same."""
        return tuple(call.as_texts() for call in self.uses.cases[1:]) if self.uses else ()

    @property
    def sets_that_run(self) -> tuple[CallsToRun, ...]:
        """Those of them that run in eval mode."""
        return tuple(call.as_texts() for call in self.uses.cases[1:] if call.eval is not None) if self.uses else ()

    def count_statements(self) -> tuple[int, int] | None:
        """Return how many statements of the class's own methods ran, and how many they have.

        Only methods that were called count, without the constructor. A statement is known by the line of its start.
        """
        own = next((n for n in ast.parse(self.request.code).body if getattr(n, "name", "") == self.request.name), None)
        if self.uses is None or own is None:
            return None
        entered, lines = {name for _, name in self.uses.watched.used}, self.uses.watched.lines
        ran = whole = 0
        for method in ast.iter_child_nodes(own):
            if isinstance(method, ast.FunctionDef) and method.name in entered - {"__init__"}:
                inside = (node for node in ast.walk(method) if isinstance(node, ast.stmt) and node is not method)
                starts = {node.lineno for node in inside if not _is_text(node)}
                whole += len(starts)
                ran += len(lines & starts)
        return (ran, whole) if whole else None

    def describe_calls(self) -> list[dict[str, Any]]:
        """Return all known calls, as `KnownCall` records."""
        return [
            {"init": join_arguments(**_texts(case.init)), "forward": join_arguments(**_texts(case.forward))}
            | {"inputs": dict(case.inputs), "eval": case.eval, "train": case.train}
            for case in (self.uses.cases if self.uses else ())
        ]


def visit_all(
    blocks: Sequence[RunnableBlock], store: Store | None, **sandbox: Unpack[SandboxOptions]
) -> Iterator[BlockVisit]:
    """Visit blocks; outcomes are cached by content. Raises: UserError if no sandbox is available."""
    requests = {block.pair.block: block.request(sandbox.get("runtime", ())) for block in blocks}
    visited = {block.pair.block: block.visit for block in blocks if block.visit is not None}
    yield from (_read(key, requests[key], visit) for key, visit in visited.items())
    with open_sandbox(store, [VISIT], sandbox) as box:
        ended: dict[str, Failure] = {}
        for reply in VISIT.run(box, {key: request for key, request in requests.items() if key not in visited}):
            if reply.answer is None:
                ended[reply.key] = reply.failure(_CHARACTERS)
            else:
                yield _read(reply.key, requests[reply.key], reply.answer, reused=reply.outcome.reused)
        # Those that ended their process, mostly while their graphs were recorded, are visited without these.
        alone = {key: replace(requests[key], graphs=False) for key in ended}
        for reply in replace(VISIT, label="", limits=LIMITS).run(box, alone):
            uses = reply.answer.uses if reply.answer else reply.failure(_CHARACTERS)
            yield _read(reply.key, requests[reply.key], Visit(ended[reply.key], uses), reused=reply.outcome.reused)


def _read(block: str, request: BlockUses, answer: Visit, *, reused: bool = False) -> BlockVisit:
    graphs, uses = answer.graphs, answer.uses
    return BlockVisit(
        block,
        request,
        graphs=None if isinstance(graphs, Failure) else graphs.to_json(),
        no_graphs=one_line(graphs.error, _CHARACTERS) if isinstance(graphs, Failure) else None,
        uses=None if isinstance(uses, Failure) else uses,
        no_uses=one_line(uses.error, _CHARACTERS) if isinstance(uses, Failure) else None,
        reused=reused,
    )


def _texts(call: WorkingCall) -> CallTexts:
    return CallTexts(args=call.args, kwargs=call.kwargs)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
