"""Whose code an extraction's closed files and an assembled network hold, and whether it may be passed on."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from manifests.provenance.licenses import NOASSERTION, is_permissive

#: The files of an extraction folder that say so.
TABLE, SPECS, REQUIREMENTS = "blocks.parquet", "specs.jsonl", "required_repos.json"
NAMES = "nn_block_names.json"  # of a run that only discovers: a list for `--names`
#: Its folders of code: closed files, and their lean forms.
FULL, LEAN = "blocks/", "lean/"

#: How an error ends that came from a line of a block's file, and what it ends with where that line is not shown.
QUOTED_LINE, LINE = r" \(line (\d+): (?s:.*)$", r" (line \1)"


def lean_path(file: str) -> str:
    """Where the lean form of a block lies, from where its closed file does."""
    return LEAN + file.removeprefix(FULL)


@dataclass(frozen=True, slots=True)
class Parts:
    """The sources of every block that has code, and the licences of the sources."""

    made_from: Mapping[str, tuple[str, ...]]  # block -> sources, its own first
    source_licenses: Mapping[str, str]

    def licenses(self, row: Mapping[str, Any]) -> set[str]:
        """The licence that a block's row states, and those of all sources that it holds code of.

        `NOASSERTION` is among them where nothing is said of its sources. Of the row, `block` and `license` are read.
        """
        sources = self.made_from.get(row["block"])
        if sources is None:
            return {row["license"], NOASSERTION}
        return {row["license"], *(self.source_licenses.get(name, NOASSERTION) for name in sources)}


def read_parts(folder: Path) -> Parts:
    """What `required_repos.json` of an extraction folder says.

    Raises: UserError if it cannot be read.
    """
    path = folder / REQUIREMENTS
    try:
        needs = json.loads(path.read_text(encoding="utf-8"))
        made_from = {entry["block"]: tuple(entry["made_from"]) for entry in needs["blocks"]}
        licenses = {name: str(source.get("license") or NOASSERTION) for name, source in needs["sources"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read: {error}; extract it again") from error
    return Parts(made_from, licenses)


def barred(licenses: set[str]) -> list[str]:
    """The licences among these that are unknown or not permissive: code under one is not passed on."""
    return sorted(name for name in licenses if not is_permissive(name))


def barred_blocks(folder: Path, parts: Parts) -> dict[str, tuple[str, str]]:
    """Source and licence of each block with code that may not be passed on, by block.

    A block holds code of every source that it is made from, so each of their licences must allow it.
    """
    found = {}
    import pyarrow.parquet as pq  # heavy; the names of files are asked for without it

    for row in pq.read_table(folder / TABLE, columns=["block", "source", "license", "code_sha256"]).to_pylist():
        if row["code_sha256"] is None:
            continue
        if wrong := barred(parts.licenses(row)):
            found[row["block"]] = (row["source"], " AND ".join(wrong))
    return found


def without_source(error: str) -> str:
    """An error of a block without the line of source that it quotes; the line's number stays."""
    return re.sub(QUOTED_LINE, LINE, error)


#: How the comment above the block of a slot begins.
SLOT_HEADING = "Slot "


def provenance_lines(slot: str, name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the block of a slot comes from, as lines of the comment that `inlined_blocks` reads.

    Args: facts: of the block's row: `block`, `path`, `start_line`, `end_line`, `swhid`, `license`, `code_sha256`.
    """
    return (
        f"{SLOT_HEADING}{slot}: {name}.",
        "",
        f"Block:   {facts['block']}",
        f"File:    {facts['path']}, lines {facts['start_line']}-{facts['end_line']}",
        f"SWHID:   {facts['swhid']}",
        f"Licence: {facts['license']}",
        f"SHA-256: {facts['code_sha256']} (of the extracted file)",
    )


def header_lines(code: str) -> list[str]:
    """The comment lines that a file begins with, as they stand there."""
    return list(takewhile(lambda line: line.startswith("#"), code.split("\n")))


#: As `provenance_lines` writes it.
_COMMENT = re.compile(
    r"^# Slot (?P<slot>\S+): .*\n"
    r"#\n"
    r"# Block:   (?P<block>.+)\n"
    r"# File:    (?P<path>.+), lines (?P<first>\d+)-(?P<last>\d+)\n"
    r"# SWHID:   (?P<swhid>.+)\n"
    r"# Licence: (?P<license>.+)\n"
    r"# SHA-256: (?P<sha256>[0-9a-f]{64}) ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Inlined:
    """One block in a network's file, and where it is from."""

    slot: str
    block: str
    path: str
    lines: tuple[int, int]
    swhid: str
    license: str
    code_sha256: str  # of the extracted file
    line: int  # of the comment, in the network's file


def inlined_blocks(code: str) -> list[Inlined]:
    """The blocks that a network's file names, in its order; none in a file that was not assembled."""
    return [
        Inlined(
            **{name: found[name] for name in ("slot", "block", "path", "swhid", "license")},
            lines=(int(found["first"]), int(found["last"])),
            code_sha256=found["sha256"],
            line=code.count("\n", 0, found.start()) + 1,
        )
        for found in _COMMENT.finditer(code)
    ]
