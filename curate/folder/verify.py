"""`lemur verify DIR`: re-read a finished folder and prove its guarantees from its contents."""

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from curate.compute.graphs import GraphTrace
from curate.compute.runs import RunResult
from curate.folder.verify_networks import check_measurements, check_networks, read_networks
from curate.folder.verify_networks import recompute as recompute_networks
from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD, get_prefix
from curate.model.residue import strip_residue
from curate.model.rights import check_rights
from curate.model.splits import assign_splits, group_names, join_clusters, read_joined, split_groups
from curate.published.delta_check import DeltaCheck, Member, PublishedRecords, find_conflicts
from curate.published.outcome import DUPLICATE_STAGES, count_runs
from curate.published.published import check_rules, find_parents, find_siblings
from lemur_core.files import Json
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import IDENTITIES, compute_identities
from lemur_core.similarity.join import exact_pairs, measure_recall
from lemur_core.similarity.minhash import Banding, IntArray, jaccard
from lemur_core.source.text import parse_code
from manifests.conversations.conversation import MARK, put_back, read_fenced_code
from manifests.conversations.verify import Row, check_rows, contents, form_faults
from manifests.folders.checks import Check, check_description, check_faults, check_files, run_checks
from manifests.folders.formats import SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.retired import check_retired, find_retired
from manifests.folders.tables import CROISSANT, iterate_rows
from manifests.records import CHAT_KINDS


