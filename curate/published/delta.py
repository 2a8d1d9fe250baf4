"""A delta: new records that extend published snapshots, whose decisions are final.

A new code that is already published keeps its published record. One that was removed there shares that decision. One
that duplicates a published record is removed with the nearest such record as its canonical. The others are compared
with each other, best first. A group of records joins the split of its published neighbors; a record that would connect
groups of two published splits is not kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from curate.compute.graphs import GraphTrace
from curate.model.corpus import LoadedRecords
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import LEAK_THRESHOLD, CurateOptions
from curate.model.splits import join_clusters, read_joined
from curate.published.outcome import DUPLICATE_STAGES, PublishedRecord
from curate.published.published import PublishedFolder, check_parents, find_siblings, list_parents, open_published
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural, ratio
from lemur_core.files.progress import progress
from lemur_core.similarity.index import LexicalIndex, Verdict
from lemur_core.similarity.minhash import ESTIMATE_MARGIN, banding_for, jaccard
from lemur_core.similarity.stored import VIEWS
from manifests.folders.manifest import FILE_NAME, Parent

#: Published groups, by split and cluster, each with one of its records.
PublishedGroups = Mapping[tuple[str, str], PublishedRecord]


@dataclass(frozen=True, slots=True)
class Near:
    """A published record that a new code duplicates by its text."""

    stage: str
    record: PublishedRecord
    similarity: float

    @property
    def order(self) -> tuple[int, float, str]:
        """The sort key: stage, most similar first, id; independent of the order of the folders."""
        return DUPLICATE_STAGES.index(self.stage), -self.similarity, self.record.id

    @property
    def reason(self) -> str:
        """The reason for removing a code as its duplicate."""
        name = self.record.label
        if self.stage == "exact":
            return f"same code as {name} but for comments, docstrings and layout"
        if self.similarity == 1:
            what = "same shingles as" if self.stage == "lexical" else "same layer calls and sizes as"
            return f"{what} {name}"
        return f"{self.stage} Jaccard {ratio(self.similarity)} to {name}"


class Baseline:
    """Published snapshots, compared with the codes of one corpus.

    Published records that are the canonical of a new code get numbers after the corpus's codes, in `records`.

    Args: ids: the SHA-256 of each code. features: their features, in the same order.
    """

    def __init__(
        self,
        folders: Sequence[PublishedFolder],
        ids: Sequence[str],
        features: FeatureTable,
        options: CurateOptions,
        store: FeatureStore,
    ) -> None:
        self.folders, self._store = tuple(folders), store
        self.records: dict[int, PublishedRecord] = {}
        self.equal: dict[int, Verdict] = {}  # codes that are published already, as records or removed
        self.published: set[int] = set()  # those of them that are records
        self._options, self._first = options, len(ids)
        self._number: dict[str, int] = {}
        self._near: dict[int, list[Near]] = {}
        self._touched: dict[int, dict[tuple[str, str], PublishedRecord]] = {}
        for code, id_ in enumerate(ids):
            if code not in features.problems:
                self._look_up(code, id_)
        decided = self.equal.keys() | features.problems.keys()
        self._compare(features, [code for code in range(len(ids)) if code not in decided])

    def verdicts(self, codes: Iterable[int], traced: Callable[[int], GraphTrace | None]) -> dict[int, Verdict]:
        """Return the decisions on those of these codes that duplicate a published code.

        Args: traced: returns the trace of a code, if known.
        """
        by_code = {code: self._verdict(code, traced(code)) for code in codes}
        return {code: verdict for code, verdict in by_code.items() if verdict is not None}

    def _verdict(self, code: int, traced: GraphTrace | None) -> Verdict | None:
        if code in self.equal:
            return self.equal[code]
        near = next((candidate for candidate in self._near.get(code, ()) if not self._differ(candidate, traced)), None)
        if near is None:
            twin = None if traced is None else self._find_twin(traced)
            if twin is None:
                return None
            return Verdict("graph", self._assign_number(twin), 1.0, f"computes what {twin.label} computes")
        return Verdict(near.stage, self._assign_number(near.record), near.similarity, near.reason)

    def find_published_groups(self, code: int, traced: GraphTrace | None) -> PublishedGroups:
        """Return the published groups that a code must not be separated from."""
        groups = self._touched.get(code, {})
        if traced is not None and traced.widths is not None:
            twin = self._find("graph_widths", traced.widths)
            if twin is not None:
                return {(twin.split, twin.cluster): twin, **groups}
        return groups

    @property
    def key_pairs(self) -> list[tuple[str, str]]:
        """The groups that the folders have joined, as pairs of keys."""
        return [pair for folder in self.folders for pair in read_joined(folder.folder)]

    @property
    def parents(self) -> list[Parent]:
        """The folders, as the manifest of a delta lists them."""
        return [folder.parent for folder in self.folders]

    def extend_corpus(self, corpus: LoadedRecords) -> LoadedRecords:
        """Return the corpus extended by the published canonicals of its codes, under their numbers."""
        published_ids = [self.records[number].id for number in sorted(self.records)]
        for folder in self.folders:
            folder.ensure_features([id_ for id_ in published_ids if folder.find("id", id_) is not None])
        ids = [*corpus.ids, *published_ids]
        return replace(corpus, ids=ids, features=self._store.table([bytes.fromhex(id_) for id_ in ids]))

    @property
    def facts(self) -> dict[str, object]:
        """How the published records were searched, for the manifest."""
        banding = self.folders[0].index.banding
        chance = {
            f"miss_chance_at_{threshold:g}": banding.miss_chance(threshold)
            for threshold in sorted({LEAK_THRESHOLD, self._options.lexical_threshold})
        }
        return {
            "folders": [parent.name for parent in self.parents],
            "records": sum(folder.count for folder in self.folders),
            "bands": banding.bands,
            "rows": banding.rows,
            **chance,
            "codes_published": len(self.published),
            "codes_removed_there": len(self.equal) - len(self.published),
        }

    def _look_up(self, code: int, id_: str) -> None:
        """Look up whether the folders keep or removed a code."""
        for folder in self.folders:
            record = folder.find("id", id_)
            if record is not None:
                self.published.add(code)
                self.equal[code] = Verdict("exact", self._assign_number(record), 1.0, f"published as {record.label}")
                return
        for folder in self.folders:
            removed = folder.removal(id_)
            if removed is None:
                continue
            reason = f"{removed['reason']}; so decided in {folder.parent.name}"
            canonical = None if removed["canonical"] is None else self._find("id", removed["canonical"])
            if canonical is None and removed["stage"] in DUPLICATE_STAGES:
                raise UserError(
                    f"{folder.folder}: removed {id_[:12]} for a record that no base holds; run `lemur verify` on it,"
                    " and give it as it was published"
                )
            number = None if canonical is None else self._assign_number(canonical)
            self.equal[code] = Verdict(removed["stage"], number, removed["similarity"], reason)
            return

    def _find_twin(self, traced: GraphTrace) -> PublishedRecord | None:
        """Return a published record that computes the same, by its numbers or by its graph."""
        for name, digest in (("behavior", traced.behavior), ("graph", traced.graph)):
            record = None if digest is None else self._find(name, digest)
            if record is not None and traced.agrees(record.trace) == "same":
                return record
        return None

    def _find(self, column: str, value: str) -> PublishedRecord | None:
        records = (folder.find(column, value) for folder in self.folders)
        return min((record for record in records if record is not None), key=lambda record: record.id, default=None)

    def _assign_number(self, record: PublishedRecord) -> int:
        number = self._number.setdefault(record.id, self._first + len(self._number))
        self.records[number] = record
        return number

    def _differ(self, near: Near, traced: GraphTrace | None) -> bool:
        """Return whether different graphs keep two similar texts from being duplicates."""
        if near.stage == "exact" or self._options.graphs != "keep-different" or traced is None:
            return False
        return traced.agrees(near.record.trace) == "different"

    def _compare(self, features: FeatureTable, codes: Sequence[int]) -> None:
        """Find the published neighbors of these codes, once per view for all codes that are equal in it."""
        by_view: dict[str, dict[int, list[int]]] = {}
        # By view, not by code: many codes of a corpus share a text or a structure.
        for view in (*VIEWS, "shingle_set"):
            for code in codes:
                by_view.setdefault(view, {}).setdefault(int(getattr(features, view)[code]), []).append(code)
        for folder in self.folders:
            for view in VIEWS:
                digests = features.digests(view)
                for number, members in by_view.get(view, {}).items():
                    for row in folder.index.same(view, digests[number]).tolist():
                        record = folder.record(row)
                        for code in members:
                            if view == "tree":
                                self._near.setdefault(code, []).append(Near("exact", record, 1.0))
                            else:
                                self._touch(code, record)
            for number, members in by_view.get("fingerprint", {}).items():
                for row, similarity in folder.index.structural(
                    features.elements[number], self._options.structural_threshold
                ):
                    near = Near("structural", folder.record(row), similarity)
                    for code in members:
                        self._near.setdefault(code, []).append(near)
            sets = by_view.get("shingle_set", {})
            with progress(f"against {folder.parent.name}", len(sets), "codes") as advance:
                for number, members in sets.items():
                    self._compare_text(folder, features, number, members)
                    advance(1)
        for neighbours in self._near.values():
            neighbours.sort(key=lambda near: near.order)

    def _compare_text(self, folder: PublishedFolder, features: FeatureTable, number: int, members: list[int]) -> None:
        """Find all records at the lexical threshold, and one record of each group that the codes belong to."""
        lexical = self._options.lexical_threshold
        lowest = min(LEAK_THRESHOLD, lexical)
        own, size = features.shingles(number), int(features.set_sizes[number])
        rows, estimates = folder.index.alike(features.signatures[number], size, lowest)
        records = [folder.record(number) for number in rows.tolist()]
        least_estimate = lexical - ESTIMATE_MARGIN
        joined: set[tuple[str, str]] = set()
        # Most similar first: once the codes belong to its group, its shingles are read only if it may be a duplicate.
        for index in np.argsort(-estimates, kind="stable").tolist():
            record = records[index]
            group = record.split, record.cluster
            if group in joined and estimates[index] < least_estimate:
                continue
            similarity = jaccard(own, folder.shingles(record.id))
            if similarity < lowest:
                continue
            for code in members:
                if similarity >= lexical:
                    self._near.setdefault(code, []).append(Near("lexical", record, similarity))
                if similarity >= LEAK_THRESHOLD:
                    self._touch(code, record)
                    joined.add(group)

    def _touch(self, code: int, record: PublishedRecord) -> None:
        self._touched.setdefault(code, {}).setdefault((record.split, record.cluster), record)


def open_baseline(parents: Sequence[Path], corpus: LoadedRecords, options: CurateOptions, jobs: int | None) -> Baseline:
    """Compare a corpus with the published snapshots in these folders.

    Raises: UserError as in `open_published`.
    """
    store = FeatureStore(options.tokens)
    return Baseline(open_published(parents, options, store, jobs), corpus.ids, corpus.features, options, store)


class SplitGuard:
    """Rejects records that would connect groups of two published splits.

    The groups are those of `curate.model.splits.split_groups`, extended as records are kept; each holds one record of
    every published group that it touches.
    """

    def __init__(self, features: FeatureTable, against: Baseline, traced: Callable[[int], GraphTrace | None]) -> None:
        self._features, self._against, self._traced = features, against, traced
        self._index = LexicalIndex(features, LEAK_THRESHOLD, banding_for(LEAK_THRESHOLD))
        self.clear()

    def clear(self) -> None:
        """Forget all admitted records."""
        self._index.clear()
        self._groups = DisjointSet()
        self._touched: dict[int, PublishedGroups] = {}  # by the root code of a group
        self._by_fingerprint: dict[int, int] = {}
        self._by_widths: dict[str, int] = {}

    def admit(self, code: int) -> Verdict | None:
        """Admit a record, or return the verdict that rejects it."""
        traced = self._traced(code)
        fingerprint, shingles = int(self._features.fingerprint[code]), int(self._features.shingle_set[code])
        widths = None if traced is None else traced.widths
        tied = {self._groups[near.place] for near in self._index.near(shingles)}
        tied |= {self._groups[other] for other in [self._by_fingerprint.get(fingerprint)] if other is not None}
        tied |= {self._groups[other] for other in [self._by_widths.get(widths or "")] if other is not None}
        published = dict(self._against.find_published_groups(code, traced))
        for group in sorted(tied):
            for key, record in self._touched[group].items():
                published.setdefault(key, record)
        by_split: dict[str, PublishedRecord] = {}
        for (split, _), record in published.items():
            by_split.setdefault(split, record)
        # Checked before anything is added, since a rejected record must not change the groups.
        if len(by_split) > 1:
            both = " and ".join(f"{by_split[split].label} ({split})" for split in sorted(by_split))
            return Verdict("leak", reason=f"would connect published splits: {both}")
        self._groups.add(code)
        for group in tied:
            self._groups.merge(code, group)
        self._touched[self._groups[code]] = published
        self._index.keep(shingles, code)
        self._by_fingerprint.setdefault(fingerprint, code)
        if widths is not None:
            self._by_widths.setdefault(widths, code)
        return None

    def groups(self, kept: Sequence[int]) -> tuple[list[int], dict[int, list[PublishedRecord]]]:
        """Return the group number of each kept code, and for each group a record of each published group that it joins.

        Args: kept: codes that can all be admitted together.
        """
        self.clear()
        for code in kept:
            rejected = self.admit(code)
            assert rejected is None
        groups = [self._groups[code] for code in kept]
        anchors = {group: list(self._touched[group].values()) for group in groups if self._touched[group]}
        return groups, anchors


def refuse_conflicts(folders: Sequence[Path], options: CurateOptions, jobs: int | None) -> None:
    """Check that folders can be extended together.

    Raises: UserError if two of them were created in parallel and their records conflict, and as in `open_published`.
    """
    manifests = check_parents(folders)
    siblings = find_siblings(manifests)
    if not siblings:
        return
    store = FeatureStore(options.tokens)
    opened = {published.folder: published for published in open_published(folders, options, store, jobs)}
    for one, other in siblings:
        conflicts = list(_find_conflicts(opened[one], opened[other], options, store))
        if conflicts:
            extended = {parent.sha256 for folder in (one, other) for parent in list_parents(manifests[folder])}
            bases = [folder for folder in folders if sha256_file(folder / FILE_NAME) in extended]
            against = " ".join(f"--against {base}" for base in bases)
            raise UserError(
                f"{other}: was made in parallel with {one}, with {plural(len(conflicts), 'conflict')}: {conflicts[0]};"
                f" decide both again in one delta: lemur curate {one} {other} {against}"
            )


def _find_conflicts(
    one: PublishedFolder, other: PublishedFolder, options: CurateOptions, store: FeatureStore
) -> Iterator[str]:
    """Yield the reasons why the records of two folders cannot form one snapshot."""
    records = [other.record(number) for number in range(other.count)]
    ids = [record.id for record in records]
    other.ensure_features(ids)
    baseline = Baseline([one], ids, store.table([bytes.fromhex(id_) for id_ in ids]), options, store)
    joined = join_clusters([*read_joined(one.folder), *read_joined(other.folder)])
    verdicts = baseline.verdicts(range(other.count), lambda row: records[row].trace)
    yield from (f"{records[row].label}: {verdict.reason}" for row, verdict in verdicts.items())
    for row, record in enumerate(records):
        key = joined.get(record.cluster, record.cluster)
        for (split, cluster), near in baseline.find_published_groups(row, record.trace).items():
            if (split, joined.get(cluster, cluster)) != (record.split, key):
                other_group, own_group = f"group {cluster}, {split}", f"group {record.cluster}, {record.split}"
                yield f"{record.label} ({own_group}) belongs to the group of {near.label} ({other_group})"
