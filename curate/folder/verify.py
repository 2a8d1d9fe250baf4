"""What holds in a snapshot besides what follows from its tables, by other means than those of its writer."""

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from curate.compute.graphs import GraphTrace, get_computations
from curate.model.corpus import fill_store
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import LEAK_THRESHOLD
from curate.model.previous import STAYS
from curate.model.residue import strip_residue
from curate.model.rights import check_rights
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.files import Json
from lemur_core.files.markdown import plural
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import IDENTITIES, compute_identities, identities
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import MAX_SETS, exact_pairs, iterate_pairs, link_by_lsh
from lemur_core.similarity.minhash import IntArray, jaccard
from lemur_core.source.text import parse_code
from manifests.conversations.conversation import DROPS, read_fenced_code
from manifests.conversations.verify import Row, chat_rows, contents
from manifests.folders.checks import Check, check_faults, run_checks
from manifests.folders.kinds import SNAPSHOT, Folder
from manifests.folders.tables import iterate_rows, read_table
from manifests.records import CHAT_KINDS, CHAT_ROLES, LemurRecord, NetworkRow


def check_snapshot(folder: Folder) -> list[Check]:
    """Check the promises of a snapshot whose tables have the right columns."""
    snapshot = _VerifiedSnapshot(folder)
    codes = {"kept": SNAPSHOT.files(folder.path, "records"), "removed": SNAPSHOT.files(folder.path, "networks")}
    sound = [*run_checks("ids", lambda: _check_ids(snapshot)), *run_checks("rows", lambda: _check_rows(snapshot))]
    checks = [
        *sound,
        *run_checks("licenses", lambda: check_rights(folder.manifest, codes, snapshot.withheld)),
    ]
    if SNAPSHOT.files(folder.path, "chat_drops"):
        checks += run_checks("chat", lambda: check_chat(folder))
    if not all(check.ok for check in sound):
        return [*checks, Check("guarantees", ok=False, detail="not checked: the decisions do not fit the records")]
    if snapshot.withheld:
        detail = f"not proved again: what is compared needs {len(snapshot.withheld):,} codes that were not published"
        checks.append(Check("near duplicates, witnesses, leaks", ok=True, detail=detail))
    else:
        for name, check in _LAWS.items():
            checks += run_checks(name, partial(check, snapshot))
    return [*checks, *(run_checks("graphs", lambda: _check_graphs(snapshot)) if snapshot.graphs else ())]


_READ = tuple(name for name in NetworkRow.model_fields if name not in ("nn_code", "names"))
#: The columns that a record and its network share.
_SHARED = ("nn", "prefix", "family", "split", "graph", "graph_widths", "behavior", "score", "license")
_COMPUTATION = ("graph", "graph_widths", "behavior")
_TRACED = ("id", "graph_eval", *_COMPUTATION)


