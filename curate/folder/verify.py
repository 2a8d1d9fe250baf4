"""`lemur verify DIR`: re-read a finished folder and prove its guarantees from its contents."""

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from curate.compute.graphs import GraphTrace
from curate.compute.runs import RunResult
from curate.folder.verify_networks import check_measurements, check_networks, read_networks
from curate.folder.verify_networks import recompute as recompute_networks
from curate.model.corpus import fill_store
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import LEAK_THRESHOLD, get_prefix
from curate.model.residue import strip_residue
from curate.model.rights import check_rights
from curate.model.splits import assign_splits, group_names, split_groups
from curate.published.outcome import DUPLICATE_STAGES, count_runs
from lemur_core.files import Json
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import IDENTITIES, compute_identities
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import exact_pairs, in_order, measure_recall
from lemur_core.similarity.minhash import Banding, IntArray, jaccard
from lemur_core.source.text import parse_code
from manifests.conversations.conversation import read_fenced_code
from manifests.conversations.verify import Row, check_rows, contents
from manifests.folders.checks import Check, check_description, check_faults, check_files, run_checks
from manifests.folders.formats import SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.retired import check_retired, find_retired
from manifests.folders.tables import CROISSANT, iterate_rows, read_rows, read_table
from manifests.records import CHAT_KINDS, LemurRecord, NetworkRow


