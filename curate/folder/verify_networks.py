"""Verify the tables of all networks and of measurements: decisions, splits, cost."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curate.compute.graphs import GraphTrace, NetworkTracer, get_computations
from curate.folder.networks import count_measurements
from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD
from lemur_core.describe.cost import count_multiply_adds, count_parameters
from lemur_core.files import Json
from lemur_core.graphs.graph import FORM, TORCH, Graph
from lemur_core.similarity.join import MAX_SETS, iterate_pairs, link_by_lsh
from manifests.folders.checks import Check, check_faults
from manifests.folders.formats import SNAPSHOT
from manifests.folders.manifest import Manifest
from manifests.folders.tables import iterate_rows
from manifests.records import Decision, GraphRow, LemurRecord, NetworkRow

Row = Mapping[str, Any]

_READ = tuple(name for name in NetworkRow.model_fields if name not in ("nn_code", "names"))
#: The columns that a record and its network share.
_SHARED = ("nn", "prefix", "family", "split", "graph", "graph_widths", "behavior", "score", "license")


def read_networks(folder: Path) -> list[Json]:
    """Return the rows of the table of networks without their codes."""
    return [row for path in SNAPSHOT.files(folder, "networks") for row in iterate_rows(path, _READ)]


def check_networks(
    folder: Path,
    networks: Sequence[Row],
    *,
    withheld: set[str],
    features: FeatureTable | None,
    code_of: Row,
) -> Check:
    """Check that the table holds each code once, as it was decided, and that no group crosses splits.

    Args:
        networks: from `read_networks`.
        withheld: ids of codes that were left out when the folder was published.
        features: of the codes, by `code_of`; None if codes are missing, so that near texts are not compared.
    """
    files = SNAPSHOT.files(folder, "records")
    records = {row["id"]: row for path in files for row in iterate_rows(path, ("id", *_SHARED))}
    by_id = {row["id"]: row for row in networks}
    wrong = [] if len(by_id) == len(networks) else ["an id occurs twice"]
    wrong += [f"{id_[:12]}: is not the SHA-256 of its code" for id_ in _list_wrong_codes(folder, withheld)]
    wrong += _compare_decisions(folder, by_id)
    for id_, record in records.items():
        row = by_id.get(id_, {})
        differing = [name for name in _SHARED if row.get(name) != record[name]]
        wrong += [f"{record['nn']}: {name} is not that of its record" for name in differing]
        wrong += [] if row.get("kept") else [f"{record['nn']}: a record that is not kept"]
    wrong += [f"{row['nn']}: kept, but no record" for row in networks if row["kept"] and row["id"] not in records]
    wrong += _check_cost(folder, by_id)
    wrong += _check_groups(networks)
    if features is not None:
        wrong += _check_leaks(networks, features, code_of)
    placed = [row for row in networks if row["split"] is not None]
    detail = (
        f"{len(networks):,} codes, {len({row['split_group'] for row in placed}):,} groups, none across splits;"
        f" {len(networks) - len(placed):,} in no split"
    )
    return check_faults("networks", wrong, detail)


def _list_wrong_codes(folder: Path, withheld: set[str]) -> Iterator[str]:
    for path in SNAPSHOT.files(folder, "networks"):
        for row in iterate_rows(path, ("id", "nn_code")):
            digest = hashlib.sha256(row["nn_code"].encode()).hexdigest()
            if digest != row["id"] and not (row["id"] in withheld and not row["nn_code"]):
                yield row["id"]


def _compare_decisions(folder: Path, by_id: Mapping[str, Row]) -> Iterator[str]:
    """Yield the codes whose row is missing, or does not say what was decided on one of its rows."""
    outcomes: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
    for row in iterate_rows(folder / "decisions.parquet", ("id", "nn", "stage", "canonical", "similarity")):
        if row["id"] is not None and row["stage"] != "invalid":
            outcomes[row["id"]].add((row["nn"], row["stage"], row["canonical"], row["similarity"]))
    for id_ in sorted(outcomes.keys() ^ by_id.keys()):
        yield f"{id_[:12]}: {'no row' if id_ in outcomes else 'no decision'} for this code"
    for id_ in outcomes.keys() & by_id.keys():
        own = by_id[id_]
        if (own["nn"], own["stage"], own["canonical"], own["similarity"]) not in outcomes[id_]:
            yield f"{own['nn']}: decided otherwise"


def _check_cost(folder: Path, by_id: Mapping[str, Row]) -> Iterator[str]:
    """Yield the codes whose parameters or multiply-adds are not those of their graph."""
    for path in SNAPSHOT.files(folder, "graphs"):
        for stored in iterate_rows(path, ("id", "eval")):
            if stored["id"] not in by_id or stored["eval"] is None:
                continue
            row = by_id[stored["id"]]
            graph = Graph.from_json(json.loads(stored["eval"]))
            if (row["parameters"], row["multiply_adds"]) != (count_parameters(graph), count_multiply_adds(graph)):
                yield f"{row['nn']}: parameters or multiply-adds are not those of its graph"
    for network in by_id.values():
        if (network["parameters"] is None) != (network["graph"] is None):
            yield f"{network['nn']}: parameters without a graph, or a graph without parameters"


def _check_groups(networks: Iterable[Row]) -> Iterator[str]:
    """Yield the groups that are in several splits, or not named by their smallest id."""
    members: defaultdict[str, list[Row]] = defaultdict(list)
    for row in networks:
        if (row["split"] is None) != (row["split_group"] is None):
            yield f"{row['nn']}: a split without a group, or a group without a split"
        if row["split_group"] is not None:
            members[row["split_group"]].append(row)
    for group, rows in members.items():
        if len({row["split"] for row in rows}) > 1 or min(row["id"] for row in rows)[:16] != group:
            yield f"group {group}: is in several splits, or has another name"


def _check_leaks(networks: Sequence[Row], features: FeatureTable, code_of: Row) -> Iterator[str]:
    """Yield the codes near to one of another group, and those without a group that are near to one split only."""
    codes = [code_of[row["id"]] for row in networks]
    place_of = {row["id"]: place for place, row in enumerate(networks)}
    traces = {place: GraphTrace(row) for place, row in enumerate(networks) if row["graph"] is not None}
    shared: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, code in enumerate(codes):
        shared["set", int(features.shingle_set[code])].append(place)
        shared["fingerprint", int(features.fingerprint[code])].append(place)
        if (widths := networks[place]["graph_widths"]) is not None:
            shared["widths", widths].append(place)
        if (canonical := place_of.get(networks[place]["canonical"])) is not None:
            shared["canonical", canonical, place] += [canonical, place]
    for place, name in get_computations(traces).items():
        shared["computation", name].append(place)
    sets = np.unique(features.shingle_set[np.array(codes, np.int64)])
    near: defaultdict[int, list[int]] = defaultdict(list)
    exact = len(sets) <= MAX_SETS
    joined = iterate_pairs(features, sets, LEAK_THRESHOLD) if exact else [link_by_lsh(features, sets, LEAK_THRESHOLD)]
    for a, b, *_ in joined:
        for one, other in zip(sets[a].tolist(), sets[b].tolist(), strict=True):
            near[one].append(other)
            near[other].append(one)
    groups_of = {key: {networks[place]["split_group"] for place in places} for key, places in shared.items()}
    splits_of = {key: {networks[place]["split"] for place in places} for key, places in shared.items()}
    by_place: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
    for key, places in shared.items():
        for place in places:
            by_place[place].append(key)
    for place, row in enumerate(networks):
        own = by_place[place]
        keys = [*own, *(("set", other) for other in near[int(features.shingle_set[codes[place]])])]
        if row["split_group"] is not None:
            if any(groups_of[key] - {None, row["split_group"]} for key in keys):
                yield f"{row['nn']}: near to a code of another group"
        elif exact and len({split for key in keys for split in splits_of[key]} - {None}) < 2:
            yield f"{row['nn']}: in no split, but near to one split only"


def check_measurements(folder: Path, decisions: Iterable[Json], stated: Json) -> Check:
    """Check that the measurements are those that the manifest counts, each of the one code that has its name."""
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for decision in decisions:
        ids[decision["nn"]] |= {decision["id"]} - {None}
    columns = ("id", "nn", "kind", "facts")
    rows = [row for path in SNAPSHOT.files(folder, "measurements") for row in iterate_rows(path, columns)]
    wrong = [
        f"{row['nn']}: measured of another code, or of none"
        for row in rows
        if row["id"] != (next(iter(ids[row["nn"]])) if len(ids.get(row["nn"], ())) == 1 else None)
    ]
    wrong += [f"{row['nn']}: its facts are no object" for row in rows if not isinstance(json.loads(row["facts"]), dict)]
    counts = count_measurements(rows)
    wrong += [] if counts == stated.get("measurements") else ["counts are not those of the rows"]
    return check_faults("measurements", wrong, f"{counts['rows']:,} of {counts['codes']:,} codes, as counted")


# Verify some networks of a snapshot by tracing and measuring them again in the sandbox.

_IDENTITIES = ("graph", "graph_widths", "behavior")
_NAME = "networks computed again"


def recompute(folder: Path, manifest: Manifest, count: int, jobs: int | None) -> Check:
    """Trace and measure some kept networks, and the networks that were removed as their duplicates.

    These are always the networks with the smallest ids. A removed code is run with the hyperparameters of its
    canonical, since the folder holds no others; if its graph differs with these, it is left out.

    Raises: UserError if no sandbox is available.
    """
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
    if any((row.torch, row.form) != (TORCH, FORM) for row in stored.values()):
        return Check(_NAME, ok=True, detail="not computed: the graphs were stored by another release")
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
    return check_faults(_NAME, wrong, detail + (f"; {left_out:,} need other hyperparameters" if left_out else ""))


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
