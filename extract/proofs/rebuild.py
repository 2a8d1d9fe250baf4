"""Rebuild blocks from their specs alone: write the code, and prove it in the sandbox."""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from pydantic import ValidationError

from extract.arguments.messages import BlockRun, CallsToRun, CompanionCode, SpecRebuild
from extract.model.blocks import find_block, read_blocks
from extract.proofs.runtime import PROVIDED, releases_of, runtime_for
from extract.resolve.index import FactsIndex
from extract.specs.make import graphs_in_spec, read_spec
from lemur_core.files.atomic import check_new_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import plural
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Limits
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import read_manifest
from manifests.provenance.parts import read_requirements
from manifests.records import Spec, first_fault

_MAX_CHARACTERS = 300  # of the reason for a failure
_ONE_IN = 10  # blocks: a proof shows that the writer is right, not the block
_COLUMNS = ("block", "name", "source", "code", "requires", "arguments")


@dataclass(frozen=True, slots=True)
class RebuildAnswer:
    """The guest's answer.

    Args:
        source: the generated code, if it could be written.
        proven: it equals the original in every bit on every recorded case, and at one further size.
        error: otherwise the case that refutes it, what cannot be written, or how the process ended.
        no_original: why the original cannot be built, so that nothing is proven or refuted.
        shapes: of all inputs, for each call that was compared.
        varied: the dimensions of the inputs that differed between these, as `x[0]`.
    """

    source: str | None = None
    proven: bool = False
    error: str = ""
    no_original: str | None = None
    shapes: list[list[list[int]]] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)

    @property
    def rebuilds(self) -> bool | None:
        """The value of `rebuilds` in a spec; None if there was nothing to compare with."""
        return False if self.error else self.proven or None

    @property
    def facts(self) -> dict[str, Any]:
        """The outcome as a spec states it."""
        return {
            "rebuilds": self.rebuilds,
            "rebuild_error": self.error or None,
            "varied": tuple(self.varied if self.proven else ()),
        }

    @property
    def sizes_fail(self) -> str | None:
        """The case that refutes it, if it is equal at the sizes that were traced: formulas of sizes may be wrong."""
        return self.error if self.error and self.shapes else None

    @property
    def kind(self) -> str:
        """The category of the outcome."""
        if self.source is None:
            return "no module"
        return "not equal" if self.error else "equal" if self.proven else "no original to compare with"


#: CPU time and memory are the limits that matter, so that a busy machine changes no result; a job that reaches
#: one would reach it again.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=120, memory_bytes=4 * 2**30)
REBUILD = SandboxStage[RebuildAnswer](
    "extract.proofs.rebuild_guest:rebuild_block", RebuildAnswer, LIMITS, retries=False, label="rebuilt from specs"
)


def is_sampled(block: str) -> bool:
    """Return whether a block is in the sample that is rebuilt in every run: one in ten, by its id alone."""
    return int(hashlib.sha256(block.encode()).hexdigest()[:8], 16) % _ONE_IN == 0


def count_rebuilt(answers: Sequence[RebuildAnswer]) -> dict[str, int]:
    """Count the blocks that were tried, written and proven, and proven at further sizes."""
    proven = [answer for answer in answers if answer.proven]
    return {
        "specs": len(answers),
        "written": sum(answer.source is not None for answer in answers),
        "equal": len(proven),
        "other_sizes": sum(bool(answer.varied) for answer in proven),
    }


