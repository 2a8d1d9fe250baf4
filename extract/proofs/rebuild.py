"""Rebuild blocks from their specs alone: generate the code, trace it, and prove it in the sandbox."""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

from pydantic import ValidationError

from extract.arguments.messages import CallsToRun, CompanionCode, SpecRebuild
from extract.model.blocks import find_block, read_blocks
from extract.proofs.runtime import PROVIDED, releases_of, runtime_for
from extract.proofs.validate import BlockWithOriginal
from extract.resolve.index import FactsIndex
from extract.specs.algorithm import graphs_in_spec
from extract.specs.make import read_spec
from lemur_core.files.atomic import check_new_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.sandbox import Limits
from lemur_core.sandbox.stage import Retries, SandboxOptions, SandboxStage, open_sandbox
from manifests.folders.formats import EXTRACTION
from manifests.folders.manifest import read_manifest
from manifests.provenance.parts import read_requirements
from manifests.records import Spec, first_fault

_MAX_CHARACTERS = 300  # of the reason for a failure
_ONE_IN = 10  # blocks: a proof shows that the writer is right, not the block
_COLUMNS = ("block", "name", "source", "code", "requires", "arguments")


@dataclass(frozen=True, slots=True)
class RebuildAnswer:
    """The guest's answer. `source` is present from `written` on; an `equal` answer has all fields except the reasons.

    Args:
        step: the last step reached: `read` (the spec), `written`, `traced` (the generated code has the spec's graph)
            or `equal` (to the original).
        cause: why it stopped there.
        source: the generated code. free: whether it accepts other sizes.
        error: the largest difference of values. bits: whether all bits are equal.
        shapes: of all inputs, for each call that was compared: the recorded one, and one further where a size is free.
        sizes_fail: the error of the size formulas, if only the code for the original sizes is right.
        no_original: why the original cannot be built.
    """

    step: Literal["read", "written", "traced", "equal"]
    cause: str
    source: str | None = None
    free: bool | None = None
    same_graph: bool | None = None
    error: float | None = None
    bits: bool | None = None
    shapes: list[list[list[int]]] = field(default_factory=list)
    sizes_fail: str | None = None
    no_original: str | None = None


#: CPU time and memory are the limits that matter, so that a busy machine changes no result; a job that reaches
#: one would reach it again.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=60, memory_bytes=4 * 2**30)
REBUILD = SandboxStage[RebuildAnswer](
    "extract.proofs.rebuild_guest:rebuild_block", RebuildAnswer, LIMITS, Retries.NONE, "rebuild"
)


@dataclass(frozen=True, slots=True)
class RebuildOutcome:
    """The outcome for one block: the last step reached and why it stopped there, in one line.

    If the job itself failed, the step is `failed`, and the answer adds nothing.
    """

    block: str
    step: Literal["read", "written", "traced", "equal", "failed"]
    cause: str
    answer: RebuildAnswer

    @property
    def rebuilds(self) -> Literal[True] | str:
        """The value of `rebuilds` in a spec."""
        return True if self.step == "equal" else self.cause

    @property
    def kind(self) -> str:
        """The category of the cause."""
        if self.step == "read":
            return "no public operation" if "operation" in self.cause else "a value that no graph holds"
        kinds = {"failed": "ended in the sandbox", "written": "not equal", "traced": "no original to compare with"}
        return kinds.get(self.step, self.step)


def is_sampled(block: str) -> bool:
    """Return whether a block is in the sample that is rebuilt in every run: one in ten, by its id alone."""
    return int(hashlib.sha256(block.encode()).hexdigest()[:8], 16) % _ONE_IN == 0


def count_rewritten(rewritten: Sequence[RebuildOutcome]) -> dict[str, int]:
    """Count the blocks that were written, that are equal, equal in every bit, compared at further sizes, and so on."""
    answers = [item.answer for item in rewritten]
    equal = [answer for answer in answers if answer.step == "equal"]
    return {
        "specs": len(rewritten),
        "written": sum(answer.source is not None for answer in answers),
        "equal": len(equal),
        "in_every_bit": sum(bool(answer.bits) for answer in equal),
        "other_sizes": sum(len(answer.shapes) > 1 for answer in equal),
        "same_graph": sum(bool(answer.same_graph) for answer in equal),
    }


