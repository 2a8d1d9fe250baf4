"""One network of a snapshot, or a conversation about one, traced to the file of the release that its code is from."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.folder.explain import Snapshot, explain, read_errors
from curate.folder.page import snapshot_page
from curate.folder.verify import verify
from curate.published.published import against_of
from manifests.conversations.verify import find_conversation
from manifests.folders.kinds import FolderKind, Link, Traced, lines_text
from manifests.folders.manifest import Manifest, read_manifest
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.swhid import content_swhid

_CHAT = ("id", "task", "variant", "nn", "record", "license")
#: Where the codes lie in a wheel of nn-dataset, a file for each network; as `curate.sources.lemur` reads them.
_CODES = "ab/nn/nn"
#: What is read of an extraction folder, and how the rows from one are named; as `curate.sources.folders` does it.
_EXTRACTED, _BLOCK = (f"/{TABLE}", f"/{REQUIREMENTS}"), "block-"


def find(folder: Path, wanted: str) -> Traced:
    """The network of a name or an id, as `lemur explain` finds it, or the conversation of an id.

    Raises: UserError if nothing, or several things are called so, with near names.
    """
    with read_errors(folder):
        chat = find_conversation(folder, wanted, _CHAT)
        links = _record(folder, chat["record"] if chat else wanted)
    if chat is None:
        return links
    told = {"task": chat["task"], "variant": chat["variant"], "licence": chat["license"], "about": chat["nn"]}
    return Traced((Link("chat row", chat["id"], told), *links.links), links.codes)


def find_code(folder: Path, sha256: str) -> Traced | None:
    """The network whose code has this digest."""
    with read_errors(folder):
        ids = pq.read_table(folder / "decisions.parquet", columns=["id"])["id"]
        return _record(folder, sha256) if pc.index(ids, sha256).as_py() >= 0 else None


def _record(folder: Path, wanted: str) -> Traced:
    facts = explain(folder, wanted, partial=True).facts
    digest: str | None = facts["id"]
    code = Snapshot(folder).code(digest) if digest is not None else None
    kept = f"kept, split {facts['record']['split']}" if facts["record"] else None
    stands, manifest = facts["canonical"], read_manifest(folder)
    told = {
        "id": digest,
        "outcome": kept or f"removed at stage {facts['stage']}: {facts['reason']}",
        "stands_for_it": f"{stands['name'] or 'a published record'} {stands['id']}" if stands else None,
        "row": facts["row"],
        "also_named": [other["name"] for other in facts["other_names"]],
    }
    links = (
        Link("record", facts["name"] or "(none)", told),
        *_origin(manifest, facts["name"], facts["row"], code),
    )
    codes = [digest, stands["id"] if stands and against_of(manifest) else None]  # a parent may hold both
    return Traced(links, tuple(dict.fromkeys(code for code in codes if code is not None)))


def _origin(manifest: Manifest, name: str, row: int, code: str | None) -> list[Link]:
    """Where the row was read, as far as the manifest and its name tell: the input, and the place in it."""
    content: dict[str, Any] = {}
    if code is not None:
        content = {"lines": lines_text(1, max(1, len(code.splitlines()))), "swhid": content_swhid(code.encode())}
    tables = [item for item in manifest.inputs if item.name.endswith(_EXTRACTED)]
    others = [item for item in manifest.inputs if item not in tables]
    if tables and name.startswith(_BLOCK):
        links = [Link("input", item.name, {"sha256": item.sha256}) for item in tables]
        return [*links, Link("block", name.removeprefix(_BLOCK), content)]
    licence = manifest.details.get("license") or manifest.details.get("chat", {}).get("license")
    released = bool(others) and all(item.name.startswith("nn_dataset-") for item in others)
    what = "release" if released else "input"
    links = [Link(what, item.name, {"sha256": item.sha256, "licence": licence}) for item in others]
    place = f"{_CODES}/{name}.py" if released else f"row {row:,} of {manifest.parameters.get('source')}"
    return [*links, Link("source", place, content)]


#: The folders that `lemur curate` writes.
KINDS = {"snapshot": FolderKind(verify, find, find_code, snapshot_page)}
