"""A block of an extraction folder, or a conversation about one, traced to the lines of the release that it is from."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from extract.blocks import damaged, find_block
from extract.verify import verify
from manifests.conversations.verify import find_conversation
from manifests.kinds import FolderKind, Link, Traced, lines_text
from manifests.manifest import read_manifest
from manifests.provenance import REQUIREMENTS, TABLE

_CHAT = ("id", "task", "block", "others")


def find(folder: Path, wanted: str) -> Traced:
    """The conversation of an id, or the block that an id, a qualified or a bare name stands for, as in `lemur show`.

    Raises: UserError if nothing is called so, with near names, or several conversations are.
    """
    try:
        chat = find_conversation(folder, wanted, _CHAT)
    except (OSError, pa.ArrowException) as error:
        raise damaged(folder, error) from error
    if chat is None:
        return _block(folder, wanted)
    told = {"task": chat["task"], "about": [chat["block"], *chat["others"]]}
    return Traced((Link("chat row", chat["id"], told), *_block(folder, chat["block"]).links), ())


def _block(folder: Path, wanted: str) -> Traced:
    found = find_block(folder, wanted)
    row, entry, needs = found.row, found.needs or {}, _needs(folder)
    stated = {source["name"]: source for source in read_manifest(folder).details.get("sources", [])}
    sources = {**needs.get("sources", {}), **stated}
    block = {
        "level": row.level,
        "fidelity": row.fidelity,
        "code": row.code_sha256,
        "file": row.file,
        "licence": row.license,
        "others": list(found.others),
    }
    lines = {"lines": lines_text(row.start_line, row.end_line), "swhid": entry.get("swhid") or row.swhid}
    made_from: dict[str, list[str]] = entry.get("made_from", {})
    parts = [(source, path) for source, paths in made_from.items() for path in paths]
    links = [
        Link("block", row.block, block),
        _release(row.source, sources),
        Link("source", f"{row.source} {row.path}", lines),
        *(_release(source, sources) for source in made_from if source != row.source),
        *(
            Link("with", f"{source} {path}", {"swhid": needs.get("files", {}).get(source, {}).get(path)})
            for source, path in parts
            if (source, path) != (row.source, row.path)
        ),
    ]
    return Traced(tuple(links), ())


def find_code(folder: Path, sha256: str) -> Traced | None:
    """The block whose file has this digest."""
    try:
        table = pq.read_table(folder / TABLE, columns=["block", "code_sha256"])
        place = pc.index(table["code_sha256"], sha256).as_py()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise damaged(folder, error) from error
    return find(folder, table["block"][place].as_py()) if place >= 0 else None


def _release(name: str, sources: dict[str, dict[str, Any]]) -> Link:
    """A source as it was fetched; the digest is of its Python files."""
    known = sources.get(name, {})
    facts = {"version": known.get("version"), "origin": known.get("origin"), "sha256": known.get("digest")}
    return Link("release", name, {**facts, "swhid": known.get("swhid"), "licence": known.get("license")})


def _needs(folder: Path) -> dict[str, Any]:
    try:
        needs = json.loads((folder / REQUIREMENTS).read_text(encoding="utf-8"))
        if not isinstance(needs, dict):
            raise ValueError(f"{REQUIREMENTS} holds no object")
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error
    return needs


#: The folders that `lemur extract` writes.
KINDS = {"extraction": FolderKind(verify, find, find_code)}