class _VerifiedSnapshot:
    """A snapshot as it was read, and the features of all codes in it.

    Attributes:
        networks: the rows of all networks, without their codes; `records` the rows of the kept ones.
        code_of: id -> number in `features`.
        wrong: the ids that are not those of their code.
        withheld: ids of codes that were left out when it was published.
        graphs: id -> `graph`, `graph_eval`, `graph_widths`, `behavior`; empty if graphs were not compared.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder, self.manifest = folder.path, folder.manifest
        files = SNAPSHOT.files(self.folder, "networks")
        self.networks: list[Json] = [row for path in files for row in iterate_rows(path, _READ)]
        files = SNAPSHOT.files(self.folder, "records")
        columns = ("id", *_SHARED, "cluster")
        self.records: list[Json] = read_table(files, LemurRecord, columns).to_pylist()
        self.code_of: dict[str, int] = {}
        self.wrong: list[str] = []
        self.withheld: set[str] = set()
        tokens = self.manifest.parameters["tokens"]
        store = FeatureStore(tokens)
        digests: list[bytes] = []
        fill_store(store, self._new_codes(store, digests), tokens, folder.jobs)
        self.features: FeatureTable = store.table(digests)
        graphs = SNAPSHOT.files(self.folder, "graphs")
        self.graphs = {row.pop("id"): row for path in graphs for row in iterate_rows(path, _TRACED)}

    def _new_codes(self, store: FeatureStore, digests: list[bytes]) -> Iterator[tuple[bytes, str]]:
        may_withhold = self.manifest.details.get("withheld")
        for table in ("networks", "records"):
            for path in SNAPSHOT.files(self.folder, table):
                for row in iterate_rows(path, ("id", "nn", "nn_code")):
                    if may_withhold and not row["nn_code"]:
                        self.withheld.add(row["id"])
                        continue
                    digest = hashlib.sha256(row["nn_code"].encode()).digest()
                    if digest.hex() != row["id"]:
                        self.wrong.append(f"{row['nn']}: id is not the SHA-256 of its code, in {table}")
                    elif row["id"] not in self.code_of:
                        self.code_of[row["id"]] = len(digests)
                        digests.append(digest)
                        if digest not in store:
                            yield digest, row["nn_code"]

    @cached_property
    def published(self) -> set[str]:
        """The ids of records that a previous snapshot kept: two of these may be near or equal."""
        if "previous" not in self.manifest.details:
            return set()
        return {row["id"] for row in self.decisions if row["kept"] and row["reason"] == STAYS}

    def may_be_near(self, one: Json, other: Json) -> bool:
        """Return whether two kept records may be near: both were published, or they compute something else."""
        return {one["id"], other["id"]} <= self.published or self.differ(one, other)

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

    def differ(self, one: Json, other: Json) -> bool:
        """Return whether two kept records may be near because their computations differ (`keep-different`)."""
        if self.manifest.parameters["graph"] != "keep-different":
            return False
        widths = (one.get("graph_widths"), other.get("graph_widths"))
        return None not in widths and widths[0] != widths[1]


_DECIDED = ("row", "id", "nn", "kept", "stage", "canonical", "similarity", "reason")


def _check_ids(snapshot: _VerifiedSnapshot) -> Check:
    """Check that each code is there once, under its digest, and that records and networks state the same of it."""
    networks = {row["id"]: row for row in snapshot.networks}
    halves = sorted(snapshot.withheld & snapshot.code_of.keys())
    wrong = [f"{id_[:12]}: its code is in one of the tables, and left out of another" for id_ in halves]
    wrong += [*snapshot.wrong, *([] if len(networks) == len(snapshot.networks) else ["an id occurs twice"])]
    if len({record["id"] for record in snapshot.records}) != len(snapshot.records):
        wrong.append("an id occurs twice among the records")
    for record in snapshot.records:
        row = networks.get(record["id"], {})
        differing = [name for name in _SHARED if row.get(name) != record[name]]
        wrong += [f"{record['nn']}: {name} is not that of its network" for name in differing]
    kept = {row["id"] for row in snapshot.networks if row["kept"]}
    kept -= {record["id"] for record in snapshot.records}
    wrong += [f"{id_[:12]}: kept, but no record" for id_ in sorted(kept)]
    return check_faults("ids", wrong, f"{len(snapshot.code_of):,} ids are the SHA-256 of their code")


def _check_rows(snapshot: _VerifiedSnapshot) -> Check:
    """Check that every input row is decided once: for a reason, and by a kept witness, as its network says."""
    kept_ids = {record["id"] for record in snapshot.records}
    kept_rows: Counter[str] = Counter()
    outcomes: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
    wrong: list[str] = []
    number = -1
    for number, decision in enumerate(snapshot.decisions):
        where, stage = f"row {decision['row']}", decision["stage"]
        if decision["row"] != number:
            wrong.append(f"decisions: rows are not numbered from 0 in order, at {where}")
        if (stage is None) != decision["kept"] or not decision["reason"]:
            wrong.append(f"{where}: stage and kept disagree, or there is no reason")
        if stage not in ("invalid", "filter") and decision["canonical"] not in kept_ids:
            wrong.append(f"{where}: its canonical is not a kept record")
        if stage != "invalid":
            outcomes[decision["id"]].add((decision["nn"], stage, decision["canonical"], decision["similarity"]))
        kept_rows[decision["id"]] += decision["kept"]
    wrong += [f"record {id_[:12]} has {kept_rows[id_]} kept rows" for id_ in sorted(kept_ids) if kept_rows[id_] != 1]
    networks = {row["id"]: row for row in snapshot.networks}
    alone = sorted(outcomes.keys() ^ networks.keys())
    wrong += [f"{id_[:12]}: in one table of decisions and networks only" for id_ in alone]
    wrong += [
        f"{row['nn']}: decided otherwise"
        for id_, row in networks.items()
        if id_ in outcomes and (row["nn"], row["stage"], row["canonical"], row["similarity"]) not in outcomes[id_]
    ]
    return check_faults("rows", wrong, f"{number + 1:,} rows, each kept or removed for a reason by a kept record")


def _check_no_near_duplicates(snapshot: _VerifiedSnapshot) -> Check:
    """Check that no two kept records are near, by exact joins."""
    records, features, parameters = snapshot.records, snapshot.features, snapshot.manifest.parameters
    sets: dict[int, list[int]] = {}
    for index, number in enumerate(features.shingle_set[snapshot.codes].tolist()):
        sets.setdefault(number, []).append(index)
    pairs = exact_pairs(features, np.array(sorted(sets), np.int64), parameters["lexical_threshold"])
    near_sets = [(number, number, 1.0) for number in sets]
    near_sets += zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True)
    wrong: list[str] = [
        f"lexical Jaccard {value:.3f} between two kept records"
        for a, b, value in near_sets
        for first, other in itertools.product(sets[a], sets[b])
        if (first < other or a != b) and not snapshot.may_be_near(records[first], records[other])
    ]
    structures = StructuralIndex(features.elements, parameters["structural_threshold"])
    for number, (record, code) in enumerate(zip(records, snapshot.codes.tolist(), strict=True)):
        structure = int(features.fingerprint[code])
        for near in structures.near(structure):
            if not snapshot.may_be_near(record, records[near.place]):
                names = f"{records[near.place]['nn']} and {record['nn']}"
                wrong.append(f"structural Jaccard {near.similarity:.3f} between {names}")
        structures.keep(structure, number)
    detail = f"no two of {plural(len(records), 'record')} are near, of all pairs"
    return check_faults("near duplicates", wrong, detail)


def _check_witnesses(snapshot: _VerifiedSnapshot) -> Check:
    """Check that the similarity of every removal to its witness is as recorded and reaches its threshold."""
    code_of, parameters = snapshot.code_of, snapshot.manifest.parameters
    wrong: list[str] = []
    checked = 0
    for decision in snapshot.decisions:
        stage = decision["stage"]
        if stage == "leak":
            checked += 1
            wrong += _find_leak_faults(snapshot, decision)
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
    detail = f"{plural(checked, 'removal')}, similarity as recorded"
    return check_faults("witnesses", wrong, detail)


def _check_leaks(snapshot: _VerifiedSnapshot) -> Check:
    """Check that no group is in several splits, that no code is near to one of another group, and that a code without
    a group is near to several splits.
    """
    networks, features = snapshot.networks, snapshot.features
    wrong = list(_group_faults(networks))
    codes = [snapshot.code_of[row["id"]] for row in networks]
    place_of = {row["id"]: place for place, row in enumerate(networks)}
    traces = {place: GraphTrace(row) for place, row in enumerate(networks) if row["graph"] is not None}
    shared: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, code in enumerate(codes):
        shared["set", int(features.shingle_set[code])].append(place)
        shared["fingerprint", int(features.fingerprint[code])].append(place)
        if (widths := networks[place]["graph_widths"]) is not None:
            shared["widths", widths].append(place)
        if (evaluated := snapshot.graphs.get(networks[place]["id"], {}).get("graph_eval")) is not None:
            shared["eval", evaluated].append(place)
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
    new_groups_of = groups_of
    if snapshot.published:
        new = [row["split_group"] if row["id"] not in snapshot.published else None for row in networks]
        new_groups_of = {key: {new[place] for place in places} for key, places in shared.items()}
    splits_of = {key: {networks[place]["split"] for place in places} for key, places in shared.items()}
    by_place: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
    for key, places in shared.items():
        for place in places:
            by_place[place].append(key)
    for place, row in enumerate(networks):
        keys = [*by_place[place], *(("set", other) for other in near[int(features.shingle_set[codes[place]])])]
        if row["split_group"] is not None:
            groups = new_groups_of if row["id"] in snapshot.published else groups_of
            if any(groups[key] - {None, row["split_group"]} for key in keys):
                wrong.append(f"{row['nn']}: near to a code of another group")
        elif exact and len({split for key in keys for split in splits_of[key]} - {None}) < 2:
            wrong.append(f"{row['nn']}: in no split, but near to one split only")
    count = len({row["split_group"] for row in networks} - {None})
    detail = f"{plural(len(networks), 'code')}, {plural(count, 'group')}, none across splits"
    if inherited := snapshot.manifest.details.get("inherited"):
        detail += f" but {plural(len(inherited), 'pair')} that a previous snapshot kept"
    return check_faults("leaks", wrong, detail)


def _find_leak_faults(snapshot: _VerifiedSnapshot, decision: Json) -> Iterator[str]:
    """Yield the faults of the removal of a code that would join two published splits."""
    where, stated = f"row {decision['row']} (leak)", decision["similarity"]
    one, other = (snapshot.code_of[decision[name]] for name in ("id", "canonical"))
    traces = [snapshot.graphs.get(decision[name], {}) for name in ("id", "canonical")]
    equal = any(traces[0].get(name) is not None and traces[0].get(name) == traces[1].get(name) for name in _TRACED[1:])
    features = snapshot.features
    if stated == 1.0 and (equal or features.fingerprint[one] == features.fingerprint[other]):
        return
    similarity = _similarity(features, "lexical", one, other)
    if similarity != stated or similarity < LEAK_THRESHOLD:
        yield f"{where}: {stated} recorded, {similarity} found, {LEAK_THRESHOLD} asked"


def _group_faults(networks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the groups that are in several splits, or not named by their smallest id."""
    members: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in networks:
        if (row["split"] is None) != (row["split_group"] is None):
            yield f"{row['nn']}: a split without a group, or a group without a split"
        if row["split_group"] is not None:
            members[row["split_group"]].append(row)
    for group, rows in members.items():
        if len({row["split"] for row in rows}) > 1 or min(row["id"] for row in rows)[:16] != group:
            yield f"group {group}: is in several splits, or has another name"


