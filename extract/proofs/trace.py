"""Trace the blocks that run, in the sandbox, with the arguments from their validation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Unpack

from extract.proofs.validate import BlockWithOriginal
from extract.resolve.index import FactsIndex
from lemur_core.graphs.serialization import restore
from lemur_core.sandbox import Failure, Limits
from lemur_core.sandbox.stage import Reply, Retries, SandboxOptions, SandboxStage, open_sandbox

_MAX_CHARACTERS = 300  # of the error


@dataclass(frozen=True, slots=True)
class BlockGraphs:
    """The answer of the guest, which goes into the spec as it is."""

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
    sizes: Mapping[str, list[int | float]]
    fixed: str | None
    eval: Mapping[str, object]
    train: Mapping[str, object] | None

    def __post_init__(self) -> None:
        """Raise ValueError if a graph cannot be read."""
        # The answer is foreign: what cannot be read is refused here, not where it is used.
        sized = restore(self.to_json())
        for graph in (sized.evaluated, sized.trained):
            if graph is not None:
                graph.check_references()

    def to_json(self) -> dict[str, Any]:
        """Return its facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


#: CPU time and memory are the limits that matter, so that a busy machine changes no result; a job that reaches
#: one would reach it again.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=60, memory_bytes=4 * 2**30)
TRACE = SandboxStage[BlockGraphs | Failure](
    "extract.proofs.trace_guest:trace_block", BlockGraphs | Failure, LIMITS, Retries.NONE, "trace"
)


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """The trace of one block: the answer of `trace_block` as JSON, or the error."""

    block: str
    answer: Mapping[str, Any] | None
    error: str | None = None
    reused: bool = False


def trace_all(
    pairs: Sequence[BlockWithOriginal],
    index: FactsIndex,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[BlockTrace]:
    """Trace blocks; outcomes are cached by content. Raises: UserError if no sandbox is available."""
    runtime = sandbox.get("runtime", ())
    with open_sandbox(index, [TRACE], sandbox) as box:
        for reply in TRACE.run(box, {pair.block: pair.run(runtime) for pair in pairs}):
            yield _read_reply(reply)


def _read_reply(reply: Reply[BlockGraphs | Failure]) -> BlockTrace:
    answer = reply.answer or reply.failure(_MAX_CHARACTERS)
    if isinstance(answer, Failure):
        error = " ".join(answer.error.split())[:_MAX_CHARACTERS]
        return BlockTrace(reply.key, None, error, reply.outcome.reused)
    return BlockTrace(reply.key, answer.to_json(), None, reply.outcome.reused)