@dataclass(frozen=True, slots=True)
class RebuildJob:
    """A spec to rebuild a block from, and the original if available.

    Args:
        stored: its graphs, as returned by `extract.specs.algorithm.store_graphs`.
        graph: the graph identity in the spec.
        about: name, path, start_line, end_line and license, for the header of the file.
    """

    block: str
    stored: Mapping[str, Any]
    graph: str
    about: Mapping[str, Any]
    pair: BlockWithOriginal | None = None


def rebuild_all(
    specs: Iterable[RebuildJob],
    index: FactsIndex | None = None,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[RebuildOutcome]:
    """Rebuild blocks from their specs and prove them; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    runtime = sandbox.get("runtime", ())
    with open_sandbox(index, [REBUILD], sandbox) as box:
        for reply in REBUILD.run(box, {spec.block: _make_request(spec, runtime) for spec in specs}):
            if reply.answer is None:
                cause = reply.failure(_MAX_CHARACTERS).error
                yield RebuildOutcome(reply.key, "failed", cause, RebuildAnswer("read", cause))
            else:
                cause = " ".join(reply.answer.cause.split())[:_MAX_CHARACTERS]
                yield RebuildOutcome(reply.key, reply.answer.step, cause, reply.answer)


def _make_request(spec: RebuildJob, runtime: Sequence[Path]) -> SpecRebuild:
    original = None
    if spec.pair is not None:
        # Only what a folder states, too, so that a block from its source has the same cached answer.
        companions = [{"name": companion["name"], "code": companion["code"]} for companion in spec.pair.companions]
        stated = {"origin": sorted(spec.pair.origin), "companions": companions}
        original = asdict(spec.pair.run(runtime)) | stated
    about = spec.about
    header = (
        f"{about['name']}, written from what {spec.block} computes.\n\n"
        f"Origin:  {about['path']}, lines {about['start_line']}-{about['end_line']}\nLicence: {about['license']}"
    )
    return SpecRebuild(about["name"], header, spec.graph, spec.stored, original)


# --- from a folder ----------------------------------------------------------------------------------------------------


def rebuild_rows(
    folder: Path, specs: Sequence[Spec], *, jobs: int = 2, unsafe: bool = False
) -> Iterator[RebuildOutcome]:
    """Rebuild blocks of an extraction folder from their specs, and compare them with the originals in it.

    Args: specs: specs with `algorithm`.
    Raises: UserError if the folder is damaged, or no sandbox is available.
    """
    with EXTRACTION.reading(folder):
        origins = {name: source.packages for name, source in read_requirements(folder).sources.items()}
    rows = {row.block: row for row in read_blocks(folder, _COLUMNS) if row.code}
    codes = {row.name: row.code or "" for row in rows.values()}
    wanted = [rows[spec.block] for spec in specs if spec.block in rows]
    with releases_of(read_manifest(folder).parameters.get("as_of")):
        runtime = runtime_for(sorted({need for row in wanted for need in row.requires}))

    def make_job(spec: Spec) -> RebuildJob:
        row = rows.get(spec.block)
        if row is None or row.arguments is None:
            return _make_job(spec, None)
        arguments = json.loads(row.arguments)
        companions = [CompanionCode(name=name, code=codes[name]) for name in _list_names(arguments) if name in codes]
        origin = tuple(package for package in origins.get(row.source, ()) if package not in PROVIDED)
        code = row.code or ""
        pair = BlockWithOriginal(row.block, row.name, code, "", origin, (), arguments, companions=tuple(companions))
        return _make_job(spec, pair)

    yield from rebuild_all(map(make_job, specs), jobs=jobs, runtime=runtime.folders, unsafe=unsafe)


def _make_job(spec: Spec, pair: BlockWithOriginal | None) -> RebuildJob:
    assert spec.algorithm is not None
    return RebuildJob(spec.block, graphs_in_spec(spec.algorithm), spec.graph or "", spec.model_dump(), pair)


def _list_names(arguments: CallsToRun) -> list[str]:
    """Return the names in the expressions of the arguments."""
    calls = arguments["init"], arguments["forward"]
    texts = [text for call in calls for text in (*call["args"], *call["kwargs"].values())]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text, mode="eval")))
    return sorted({node.id for node in nodes if isinstance(node, ast.Name)})


def rebuild_to(
    folder: Path | None, wanted: str, out: Path, *, force: bool = False, unsafe: bool = False, as_json: bool = False
) -> str:
    """Rebuild one block into a file.

    Args:
        folder: an extraction with the original, and with the spec unless `wanted` is a file.
        wanted: a block as named for `lemur show`, or a file with its spec.

    Returns: one line that describes the comparison, or its facts as JSON.
    Raises: UserError if there is no such block, its spec has no graph, or the proof fails; then no file is written.
    """
    # Checked first, because the proof below takes a minute.
    check_new_file(out, force=force)
    spec = _find_spec(folder, wanted)
    if folder is None:
        (outcome,) = rebuild_all([_make_job(spec, None)], jobs=1, unsafe=unsafe)
    else:
        (outcome,) = rebuild_rows(folder, [spec], jobs=1, unsafe=unsafe)
    if outcome.step not in ("equal", "traced"):
        what = "the generated code is not equal to it" if outcome.step == "written" else "cannot be rebuilt"
        raise UserError(f"{outcome.block}: {what}: {outcome.cause}")
    answer = outcome.answer
    assert answer.source is not None
    write_text(out, answer.source)
    if as_json:
        facts = {name: value for name, value in asdict(answer).items() if value is not None}
        return json.dumps({"block": outcome.block, "file": str(out), **facts}, sort_keys=True)
    lines = len(answer.source.splitlines())
    if outcome.step == "traced":
        return f"{out}: {lines} lines, which compute the graph of the spec; not proven: no original here"
    how = "in every bit" if answer.bits else f"within {answer.error:.0e} of the largest value"
    return f"{out}: {lines} lines; outputs, gradients and buffers are equal {how} for inputs of {list_shapes(answer)}"


def list_shapes(answer: RebuildAnswer) -> str:
    """Return the input sizes that were compared: `2×8×20×24, 2×8 and of 3×8×31×37, 3×8`."""
    calls = (", ".join("×".join(map(str, shape)) or "one number" for shape in call) for call in answer.shapes)
    return " and of ".join(call or "no tensor" for call in calls)


def _find_spec(folder: Path | None, wanted: str) -> Spec:
    path = Path(wanted)
    if path.suffix in (".json", ".jsonl") and path.is_file():
        spec = _read_spec_file(path)
        if spec.algorithm is None:
            raise UserError(f"{spec.block}: its spec has no algorithm; choose another block")
        return spec
    if folder is None:
        raise UserError(f"{wanted}: not a file with a spec; give one, or name a block and its folder with --in DIR")
    block = find_block(folder, wanted).row.block
    stored = read_spec(folder, block)
    if stored is None or stored.algorithm is None:
        raise UserError(f"{block}: there is no spec with its algorithm in this folder; choose another block")
    return stored


def _read_spec_file(path: Path) -> Spec:
    """Return the spec in a JSON file, or the first one of a JSON Lines file."""
    check_plain(path)
    try:
        text = path.read_text(encoding="utf-8")
        first = text if path.suffix == ".json" else next(line for line in text.splitlines() if line.strip())
        return Spec.model_validate_json(first)
    except (OSError, ValueError, StopIteration) as error:
        why = f": {first_fault(error)}" if isinstance(error, ValidationError) else f" ({type(error).__name__})"
        raise UserError(f"{path}: contains no spec{why}; give a line of specs.jsonl") from error