def rebuild_all(
    requests: Mapping[str, SpecRebuild],
    index: FactsIndex | None = None,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[tuple[str, RebuildAnswer]]:
    """Rebuild blocks from their specs and prove them; outcomes are cached by content. Yields: each block's answer.

    Raises: UserError if no sandbox is available.
    """
    with open_sandbox(index, [REBUILD], sandbox) as box:
        for reply in REBUILD.run(box, requests):
            answer = reply.answer or RebuildAnswer(error=reply.failure(_MAX_CHARACTERS).error)
            yield reply.key, replace(answer, error=" ".join(answer.error.split())[:_MAX_CHARACTERS])


def make_request(
    block: str, about: Mapping[str, Any], stored: Mapping[str, Any], original: BlockRun | None
) -> SpecRebuild:
    """Return the request for one block.

    Args:
        about: name, path, start_line, end_line and license, for the header of the file.
        stored: its graphs, as returned by `extract.specs.make.store_graphs`.
        original: the block to compare with, if available.
    """
    header = (
        f"{about['name']}, written from what {block} computes.\n\n"
        f"Origin:  {about['path']}, lines {about['start_line']}-{about['end_line']}\nLicence: {about['license']}"
    )
    if original is None:
        return SpecRebuild(about["name"], header, stored, None)
    # Only what a folder states, too, so that a block from its source has the same cached answer.
    companions = [{"name": companion["name"], "code": companion["code"]} for companion in original.companions]
    stated = {"origin": sorted(original.origin), "companions": companions}
    return SpecRebuild(about["name"], header, stored, asdict(original) | stated)


# --- from a folder ----------------------------------------------------------------------------------------------------


def rebuild_block(folder: Path | None, spec: Spec, *, unsafe: bool = False) -> RebuildAnswer:
    """Rebuild a block from its spec, and compare it with the original.

    Args: folder: an extraction folder with the original, if there is one. spec: with `algorithm`.
    Raises: UserError if it cannot be rebuilt, the folder is damaged, or no sandbox is available.
    """
    original, runtime = None, tuple[Path, ...]()
    if folder is not None:
        with EXTRACTION.reading(folder):
            origins = {name: source.packages for name, source in read_requirements(folder).sources.items()}
        rows = {row.block: row for row in read_blocks(folder, _COLUMNS) if row.code and row.arguments}
        if (row := rows.get(spec.block)) is not None:
            with releases_of(read_manifest(folder).parameters.get("as_of")):
                runtime = tuple(runtime_for(sorted(row.requires)).folders)
            arguments, codes = json.loads(row.arguments or ""), {row.name: row.code or "" for row in rows.values()}
            companions = [
                CompanionCode(name=name, code=codes[name]) for name in _list_names(arguments) if name in codes
            ]
            origin = [package for package in origins.get(row.source, ()) if package not in PROVIDED]
            original = BlockRun(row.code or "", row.name, origin, list(map(str, runtime)), arguments, companions)
    assert spec.algorithm is not None
    request = make_request(spec.block, spec.model_dump(), graphs_in_spec(spec.algorithm), original)
    ((_, answer),) = rebuild_all({spec.block: request}, jobs=1, runtime=runtime, unsafe=unsafe)
    if answer.error or answer.source is None:
        raise UserError(f"{spec.block}: cannot be rebuilt: {answer.error}")
    return answer


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
    answer = rebuild_block(folder, spec, unsafe=unsafe)
    write_text(out, answer.source or "")
    if as_json:
        facts = {"rebuilds": answer.rebuilds, "varied": answer.varied, "shapes": answer.shapes, "source": answer.source}
        return json.dumps({"block": spec.block, "file": str(out), **facts}, sort_keys=True)
    lines = len((answer.source or "").splitlines())
    if not answer.proven:
        return f"{out}: {lines} lines; not proven: {answer.no_original or 'no original here'}"
    calls = plural(len(answer.shapes), "call")
    varied = f"varied: {', '.join(answer.varied)}" if answer.varied else "no size varied"
    return f"{out}: {lines} lines; outputs, gradients and buffers of {calls} are equal in every bit; {varied}"


def list_shapes(answer: RebuildAnswer) -> str:
    """Return the input sizes that were compared: `2×8×20×24, 2×8 and at 3×8×31×37, 3×8`."""
    calls = (", ".join("×".join(map(str, shape)) or "one number" for shape in call) for call in answer.shapes)
    return " and at ".join(call or "no tensor" for call in calls)


def _find_spec(folder: Path | None, wanted: str) -> Spec:
    """Return the spec of a block, or in a file. Raises: UserError if it has no algorithm, or not the graph it names."""
    path = Path(wanted)
    if path.suffix in (".json", ".jsonl") and path.is_file():
        spec: Spec | None = _read_spec_file(path)
    elif folder is None:
        raise UserError(f"{wanted}: not a file with a spec; give one, or name a block and its folder with --in DIR")
    else:
        spec = read_spec(folder, find_block(folder, wanted).block)
    if spec is None or spec.algorithm is None:
        raise UserError(f"{wanted}: has no graph; see `lemur show` for the reason; choose another block")
    try:
        identity = compute_identities(Sized.from_json(graphs_in_spec(spec.algorithm)).evaluate())["graph"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{spec.block}: the graph of its spec cannot be read: {error}; extract it again") from error
    if identity != spec.graph:
        raise UserError(f"{spec.block}: the graph of its spec is another than it names; extract it again")
    return spec


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