def verify(folder: Path, *, jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a finished folder, in a fixed order.

    Args: recompute: how many networks are traced and measured again, in the sandbox.
    Raises: UserError if the folder has no valid manifest.
    """
    manifest = read_manifest(folder)
    checks, retired = [check_files(folder, manifest)], find_retired(manifest)
    if any(item.ruled for item in retired):
        return [*checks, *check_retired(manifest)]
    has_chat = bool(manifest.parameters.get("chat")) and not any("chat" in item.tables for item in retired)
    tables = {
        **dict.fromkeys(("records", "stats", "decisions", "networks"), True),
        **dict.fromkeys(("chat", "chat_drops"), has_chat),
        "graphs": manifest.parameters["graph"] != "off" and "graphs" in manifest.counts,
        "measurements": bool(SNAPSHOT.files(folder, "measurements")),
    }
    schemas = SNAPSHOT.check_tables(folder, [name for name, expected in tables.items() if expected])
    if not all(check.ok for check in schemas):
        detail = f"not checked: the tables of {folder.name} cannot be trusted"
        return [*checks, *schemas, Check("guarantees", ok=False, detail=detail)]
    checks += [*schemas, *_check_content(_VerifiedSnapshot(folder, manifest, jobs), has_chat=has_chat)]
    if recompute and all(check.ok for check in checks):
        again = run_checks("networks computed again", lambda: recompute_networks(folder, manifest, recompute, jobs))
        checks = [*again, *checks]
    return checks + check_retired(manifest)


def _check_content(snapshot: "_VerifiedSnapshot", *, has_chat: bool) -> list[Check]:
    manifest, folder = snapshot.manifest, snapshot.folder
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
    if has_chat:
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
    check = partial(
        check_networks,
        *(snapshot.folder, read_networks(snapshot.folder)),
        withheld=snapshot.withheld,
        features=None if snapshot.withheld else snapshot.features,
        code_of=snapshot.code_of,
    )
    return run_checks("networks", check)


#: The columns of records to compare. With all columns, 100,000 records take half a gigabyte.
_COMPARED = ("id", "nn", "split", "cluster", "graph", "graph_widths", "behavior", "runs", "runs_error")
_ROWS = 5_000  # rows of a table that are Python objects at the same time


class _VerifiedSnapshot:
    """A snapshot as it was read, and the features of all codes in it.

    Attributes:
        code_of: id -> number in `features`.
        ids: of the codes in its tables.
        withheld: ids of codes that were left out when it was published.
        graphs: id -> `graph`, `graph_widths`, `behavior`; empty if graphs were not compared.
    """

    def __init__(self, folder: Path, manifest: Manifest, jobs: int | None) -> None:
        self.folder, self.manifest = folder, manifest
        self.records = list(_read_records(folder))
        self.code_of: dict[str, int] = {}
        self.ids: set[str] = set()
        self.wrong_ids: list[str] = []
        self.withheld: set[str] = set()
        self._digests: list[bytes] = []
        store = FeatureStore(manifest.parameters["tokens"])
        fill_store(store, self._new_codes(store), manifest.parameters["tokens"], jobs)
        self.features = store.table(self._digests)
        graphs = folder / "graphs.parquet"
        rows = iterate_rows(graphs, ("id", *_COMPUTATION)) if graphs.exists() else ()
        self.graphs = {row.pop("id"): row for row in rows}

    def _new_codes(self, store: FeatureStore) -> Iterator[tuple[bytes, str]]:
        may_withhold = self.manifest.details.get("withheld")
        for path in (*SNAPSHOT.files(self.folder, "records"), *SNAPSHOT.files(self.folder, "networks")):
            for row in read_rows([path], NetworkRow, ("id", "nn", "nn_code")):  # records have these columns, too
                if row.id in self.ids:  # of a record, among all networks
                    continue
                digest = hashlib.sha256(row.nn_code.encode()).digest()
                self.ids.add(row.id)
                if may_withhold and not row.nn_code:
                    self.withheld.add(row.id)
                    continue
                if digest.hex() != row.id:
                    self.wrong_ids.append(f"{row.nn}: id is not the SHA-256 of its code")
                if row.id not in self.code_of:
                    self.code_of[row.id] = len(self._digests)
                    self._digests.append(digest)
                    if digest not in store:
                        yield digest, row.nn_code

    @property
    def decisions(self) -> Iterator[Json]:
        """The decisions, read again each time: of 100,000, Python objects would take 100 MB."""
        return iterate_rows(self.folder / "decisions.parquet", _DECIDED)

    def find_trace(self, id_: str) -> GraphTrace:
        """Return the computation of a code; without a graph if it is unknown."""
        return GraphTrace(self.graphs.get(id_, {}))

    @cached_property
    def codes(self) -> IntArray:
        """The numbers of the records in the features."""
        return np.array([self.code_of[record["id"]] for record in self.records], np.int64)

    @cached_property
    def groups(self) -> list[int]:
        """The group of each record."""
        widths = [record["graph_widths"] for record in self.records]
        return split_groups(self.codes.tolist(), self.features, widths) if self.records else []

    def differ(self, one: Json, other: Json) -> bool:
        """Return whether two kept records may be near because their computations differ (`keep-different`)."""
        if self.manifest.parameters["graph"] != "keep-different":
            return False
        widths = (one.get("graph_widths"), other.get("graph_widths"))
        return None not in widths and widths[0] != widths[1]


def _read_records(folder: Path) -> Iterator[Json]:
    """Yield the records, with one object for equal names of splits and clusters."""
    shared: dict[str, str] = {}
    for path in SNAPSHOT.files(folder, "records"):
        for batch in read_table([path], LemurRecord, _COMPARED).to_batches(max_chunksize=_ROWS):
            for record in batch.to_pylist():
                for name in ("split", "cluster"):
                    record[name] = shared.setdefault(record[name], record[name])
                yield record


_DECIDED = ("row", "id", "nn", "kept", "stage", "canonical", "similarity", "reason")


def _check_ids(snapshot: _VerifiedSnapshot) -> Check:
    wrong = list(snapshot.wrong_ids)
    if len({record["id"] for record in snapshot.records}) != len(snapshot.records):
        wrong.append("an id occurs twice among the records")
    known = len(snapshot.ids - snapshot.withheld)
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
    stats = sum(pq.read_metadata(path).num_rows for path in SNAPSHOT.files(snapshot.folder, "stats"))
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
    for decision in snapshot.decisions:
        stage = decision["stage"]
        if (stage is None) != decision["kept"] or not decision["reason"]:
            wrong.append(f"row {decision['row']}: stage and kept disagree, or there is no reason")
        if stage not in ("invalid", "filter") and decision["canonical"] not in kept_ids:
            wrong.append(f"row {decision['row']}: its canonical is not a kept record")
        if stage != "invalid" and decision["id"] not in snapshot.ids:
            wrong.append(f"row {decision['row']}: its code is in no table")
    return check_faults(
        "guarantee 6: everything is explained", wrong, "every row kept or removed for a reason by a kept record"
    )


def _check_no_near_duplicates(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 1, by exact joins."""
    records, features, parameters = snapshot.records, snapshot.features, snapshot.manifest.parameters
    sets: dict[int, list[int]] = {}
    for index, number in enumerate(features.shingle_set[snapshot.codes].tolist()):
        sets.setdefault(number, []).append(index)
    pairs = exact_pairs(features, np.array(sorted(sets), np.int64), parameters["lexical_threshold"])
    near_sets = [(number, number, 1.0) for number in sets]
    near_sets += zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True)
    wrong = [
        f"lexical Jaccard {value:.3f} between two kept records"
        for a, b, value in near_sets
        for first, other in itertools.product(sets[a], sets[b])
        if (first < other or a != b) and not snapshot.differ(records[first], records[other])
    ]
    structures = StructuralIndex(features.elements, parameters["structural_threshold"])
    for number, (record, code) in enumerate(zip(records, snapshot.codes.tolist(), strict=True)):
        structure = int(features.fingerprint[code])
        for near in structures.near(structure):
            if not snapshot.differ(record, records[near.place]):
                names = f"{records[near.place]['nn']} and {record['nn']}"
                wrong.append(f"structural Jaccard {near.similarity:.3f} between {names}")
        structures.keep(structure, number)
    detail = f"{len(records):,} records, all pairs"
    return check_faults("guarantee 1: no near-duplicate remains", wrong, detail)