def _check_graphs(snapshot: _VerifiedSnapshot) -> Check:
    """Check that identities follow from the graphs, that no two kept records share one, and that columns agree."""
    wrong, known = [], 0
    distinct: defaultdict[str, list[Json]] = defaultdict(list)
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
        equal = (other for digest in own.values() for other in distinct[digest])
        equal = (other for other in equal if not {record["id"], other["id"]} <= snapshot.published)
        if any(traced.agrees(GraphTrace(other)) == "same" for other in equal):
            wrong.append(f"{record['nn']}: another kept record computes the same")
        elif own:
            known += 1
            for digest in own.values():
                distinct[digest].append(record)
    measured = sum(record["behavior"] is not None for record in snapshot.records)
    detail = f"{known:,} of {len(snapshot.records):,} kept records have a graph, all different"
    detail += f"; the numbers of {measured:,}, too" if measured else ""
    detail += f", traced with torch {torch}" if torch is not None else ""
    return check_faults("graphs", wrong, detail)


_GRAPHS = ("id", "torch", "eval", "train", *IDENTITIES, "graph_eval")


def _wrong_identities(row: Json) -> list[str]:
    graphs = {mode: Graph.from_json(json.loads(row[mode])) for mode in ("eval", "train") if row[mode] is not None}
    own: dict[str, str | None] = dict.fromkeys((*IDENTITIES, "graph_eval"))
    if graphs:
        own |= compute_identities(graphs) | {"graph_eval": identities(graphs["eval"]).exact}
    return [name for name, identity in own.items() if row[name] != identity]


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


