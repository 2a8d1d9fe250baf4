"""Provenance of the code in closed files and in assembled networks, and whether it may be redistributed."""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemur_core.files.errors import UserError
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.records import Line, first_fault

#: The files of an extraction folder with its provenance.
TABLE, SPECS, REQUIREMENTS = "blocks.parquet", "specs.jsonl", "required_repos.json"
NAMES = "nn_block_names.json"  # of a run that only discovers: a list for `--names`
#: Its code folders: closed files, and their minimized forms.
FULL, MINIMIZED = "blocks/", "lean/"

#: The marker of a requirement that only an import suggests; installers skip a requirement with such a marker.
GUESS = 'extra == "guess"'

#: The end of an error that quotes a line of a block's file, and its replacement where that line is not shown.
QUOTED_LINE, LINE = r" \(line (\d+): (?s:.*)$", r" (line \1)"


def is_guess(requirement: str) -> bool:
    """Return whether a requirement of a block is only suggested by the name of an import.

    Args: requirement: as in column `requires` of the table, PEP 508.
    Returns: True if nothing that was installed says which distribution provides the import.
    """
    return requirement.endswith(GUESS)


def get_minimized_path(file: str) -> str:
    """Return the path of the minimized form of a block from that of its closed file.

    Args: file: as in column `file` of the table: `blocks/NAME.py`.
    Returns: a path relative to the folder, whether there is such a form or not.
    """
    return MINIMIZED + file.removeprefix(FULL)


def find_blocking_licenses(licenses: set[str]) -> list[str]:
    """Return the licenses that are unknown or not permissive: code under one may not be redistributed.

    Args: licenses: SPDX expressions.
    Returns: the expressions, sorted; empty if everything may be redistributed.
    """
    return sorted(name for name in licenses if not is_permissive(name))


def without_source(error: str) -> str:
    """Remove the source line that an error of a block quotes, but keep its line number.

    Args: error: the error in the block's row.
    Returns: a text that may be published where the code may not.
    """
    return re.sub(QUOTED_LINE, LINE, error)


#: The beginning of the comment above the block of a slot.
SLOT_HEADING = "Slot "


def provenance_lines(slot: str, name: str, facts: Mapping[str, object]) -> tuple[str, ...]:
    """Return the provenance of the block of a slot, as comment lines that `find_inlined_blocks` reads.

    Args: slot, name: the names of the slot and of the block that fills it. facts: fields of the block's row: `block`,
        `path`, `start_line`, `end_line`, `swhid`, `license`, `code_sha256`.
    Returns: lines without `#`.
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
    """Return the comment lines at the top of a file, unchanged.

    Args: code: the text of the file.
    Returns: the lines with their `#`, up to the first that is not a comment; a blank line ends them.
    """
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
    """One block in a network's file, and its provenance."""

    slot: str
    block: str
    path: str
    lines: tuple[int, int]
    swhid: str
    license: str
    code_sha256: str  # of the extracted file
    line: int  # of the comment, in the network's file


def find_inlined_blocks(code: str) -> list[Inlined]:
    """Return the blocks that a network's file names; none for a file that was not assembled.

    Args: code: the text of the file, whose comments `provenance_lines` wrote.
    Returns: the blocks in the order of the file.
    """
    return [
        Inlined(
            **{name: match[name] for name in ("slot", "block", "path", "swhid", "license")},
            lines=(int(match["first"]), int(match["last"])),
            code_sha256=match["sha256"],
            line=code.count("\n", 0, match.start()) + 1,
        )
        for match in _COMMENT.finditer(code)
    ]


# `required_repos.json` of an extraction: the sources with code in each block, and if they permit redistribution.


@dataclass(frozen=True, slots=True)
class Parts:
    """The sources of every block with code, and the licenses of the sources."""

    block_sources: Mapping[str, tuple[str, ...]]  # block -> sources, its own first
    source_licenses: Mapping[str, str]

    def licenses(self, block: str, license_: str) -> set[str]:
        """Return the license in a block's row, and those of all sources with code in the block.

        Includes `NOASSERTION` if the sources are unknown.
        """
        sources = self.block_sources.get(block)
        if sources is None:
            return {license_, NOASSERTION}
        return {license_, *(self.source_licenses.get(name, NOASSERTION) for name in sources)}


def read_parts(folder: Path) -> Parts:
    """Read `required_repos.json` of an extraction folder.

    Args: folder: an extraction folder.
    Returns: sources by block, and their licenses; NOASSERTION for a source that states none.
    Raises: UserError if it cannot be read.
    """
    path = folder / REQUIREMENTS
    try:
        needs = read_requirements(folder)
        if missing := {"sources", "blocks"} - needs.model_fields_set:
            raise ValueError(f"states no {min(missing)}")
    except (OSError, ValueError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path}: cannot be read: {reason}; extract it again") from error
    licenses = {name: source.license or NOASSERTION for name, source in needs.sources.items()}
    return Parts({entry.block: tuple(entry.files) for entry in needs.blocks}, licenses)


class BlockNeeds(BaseModel):
    """The requirements of the file of one block, and the files of each source with code in it."""

    model_config = ConfigDict(extra="allow")
    block: Line
    requires: list[str] = []
    origin: str | None = None
    swhid: str | None = None
    files: dict[str, list[str]] = Field(alias="made_from")


class RequiredSource(BaseModel):
    """A source of blocks."""

    model_config = ConfigDict(extra="allow")
    version: str | None = None
    origin: str | None = None
    digest: str | None = None
    swhid: str | None = None
    license: Line | None = None
    packages: list[str] = []


class Requirements(BaseModel):
    """The contents of `required_repos.json`."""

    model_config = ConfigDict(extra="allow")
    sources: dict[Line, RequiredSource] = {}
    files: dict[str, dict[str, str]] = {}
    blocks: list[BlockNeeds] = []


def read_requirements(folder: Path) -> Requirements:
    """Read `required_repos.json`.

    Args: folder: an extraction folder.
    Returns: its contents.
    Raises: OSError, or ValueError if it is not such a file.
    """
    path = folder / REQUIREMENTS
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "is missing, or not a file", str(path))
    return Requirements.model_validate_json(path.read_bytes())


def find_blocked_blocks(folder: Path, parts: Parts) -> dict[str, tuple[str, str]]:
    """Return source and license of each block whose code may not be redistributed, by block.

    A block contains code of several sources, so all of their licenses must permit it.

    Args: folder, parts: an extraction folder, and its `read_parts`.
    Returns: source and the licenses that forbid it, joined with AND, by block id; blocks without code are left out.
    """
    import pyarrow.parquet as pq  # half a second, which the constants above need not

    blocked = {}
    # `pq.read_table` would import pandas.
    table = pq.ParquetFile(folder / TABLE).read(["block", "source", "license", "code_sha256"])
    for row in table.to_pylist():
        if row["code_sha256"] is None:
            continue
        if wrong := find_blocking_licenses(parts.licenses(row["block"], row["license"])):
            blocked[row["block"]] = (row["source"], " AND ".join(wrong))
    return blocked
