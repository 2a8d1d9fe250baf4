"""Check a delta together with all snapshots that it extends: prove their joint guarantees by exact joins.

This is a part of `lemur verify`. Records are compared across all folders once; each folder then looks only at its own
records and those that it extends. So checking a chain of deltas costs no more than checking all records at once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from curate.compute.graphs import GraphTrace
from curate.model.corpus import fill_store
from curate.model.features import FeatureStore
from curate.model.options import LEAK_THRESHOLD
from curate.model.splits import join_clusters, read_joined
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.files import Json
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import ExactPairs, in_order, measure_recall, pairs_between
from lemur_core.similarity.minhash import Banding, IntArray
from manifests.folders.formats import SNAPSHOT
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_rows, read_table
from manifests.records import LemurRecord, NetworkRow

Row = Mapping[str, Any]

#: The columns to compare. No others are kept in memory: with all columns, 100,000 records take half a gigabyte.
_COMPARED = ("id", "nn", "split", "cluster", "graph", "graph_widths", "behavior", "runs", "runs_error")
_ROWS = 5_000  # rows of a table that are Python objects at the same time
_DECIDED = ("stage", "canonical", "similarity")


@dataclass(frozen=True, slots=True)
class Member:
    """A folder to check: its parents (member number -> position among them), and what was read from it."""

    path: Path
    manifest: Manifest
    number: int
    parents: Mapping[int, int]
    records: list[Json] = field(default_factory=list)  # `_COMPARED`; "folder" is the member's number
    ids: set[str] = field(default_factory=set)  # of the codes in its tables
    wrong_ids: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)  # ids of codes that were left out when it was published


class DeltaCheck:
    """The records of all members, decided by the same rules; a member comes after those that it extends."""

    def __init__(self, members: Sequence[Member], jobs: int | None) -> None:
        self.members, self._parameters = members, members[-1].manifest.parameters
        self.code_of: dict[str, int] = {}  # id -> number in `features`
        self.removed: dict[str, dict[int, Row]] = defaultdict(dict)  # id -> the first decision, by member
        self.records: list[Json] = []
        self._digests: list[bytes] = []
        for member in members:
            member.records.extend(_read_records(member))
            self.records += member.records
        detail = self._parameters["tokens"]
        store = FeatureStore(detail)
        fill_store(store, self._new_codes(store), detail, jobs)
        self.features = store.table(self._digests)

    def _new_codes(self, store: FeatureStore) -> Iterator[tuple[bytes, str]]:
        for member in self.members:
            related = (member, *(self.members[number] for number in member.parents))
            may_withhold = any(other.manifest.details.get("withheld") for other in related)
            for path in (*SNAPSHOT.files(member.path, "records"), *SNAPSHOT.files(member.path, "networks")):
                for row in read_rows([path], NetworkRow, ("id", "nn", "nn_code")):  # records have these columns, too
                    if row.id in member.ids:  # of a record, among all networks
                        continue
                    digest = hashlib.sha256(row.nn_code.encode()).digest()
                    member.ids.add(row.id)
                    if may_withhold and not row.nn_code:
                        member.withheld.add(row.id)
                        continue
                    if digest.hex() != row.id:
                        member.wrong_ids.append(f"{row.nn}: id is not the SHA-256 of its code")
                    if row.id not in self.code_of:
                        self.code_of[row.id] = len(self._digests)
                        self._digests.append(digest)
                        if digest not in store:
                            yield digest, row.nn_code

    def fingerprint(self, id_: str) -> int:
        """Return the number of a code's fingerprint."""
        return int(self.features.fingerprint[self.code_of[id_]])

    def shingle_set(self, id_: str) -> int:
        """Return the number of a code's shingle set."""
        return int(self.features.shingle_set[self.code_of[id_]])

    def sets(self, ids: Mapping[str, Row] | set[str]) -> IntArray:
        """Return the numbers of the codes' shingle sets, ordered by id."""
        return in_order(self.features.shingle_set[np.array([self.code_of[id_] for id_ in sorted(ids)], np.int64)])

    def record_decisions(self, member: Member, decisions: Iterable[Row]) -> None:
        """Record what a member has removed, because members that extend it must agree."""
        if not any(member.number in other.parents for other in self.members):
            return
        for row in decisions:
            if row["stage"] in (*DUPLICATE_STAGES, "leak") and row["canonical"] != row["id"]:
                self.removed[row["id"]].setdefault(member.number, {name: row[name] for name in _DECIDED})

    @cached_property
    def lookups(self) -> dict[str, dict[Any, list[Row]]]:
        """All records by their identities (including null), and by the numbers of `set` and `fingerprint`."""
        lookups: dict[str, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for record in self.records:
            for name in ("id", "graph", "graph_widths", "behavior"):
                lookups[name][record.get(name)].append(record)
            if record["id"] not in self.code_of:  # withheld
                continue
            lookups["set"][self.shingle_set(record["id"])].append(record)
            lookups["fingerprint"][self.fingerprint(record["id"])].append(record)
        return lookups

    @cached_property
    def near_sets(self) -> dict[int, list[tuple[int, float]]]:
        """For each shingle set, the sets of records that are near enough to matter, with the Jaccard similarity."""
        every = self.features.shingle_set
        lowest = min(LEAK_THRESHOLD, self._parameters["lexical_threshold"])
        kept = np.array(sorted(self.lookups["set"]), np.int64)
        return _by_first(pairs_between(self.features, np.unique(every[every >= 0]), kept, lowest))

    @cached_property
    def near_structures(self) -> dict[tuple[int, str], list[tuple[Row, float]]]:
        """For each record that has any, by `folder` and `id`: the earlier ones with near fingerprints, and how near."""
        index = StructuralIndex(self.features.elements, self._parameters["structural_threshold"])
        by_record: dict[tuple[int, str], list[tuple[Row, float]]] = {}
        for number, record in enumerate(self.records):
            if record["id"] in self.code_of:  # not withheld
                structure = self.fingerprint(record["id"])
                near = [(self.records[neighbour.place], neighbour.similarity) for neighbour in index.near(structure)]
                if near:
                    by_record.setdefault((record["folder"], record["id"]), []).extend(near)
                index.keep(structure, number)
        return by_record

    def differ(self, one: Row, other: Row) -> bool:
        """Return whether two kept records may be near because their computations differ (`keep-different`)."""
        if self._parameters["graph"] != "keep-different":
            return False
        widths = (one.get("graph_widths"), other.get("graph_widths"))
        return None not in widths and widths[0] != widths[1]


class PublishedRecords:
    """The records that one member extends."""

    def __init__(self, check: DeltaCheck, member: Member) -> None:
        self._check, self._member = check, member
        self._lexical: float = member.manifest.parameters.get("lexical_threshold", 1.0)

    def __len__(self) -> int:
        return sum(len(self._check.members[number].records) for number in self._member.parents)

    def records(self, name: str, value: object) -> list[Row]:
        """Return the published records with this `id`, `graph`, `graph_widths`, `behavior`, `set` or `fingerprint`."""
        if not self._member.parents:  # without building the lookups
            return []
        return [row for row in self._check.lookups[name].get(value, ()) if row["folder"] in self._member.parents]

    def removal(self, id_: str) -> Row | None:
        """Return the decision that removed a code there; None if it was not removed."""
        by_member, parents = self._check.removed.get(id_, {}), self._member.parents
        return min(((parents[at], row) for at, row in by_member.items() if at in parents), default=(0, None))[1]

    def equal(self, decisions: Iterable[Row]) -> Iterator[str]:
        """Yield the decisions that contradict the parents' decision on the same code."""
        for row in decisions:
            if row["stage"] in ("invalid", "filter", "repeat"):
                continue
            expected: object = self.removal(row["id"])
            if self.records("id", row["id"]):
                expected = {"stage": "exact", "canonical": row["id"], "similarity": 1.0}
            if expected is not None and {name: row[name] for name in _DECIDED} != expected:
                yield f"row {row['row']}: its code is decided already, as {expected}"

    def near_duplicates(self) -> Iterator[str]:
        """Yield pairs of a kept and a published record that are near-duplicates."""
        for record in self._member.records:
            near = self._near(record["id"], self._lexical)
            structural = self._check.near_structures.get((self._member.number, record["id"]), ())
            near += [(other, value) for other, value in structural if other["folder"] in self._member.parents]
            for other, value in near:
                if not self._check.differ(record, other):
                    folder = self._check.members[other["folder"]].path.name
                    yield f"{record['nn']}: Jaccard {value:.3f} to {other['nn']} of {folder}"

    def find_twins(self, record: Row) -> list[Row]:
        """Return the published records that compute the same as a record, without repeats."""
        near = {
            row["id"]: row
            for name in ("graph", "behavior")
            if record.get(name)
            for row in self.records(name, record[name])
        }
        return [row for row in near.values() if GraphTrace(record).agrees(GraphTrace(row)) == "same"]

    def find_split_neighbours(self, id_: str, widths: str | None) -> list[Row]:
        """Return the published records whose split a code must share."""
        neighbours = [other for other, _ in self._near(id_, LEAK_THRESHOLD)]
        neighbours += self.records("fingerprint", self._check.fingerprint(id_))
        return neighbours + (self.records("graph_widths", widths) if widths is not None else [])

    def neighbours_by_group(self, groups: Sequence[int]) -> dict[int, list[Row]]:
        """Return the published records whose split each group of the delta's records must share, if any."""
        by_group: dict[int, list[Row]] = defaultdict(list)
        for record, group in zip(self._member.records, groups, strict=True):
            by_group[group] += self.find_split_neighbours(record["id"], record.get("graph_widths"))
        return {group: records for group, records in by_group.items() if records}

    def leaks(self, decisions: Iterable[Row], widths_of: Mapping[str, str | None]) -> Iterator[str]:
        """Yield records that were rejected as leaks without being near to two splits.

        Args: widths_of: G1 by id, for the codes that were traced.
        """
        check, own = self._check, self._member.records
        refused = {row["id"]: row for row in decisions if row["stage"] == "leak"}
        new = {id_: row for id_, row in refused.items() if self.removal(id_) is None}
        by_set = defaultdict[int, list[Row]](list)
        for record in own:
            by_set[check.shingle_set(record["id"])].append(record)
        sets = np.array(sorted(by_set), np.int64)
        near = _by_first(pairs_between(check.features, check.sets(new), sets, LEAK_THRESHOLD))
        for id_, row in new.items():
            structure, widths = check.fingerprint(id_), widths_of.get(id_)
            splits = {other["split"] for other in self.find_split_neighbours(id_, widths)}
            splits |= {
                record["split"] for number, _ in near.get(check.shingle_set(id_), ()) for record in by_set[number]
            }
            for record in own:
                same = check.fingerprint(record["id"]) == structure
                if same or (widths is not None and record.get("graph_widths") == widths):
                    splits.add(record["split"])
            if len(splits) < 2:
                yield f"row {row['row']} (leak): what it is near to is in one split"

    def recall(self, judged: set[str]) -> tuple[int, int]:
        """Count the pairs of a new and a published code at the lexical threshold: those that LSH proposes, and all."""
        sets = self._check.sets({id_ for id_ in judged if not self.records("id", id_)})
        pairs = [
            (a, b, value)
            for a in sets.tolist()
            for b, value in self._check.near_sets.get(a, ())
            if value >= self._lexical and self.records("set", b)
        ]
        a, b = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
        values = np.array([value for *_, value in pairs], np.float64)
        stated = self._member.manifest.details["against"]
        truth = ExactPairs(a, b, values, len(sets), len(self), len(sets))
        measured = measure_recall(self._check.features, truth, Banding(stated["bands"], stated["rows"]), self._lexical)
        return measured.proposed, measured.pairs

    def _near(self, id_: str, threshold: float) -> list[tuple[Row, float]]:
        """Return the published records whose shingle sets are near that of a code, with the Jaccard similarity."""
        near = self._check.near_sets.get(self._check.shingle_set(id_), ())
        return [(other, value) for number, value in near if value >= threshold for other in self.records("set", number)]


def find_conflicts(check: DeltaCheck, one: Member, other: Member) -> Iterator[str]:
    """Yield the reasons why two members that do not extend each other cannot be combined into one snapshot."""
    parallel = PublishedRecords(check, replace(other, parents={one.number: 0}))
    joined = join_clusters([*read_joined(one.path), *read_joined(other.path)])

    def group(record: Row) -> tuple[str, str]:
        key: str = record["cluster"]
        return str(record["split"]), joined.get(key, key)

    yield from parallel.near_duplicates()
    for record in other.records:
        name = record["nn"]
        if parallel.records("id", record["id"]):
            yield f"{name} is in both"
        yield from (f"{name} computes the same as {near['nn']}" for near in parallel.find_twins(record))
        for near in parallel.find_split_neighbours(record["id"], record.get("graph_widths")):
            if group(near) != group(record):
                yield f"{name} {group(record)} is apart from {near['nn']} {group(near)}, which is near"


def _read_records(member: Member) -> Iterator[Json]:
    """Yield the records of a member, with one object for equal names of splits and clusters."""
    shared: dict[str, str] = {}
    for path in SNAPSHOT.files(member.path, "records"):
        for batch in read_table([path], LemurRecord, _COMPARED).to_batches(max_chunksize=_ROWS):
            for record in batch.to_pylist():
                for name in ("split", "cluster"):
                    record[name] = shared.setdefault(record[name], record[name])
                yield record | {"folder": member.number}


def _by_first(pairs: ExactPairs) -> dict[int, list[tuple[int, float]]]:
    near: dict[int, list[tuple[int, float]]] = {}
    for a, b, value in zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True):
        near.setdefault(a, []).append((b, value))
    return near