#: The promises about near codes, by name.
_LAWS = {"near duplicates": _check_no_near_duplicates, "witnesses": _check_witnesses, "leaks": _check_leaks}


def check_chat(snapshot: Folder) -> Check:
    """Check what the writer takes as it was said: the turns, and the code in them; and that each record has each kind
    of conversation, or a reason why not.
    """
    digests: dict[str, str] = {}  # record -> of the file that its conversations show
    splits: dict[str, str] = {}
    for path in SNAPSHOT.files(snapshot.path, "records"):
        for row in iterate_rows(path, ("id", "nn_code")):
            digests[row["id"]] = _digest(strip_residue(row["nn_code"]))
            splits[row["id"]] = path.name.partition("-")[0]
    wrong: list[str] = []
    said = Counter[tuple[str, str]]()
    for split, row in chat_rows(snapshot.path):
        said[row["record"], row["task"]] += 1
        faults = [*_faults(row, digests.get(row["record"]))]
        faults += [] if splits.get(row["record"]) == split else [f"in {split}, which is not the split of its record"]
        wrong += [f"{row['nn']} {row['task']}: {fault}" for fault in faults]
    number = said.total()
    said.update((row["record"], row["task"]) for row in iterate_rows(snapshot.path / DROPS, ("record", "task")))
    expected = {(id_, kind) for id_ in splits for kind in CHAT_KINDS}
    for id_, kind in sorted(expected | said.keys()):
        if said[id_, kind] != ((id_, kind) in expected):
            wrong.append(
                f"{id_[:12]} {kind}: {plural(said[id_, kind], 'conversation or reason', 'conversations and reasons')}"
            )
    return check_faults(
        "chat",
        wrong,
        f"{plural(number, 'conversation')} about {plural(len(splits), 'record')}, each kind made or explained",
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _faults(row: Row, digest: str | None) -> Iterator[str]:
    """Yield the faults of one conversation: its form, its code, and whether the code is that of its record."""
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        yield f"its roles are not {', '.join(CHAT_ROLES)}"
        return
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
