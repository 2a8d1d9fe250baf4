"""What holds in a snapshot besides what follows from its tables, by other means than those of its writer."""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property, partial

import numpy as np

from curate.compute.graphs import GraphTrace, get_computations, read_graph_row
from curate.compute.outcome import REMOVED
from curate.folder.chat import strip_residue
from curate.model.corpus import STAYS, FeatureStore, fill_store
from curate.model.options import LEAK_THRESHOLD
from curate.model.rights import is_withheld
from lemur_core.files import Json
from lemur_core.files.markdown import plural
from lemur_core.graphs.graph import get_public
from lemur_core.graphs.identity import IDENTITIES
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import MAX_SETS, exact_pairs, iterate_pairs, link_by_lsh
from lemur_core.similarity.minhash import jaccard
from manifests.conversations import Row, chat_rows, contents, read_fenced_code
from manifests.folders.kinds import SNAPSHOT, Check, Folder, check_faults, run_checks
from manifests.folders.tables import CHAT_DROPS, iterate_rows
from manifests.provenance.licenses import NOASSERTION, combine_licenses, license_of_code
from manifests.records import CHAT_KINDS, CHAT_ROLES, NetworkRow

_COMPUTATION = ("graph", "graph_widths", "behavior")
_EVALS = ("graph_eval", "behavior_eval")
_RIGHTS = ("license", "origin", "origin_similarity", "origin_license")
_DECIDED = ("row", "id", "kept", "stage", "canonical", "similarity", "reason")


def check_snapshot(folder: Folder) -> list[Check]:
    """Check the promises of a snapshot whose tables have the right columns."""
    snapshot = _VerifiedSnapshot(folder)
    checks = run_checks("rows", partial(_check_rows, snapshot))
    sound = checks[0].ok
    checks += run_checks("licenses", partial(_check_licenses, snapshot))
    if SNAPSHOT.files(folder.path, "chat_drops"):
        checks += run_checks("chat", partial(check_chat, folder))
    if not sound:
        return [*checks, Check("guarantees", ok=False, detail="not checked: the decisions do not fit the records")]
    if snapshot.withheld:
        lacks = plural(len(snapshot.withheld), "code that was", "codes that were")
        detail = f"not proved again: what is compared needs {lacks} not published"
        checks.append(Check("near duplicates, witnesses, leaks", ok=True, detail=detail, done=False))
    else:
        for name, law in _LAWS.items():
            checks += run_checks(name, partial(law, snapshot))
    return [*checks, *(run_checks("graphs", partial(_check_graphs, snapshot)) if snapshot.graphs else ())]


