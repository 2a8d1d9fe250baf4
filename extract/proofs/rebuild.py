"""Rebuild blocks from their specs alone: generate the code, trace it, and prove it in the sandbox."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from extract.model.blocks import damaged, find_block, read_blocks, read_needs
from extract.proofs.runtime import PROVIDED, runtime_for
from extract.proofs.validate import Pair, payload_of
from extract.resolve.index import Index
from extract.specs.algorithm import stored_in
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from manifests.provenance import SPECS
from manifests.records import Block, Spec, first_fault

ENTRY = "extract.proofs.rebuild_guest:rebuild_block"
#: CPU time and memory are the limits that matter, so that a busy machine changes no result.
LIMITS = Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=4 * 2**30)
_MAX_CHARACTERS = 300  # of the reason for a failure
_COLUMNS = ("block", "name", "source", "code", "requires", "arguments")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome for one block.

    Args:
        step: the last step reached: `read`, `written`, `traced` or `equal`; `failed` if the job itself failed.
        cause: why it stopped there, in one line.
        found: further answers of `extract.proofs.rebuild_guest.rebuild_block`.
    """

    block: str
    step: str
    cause: str
    found: Mapping[str, Any]

    @property
    def rebuilds(self) -> Literal[True] | str:
        """The value of `rebuilds` in a spec."""
        return True if self.step == "equal" else self.cause

    @property
    def kind(self) -> str:
        """The category of the cause."""
        if self.step == "read":
            return "an operation without public form" if "operation" in self.cause else "what no graph holds"
        kinds = {
            "failed": "ended in the sandbox",
            "written": "not equal",
            "traced": "its original cannot be built here",
        }
        return kinds.get(self.step, self.step)


def count_rewritten(found: Sequence[Rewritten]) -> dict[str, int]:
    """Count the blocks that were written, and those that are equal, bit-identical, proven at other sizes, and so on."""
    equal = [rewritten.found for rewritten in found if rewritten.step == "equal"]
    return {
        "specs": len(found),
        "written": sum("source" in rewritten.found for rewritten in found),
        "equal": len(equal),
        "in_every_bit": sum(rewritten["bits"] for rewritten in equal),
        "other_sizes": sum(rewritten["proved_free"] for rewritten in equal),
        "same_graph": sum(rewritten["same_graph"] for rewritten in equal),
    }


@dataclass(frozen=True, slots=True)
class Original:
    """A spec to rebuild a block from, with the original if available.

    Args:
        stored: its graphs, as returned by `extract.specs.algorithm.stored_of`.
        graph: the graph identity in the spec.
        about: name, path, start_line, end_line and license, for the header of the file.
    """

    block: str
    stored: Mapping[str, Any]
    graph: str
    about: Mapping[str, Any]
    pair: Pair | None = None


def rebuild_all(
    specs: Iterable[Original],
    index: Index | None = None,
    *,
    jobs: int | None = None,
    runtime: Sequence[Path] = (),
    unsafe: bool = False,
) -> Iterator[Rewritten]:
    """Rebuild blocks from their specs and prove them; outcomes are cached by content.

    Args: runtime: folders with the requirements of self-contained files.
    Raises: UserError if no sandbox is available.
    """
    options: dict[str, Any] = {} if jobs is None else {"workers": jobs}
    options |= {"readable": list(runtime), "unsafe": unsafe, "preload": META_PRELOAD, "entries": [ENTRY]}
    with CachedSandbox(index, **options) as box:
        for outcome in box.run_within([_job(spec, runtime) for spec in specs]):
            yield _read_outcome(outcome)


def _job(spec: Original, runtime: Sequence[Path]) -> Job:
    payload: dict[str, object] = {
        "name": spec.about["name"],
        "header": format_header(spec.block, spec.about),
        "graph": spec.graph,
        "stored": spec.stored,
    }
    if spec.pair is not None:
        pair_payload = payload_of(spec.pair, runtime)
        pair_payload["origin"] = sorted(spec.pair.origin)
        pair_payload["companions"] = [
            {"name": companion["name"], "code": companion["code"]} for companion in spec.pair.companions
        ]
        payload |= pair_payload
    return Job(spec.block, ENTRY, payload, LIMITS)


def format_header(block: str, about: Mapping[str, Any]) -> str:
    """Return the header of a rebuilt file: its name, the origin of the computation, and the license."""
    return "\n".join(
        [
            f"{about['name']}, written from what {block} computes.",
            "",
            f"Origin:  {about['path']}, lines {about['start_line']}-{about['end_line']}",
            f"Licence: {about['license']}",
        ]
    )


def _read_outcome(outcome: Outcome) -> Rewritten:
    if outcome.status is not Status.OK:
        error = f"{outcome.status.value}: {outcome.error or ''}"
        return Rewritten(outcome.key, "failed", " ".join(error.split())[:_MAX_CHARACTERS], {})
    value = outcome.value
    assert isinstance(value, dict)
    return Rewritten(outcome.key, value["step"], " ".join(value["cause"].split())[:_MAX_CHARACTERS], value)


# --- from a folder ----------------------------------------------------------------------------------------------------