def verify(folder: Path, *, against: Sequence[Path] = (), jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a finished folder, in a fixed order; for a delta, first those of the folders that it extends.

    Args:
        against: the folders that a delta extends, unless they lie next to it under their names; also deltas that were
            made in parallel with it, to check whether they can be used together.
        recompute: how many networks are traced and measured again, in the sandbox.
    Raises: UserError if the folder has no valid manifest, or a parent is missing or was created by other rules.
    """
    manifest = read_manifest(folder)
    if any(item.ruled for item in find_retired(manifest)):
        return [check_files(folder, manifest), *check_retired(manifest)]
    parallel = [path for path in against if find_siblings({folder: manifest, path: read_manifest(path)})]
    parents = find_parents(folder, manifest, [path for path in against if path not in parallel])
    others = [*parents, *parallel]
    for path in parallel:
        others += [own for own in find_parents(path, read_manifest(path), among=others) if own not in others]
    manifests = {path: read_manifest(path) for path in others} | {folder: manifest}
    parents_of = {path: find_parents(path, own, among=others) for path, own in manifests.items() if path != folder}
    parents_of[folder] = parents
    order = sorted(manifests, key=lambda path: len(parents_of[path]))  # parents before their deltas
    number = {path: position for position, path in enumerate(order)}
    members = []
    for path in order:
        if path != folder:
            check_rules(path, manifests[path], manifest.parameters, by=folder.name)
        position_of = {number[parent]: position for position, parent in enumerate(parents_of[path]) if parent in number}
        members.append(Member(path, manifests[path], number[path], position_of))
    siblings = [(members[number[one]], members[number[other]]) for one, other in find_siblings(manifests)]
    each, unions = _verify(members, siblings, jobs)
    by_folder = dict(zip(order, each, strict=True))
    checks = []
    for other in others:
        wrong = [f"{check.name}: {check.detail}" for check in by_folder[other] if not check.ok]
        what = f"{'parent' if other in parents else 'delta'} {other.name}"
        checks.append(check_faults(what, wrong, f"{len(by_folder[other])} of its own checks hold"))
    if recompute and all(check.ok for check in by_folder[folder]):
        checks += run_checks("networks computed again", lambda: recompute_networks(folder, manifest, recompute, jobs))
    return checks + by_folder[folder] + unions + check_retired(manifest)


def _verify(
    members: Sequence[Member], siblings: Sequence[tuple[Member, Member]], jobs: int | None
) -> tuple[list[list[Check]], list[Check]]:
    """Return the checks of each folder, and of each pair of siblings; all are read before any is compared."""
    checks = [_check_form(member) for member in members]
    if members[-1].manifest.kind != "snapshot":
        return checks, []
    for member, own in zip(members, checks, strict=True):
        if not all(check.ok for check in own[1:]):
            detail = f"not checked: the tables of {member.path.name} cannot be trusted"
            return [[*folder_checks, Check("guarantees", ok=False, detail=detail)] for folder_checks in checks], []
    delta_check = DeltaCheck(members, jobs)
    each = [
        own + _check_content(_VerifiedSnapshot(delta_check, member))
        for member, own in zip(members, checks, strict=True)
    ]
    return each, [_check_union(delta_check, *sorted(pair, key=lambda member: member.number)) for pair in siblings]


def _check_union(delta_check: DeltaCheck, one: Member, other: Member) -> Check:
    """Check that two deltas made in parallel are together what one delta could be, by exact joins."""
    name = f"union of {one.path.name} and {other.path.name}"
    if one.withheld or other.withheld:
        return Check(name, ok=True, detail="not proved: what is compared needs codes that were not published")
    detail = f"no near-duplicates among {len(one.records):,} and {len(other.records):,} records, no group apart"
    return check_faults(name, list(find_conflicts(delta_check, one, other)), detail)


def _check_form(member: Member) -> list[Check]:
    folder, manifest = member.path, member.manifest
    checks = [check_files(folder, manifest)]
    if manifest.kind == "snapshot":
        tables = {
            **dict.fromkeys(("records", "stats", "decisions", "networks"), True),
            **dict.fromkeys(("chat", "chat_drops"), bool(manifest.parameters.get("chat"))),
            "graphs": manifest.parameters["graph"] != "off" and "graphs" in manifest.counts,
            **{name: bool(SNAPSHOT.files(folder, name)) for name in ("measurements", "clusters")},
        }
        checks += SNAPSHOT.check_tables(folder, [name for name, expected in tables.items() if expected])
    return checks


def _check_content(snapshot: "_VerifiedSnapshot") -> list[Check]:
    manifest, folder = snapshot.manifest, snapshot.member.path
    codes = {"kept": SNAPSHOT.files(folder, "records"), "removed": SNAPSHOT.files(folder, "networks")}
    checks = []
    if not find_retired(manifest):  # else it describes tables that are no longer read, too
        checks += run_checks(CROISSANT, lambda: check_description(folder, manifest, SNAPSHOT.tables))
    checks += [
        *run_checks("counts", lambda: _check_counts(snapshot)),
        *(sound := [*run_checks("ids", lambda: _check_ids(snapshot)),
                    *run_checks("guarantee 6", lambda: _check_explained(snapshot))]),
        *run_checks("licenses", lambda: check_rights(manifest, codes, snapshot.withheld)),
    ]  # fmt: skip
    checks += _check_all_networks(snapshot)
    if SNAPSHOT.files(folder, "measurements"):
        checks += run_checks("measurements", lambda: check_measurements(folder, snapshot.decisions, manifest.counts))
    if manifest.parameters.get("check_runs"):
        checks += run_checks("runs", lambda: _check_runs(snapshot))
    if manifest.parameters.get("chat"):
        checks += run_checks("chat", lambda: check_chat(folder, manifest))
    if not all(check.ok for check in sound):
        return [*checks, Check("guarantees", ok=False, detail="not checked: the decisions do not fit the records")]
    graphs = run_checks("guarantee 7", lambda: _check_graphs(snapshot)) if snapshot.graphs else []
    if snapshot.withheld:
        detail = f"not proved again: what is compared needs {len(snapshot.withheld):,} codes that were not published"
        return [*checks, Check("guarantees 1 to 5", ok=True, detail=detail), *graphs]
    for number, check in enumerate(_GUARANTEES, 1):
        checks += run_checks(f"guarantee {number}", partial(check, snapshot))
    return checks + graphs


def _check_all_networks(snapshot: "_VerifiedSnapshot") -> list[Check]:
    """Check the table of all networks."""
    folder = snapshot.member.path
    networks = read_networks(folder)
    code_of, features = snapshot.delta_check.code_of, snapshot.delta_check.features
    published = {
        record["id"] for number in snapshot.member.parents for record in snapshot.delta_check.members[number].records
    }
    check = partial(
        check_networks,
        *(folder, networks, published),
        withheld=snapshot.withheld,
        features=None if snapshot.withheld else features,
        code_of=code_of,
    )
    return run_checks("networks", check)


class _VerifiedSnapshot:
    """One folder with the records that it extends, as they were read."""

    def __init__(self, delta_check: DeltaCheck, member: Member) -> None:
        self.member, self.delta_check = member, delta_check
        self.published = PublishedRecords(delta_check, member)  # empty for a whole snapshot
        delta_check.record_decisions(member, self.decisions)
        #: Ids of codes withheld when the folder, or one that it extends, was published.
        parents = [delta_check.members[number] for number in member.parents]
        records = ((parent, record["id"]) for parent in parents for record in parent.records)
        self.withheld = member.withheld | {id_ for parent, id_ in records if id_ in parent.withheld}
        graphs = member.path / "graphs.parquet"
        rows = iterate_rows(graphs, ("id", *_COMPUTATION)) if graphs.exists() else ()
        #: id -> `graph`, `graph_widths`, `behavior`; empty if graphs were not compared.
        self.graphs = {row.pop("id"): row for row in rows}

    @property
    def manifest(self) -> Manifest:
        return self.member.manifest

    @property
    def records(self) -> list[Json]:
        return self.member.records

    @property
    def decisions(self) -> Iterator[Json]:
        """The decisions, read again each time: of 100,000, Python objects would take 100 MB."""
        return iterate_rows(self.member.path / "decisions.parquet", _DECIDED)

    def find_trace(self, id_: str) -> GraphTrace:
        """Return the computation of a code, here or published; without a graph if it is unknown."""
        rows = [self.graphs.get(id_, {}), *self.published.records("id", id_)]
        return GraphTrace(next((row for row in rows if row.get("graph")), {}))

    @cached_property
    def codes(self) -> IntArray:
        """The numbers of the records in the shared features."""
        return np.array([self.delta_check.code_of[record["id"]] for record in self.records], np.int64)

    @cached_property
    def groups(self) -> tuple[list[int], dict[int, list[Mapping[str, Any]]]]:
        """The group of each record, and the published records that a group must join."""
        widths = [record["graph_widths"] for record in self.records]
        numbers = split_groups(self.codes.tolist(), self.delta_check.features, widths) if self.records else []
        return numbers, self.published.neighbours_by_group(numbers) if self.member.parents else {}


_DECIDED = ("row", "id", "nn", "kept", "stage", "canonical", "similarity", "reason")


def _check_ids(snapshot: _VerifiedSnapshot) -> Check:
    ids = [record["id"] for record in snapshot.records]
    wrong = list(snapshot.member.wrong_ids)
    if len(set(ids)) != len(ids) or any(snapshot.published.records("id", id_) for id_ in ids):
        wrong.append("an id occurs twice among the records")
    known = len(snapshot.member.ids - snapshot.member.withheld)
    return check_faults("ids", wrong, f"{known:,} ids are the SHA-256 of their code")


def _check_counts(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 6, first half: the decisions add up to the input, and to the manifest's counts."""
    stages: Counter[str] = Counter()
    networks, names, codes = set(), set(), set()
    evaluations, in_order = 0, True
    for decision in snapshot.decisions:
        in_order &= decision["row"] == stages.total()
        stages[decision["stage"] or "kept"] += 1
        if decision["stage"] == "invalid":
            continue
        networks.add((decision["nn"], decision["id"]))
        names.add(decision["nn"])
        codes.add(decision["id"])
        evaluations += 1
    stated = snapshot.manifest.counts
    counts = {f"rows.{stage}": stages[stage] for stage in stated["rows"]} | {
        "rows.input": stages.total(),
        "networks": len(networks),
        "names": len(names),
        "codes": len(codes),
    }
    splits = Counter(record["split"] for record in snapshot.records)
    counts |= {f"splits.{split}": splits[split] for split in stated["splits"]}
    wrong = []
    for name, count in counts.items():
        group, _, key = name.partition(".")
        in_manifest = stated[group][key] if key else stated[group]
        if in_manifest != count:
            wrong.append(f"{name}: {count:,} in the tables, {in_manifest:,} in the manifest")
    if not in_order:
        wrong.append("decisions: rows are not numbered from 0 in order")
    stats = sum(pq.read_metadata(path).num_rows for path in SNAPSHOT.files(snapshot.member.path, "stats"))
    if stats != evaluations:
        wrong.append(f"stats: {stats:,} rows, {evaluations:,} decisions about rows of these networks")
    return check_faults("counts", wrong, f"{stages.total():,} decisions = input rows, by stage as stated")


def _check_runs(snapshot: _VerifiedSnapshot) -> Check:
    """Check that column `runs` is consistent and matches the manifest, and that required runs succeeded."""
    results = [RunResult(record["runs"], record["runs_error"]) for record in snapshot.records]
    counts = count_runs(results, ((decision["id"], decision["reason"]) for decision in snapshot.decisions))
    wrong = [
        f"{record['nn']}: runs is {record['runs']}, and the error is {record['runs_error']!r:.60}"
        for record in snapshot.records
        if (record["runs"] is True) != (record["runs_error"] is None)
    ]
    if snapshot.manifest.parameters["require_runs"]:
        wrong += [f"{record['nn']}: kept, but does not run" for record in snapshot.records if not record["runs"]]
    stated = snapshot.manifest.counts.get("runs")
    if stated != counts:
        wrong.append(f"{counts} in the tables, {stated} in the manifest")
    return check_faults("runs", wrong, f"{counts['runs']:,} of {len(results):,} records run, as the manifest states")


def _check_explained(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 6, second half: one kept row per record; a stage, reason and kept canonical for all others."""
    kept_ids = {record["id"] for record in snapshot.records}
    kept_rows = Counter(decision["id"] for decision in snapshot.decisions if decision["kept"])
    wrong = [f"record {id_[:12]} has {kept_rows[id_]} kept rows" for id_ in sorted(kept_ids) if kept_rows[id_] != 1]
    wrong += [f"kept row of {id_[:12]}, which is not a record" for id_ in sorted(kept_rows.keys() - kept_ids)]
    wrong += snapshot.published.equal(snapshot.decisions)
    leaks = {decision["id"] for decision in snapshot.decisions if decision["stage"] == "leak"}
    for decision in snapshot.decisions:
        stage = decision["stage"]
        if (stage is None) != decision["kept"] or not decision["reason"]:
            wrong.append(f"row {decision['row']}: stage and kept disagree, or there is no reason")
        if (
            stage not in ("invalid", "filter")
            and decision["canonical"] not in kept_ids
            and decision["id"] not in leaks
            and not snapshot.published.records("id", decision["canonical"])
        ):
            wrong.append(f"row {decision['row']}: its canonical is not a kept record")
        own = decision["id"] in snapshot.member.ids or bool(snapshot.published.records("id", decision["id"]))
        if stage != "invalid" and not own:
            wrong.append(f"row {decision['row']}: its code is in no table")
    return check_faults(
        "guarantee 6: everything is explained", wrong, "every row kept or removed for a reason by a kept record"
    )


def _check_no_near_duplicates(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 1, by exact joins."""
    delta_check, codes = snapshot.delta_check, snapshot.codes
    records = snapshot.records
    sets: dict[int, list[int]] = {}
    for index, number in enumerate(delta_check.features.shingle_set[codes].tolist()):
        sets.setdefault(number, []).append(index)
    pairs = exact_pairs(
        delta_check.features, np.array(sorted(sets), np.int64), snapshot.manifest.parameters["lexical_threshold"]
    )
    near_sets = [(number, number, 1.0) for number in sets]
    near_sets += zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True)
    wrong = [
        f"lexical Jaccard {value:.3f} between two kept records"
        for a, b, value in near_sets
        for first, other in itertools.product(sets[a], sets[b])
        if (first < other or a != b) and not delta_check.differ(records[first], records[other])
    ]
    for record in records:
        for other, value in delta_check.near_structures.get((snapshot.member.number, record["id"]), ()):
            if other["folder"] == record["folder"] and not delta_check.differ(record, other):
                wrong.append(f"structural Jaccard {value:.3f} between {other['nn']} and {record['nn']}")
    detail = f"{len(records):,} records, all pairs"
    if snapshot.member.parents:
        wrong += snapshot.published.near_duplicates()
        detail += f", and all with {len(snapshot.published):,} published"
    return check_faults("guarantee 1: no near-duplicate remains", wrong, detail)


def _check_witnesses(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 2: the recomputed similarity of every removal is the recorded one and reaches its threshold."""
    code_of, parameters = snapshot.delta_check.code_of, snapshot.manifest.parameters
    wrong, checked = [], 0
    for decision in snapshot.decisions:
        stage = decision["stage"]
        if stage not in DUPLICATE_STAGES or snapshot.published.removal(decision["id"]) is not None:
            continue
        if stage == "graph":
            traced, other = (snapshot.find_trace(decision[name]) for name in ("id", "canonical"))
            checked += 1
            if traced.agrees(other) != "same" or decision["similarity"] != 1.0:
                wrong.append(
                    f"row {decision['row']} (graph): neither its graph nor its numbers are those of its canonical"
                )
            continue
        code, canonical = code_of[decision["id"]], code_of[decision["canonical"]]
        checked += 1
        similarity = _similarity(snapshot.delta_check.features, stage, code, canonical)
        threshold = 1.0 if stage == "exact" else parameters[f"{stage}_threshold"]
        if similarity != decision["similarity"] or similarity < threshold:
            stated = f"{decision['similarity']} recorded, {similarity} found, {threshold} asked"
            wrong.append(f"row {decision['row']} ({stage}): {stated}")
    detail = f"{checked:,} removals, similarity as recorded"
    if snapshot.member.parents:
        widths = {id_: row["graph_widths"] for id_, row in snapshot.graphs.items()}
        wrong += snapshot.published.leaks(snapshot.decisions, widths)
        leaks = sum(decision["stage"] == "leak" for decision in snapshot.decisions)
        detail += f"; {leaks:,} near to two published splits"
    return check_faults("guarantee 2: a witness for every removal", wrong, detail)


def _check_graphs(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 7: identities follow from the stored graphs, no two kept records share one, the columns agree."""
    wrong, known = [], 0
    distinct: defaultdict[str, list[GraphTrace]] = defaultdict(list)
    torch = snapshot.manifest.versions.get("torch")  # folders that are older name no runtime
    for row in iterate_rows(snapshot.member.path / "graphs.parquet", _GRAPHS):
        id_ = row["id"]
        if torch is not None and row["torch"] not in (None, torch):
            wrong.append(f"{id_[:12]}: traced with torch {row['torch']}, the manifest names {torch}")
        if id_ in snapshot.withheld:
            continue
        try:
            wrong += [f"{id_[:12]}: {name} is not that of its graph" for name in _wrong_identities(row)]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            wrong.append(f"{id_[:12]}: its graph cannot be read: {error}")
    for record in snapshot.records:
        stored = snapshot.graphs.get(record["id"], {"graph": "", "graph_widths": ""})
        if any(record[name] != stored.get(name) for name in _COMPUTATION):
            wrong.append(f"{record['nn']}: its graph is not the one in graphs.parquet")
            continue
        traced = GraphTrace(record)
        own = {name: record[name] for name in ("graph", "behavior") if record[name] is not None}
        if snapshot.published.find_twins(record) or any(
            traced.agrees(other) == "same" for digest in own.values() for other in distinct[digest]
        ):
            wrong.append(f"{record['nn']}: another kept record computes the same")
        elif own:
            known += 1
            for digest in own.values():
                distinct[digest].append(traced)
    measured = sum(record["behavior"] is not None for record in snapshot.records)
    detail = f"{known:,} of {len(snapshot.records):,} kept records have a graph, all different"
    detail += f"; the numbers of {measured:,}, too" if measured else ""
    detail += f", traced with torch {torch}" if torch is not None else ""
    return check_faults("guarantee 7: no two compute the same", wrong, detail)


_COMPUTATION = ("graph", "graph_widths", "behavior")
_GRAPHS = ("id", "torch", "eval", "train", *IDENTITIES)


def _wrong_identities(row: Json) -> list[str]:
    graphs = {mode: Graph.from_json(json.loads(row[mode])) for mode in ("eval", "train") if row[mode] is not None}
    identities = compute_identities(graphs) if graphs else dict.fromkeys(IDENTITIES)
    return [name for name in IDENTITIES if row[name] != identities[name]]


def _similarity(features: FeatureTable, stage: str, code: int, canonical: int) -> float:
    if stage == "exact":
        return float(features.tree[code] == features.tree[canonical])
    if stage == "lexical":
        sets = int(features.shingle_set[code]), int(features.shingle_set[canonical])
        return 1.0 if sets[0] == sets[1] else jaccard(features.shingles(sets[0]), features.shingles(sets[1]))
    structures = int(features.fingerprint[code]), int(features.fingerprint[canonical])
    if structures[0] == structures[1]:
        return 1.0
    return jaccard(*(features.elements[number] for number in structures))


def _check_order(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 3: splits follow from kept codes, the seed and published records, not from the order of rows."""
    groups, neighbours = snapshot.groups
    published_splits = {group: records[0]["split"] for group, records in neighbours.items()}
    ids = [record["id"] for record in snapshot.records]
    families = snapshot.delta_check.features.family
    kinds = [
        (get_prefix(record["nn"]), families[snapshot.delta_check.code_of[record["id"]]]) for record in snapshot.records
    ]
    splits = assign_splits(groups, ids, kinds, snapshot.manifest.parameters["seed"], published_splits)
    wrong = [
        f"{record['nn']}: split {record['split']}, by its content {split}"
        for record, split in zip(snapshot.records, splits, strict=True)
        if record["split"] != split
    ]
    return check_faults("guarantee 3: order does not matter", wrong, "splits follow from content and seed alone")


def _check_leakage(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 4, by an exact join."""
    numbers, neighbours = snapshot.groups
    split_of = {group: records[0]["split"] for group, records in neighbours.items()}
    wrong = [
        f"{records[0]['nn']}: a new record ties its split to that of another published one"
        for records in neighbours.values()
        if len({record["split"] for record in records}) > 1
    ]
    published = {group: sorted({record["cluster"] for record in records}) for group, records in neighbours.items()}
    parents = (snapshot.delta_check.members[number].path for number in snapshot.member.parents)
    joined = join_clusters([*(pair for path in parents for pair in read_joined(path)), *published.values()])
    if joined != dict(read_joined(snapshot.member.path)):
        wrong.append("clusters.parquet does not state the published groups that are one now")
    keys = {group: joined.get(old[0], old[0]) for group, old in published.items()}
    names = group_names(numbers, [record["id"] for record in snapshot.records], keys)
    for record, group, name in zip(snapshot.records, numbers, names, strict=True):
        if record["cluster"] != name:
            wrong.append(f"{record['nn']}: its cluster is not {name}")
        split = split_of.setdefault(group, record["split"])
        if split != record["split"]:
            wrong.append(f"{record['nn']}: its group is in {split} too")
    what = f"Jaccard >= {LEAK_THRESHOLD:.2f} or equal fingerprint, or graphs equal up to widths"
    detail = f"{len(set(numbers)):,} groups ({what}), none across splits"
    if snapshot.member.parents:
        detail += f"; {len(neighbours):,} of them with published records"
    return check_faults("guarantee 4: no leakage", wrong, detail)


def _check_recall(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 5: LSH, as it was run, proposes every true pair of this corpus."""
    stated, threshold = snapshot.manifest.details["lsh"], snapshot.manifest.parameters["lexical_threshold"]
    features = snapshot.delta_check.features
    judged = {d["id"] for d in snapshot.decisions if d["stage"] not in ("invalid", "filter")}
    if not judged:
        return check_faults("guarantee 5: all pairs are found", [], "nothing to compare")
    sets = snapshot.delta_check.sets(judged)
    measured = measure_recall(
        features, exact_pairs(features, sets, threshold), Banding(stated["bands"], stated["rows"]), threshold
    )
    wrong = (
        []
        if measured.proposed == measured.pairs
        else [f"{measured.pairs - measured.proposed:,} pairs are not proposed"]
    )
    if not np.isclose(stated["recall"], measured.recall):
        wrong.append(f"recall {stated['recall']:.6f} stated, {measured.recall:.6f} found")
    recall_text = (
        f"{measured.proposed:,} of {measured.pairs:,} pairs, {measured.sets_joined:,} of {measured.sets:,} sets asked"
    )
    if snapshot.member.parents:
        proposed, pairs = snapshot.published.recall(judged)
        recall_text += f"; {proposed:,} of {pairs:,} with published records"
        if proposed != pairs:
            wrong.append(f"{pairs - proposed:,} pairs with published records are not proposed")
    return check_faults("guarantee 5: all pairs are found", wrong, f"recall {measured.recall:.4f}: {recall_text}")


#: The checks of guarantees 1 to 5.
_GUARANTEES = (_check_no_near_duplicates, _check_witnesses, _check_order, _check_leakage, _check_recall)

_ONE_CODE = frozenset({"design", "complete", "repair", "change"})


def check_chat(folder: Path, manifest: Manifest) -> list[Check]:
    """Run the checks of a snapshot with conversations, whose tables are known to have the right columns."""
    facts = "chat code", ", the code in their answers parses and fits their records"
    splits: dict[str, str] = {}
    licenses: dict[str, str | None] = {}  # older snapshots have none
    digests: dict[str, str] = {}  # record -> of the file that its conversations show
    for path in SNAPSHOT.files(folder, "records"):
        columns = [name for name in ("id", "nn_code", "license") if name in pq.read_schema(path).names]
        for row in pq.read_table(path, columns=columns).to_pylist():
            splits[row["id"]] = path.name.partition("-")[0]
            digests[row["id"]] = _digest(strip_residue(row["nn_code"]))
            licenses |= {row["id"]: row["license"]} if "license" in row else {}

    def faults(row: Row) -> Iterator[str]:
        if licenses.get(row["record"], row["license"]) != row["license"]:
            yield f"its license is {row['license']}, that of its record {licenses[row['record']]}"
        yield from _faults(row, digests.get(row["record"]))

    return check_rows(folder, manifest, "record", splits, CHAT_KINDS, faults, facts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _faults(row: Row, digest: str | None) -> Iterator[str]:
    """Yield the faults of one conversation: its form, its code, and whether the code is that of its record."""
    yield from form_faults(row, "record")
    _, user, assistant = contents(row)
    questions, answers = read_fenced_code(user), read_fenced_code(assistant)
    if len(answers) != (row["task"] in _ONE_CODE):
        yield f"{len(answers)} code blocks in the answer"
        return
    for code in answers:
        try:
            parse_code(code, max_depth=None)
        except SyntaxError as error:
            yield f"a code block of the answer does not parse: {str(error).splitlines()[0]}"
    if questions == answers:
        yield "the code of its answer is that of its question"
    if not _holds_file(row, questions, answers, digest):
        yield "the file in it is not that of its record"


def _holds_file(row: Row, questions: list[str], answers: list[str], digest: str | None) -> bool:
    """Return True if the record's file is where this kind of request has it; a final newline may have been added."""
    if row["task"] in ("design", "repair"):
        text = answers[0]
    elif len(questions) != 1:
        return False
    elif row["task"] == "complete":
        if MARK not in questions[0]:
            return False
        text = put_back(questions[0], answers[0].removesuffix("\n"))
    else:
        text = questions[0]
    return digest in (_digest(text), _digest(text.removesuffix("\n")))
