"""The blocks of an extraction folder, with lookup by the name that a recipe uses."""

import difflib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.folders.formats import EXTRACTION
from manifests.folders.reading import CHECK_ERRORS, describe, read_text
from manifests.folders.tables import read_table
from manifests.provenance import REQUIREMENTS, TABLE, read_parts
from manifests.provenance.licenses import combine_licenses
from manifests.records import Block, Spec

_SPECS = "specs.jsonl"
_UNREAD = frozenset({"code", "lean_code", "observed", "resolutions"})
#: Columns of a block's row: of the full form, and the matching one of the minimized form.
_FORMS = {"code_sha256": "lean_sha256", "n_lines": "lean_lines", "requires": "lean_requires", "license": "lean_license"}
_NEAR = 5
_SHOWN = 8


@dataclass(frozen=True)
class SlotLibrary:
    """The blocks of one extraction folder by id, as plain rows; records are built on request."""

    folder: Path
    rows: dict[str, Json]
    facts: dict[str, Json]
    full_facts: dict[str, Json]  # of blocks with a minimized form: the values of the full form

    def block(self, block: str) -> Block:
        """Return the record of an id with its code, without the fields in `_UNREAD`.

        If the block has a minimized form, code, requirements, license and digest are of that form. The license covers
        all code in it, which may come from several sources.
        """
        form = "lean_code" if block in self.full_facts else "code"
        return Block.model_validate(self.rows[block] | {"code": self._codes[form][self._places[block]].as_py()})

    def full_block(self, block: str) -> Block | None:
        """Return the full form of a block that has a minimized one; None for other blocks and for unpublished forms."""
        if block not in self.full_facts:
            return None
        code = self._codes["code"][self._places[block]].as_py()  # absent if its license forbids publication
        if code is None:
            return None
        return Block.model_validate(self.rows[block] | self.full_facts[block] | {"code": code})

    def spec(self, block: str) -> Spec:
        """Return the source-free spec of an id in `facts`."""
        return Spec.model_validate(self.facts[block])

    def find(self, use: str) -> Block | None:
        """Return the block with this id, or the only one whose id ends with it: a bare or dotted name, without version.

        Raises: UserError if several blocks match.
        """
        if use in self.rows:
            return self.block(use)
        ids = sorted(self._ends.get(use, ()))
        if len(ids) > 1:
            shown = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
            raise UserError(f"{self.folder.name}: {len(ids)} blocks are named {use!r}: {shown}; use one of these ids")
        return self.block(ids[0]) if ids else None

    def near(self, use: str) -> list[str]:
        """Return the ids of blocks with similar names."""
        bare = use.rpartition("::")[2].rpartition(".")[2]
        by_name: dict[str, list[str]] = {}
        for block, row in self.rows.items():
            by_name.setdefault(row["name"], []).append(block)
        names = difflib.get_close_matches(bare, sorted(by_name), _NEAR, 0.6)
        return [block for name in names for block in sorted(by_name[name])][:_NEAR]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {block: index for index, block in enumerate(self.rows)}

    @cached_property
    def _codes(self) -> pa.Table:
        with EXTRACTION.reading(self.folder):
            return read_table([self.folder / TABLE], Block, ["code", "lean_code"])

    @cached_property
    def _ends(self) -> dict[str, list[str]]:
        """The blocks by each name with which a recipe can choose them."""
        ends: dict[str, list[str]] = {}
        for block, row in self.rows.items():
            parts, source = row["qualname"].split("."), row["source"]
            for end in (".".join(parts[start:]) for start in range(len(parts))):
                for name in {end, f"{source.partition('@')[0]}::{end}", f"{source}::{end}"}:
                    ends.setdefault(name, []).append(block)
        return ends


def open_library(folder: Path) -> SlotLibrary:
    """Open the blocks of an extraction folder; they are read again only if its files change.

    Raises: UserError if it is not an extraction folder, or its records cannot be read.
    """
    times = []
    for name in (TABLE, _SPECS, REQUIREMENTS):
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder}: no {name}; pass a folder written by `lemur extract --out DIR`")
        times.append(path.stat().st_mtime_ns)
    return _read(folder.resolve(), tuple(times))


@lru_cache(maxsize=2)
def _read(folder: Path, _times: tuple[int, ...]) -> SlotLibrary:
    columns = [name for name in Block.model_fields if name not in _UNREAD]
    parts = read_parts(folder)
    try:
        rows = {row["block"]: row for row in read_table([folder / TABLE], Block, columns).to_pylist()}
        for block in parts.block_sources.keys() & rows.keys():
            rows[block]["license"] = combine_licenses(parts.licenses(block, rows[block]["license"]))
        full = _prefer_minimized(folder, rows)
        lines = read_text(folder / _SPECS).splitlines()
        facts = {spec["block"]: spec for spec in map(json.loads, lines)}
        library = SlotLibrary(folder, rows, facts, full)
        if rows:
            library.block(next(iter(rows)))
        if facts:
            library.spec(next(iter(facts)))
    except CHECK_ERRORS as error:
        raise UserError(f"{folder.name}: its records cannot be read: {describe(error)}; extract it again") from error
    return library


def _prefer_minimized(folder: Path, rows: dict[str, Json]) -> dict[str, Json]:
    """Replace values in the rows with those of the minimized form, if there is one. Returns: the original values."""
    has_minimized = read_table([folder / TABLE], Block, ["lean_code"])["lean_code"].is_valid().to_pylist()
    full = {}
    for (block, row), has in zip(rows.items(), has_minimized, strict=True):
        if has:
            full[block] = {name: row[name] for name in _FORMS}
            row |= {name: row[minimized] for name, minimized in _FORMS.items()}
    return full
