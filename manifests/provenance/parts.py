"""`required_repos.json` of an extraction: the sources with code in each block, and if they permit redistribution."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemur_core.files.errors import UserError
from manifests.provenance import REQUIREMENTS, TABLE, find_blocking_licenses
from manifests.provenance.licenses import NOASSERTION
from manifests.records import Line, first_fault


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
    blocked = {}
    # `pq.read_table` would import pandas.
    table = pq.ParquetFile(folder / TABLE).read(["block", "source", "license", "code_sha256"])
    for row in table.to_pylist():
        if row["code_sha256"] is None:
            continue
        if wrong := find_blocking_licenses(parts.licenses(row["block"], row["license"])):
            blocked[row["block"]] = (row["source"], " AND ".join(wrong))
    return blocked
