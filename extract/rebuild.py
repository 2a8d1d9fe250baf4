"""Blocks written anew from their graphs: each traced, rebuilt and proved in the sandbox."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.blocks import find_block, read_needs, read_rows
from extract.results import at_least
from extract.runtime import GIVEN, runtime_for
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox

ENTRY = "extract.probing.rebuilding:rebuild_block"
LIMITS = Limits(wall_seconds=240, cpu_seconds=120, memory_bytes=8 * 2**30)
COLUMNS = (
    "block",
    "name",
    "source",
    "path",
    "start_line",
    "end_line",
    "level",
    "license",
    "code",
    "requires",
    "arguments",
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of one block.

    Args:
        step: how far it came: `defined`, `traced`, `rebuilt` or `equal`; `failed` where the job ended otherwise.
        cause: why no further, in one line.
    """

    block: str
    step: str
    cause: str
    found: Mapping[str, Any]


def rebuild_rows(
    folder: Path, rows: Sequence[Row], *, jobs: int | None = None, unsafe: bool = False
) -> Iterator[Outcomes]:
    """Rebuild blocks of an extraction folder that ran forward.

    Args: rows: of its table, with `COLUMNS`.
    Raises: UserError if the folder is damaged, or no sandbox can be had.
    """
    needs = read_needs(folder)
    origins = {name: list(source.get("packages", ())) for name, source in needs.get("sources", {}).items()}
    codes = {row["name"]: row for row in read_rows(folder, ("name", "code", "block")) if row["code"]}
    runtime = runtime_for(sorted({need for row in rows for need in row["requires"]}), known=())
    options: dict[str, Any] = {} if jobs is None else {"workers": jobs}
    with CachedSandbox(
        readable=list(runtime.folders), unsafe=unsafe, preload=META_PRELOAD, entries=[ENTRY], attempts=1, **options
    ) as box:
        work = (_job(row, origins, codes, [str(one) for one in runtime.folders]) for row in rows)
        for outcome in box.run(work):
            yield _told(outcome)


def _job(row: Row, origins: Mapping[str, list[str]], codes: Mapping[str, Row], folders: list[str]) -> Job:
    arguments = json.loads(row["arguments"])
    payload: dict[str, object] = {
        "code": row["code"],
        "name": row["name"],
        "origin": [package for package in origins.get(row["source"], ()) if package not in GIVEN],
        "folders": folders,
        "arguments": arguments,
        "companions": [{"name": name, "code": codes[name]["code"]} for name in _names(arguments) if name in codes],
        "header": header_of(row),
    }
    return Job(row["block"], ENTRY, payload, LIMITS)


def _names(arguments: Mapping[str, Any]) -> list[str]:
    """The names that the arguments' expressions use."""
    found: set[str] = set()
    for call in (arguments["init"], arguments["forward"]):
        for text in (*call["args"], *call["kwargs"].values()):
            found |= {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    return sorted(found)


def header_of(row: Row) -> str:
    """The lines at the top of a rebuilt file: what it is, where the computation is from, under which licence."""
    return "\n".join(
        [
            f"{row['name']}, written from what {row['block']} computes.",
            "",
            f"Origin:  {row['path']}, lines {row['start_line']}-{row['end_line']}",
            f"Licence: {row['license']}",
        ]
    )


def _told(outcome: Outcome) -> Outcomes:
    if outcome.status is not Status.OK:
        error = " ".join((outcome.error or outcome.status.value).split())[:300]
        return Outcomes(outcome.key, "failed", f"{outcome.status.value}: {error}", {})
    value = outcome.value
    assert isinstance(value, dict)
    return Outcomes(outcome.key, value["step"], value["cause"], value)


def rebuild_to(
    folder: Path, wanted: str, out: Path, *, force: bool = False, unsafe: bool = False, as_json: bool = False
) -> str:
    """Rebuild one block into a file.

    Args: wanted: what names a block for `lemur show`, or a file with its spec.
    Returns: a line that says what was compared; the same as JSON.
    Raises: UserError if there is no such block, it does not run forward, or what was written is not equal: then no
        file is written.
    """
    if out.exists() and not force:
        raise UserError(f"{out}: exists; choose another name, or replace it with --force")
    row = find_block(folder, _block_of(wanted)).row.model_dump()
    if row["arguments"] is None or not at_least(row["level"], "forward"):
        raise UserError(f"{row['block']}: does not run forward ({row['level']}): there is nothing to rebuild it from")
    (told,) = rebuild_rows(folder, [row], jobs=1, unsafe=unsafe)
    if told.step != "equal":
        what = "what was written is not equal to it" if told.step == "rebuilt" else "cannot be rebuilt"
        raise UserError(f"{told.block}: {what}: {told.cause}")
    found = told.found
    write_text(out, found["source"])
    if as_json:
        return json.dumps({"block": told.block, "file": str(out), **found}, sort_keys=True)
    how = "in every bit" if found["bits"] else f"within {found['error']:.0e} of the largest value"
    sizes = "at sizes that were never traced" if found["free"] else "at the sizes of its arguments alone"
    lines = len(found["source"].splitlines())
    return f"{out}: {lines} lines; outputs, gradients and buffers are equal {how}, {sizes}"


def _block_of(wanted: str) -> str:
    """The block that a file's spec is of, where a file is named."""
    path = Path(wanted)
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        return wanted
    try:
        first = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        return str(json.loads(first)["block"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise UserError(f"{wanted}: holds no spec ({type(error).__name__}); give a line of specs.jsonl") from error
