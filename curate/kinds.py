"""The kind of folder that `lemur curate` writes: how it is made again, its laws, and what is shown of its networks."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

from curate.folder.explain import explain
from curate.folder.page import snapshot_page
from curate.folder.recompute import compute_again
from curate.folder.verify import check_snapshot
from curate.run.derive import derive
from manifests.conversations.verify import find_conversation
from manifests.folders.checks import Check
from manifests.folders.kinds import SNAPSHOT, FolderLink, FoundItem, verify_folder
from manifests.folders.tables import read_table
from manifests.records import ChatRow, Decision

_CHAT = ("id", "task", "variant", "nn", "record", "license")


def find(folder: Path, wanted: str) -> FoundItem:
    """Find a network by its name or the beginning of its id, or a conversation by its id.

    Raises: UserError, with near names, if nothing or several things match.
    """
    with SNAPSHOT.reading(folder):
        chat = find_conversation(folder, wanted, ChatRow, _CHAT)
    found = explain(folder, chat["record"] if chat else wanted)
    if chat is None:
        return found
    facts = {"task": chat["task"], "variant": chat["variant"], "license": chat["license"], "about": chat["nn"]}
    return found.behind(FolderLink("chat row", chat["id"], facts))


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Find the network whose code has this digest."""
    with SNAPSHOT.reading(folder):
        ids = read_table([folder / "decisions.parquet"], Decision, ["id"])["id"]
    return explain(folder, sha256) if pc.index(ids, sha256).as_py() >= 0 else None


KIND = replace(
    SNAPSHOT,
    derive=derive,
    laws=(check_snapshot,),
    find=find,
    find_code=find_code,
    page=snapshot_page,
)
KINDS = (KIND,)


def verify(folder: Path, *, jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a snapshot. Args: recompute: how many networks are traced and measured again in the sandbox."""
    further = partial(compute_again, folder, recompute, jobs) if recompute else None
    return verify_folder(KIND, folder, jobs=jobs, further=further)
