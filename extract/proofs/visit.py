"""One visit of each block that runs, in the sandbox: its graphs, and what every known call executes and returns."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Unpack

from extract.arguments.messages import BlockUses, CallsToRun
from extract.specs.make import WorkingCall
from lemur_core.describe.facts import count_tensors
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Failure, Limits
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox

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
        Sized.from_json(self.to_json())
        count_tensors(self.returns)

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
class Watched:
    """The executed parts of a file."""

    lines: frozenset[int]  # that ran
    # Functions that were called, by first line and name; `used`: those called after the file was loaded.
    entered: frozenset[tuple[int, str]]
    used: frozenset[tuple[int, str]]


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
        return CallsToRun(init=self.init.as_texts(), forward=self.forward.as_texts())


@dataclass(frozen=True, slots=True)
class Uses:
    """Every known call of a block: the one of the search, then further ones. Args: sizes: of its further inputs."""

    cases: tuple[UsedCase, ...]
    sizes: list[list[list[int]]]
    signature: Signed
    watched: Watched

    def list_sets(self, *, running: bool = False) -> list[CallsToRun]:
        """Return the further arguments, for which both forms must do the same. Args: running: in eval mode."""
        return [call.as_texts() for call in self.cases[1:] if call.eval is not None or not running]

    def describe_calls(self) -> list[dict[str, Any]]:
        """Return all known calls, as `KnownCall` records."""
        return [
            {"init": case.init.text(), "forward": case.forward.text(), "inputs": dict(case.inputs)}
            | {"eval": case.eval, "train": case.train}
            for case in self.cases
        ]

    def count_statements(self, code: str, name: str) -> tuple[int, int] | None:
        """Return how many statements of the class's own methods ran, and how many they have.

        Only methods that were called count, without the constructor. A statement is known by the line of its start.
        """
        own = next((n for n in ast.parse(code).body if getattr(n, "name", "") == name), None)
        entered, lines = {name for _, name in self.watched.used}, self.watched.lines
        ran = whole = 0
        for method in ast.iter_child_nodes(own) if own is not None else ():
            if isinstance(method, ast.FunctionDef) and method.name in entered - {"__init__"}:
                inside = (node for node in ast.walk(method) if isinstance(node, ast.stmt) and node is not method)
                starts = {node.lineno for node in inside if not _is_text(node)}
                whole += len(starts)
                ran += len(lines & starts)
        return (ran, whole) if whole else None


@dataclass(frozen=True, slots=True)
class Visit:
    """The answer of the guest. Either part may fail without the other."""

    graphs: BlockGraphs | Failure
    uses: Uses | Failure

    def __post_init__(self) -> None:
        """Shorten the errors to one line: foreign code determines their text."""
        for name in ("graphs", "uses"):
            if isinstance(part := getattr(self, name), Failure):
                object.__setattr__(self, name, Failure(one_line(part.error, _CHARACTERS)))


#: CPU time and memory are the limits that matter, so that a busy machine changes no result; a job that reaches one
#: would reach it again.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=60, memory_bytes=4 * 2**30)
VISIT = SandboxStage[Visit](
    "extract.proofs.visit_guest:visit_block",
    Visit,
    replace(LIMITS, cpu_seconds=120),
    retries=False,
    label="runs and graphs",
)
SIGN = SandboxStage[Signed | Failure](
    "extract.proofs.visit_guest:sign_results", Signed | Failure, LIMITS, retries=False
)
TRACE = SandboxStage[BlockGraphs | Failure](
    "extract.proofs.trace_guest:trace_block", BlockGraphs | Failure, LIMITS, retries=False
)


def visit_all(
    requests: Mapping[str, BlockUses], store: Store | None, **sandbox: Unpack[SandboxOptions]
) -> Iterator[tuple[str, Visit]]:
    """Visit blocks that run, by key; outcomes are cached by content. Raises: UserError if no sandbox is available."""
    with open_sandbox(store, [VISIT], sandbox) as box:
        ended: dict[str, Failure] = {}
        for reply in VISIT.run(box, requests):
            if reply.answer is None:
                ended[reply.key] = reply.failure(_CHARACTERS)
            else:
                yield reply.key, reply.answer
        # Those that ended their process, mostly while their graphs were recorded, are visited without these.
        alone = {key: replace(requests[key], graphs=False) for key in ended}
        for reply in replace(VISIT, label="", limits=LIMITS).run(box, alone):
            uses = reply.answer.uses if reply.answer else reply.failure(_CHARACTERS)
            yield reply.key, Visit(ended[reply.key], uses)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
