"""The kind of folder that `lemur curate` writes: how it is made again, its laws, and what is shown of its networks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

from curate.folder.explain import SnapshotTables, draw_graph, explain
from curate.folder.page import snapshot_page
from curate.folder.recompute import compute_again
from curate.folder.verify import check_snapshot
from curate.run.derive import derive
from lemur_core.files import Json
from manifests.conversations.verify import find_conversation
from manifests.folders.checks import Check
from manifests.folders.kinds import SNAPSHOT, FolderLink, FoundItem, ListedItem, lines_text, verify_folder
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.tables import read_table
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.swhid import content_swhid
from manifests.records import ChatRow, Decision, LemurRecord

_CHAT = ("id", "task", "variant", "nn", "record", "license")
#: Where the codes are in a wheel of nn-dataset, one file per network; must match `curate.sources.lemur`.
_CODES = "ab/nn/nn"
#: The files read from an extraction folder, and the names of its rows; must match `curate.sources.folders`.
_EXTRACTED, _BLOCK = (f"/{TABLE}", f"/{REQUIREMENTS}"), "block-"


def find(folder: Path, wanted: str) -> FoundItem:
    """Find a network by its name or the beginning of its id, or a conversation by its id.

    Raises: UserError, with near names, if nothing or several things match.
    """
    with SNAPSHOT.reading(folder):
        chat = find_conversation(folder, wanted, ChatRow, _CHAT)
        found = _find_network(folder, chat["record"] if chat else wanted)
    if chat is None:
        return found
    facts = {"task": chat["task"], "variant": chat["variant"], "license": chat["license"], "about": chat["nn"]}
    link = FolderLink("chat row", chat["id"], facts)
    return replace(found, links=(link, *found.links), lines=[*link.lines(), "", *found.lines])


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Find the network whose code has this digest."""
    with SNAPSHOT.reading(folder):
        ids = read_table([folder / "decisions.parquet"], Decision, ["id"])["id"]
        return _find_network(folder, sha256) if pc.index(ids, sha256).as_py() >= 0 else None


def _find_network(folder: Path, wanted: str) -> FoundItem:
    explanation, manifest = explain(folder, wanted), read_manifest(folder)
    facts = explanation.facts
    digest, canonical, record = facts["id"], facts["canonical"], facts["record"]
    code = SnapshotTables(folder).code(digest) if digest is not None else None
    removed = f"removed at stage {facts['stage']}: {facts['reason']}"
    link_facts = {
        "id": digest,
        "outcome": f"kept, split {record['split']}" if record else removed,
        "stands_for_it": f"{canonical['name']} {canonical['id']}" if canonical else None,
        "row": facts["row"],
        "also_named": [other["name"] for other in facts["other_names"]],
    }
    links = (
        FolderLink("record", facts["name"] or "(none)", link_facts),
        *_origin(manifest, facts["name"], facts["row"], code),
    )

    def draw(path: Path) -> str:
        return draw_graph(explanation, path)

    return FoundItem(links, () if digest is None else (digest,), explanation.lines, facts, draw=draw)


def _origin(manifest: Manifest, name: str, row: int, code: str | None) -> list[FolderLink]:
    """Return where the row was read, as far as the manifest and its name say: the input, and the place in it."""
    content: Json = {}
    if code is not None:
        content = {"lines": lines_text(1, max(1, len(code.splitlines()))), "swhid": content_swhid(code.encode())}
    tables = [item for item in manifest.inputs if item.name.endswith(_EXTRACTED)]
    others = [item for item in manifest.inputs if item not in tables]
    if tables and name.startswith(_BLOCK):
        links = [FolderLink("input", item.name, {"sha256": item.sha256}) for item in tables]
        return [*links, FolderLink("block", name.removeprefix(_BLOCK), content)]
    licence = manifest.details.get("license") or manifest.details.get("chat", {}).get("license")
    released = bool(others) and all(item.name.startswith("nn_dataset-") for item in others)
    what = "release" if released else "input"
    links = [FolderLink(what, item.name, {"sha256": item.sha256, "license": licence}) for item in others]
    location = f"{_CODES}/{name}.py" if released else f"row {row:,} of {manifest.parameters.get('source')}"
    return [*links, FolderLink("source", location, content)]


def list_records(folder: Path) -> Iterator[ListedItem]:
    """Yield the kept records."""
    columns = ["nn", "id", "split", "family", "task", "dataset", "best_accuracy", "score"]
    for row in SNAPSHOT.rows(folder, LemurRecord, columns):
        facts: Json = {"id": row.id, "split": row.split, "family": row.family, "task": row.task, "dataset": row.dataset}
        yield ListedItem((row.nn, row.id), facts | {"best_accuracy": row.best_accuracy, "score": row.score})


KIND = replace(
    SNAPSHOT,
    derive=derive,
    laws=(check_snapshot,),
    items=list_records,
    find=find,
    find_code=find_code,
    page=snapshot_page,
)
KINDS = (KIND,)


def verify(folder: Path, *, jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a snapshot. Args: recompute: how many networks are traced and measured again in the sandbox."""
    further = partial(compute_again, folder, recompute, jobs) if recompute else None
    return verify_folder(KIND, folder, jobs=jobs, further=further)
