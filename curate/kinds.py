"""The kind of folder that `lemur curate` writes: how it is made again, its laws, and what is shown of its networks."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace, NetworkTracer
from curate.folder.explain import explain
from curate.folder.page import FACED
from curate.folder.verify import check_snapshot
from curate.run.derive import derive
from lemur_core.files import Json
from lemur_core.graphs.graph import FORM, TORCH, get_public
from manifests.conversations import find_conversation
from manifests.folders.kinds import SNAPSHOT, Check, FolderLink, FoundItem, check_faults, verify_folder
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.tables import read_table
from manifests.records import ChatRow, Decision, GraphRow, LemurRecord, NetworkRow

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


_IDENTITIES = ("graph", "graph_widths", "behavior")
_NAME = "networks computed again"


def compute_again(folder: Path, count: int, jobs: int | None) -> list[Check]:
    """Trace and measure some kept networks, and the networks that were removed as their duplicates.

    These are always the networks with the smallest ids. A removed code is run with the hyperparameters of its
    canonical, since the folder holds no others; if its graph differs with these, it is left out.

    Raises: UserError if no sandbox is available.
    """
    manifest = read_manifest(folder)
    removals: dict[str, list[str]] = {}
    for row in SNAPSHOT.rows(folder, Decision, ("id", "stage", "canonical")):
        if row.stage == "graph" and row.id and row.canonical:
            removals.setdefault(row.canonical, []).append(row.id)
    columns = ("id", "nn", "nn_code", "task", "dataset", "prm")
    records = {row.id: row for row in SNAPSHOT.rows(folder, LemurRecord, columns, ids=set(removals)) if row.nn_code}
    chosen = sorted(records)[:count]
    wanted = {removed for id_ in chosen for removed in removals[id_]}
    codes = {
        row.id: row.nn_code for row in SNAPSHOT.rows(folder, NetworkRow, ("id", "nn_code"), ids=wanted) if row.nn_code
    }
    stored = {
        row.id: row
        for row in SNAPSHOT.rows(folder, GraphRow, ("id", *_IDENTITIES, "torch", "form"), ids={*chosen, *codes})
    }
    if any((get_public(row.torch), row.form) != (TORCH, FORM) for row in stored.values()):
        return [Check(_NAME, ok=True, detail="not computed: the graphs were stored by another release")]
    facts: dict[str, Json] = {}
    for id_ in chosen:
        record = records[id_]
        about = {"nn": record.nn, "task": record.task, "dataset": record.dataset, "prm": record.prm}
        facts |= dict.fromkeys((id_, *(removed for removed in removals[id_] if removed in codes)), about)
    codes |= {id_: records[id_].nn_code for id_ in chosen}
    recomputed = _compute(facts, codes, manifest, jobs)
    wrong, pairs, left_out = [], 0, 0
    for id_ in chosen:
        new, old = recomputed[id_], stored[id_]
        # Numbers were only measured if another code of the whole corpus had weights of the same sizes.
        names = [name for name in _IDENTITIES if name != "behavior" or (old.behavior and new.behavior)]
        wrong += [
            f"{records[id_].nn}: {name} is not what it computes"
            for name in names
            if new.answer.get(name) != getattr(old, name)
        ]
        for other in removals[id_]:
            if other not in recomputed or recomputed[other].graph != stored[other].graph:
                left_out += 1
            elif new.agrees(recomputed[other]) != "same":
                wrong.append(f"{records[id_].nn}: {other[:12]}, removed for it, computes something else")
            else:
                pairs += 1
    detail = f"{len(chosen):,} kept networks, and {pairs:,} that were removed for them, compute what is stored"
    return [check_faults(_NAME, wrong, detail + (f"; {left_out:,} need other hyperparameters" if left_out else ""))]


def _compute(
    facts: Mapping[str, Json], codes: Mapping[str, str], manifest: Manifest, jobs: int | None
) -> dict[str, GraphTrace]:
    """Return the computations of networks, with measured numbers where their sizes leave them open."""
    ids = list(facts)
    numbered = {number: facts[id_] for number, id_ in enumerate(ids)}

    def get_code(number: int) -> str:
        return codes[ids[number]]

    runtime: Any = manifest.parameters.get("runtime") or ()
    namespace = manifest.parameters.get("namespace")
    with NetworkTracer(jobs=jobs, runtime=runtime, namespace=namespace) as tracer:
        traces = tracer.trace_records(numbered, get_code)
        traces = tracer.add_behaviors(
            traces, lambda numbers: {number: numbered[number] for number in numbers}, get_code
        )
    return {ids[number]: trace for number, trace in traces.items()}


KIND = replace(FACED, derive=derive, laws=(check_snapshot,), find=find, find_code=find_code)
KINDS = (KIND,)


def verify(folder: Path, *, jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a snapshot. Args: recompute: how many networks are traced and measured again in the sandbox."""
    further = partial(compute_again, folder, recompute, jobs) if recompute else None
    return verify_folder(KIND, folder, jobs=jobs, further=further)