def _check_witnesses(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 2: the recomputed similarity of every removal is the recorded one and reaches its threshold."""
    code_of, parameters = snapshot.code_of, snapshot.manifest.parameters
    wrong, checked = [], 0
    for decision in snapshot.decisions:
        stage = decision["stage"]
        if stage not in DUPLICATE_STAGES:
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
        similarity = _similarity(snapshot.features, stage, code, canonical)
        threshold = 1.0 if stage == "exact" else parameters[f"{stage}_threshold"]
        if similarity != decision["similarity"] or similarity < threshold:
            stated = f"{decision['similarity']} recorded, {similarity} found, {threshold} asked"
            wrong.append(f"row {decision['row']} ({stage}): {stated}")
    detail = f"{checked:,} removals, similarity as recorded"
    return check_faults("guarantee 2: a witness for every removal", wrong, detail)


def _check_graphs(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 7: identities follow from the stored graphs, no two kept records share one, the columns agree."""
    wrong, known = [], 0
    distinct: defaultdict[str, list[GraphTrace]] = defaultdict(list)
    torch = snapshot.manifest.versions.get("torch")  # folders that are older name no runtime
    for row in iterate_rows(snapshot.folder / "graphs.parquet", _GRAPHS):
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
        if any(traced.agrees(other) == "same" for digest in own.values() for other in distinct[digest]):
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
    """Check guarantee 3: splits follow from kept codes and the seed, not from the order of rows."""
    ids = [record["id"] for record in snapshot.records]
    families = [snapshot.features.family[code] for code in snapshot.codes.tolist()]
    kinds = [(get_prefix(record["nn"]), family) for record, family in zip(snapshot.records, families, strict=True)]
    splits = assign_splits(snapshot.groups, ids, kinds, snapshot.manifest.parameters["seed"])
    wrong = [
        f"{record['nn']}: split {record['split']}, by its content {split}"
        for record, split in zip(snapshot.records, splits, strict=True)
        if record["split"] != split
    ]
    return check_faults("guarantee 3: order does not matter", wrong, "splits follow from content and seed alone")


def _check_leakage(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 4, by an exact join."""
    wrong, split_of = [], dict[int, str]()
    names = group_names(snapshot.groups, [record["id"] for record in snapshot.records])
    for record, group, name in zip(snapshot.records, snapshot.groups, names, strict=True):
        if record["cluster"] != name:
            wrong.append(f"{record['nn']}: its cluster is not {name}")
        split = split_of.setdefault(group, record["split"])
        if split != record["split"]:
            wrong.append(f"{record['nn']}: its group is in {split} too")
    what = f"Jaccard >= {LEAK_THRESHOLD:.2f} or equal fingerprint, or graphs equal up to widths"
    detail = f"{len(set(snapshot.groups)):,} groups ({what}), none across splits"
    return check_faults("guarantee 4: no leakage", wrong, detail)


def _check_recall(snapshot: _VerifiedSnapshot) -> Check:
    """Check guarantee 5: LSH, as it was run, proposes every true pair of this corpus."""
    stated, threshold = snapshot.manifest.details["lsh"], snapshot.manifest.parameters["lexical_threshold"]
    features = snapshot.features
    judged = {d["id"] for d in snapshot.decisions if d["stage"] not in ("invalid", "filter")}
    if not judged:
        return check_faults("guarantee 5: all pairs are found", [], "nothing to compare")
    sets = in_order(features.shingle_set[np.array([snapshot.code_of[id_] for id_ in sorted(judged)], np.int64)])
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
    return check_faults("guarantee 5: all pairs are found", wrong, f"recall {measured.recall:.4f}: {recall_text}")


#: The checks of guarantees 1 to 5.
_GUARANTEES = (_check_no_near_duplicates, _check_witnesses, _check_order, _check_leakage, _check_recall)


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
    _, user, assistant = contents(row)
    questions, answers = read_fenced_code(user), read_fenced_code(assistant)
    if len(answers) != 1:
        yield f"{len(answers)} code blocks in the answer"
        return
    try:
        parse_code(answers[0], max_depth=None)
    except SyntaxError as error:
        yield f"a code block of the answer does not parse: {str(error).splitlines()[0]}"
    if questions == answers:
        yield "the code of its answer is that of its question"
    if digest not in (_digest(answers[0]), _digest(answers[0].removesuffix("\n"))):  # a final newline may be added
        yield "the file in it is not that of its record"