def rebuild_rows(
    folder: Path, specs: Sequence[Spec], *, jobs: int | None = None, unsafe: bool = False
) -> Iterator[Rewritten]:
    """Rebuild blocks of an extraction folder from their specs, and compare them with the originals in it.

    Args: specs: specs with `algorithm`.
    Raises: UserError if the folder is damaged, or no sandbox is available.
    """
    needs = read_needs(folder)
    origins = {name: list(source.get("packages", ())) for name, source in needs.get("sources", {}).items()}
    rows = {row.block: row for row in read_blocks(folder, _COLUMNS) if row.code}
    codes = {row.name: row.code or "" for row in rows.values()}
    wanted = [rows[spec.block] for spec in specs if spec.block in rows]
    runtime = runtime_for(sorted({need for row in wanted for need in row.requires}), known=())

    def original(spec: Spec) -> Original:
        row = rows.get(spec.block)
        return _original(spec, None if row is None or row.arguments is None else _pair(row, origins, codes))

    yield from rebuild_all(map(original, specs), jobs=jobs, runtime=runtime.folders, unsafe=unsafe)


def _original(spec: Spec, pair: Pair | None) -> Original:
    assert spec.algorithm is not None
    return Original(spec.block, stored_in(spec.algorithm), spec.graph or "", spec.model_dump(), pair)


def _pair(row: Block, origins: Mapping[str, list[str]], codes: Mapping[str, str]) -> Pair:
    arguments = json.loads(row.arguments or "")
    named = [name for name in _names(arguments) if name in codes]
    companions = tuple({"name": name, "code": codes[name]} for name in named)
    origin = tuple(package for package in origins.get(row.source, ()) if package not in PROVIDED)
    return Pair(row.block, row.name, row.code or "", "", origin, (), arguments, companions=companions)


def _names(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names in the expressions of the arguments."""
    names: set[str] = set()
    for call in (arguments["init"], arguments["forward"]):
        for text in (*call["args"], *call["kwargs"].values()):
            names |= {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    return sorted(names)


def specs_in(folder: Path, blocks: Iterable[str] | None = None) -> list[Spec]:
    """Return the specs of a folder that contain an algorithm, optionally of some blocks only.

    Raises: UserError if the folder is damaged.
    """
    wanted = None if blocks is None else {json.dumps(block, ensure_ascii=False) for block in blocks}
    try:
        with (folder / SPECS).open(encoding="utf-8") as lines:
            matching = (line for line in lines if wanted is None or any(name in line for name in wanted))
            specs = [Spec.model_validate_json(line) for line in matching]
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error
    known = None if blocks is None else set(blocks)
    return [spec for spec in specs if spec.algorithm is not None and (known is None or spec.block in known)]


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
    if out.exists() and not force:
        raise UserError(f"{out}: exists; choose another name, or replace it with --force")
    spec = _find_spec(folder, wanted)
    if folder is None:
        (outcome,) = rebuild_all([_original(spec, None)], jobs=1, unsafe=unsafe)
    else:
        (outcome,) = rebuild_rows(folder, [spec], jobs=1, unsafe=unsafe)
    if outcome.step not in ("equal", "traced"):
        what = "the generated code is not equal to it" if outcome.step == "written" else "cannot be rebuilt"
        raise UserError(f"{outcome.block}: {what}: {outcome.cause}")
    answer = outcome.found
    write_text(out, answer["source"])
    if as_json:
        return json.dumps({"block": outcome.block, "file": str(out), **answer}, sort_keys=True)
    lines = len(answer["source"].splitlines())
    if outcome.step == "traced":
        return f"{out}: {lines} lines, which compute the graph of the spec; not proven: no original here"
    how = "in every bit" if answer["bits"] else f"within {answer['error']:.0e} of the largest value"
    sizes = "at sizes that were never traced" if answer["proved_free"] else "at the sizes of its arguments alone"
    return f"{out}: {lines} lines; outputs, gradients and buffers are equal {how}, {sizes}"


def _find_spec(folder: Path | None, wanted: str) -> Spec:
    path = Path(wanted)
    if path.suffix in (".json", ".jsonl") and path.is_file():
        spec = _read_spec_file(path)
    elif folder is None:
        raise UserError(f"{wanted}: not a file with a spec; give one, or name a block and its folder with --in DIR")
    else:
        block = find_block(folder, wanted).row.block
        specs = specs_in(folder, [block])
        if not specs:
            raise UserError(f"{block}: there is no spec with its algorithm in this folder; choose another block")
        spec = specs[0]
    if spec.algorithm is None:
        raise UserError(f"{spec.block}: its spec has no algorithm; choose another block")
    return spec


def _read_spec_file(path: Path) -> Spec:
    """Return the spec in a JSON file, or the first one of a JSON Lines file."""
    try:
        text = path.read_text(encoding="utf-8")
        first = text if path.suffix == ".json" else next(line for line in text.splitlines() if line.strip())
        return Spec.model_validate_json(first)
    except ValidationError as error:
        raise UserError(f"{path}: contains no spec: {first_fault(error)}; give a line of specs.jsonl") from error
    except (OSError, ValueError, StopIteration) as error:
        raise UserError(f"{path}: contains no spec ({type(error).__name__}); give a line of specs.jsonl") from error
