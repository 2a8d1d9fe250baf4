"""A delta: new records beside what is published, which is never decided again.

A new code that is published has its record there. One that was removed there shares that decision. One that a published
record stands for is removed with that record as its witness, and the nearest such record is named; the others are
decided among themselves, best first. A group of records goes where its published neighbours are; a record that would
join groups of two published splits is not kept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from curate.compute.graphs import Traced
from curate.model.corpus import Corpus
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import LEAK_THRESHOLD, CurateOptions
from curate.published.outcome import DUPLICATE_STAGES, Published
from curate.published.published import PublishedFolder, open_published
from lemur_core.files.markdown import ratio
from lemur_core.files.progress import progress
from lemur_core.similarity.features.minhash import ESTIMATE_MARGIN, banding_for, jaccard
from lemur_core.similarity.index import LexicalIndex
from lemur_core.similarity.selection import Verdict
from lemur_core.similarity.stored import VIEWS
from manifests.folders.manifest import Parent

Touched = Mapping[str, Published]


@dataclass(frozen=True, slots=True)
class Near:
    """A published record that stands for a new code by its text."""

    stage: str
    record: Published
    similarity: float

    @property
    def order(self) -> tuple[int, float, str]:
        """By stage, then the most similar first, then by id: whatever the order of the folders is."""
        return DUPLICATE_STAGES.index(self.stage), -self.similarity, self.record.id

    @property
    def reason(self) -> str:
        """Why a code was removed for it."""
        name = self.record.label
        if self.stage == "exact":
            return f"same code as {name} but for comments, docstrings and layout"
        if self.similarity == 1:
            what = "same shingles as" if self.stage == "lexical" else "same layer calls and sizes as"
            return f"{what} {name}"
        return f"{self.stage} Jaccard {ratio(self.similarity)} to {name}"


class Against:
    """What is published, compared with the codes of one corpus.

    Published records that stand for a new code have numbers beyond the corpus's codes, in `records`.
    """

    def __init__(
        self, folders: Sequence[PublishedFolder], corpus: Corpus, options: CurateOptions, store: FeatureStore
    ) -> None:
        self.folders, self._store = tuple(folders), store
        self.records: dict[int, Published] = {}
        self.equal: dict[int, Verdict] = {}  # codes that are there already, as records or removed
        self.published: set[int] = set()  # those of them that are records
        self._options, self._first = options, len(corpus.ids)
        self._number: dict[str, int] = {}
        self._near: dict[int, list[Near]] = {}
        self._touched: dict[int, dict[str, Published]] = {}
        for code, id_ in enumerate(corpus.ids):
            if code not in corpus.features.problems:
                self._look_up(code, id_)
        self._compare(corpus.features, [code for code in range(self._first) if self._is_open(code, corpus.features)])

    def verdicts(self, codes: Iterable[int], traced: Callable[[int], Traced | None]) -> dict[int, Verdict]:
        """The decisions about those of these codes for which something published stands.

        Args: traced: what a code computes, where that is known.
        """
        found = {code: self._verdict(code, traced(code)) for code in codes}
        return {code: verdict for code, verdict in found.items() if verdict is not None}

    def _verdict(self, code: int, traced: Traced | None) -> Verdict | None:
        if code in self.equal:
            return self.equal[code]
        near = next((one for one in self._near.get(code, ()) if not self._differ(one, traced)), None)
        if near is None:
            twin = None if traced is None or traced.graph is None else self._of_graph("graph", traced.graph)
            if twin is None:
                return None
            return Verdict("graph", self._number_of(twin), 1.0, f"computes what {twin.label} computes")
        return Verdict(near.stage, self._number_of(near.record), near.similarity, near.reason)

    def touched(self, code: int, traced: Traced | None) -> Touched:
        """The published splits of what must stay with a code, each with one record there."""
        found = self._touched.get(code, {})
        if traced is not None and traced.widths is not None:
            alike = self._of_graph("graph_widths", traced.widths)
            if alike is not None:
                return {alike.split: alike, **found}
        return found

    @property
    def parents(self) -> list[Parent]:
        """The folders, as the manifest of a delta names them."""
        return [folder.parent for folder in self.folders]

    def told(self, corpus: Corpus) -> Corpus:
        """The corpus with the published records that stand for its codes, under their numbers."""
        there = [self.records[number].id for number in sorted(self.records)]
        for folder in self.folders:
            folder.have([id_ for id_ in there if folder.of_id(id_) is not None])
        ids = [*corpus.ids, *there]
        return replace(corpus, ids=ids, features=self._store.table([bytes.fromhex(id_) for id_ in ids]))

    @property
    def facts(self) -> dict[str, object]:
        """For the manifest: how the published records were looked for."""
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

    def _is_open(self, code: int, features: FeatureTable) -> bool:
        return code not in self.equal and code not in features.problems

    def _look_up(self, code: int, id_: str) -> None:
        """Whether a code is there already."""
        for folder in self.folders:
            record = folder.of_id(id_)
            if record is not None:
                self.published.add(code)
                self.equal[code] = Verdict("exact", self._number_of(record), 1.0, f"published as {record.label}")
                return
        for folder in self.folders:
            removed = folder.removal(id_)
            if removed is None:
                continue
            reason = f"{removed['reason']}; so decided in {folder.parent.name}"
            canonical = None if removed["canonical"] is None else self._by_id(removed["canonical"])
            number = None if canonical is None else self._number_of(canonical)
            self.equal[code] = Verdict(removed["stage"], number, removed["similarity"], reason)
            return

    def _by_id(self, id_: str) -> Published | None:
        return next((record for folder in self.folders if (record := folder.of_id(id_)) is not None), None)

    def _of_graph(self, name: str, digest: str) -> Published | None:
        found = (folder.of_graph(name, digest) for folder in self.folders)
        return min((record for record in found if record is not None), key=lambda record: record.id, default=None)

    def _number_of(self, record: Published) -> int:
        number = self._number.setdefault(record.id, self._first + len(self._number))
        self.records[number] = record
        return number

    def _differ(self, near: Near, traced: Traced | None) -> bool:
        """Whether graphs that differ keep two near texts apart."""
        if near.stage == "exact" or self._options.graphs != "keep-different" or traced is None:
            return False
        return traced.agrees(near.record.traced) == "different"

    def _compare(self, features: FeatureTable, codes: Sequence[int]) -> None:
        """Find what is published near these codes, by each view once for all codes that are equal in it."""
        by_view: dict[str, dict[int, list[int]]] = {}
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
                for row, similarity in folder.index.structural(features.elements[number], self._options.structural):
                    near = Near("structural", folder.record(row), similarity)
                    for code in members:
                        self._near.setdefault(code, []).append(near)
            sets = by_view.get("shingle_set", {})
            with progress(f"against {folder.parent.name}", len(sets), "codes") as advance:
                for number, members in sets.items():
                    self._compare_text(folder, features, number, members)
                    advance(1)
        for near_ones in self._near.values():
            near_ones.sort(key=lambda near: near.order)

    def _compare_text(self, folder: PublishedFolder, features: FeatureTable, number: int, members: list[int]) -> None:
        """All records at the lexical threshold; and of each split one that is near enough to have to stay with them."""
        lexical = self._options.lexical_threshold
        lowest = min(LEAK_THRESHOLD, lexical)
        own, size = features.shingles(number), int(features.set_sizes[number])
        rows, estimates = folder.index.alike(features.signatures[number], size, lowest)
        ids, splits = folder.ids(rows), folder.splits(rows)
        enough = lexical - ESTIMATE_MARGIN
        settled: set[str] = set()
        for place in np.argsort(-estimates, kind="stable").tolist():
            if splits[place] in settled and estimates[place] < enough:
                continue
            similarity = jaccard(own, folder.shingles(ids[place]))
            if similarity < lowest:
                continue
            record = folder.record(int(rows[place]))
            for code in members:
                if similarity >= lexical:
                    self._near.setdefault(code, []).append(Near("lexical", record, similarity))
                if similarity >= LEAK_THRESHOLD:
                    self._touch(code, record)
                    settled.add(record.split)

    def _touch(self, code: int, record: Published) -> None:
        self._touched.setdefault(code, {}).setdefault(record.split, record)


def open_against(parents: Sequence[Path], corpus: Corpus, options: CurateOptions, jobs: int | None) -> Against:
    """What is published in these folders, compared with a corpus.

    Raises: UserError as `open_published` does.
    """
    store = FeatureStore(options.tokens)
    return Against(open_published(parents, options, store, jobs), corpus, options, store)


class SplitGuard:
    """Keeps out records that would tie groups of two published splits together.

    Groups are those of `curate.dedup.strict.leak_groups`, grown as records are kept; each knows one published record of
    every split that it touches.
    """

    def __init__(self, features: FeatureTable, against: Against, traced: Callable[[int], Traced | None]) -> None:
        self._features, self._against, self._traced = features, against, traced
        self._index = LexicalIndex(features, LEAK_THRESHOLD, banding_for(LEAK_THRESHOLD))
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self._index.clear()
        self._groups = DisjointSet()
        self._touched: dict[int, dict[str, Published]] = {}  # by the code that stands for a group
        self._of_fingerprint: dict[int, int] = {}
        self._of_widths: dict[str, int] = {}

    def admit(self, code: int) -> Verdict | None:
        """Take a record in, or the verdict that keeps it out."""
        traced = self._traced(code)
        fingerprint, shingles = int(self._features.fingerprint[code]), int(self._features.shingle_set[code])
        widths = None if traced is None else traced.widths
        tied = {self._groups[near.place] for near in self._index.near(shingles)}
        tied |= {self._groups[other] for other in [self._of_fingerprint.get(fingerprint)] if other is not None}
        tied |= {self._groups[other] for other in [self._of_widths.get(widths or "")] if other is not None}
        touched = dict(self._against.touched(code, traced))
        for group in sorted(tied):
            touched = self._touched[group] | touched
        if len(touched) > 1:
            both = " and ".join(f"{touched[split].label} ({split})" for split in sorted(touched))
            return Verdict("leak", reason=f"would tie published splits together: {both}")
        self._groups.add(code)
        for group in tied:
            self._groups.merge(code, group)
        self._touched[self._groups[code]] = touched
        self._index.keep(shingles, code)
        self._of_fingerprint.setdefault(fingerprint, code)
        if widths is not None:
            self._of_widths.setdefault(widths, code)
        return None

    def admits(self, kept: Iterable[int]) -> bool:
        """Whether it takes in all of these codes, beside each other and nothing else."""
        self.clear()
        return all(self.admit(code) is None for code in kept)

    def groups(self, kept: Sequence[int]) -> tuple[list[int], dict[int, Published]]:
        """The group of each kept code, a number, and the published record that a group goes with, where there is one.

        Args: kept: codes that were all admitted beside each other.
        """
        self.clear()
        for code in kept:
            refused = self.admit(code)
            assert refused is None
        groups = [self._groups[code] for code in kept]
        found = {group: next(iter(self._touched[group].values())) for group in groups if self._touched[group]}
        return groups, found