class _VerifiedSnapshot:
    """A snapshot as it was read, and the features of all codes in it.

    Attributes:
        networks: the rows of all networks, without their codes; `records` those of the kept ones.
        code_of: id -> number in `features`.
        wrong: what is wrong with ids and licenses, of which the codes tell.
        withheld: ids of codes that were left out when it was published.
        graphs: id -> its identities and `graph_eval`; empty if graphs were not compared.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder, self.manifest, self.parameters = folder.path, folder.manifest, folder.manifest.parameters
        self.networks = self._read("networks", [name for name in NetworkRow.model_fields if name != "nn_code"])
        self.records = self._read("records", ["id", "nn", *_COMPUTATION])
        self.graphs = {row["id"]: row for row in self._read("graphs", ["id", *_EVALS, *IDENTITIES, "behavior"])}
        self.code_of: dict[str, int] = {}
        self.wrong: list[str] = []
        self.withheld: set[str] = set()
        store = FeatureStore()
        fill_store(store, self._read_codes(), folder.jobs)
        self.features = store.table([bytes.fromhex(id_) for id_ in self.code_of])

    def _read(self, table: str, columns: list[str]) -> list[Json]:
        return [row for path in SNAPSHOT.files(self.folder, table) for row in iterate_rows(path, columns)]

    def _read_codes(self) -> Iterator[tuple[bytes, str]]:
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
                        self.code_of[row["id"]] = len(self.code_of)
                        yield digest, row["nn_code"]

    @property
    def decisions(self) -> Iterator[Json]:
        """The decisions, read again each time: of 100,000, Python objects would take 100 MB."""
        return iterate_rows(self.folder / "decisions.parquet", _DECIDED)

    @cached_property
    def published(self) -> set[str]:
        """The ids of records that a previous snapshot kept: two of these may be near or equal."""
        stated = self.decisions if "previous" in self.manifest.details else ()
        return {row["id"] for row in stated if row["kept"] and row["reason"] == STAYS}

    def may_be_near(self, one: Json, other: Json) -> bool:
        """Return whether two kept records may be near: both were published, or their computations differ and that
        counts (`keep-different`).
        """
        if {one["id"], other["id"]} <= self.published:
            return True
        widths = (one["graph_widths"], other["graph_widths"])
        return self.parameters["graph"] == "keep-different" and None not in widths and widths[0] != widths[1]

    def compare(self, removal: Json) -> float:
        """Return the similarity of a removed code to its witness, at the stage that removed it."""
        stage, ids = removal["stage"], (removal["id"], removal["canonical"])
        one, other = (self.graphs.get(id_, {}) for id_ in ids)
        if stage == "graph":
            return float(GraphTrace(one).agrees(GraphTrace(other)) == "same")
        features, codes = self.features, [self.code_of[id_] for id_ in ids]
        if stage == "exact":
            return float(len(set(features.tree[codes])) == 1)
        fingerprints, sets = features.fingerprint[codes].tolist(), features.shingle_set[codes].tolist()
        names = (*_COMPUTATION, *_EVALS)
        equal = any(one.get(name) is not None and one.get(name) == other.get(name) for name in names)
        if stage == "structural":
            elements = [features.elements[number] for number in fingerprints]
            return 1.0 if fingerprints[0] == fingerprints[1] else jaccard(*elements)
        if stage == "leak" and removal["similarity"] == 1.0 and (equal or fingerprints[0] == fingerprints[1]):
            return 1.0
        return 1.0 if sets[0] == sets[1] else jaccard(*map(features.shingles, sets))


def _check_rows(snapshot: _VerifiedSnapshot) -> Check:
    """Check that every input row is decided once, for a reason, and by a kept witness; and that each code is there
    once, under its digest.
    """
    records, networks = ({row["id"] for row in rows} for rows in (snapshot.records, snapshot.networks))
    wrong = list(snapshot.wrong)
    wrong += [
        f"{id_[:12]}: its code is in one of the tables, and left out of another"
        for id_ in sorted(snapshot.withheld & snapshot.code_of.keys())
    ]
    if (len(networks), len(records)) != (len(snapshot.networks), len(snapshot.records)):
        wrong.append("an id occurs twice")
    kept_rows, decided = Counter[str](), set[str]()
    number = -1
    for number, decision in enumerate(snapshot.decisions):
        where, stage = f"row {decision['row']}", decision["stage"]
        if decision["row"] != number:
            wrong.append(f"decisions: rows are not numbered from 0 in order, at {where}")
        if (stage is None) != decision["kept"] or not decision["reason"]:
            wrong.append(f"{where}: stage and kept disagree, or there is no reason")
        if stage not in ("invalid", "filter") and decision["canonical"] not in records:
            wrong.append(f"{where}: its canonical is not a kept record")
        if stage != "invalid":
            decided.add(decision["id"])
        kept_rows[decision["id"]] += decision["kept"]
    wrong += [
        f"{id_[:12]}: {kept_rows[id_]} kept rows, and {'a' if id_ in records else 'no'} record"
        for id_ in sorted(records | (+kept_rows).keys())
        if kept_rows[id_] != (id_ in records)
    ]
    alone = sorted((decided ^ networks) | (records - networks))
    wrong += [f"{id_[:12]}: in one table of decisions, networks and records only" for id_ in alone]
    return check_faults("rows", wrong, f"{number + 1:,} rows, each kept or removed for a reason by a kept record")


def _check_licenses(snapshot: _VerifiedSnapshot) -> Check:
    """Check that column `license` follows from the code, its source and its origin, and which codes are withheld."""
    details = snapshot.manifest.details
    shared, stated = str(details.get("license", NOASSERTION)), snapshot.parameters.get("license")
    lowest = details.get("origins", {}).get("threshold", 0.0)
    wrong: list[str] = []
    codes = blocked = by_row = 0
    files = SNAPSHOT.files(snapshot.folder, "networks")
    for row in (row for path in files for row in iterate_rows(path, ("id", "nn", "nn_code", *_RIGHTS))):
        license_, *origin = (row[name] for name in _RIGHTS)
        codes += 1
        blocked += is_withheld(license_, shared)
        if len({value is None for value in origin}) > 1 or (origin[1] or 1.0) < lowest:
            wrong.append(f"{row['nn']}: origin, its similarity and its license do not go together")
        if row["id"] in snapshot.withheld:
            wrong += [f"{row['nn']}: its code is missing, under {license_}"] * (not is_withheld(license_, shared))
            continue
        # Stated by the code itself, or else by its source; or by its row of the source, which the code may repeat.
        under = list(filter(None, origin[2:]))
        expected = combine_licenses([license_of_code(row["nn_code"], shared, stated) or shared, *under])
        if license_ != expected:
            by_row += 1
            of_row = combine_licenses([license_of_code(row["nn_code"], license_, None) or license_, *under])
            if of_row != license_ or by_row > details.get("licensed_by_row", 0):
                wrong.append(f"{row['nn']}: its license is {expected}, {license_} is stated")
        if snapshot.withheld and is_withheld(expected, shared):
            wrong.append(f"{row['nn']}: its code is here, under {expected}")
    return check_faults("licenses", wrong, f"of {plural(codes, 'code')}; {blocked:,} not passed on")


def _check_no_near_duplicates(snapshot: _VerifiedSnapshot) -> Check:
    """Check that no two kept records are near, by exact joins."""
    records, features, wrong = snapshot.records, snapshot.features, []
    codes = [snapshot.code_of[record["id"]] for record in records]
    by_set: defaultdict[int, list[int]] = defaultdict(list)
    for at, code in enumerate(codes):
        by_set[int(features.shingle_set[code])].append(at)
    pairs = exact_pairs(features, np.array(sorted(by_set), np.int64), snapshot.parameters["lexical_threshold"])
    near = [(pair, 1.0) for places in by_set.values() for pair in itertools.combinations(places, 2)]
    for a, b, value in zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True):
        near += ((pair, value) for pair in itertools.product(by_set[a], by_set[b]) if a != b)
    structures = StructuralIndex(features.elements, snapshot.parameters["structural_threshold"])
    for at, code in enumerate(codes):
        structure = int(features.fingerprint[code])
        near += (((found.place, at), found.similarity) for found in structures.near(structure))
        structures.keep(structure, at)
    for (first, second), value in near:
        if not snapshot.may_be_near(records[first], records[second]):
            wrong.append(f"{records[first]['nn']} and {records[second]['nn']} are kept, with a Jaccard of {value:.3f}")
    return check_faults("near duplicates", wrong, f"no two of {plural(len(records), 'record')} are near, of all pairs")


def _check_witnesses(snapshot: _VerifiedSnapshot) -> Check:
    """Check that the similarity of every removal to its witness is as recorded and reaches its threshold."""
    limits = {"leak": LEAK_THRESHOLD} | {
        stage: snapshot.parameters[f"{stage}_threshold"] for stage in ("lexical", "structural")
    }
    wrong, checked = [], 0
    for row in snapshot.decisions:
        if row["stage"] not in REMOVED:
            continue
        checked += 1
        found, limit = snapshot.compare(row), limits.get(row["stage"], 1.0)
        if found != row["similarity"] or found < limit:
            stated = f"{row['similarity']} recorded, {found} found, {limit} asked"
            wrong.append(f"row {row['row']} ({row['stage']}): {stated}")
    return check_faults("witnesses", wrong, f"{plural(checked, 'removal')}, similarity as recorded")


def _check_leaks(snapshot: _VerifiedSnapshot) -> Check:
    """Check that no group is in several splits, that no code is near to one of another group, and that a code without
    a group is near to several splits.
    """
    networks = snapshot.networks
    wrong: list[str] = []
    members: defaultdict[str, list[Json]] = defaultdict(list)
    for row in networks:
        if (row["split"] is None) != (row["split_group"] is None):
            wrong.append(f"{row['nn']}: a split without a group, or a group without a split")
        elif row["split_group"] is not None:
            members[row["split_group"]].append(row)
    wrong += [
        f"group {group}: is in several splits, or has another name"
        for group, rows in members.items()
        if len({row["split"] for row in rows}) > 1 or min(row["id"] for row in rows)[:16] != group
    ]
    splits_near: dict[str, set[str]] = {row["id"]: set() for row in networks if row["split_group"] is None}
    exact, ties = _list_ties(snapshot)
    for together in ties:
        groups = {row["split_group"]: row["nn"] for row in together if row["split_group"] is not None}
        if len(groups) > 1 and any(row["id"] not in snapshot.published and row["split_group"] for row in together):
            wrong.append(f"{' and '.join([*groups.values()][:2])}: near to each other, in two groups")
        for row in together:
            if row["split_group"] is None:
                splits_near[row["id"]] |= {other["split"] for other in together} - {None}
    if exact:
        names = {row["id"]: row["nn"] for row in networks}
        wrong += [
            f"{names[id_]}: in no split, but near to one split only" for id_, of in splits_near.items() if len(of) < 2
        ]
    detail = f"{plural(len(networks), 'code')}, {plural(len(members), 'group')}, none across splits"
    if inherited := snapshot.manifest.details.get("inherited"):
        detail += f" but {plural(len(inherited), 'pair')} that a previous snapshot kept"
    return check_faults("leaks", wrong, detail)


def _list_ties(snapshot: _VerifiedSnapshot) -> tuple[bool, Iterator[list[Json]]]:
    """Return the networks that must be in one group, together, and whether these are all."""
    networks, features = snapshot.networks, snapshot.features
    tied: defaultdict[tuple[object, ...], list[Json]] = defaultdict(list)
    by_id = {row["id"]: row for row in networks}
    computed = get_computations({at: GraphTrace(row) for at, row in enumerate(networks) if row["graph"] is not None})
    for at, row in enumerate(networks):
        code = snapshot.code_of[row["id"]]
        keys = {
            "set": int(features.shingle_set[code]),
            "fingerprint": int(features.fingerprint[code]),
            "widths": row["graph_widths"],
            **{name: snapshot.graphs.get(row["id"], {}).get(name) for name in _EVALS},
            "computation": computed.get(at),
        }
        for name, key in keys.items():
            if key is not None:
                tied[name, key].append(row)
        if (canonical := by_id.get(row["canonical"])) is not None:
            tied["canonical", row["id"]] = [canonical, row]
    sets = np.unique(features.shingle_set[[snapshot.code_of[row["id"]] for row in networks]])
    exact = len(sets) <= MAX_SETS
    joined = iterate_pairs(features, sets, LEAK_THRESHOLD) if exact else [link_by_lsh(features, sets, LEAK_THRESHOLD)]
    near = (
        [*tied["set", one], *tied["set", other]]
        for a, b, *_ in joined
        for one, other in zip(sets[a].tolist(), sets[b].tolist(), strict=True)
    )
    return exact, itertools.chain(list(tied.values()), near)


def _check_graphs(snapshot: _VerifiedSnapshot) -> Check:
    """Check that identities follow from the graphs, that no two kept records share one, and that columns agree."""
    wrong, known = [], 0
    torch = snapshot.manifest.versions.get("torch")  # folders that are older name no runtime
    for row in iterate_rows(snapshot.folder / "graphs.parquet"):
        id_, traced_with = row["id"], row["torch"]
        if None not in (torch, traced_with) and get_public(traced_with) != get_public(torch):
            wrong.append(f"{id_[:12]}: traced with torch {traced_with}, the manifest names {torch}")
        # `derive` works out the identities of a whole snapshot.
        if snapshot.withheld and id_ not in snapshot.withheld and row["eval"] is not None:
            stated = {name: row[name] for name in (*IDENTITIES, "graph_eval")}
            answer = read_graph_row(row)
            wrong += [f"{id_[:12]}: {name} is not that of its graph" for name in stated if answer[name] != stated[name]]
    distinct: defaultdict[str, list[Json]] = defaultdict(list)
    for record in snapshot.records:
        stored = snapshot.graphs.get(record["id"], {"graph": "", "graph_widths": ""})
        if any(record[name] != stored.get(name) for name in _COMPUTATION):
            wrong.append(f"{record['nn']}: its graph is not the one in graphs.parquet")
            continue
        own = {record[name] for name in ("graph", "behavior")} - {None}
        equal = (other for digest in own for other in distinct[digest])
        equal = (other for other in equal if not {record["id"], other["id"]} <= snapshot.published)
        if any(GraphTrace(record).agrees(GraphTrace(other)) == "same" for other in equal):
            wrong.append(f"{record['nn']}: another kept record computes the same")
        known += bool(own)
        for digest in own:
            distinct[digest].append(record)
    measured = sum(record["behavior"] is not None for record in snapshot.records)
    detail = f"{known:,} of {plural(len(snapshot.records), 'kept record')} with a graph, all different"
    detail += f"; the numbers of {measured:,}, too" if measured else ""
    detail += f", traced with torch {torch}" if torch is not None else ""
    return check_faults("graphs", wrong, detail)


#: The promises about near codes, by name.
_LAWS = {"near duplicates": _check_no_near_duplicates, "witnesses": _check_witnesses, "leaks": _check_leaks}


def check_chat(snapshot: Folder) -> Check:
    """Check what the writer takes as it was said: the turns, and the code in them; and that each record has each kind
    of conversation, or a reason why not.
    """
    kept: dict[str, tuple[str, str]] = {}  # record -> its split, and the file that its conversations show
    for path in SNAPSHOT.files(snapshot.path, "records"):
        for row in iterate_rows(path, ("id", "nn_code")):
            kept[row["id"]] = path.name.partition("-")[0], strip_residue(row["nn_code"]).removesuffix("\n")
    wrong: list[str] = []
    said = Counter[tuple[str, str]]()
    for split, row in chat_rows(snapshot.path):
        said[row["record"], row["task"]] += 1
        if fault := _find_fault(row, split, *kept.get(row["record"], ("", ""))):
            wrong.append(f"{row['nn']} {row['task']}: {fault}")
    number = said.total()
    said.update((row["record"], row["task"]) for row in iterate_rows(snapshot.path / CHAT_DROPS, ("record", "task")))
    expected = {(id_, kind) for id_ in kept for kind in CHAT_KINDS}
    for id_, kind in sorted(expected | said.keys()):
        if (times := said[id_, kind]) != ((id_, kind) in expected):
            wrong.append(f"{id_[:12]} {kind}: {plural(times, 'conversation or reason', 'conversations and reasons')}")
    about = f"{plural(number, 'conversation')} about {plural(len(kept), 'record')}"
    return check_faults("chat", wrong, f"{about}, each kind made or explained")


def _find_fault(row: Row, split: str, wanted: str, code: str) -> str:
    """Return the fault of a conversation: its split, its form, or code that is not that of its record; or nothing."""
    if split != wanted:
        return f"in {split}, which is not the split of its record"
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        return f"its roles are not {', '.join(CHAT_ROLES)}"
    questions, answers = (read_fenced_code(text) for text in contents(row)[1:])
    if len(answers) != 1:
        return f"{len(answers)} code blocks in the answer"
    if questions == answers:
        return "the code of its answer is that of its question"
    # a final newline may be added
    return "" if answers[0].removesuffix("\n") == code else "the file in it is not that of its record"
