"""`specs.jsonl`: the specs of a folder, one a line, in the order of its table; and what can be wrong with a line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from extract.spec import SPECS
from extract.spec.make import design_text, line_of, make_spec
from extract.spec.neutral import repeated, source_of
from lemur_core.files.progress import progress
from lemur_core.similarity.text import tokens_of
from manifests.records import Block, Spec

#: What a spec states as the table does.
SHARED: tuple[str, ...] = ("block", "name", "category", "level", "fidelity", "source", "path", "start_line", "end_line")
SHARED += ("swhid", "license", "code_sha256", "file")


def write_specs(path: Path, rows: Sequence[Block]) -> int:
    """Write the specs of the blocks that have code. Returns: how many."""
    with_code = [row for row in rows if row.code is not None]
    with path.open("w", encoding="utf-8", newline="\n") as file, progress("specs", len(with_code), "blocks") as advance:
        for row in with_code:
            file.write(line_of(make_spec(row)) + "\n")
            advance(1)
    return len(with_code)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file of specs, without their ends. Broken UTF-8 is replaced, and no longer JSON of a spec."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def line_faults(line: str | None, row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the line of a block. Args: row: of the table, with its code."""
    if line is None:
        yield f"has no line in {SPECS}"
        return
    try:
        facts = json.loads(line)
        spec = Spec.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        yield f"{SPECS}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        return
    except (ValueError, RecursionError) as error:
        yield f"{SPECS}: not JSON: {error}"
        return
    if spec.block != row["block"]:
        yield f"{SPECS}: the line in its place is of {spec.block}"
        return
    wrong = [name for name in SHARED if name in row and getattr(spec, name) != row[name]]
    if wrong:
        yield f"{SPECS}: {', '.join(wrong)} not as in the table"
    if line_of(spec) != line:
        yield f"{SPECS}: its line is not written with sorted keys and all fields"
    run = repeated(design_text(facts), tokens_of(source_of(row["code"])))
    if run is not None:
        yield f"{SPECS}: repeats its source: {' '.join(run)}"
