"""The codes that a network is compared with: records of a snapshot and their graphs, blocks, or rows of a source."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace, compare_behaviors
from curate.compute.outcome import DUPLICATE_STAGES
from curate.model.corpus import Features, FeatureStore, fill_store
from curate.model.options import CurateOptions
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file, write_text
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.graphs.graph import FORM, TORCH, Graph, get_public
from lemur_core.graphs.identity import digest_weights, subtrees
from lemur_core.similarity.overlap import Multiset, OverlapIndex, build_multiset
from manifests.folders.kinds import EXTRACTION, SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.tables import iterate_rows, read_table, reading
from manifests.records import Agreement, Block, Decision, LemurRecord, NetworkRow

#: Part of the name of cached graphs; to be increased whenever what is computed from them changes.
_VERSION = 4
_IDENTITIES = ("graph", "graph_widths", "behavior")


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its identities, and the labels that its similarity to others is computed from."""

    traced: GraphTrace
    labels: Multiset

    @property
    def names(self) -> Iterator[str]:
        """What any computation that may agree with it shares with it: its graph, up to widths, or its weights."""
        return filter(None, (self.traced.graph, self.traced.widths, self.traced.answer.get("weights")))


class GraphSimilarity(NamedTuple):
    """The comparison of two computations: the share of common subtrees, and whether they agree."""

    share: float
    agreement: Agreement
    equal_numbers: bool | None


@dataclass(frozen=True, slots=True)
class ReferenceCode:
    """A record or block by name. `prm`: of its representative row; `removed_for`: the record that stands for it."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None


class ReferenceCorpus:
    """The codes of one folder or source, in memory, compared with one code at a time. Threads may share it.

    Args:
        of: a finished snapshot or extraction, or a source of records, of which names and features alone are kept.
        graphs: whether the graphs of a snapshot are compared, too.

    Attributes:
        manifest: of the folder; None for a source.
        of_snapshot: whether the folder is a snapshot.
        codes: the records that are kept, or the blocks; then records that only their graph removed, or, where near
            texts are kept if their graphs differ, all removed ones.
        removed: all records that were removed as duplicates, by id.
        keeps_different: near texts are kept if their graphs differ beyond widths.
        lexical, structural: the thresholds.

    Raises: UserError if it cannot be read, or its graphs come from another torch.
    """

    def __init__(self, of: Path | RecordSource, jobs: int | None, *, graphs: bool = True) -> None:
        self.manifest = None if isinstance(of, RecordSource) else read_reference_manifest(of)
        self.of_snapshot = self.manifest is not None and self.manifest.kind == "snapshot"
        stated = self.manifest.parameters if self.manifest is not None and self.of_snapshot else {}
        options = CurateOptions()
        self.lexical, self.structural = options.lexical_threshold, options.structural_threshold
        self.keeps_different = stated.get("graph") == "keep-different"
        self.codes: list[ReferenceCode] = []
        self.removed: dict[str, ReferenceCode] = {}
        self._of, self._removed_beside = of, dict[str, ReferenceCode]()
        self.has_graphs = False
        if isinstance(of, RecordSource):
            self._read_features(jobs)
            self.name = of.name  # with the version, which a service states when it is read
            self._place_graphs({})
            return
        self.name = str(of)
        with reading(of, "snapshot" if self.of_snapshot else "extraction"):
            if self.of_snapshot:
                self.lexical, self.structural = stated["lexical_threshold"], stated["structural_threshold"]
                self.removed, by_graph = _read_removed(of)
                self._removed_beside = self.removed if self.keeps_different else by_graph
            self._read_features(jobs)
            self.has_graphs = graphs and self.of_snapshot and (of / "graphs.parquet").exists()
            self._place_graphs(_load_graphs(of) if self.has_graphs else {})

    def gather(
        self, codes: Iterable[ReferenceCode], features: Sequence[Features], computations: Mapping[str, Computation]
    ) -> "ReferenceCorpus":
        """Return other codes by the rules of this corpus. Args: computations: of those that have a graph, by id."""
        other = copy(self)
        other.name, other.removed, other.codes = "", {}, list(codes)
        other._trees = pa.chunked_array([[views.tree for views in features]], pa.binary(16))
        other._classes = dict.fromkeys(("lexical", "structural"), np.arange(len(features)))
        other._overlaps = {
            "lexical": OverlapIndex((views.shingles, None) for views in features),
            "structural": OverlapIndex((views.elements, None) for views in features),
        }
        other._place_graphs(computations)
        return other

    def read_codes(self, ids: Collection[str]) -> dict[str, str]:
        """Return the codes of some records or blocks, by id."""
        return {code.id: text for code, text in self._iter_codes() if code.id in ids} if ids else {}

    def _iter_codes(self) -> Iterator[tuple[ReferenceCode, str]]:
        """Yield the codes as far as they were not withheld: of a snapshot the kept records, then some removed ones."""
        if isinstance(self._of, RecordSource):
            yield from _iter_source(self._of)
        elif not self.of_snapshot:
            for row in EXTRACTION.rows(self._of, Block, ("block", "code_sha256", "code")):
                if row.code is not None:
                    yield ReferenceCode(row.block, row.code_sha256 or ""), row.code
        else:
            for record in SNAPSHOT.rows(self._of, LemurRecord, ("id", "nn", "nn_code", "prm")):
                if record.nn_code:
                    yield ReferenceCode(record.nn, record.id, record.prm), record.nn_code
            by_id = self._removed_beside
            for network in SNAPSHOT.rows(self._of, NetworkRow, ("id", "nn_code"), ids=by_id.keys()) if by_id else ():
                if network.nn_code:
                    yield by_id[network.id], network.nn_code

    def _read_features(self, jobs: int | None) -> None:
        """Read all codes, one at a time, and load their features."""
        store = FeatureStore()
        digests: list[bytes] = []

        def read_codes() -> Iterator[tuple[bytes, str]]:
            for code, text in self._iter_codes():
                self.codes.append(code)
                digests.append(bytes.fromhex(code.id))
                yield digests[-1], text

        fill_store(store, read_codes(), jobs)
        table = store.table(digests)
        self._trees = table.tree_digests
        self._classes = {"lexical": table.shingle_set, "structural": table.fingerprint}
        self._overlaps = {
            "lexical": OverlapIndex((table.shingles(number), None) for number in range(len(table.set_sizes))),
            "structural": OverlapIndex((elements, None) for elements in table.elements),
        }

    def similar(self, measure: str, features: Features) -> npt.NDArray[np.float64]:
        """Return the Jaccard similarity of all codes to another one, (codes,); measure: `lexical` or `structural`."""
        own = features.shingles if measure == "lexical" else features.elements
        # Number -1 (no features) picks the last.
        return np.append(self._overlaps[measure].similarities(own), 0.0)[self._classes[measure]]

    def find_equal(self, features: Features) -> npt.NDArray[np.bool_]:
        """Return which codes differ from another one in comments and layout at most, (codes,)."""
        return np.array(pc.equal(self._trees, pa.scalar(features.tree, pa.binary(16))).fill_null(False), np.bool_)

    def _place_graphs(self, computations: Mapping[str, Computation]) -> None:
        self._graphs = {at: computations[code.id] for at, code in enumerate(self.codes) if code.id in computations}
        self._labels = OverlapIndex(computation.labels for computation in self._graphs.values())
        self._alike = defaultdict[str, set[int]](set)
        for at, computation in self._graphs.items():
            for name in computation.names:
                self._alike[name].add(at)

    def find_sized(self, weights: str | None) -> list[int]:
        """Return the indices of the codes whose parameters have these sizes: they alone may have equal numbers."""
        return sorted(self._alike.get(weights or "", ()))

    def is_measured(self, at: int) -> bool:
        """Return whether the numbers of a code with a graph are known."""
        return self._graphs[at].traced.behavior is not None

    def add_numbers(self, at: int, numbers: Json) -> None:
        """Keep the numbers of a code with a graph."""
        computation = self._graphs[at]
        self._graphs[at] = replace(computation, traced=computation.traced.with_numbers(numbers))

    def compare(self, own: Computation | None) -> list[GraphSimilarity | None]:
        """Compare a network with the graph of each code; None where one has none."""
        found: list[GraphSimilarity | None] = [None] * len(self.codes)
        if own is None or not self._graphs:
            return found
        alike = {at for name in own.names for at in self._alike.get(name, ())}
        shares = self._labels.similarities(*own.labels).tolist()
        for (at, other), share in zip(self._graphs.items(), shares, strict=True):
            equal = compare_behaviors(own.traced.behavior, other.traced.behavior) if at in alike else None
            agreement = own.traced.agrees(other.traced) if at in alike else None
            found[at] = GraphSimilarity(share, agreement or "different", equal)
        return found


def build_computation(identities: Mapping[str, Any], form: Graph) -> Computation:
    """Return the computation of a graph by its identities."""
    return Computation(GraphTrace(identities), build_multiset(subtrees(form)))


def _load_graphs(folder: Path) -> dict[str, Computation]:
    """Return the computation of each code that has a graph, by id; they are worked out once for a file of graphs."""
    path = cache_folder("published") / f"graphs-{_VERSION}-{FORM}-{TORCH}-{sha256_file(folder / 'graphs.parquet')}.json"
    if not path.exists():
        lines = []
        for row in _iter_graph_rows(folder, ["id", *_IDENTITIES, "eval", "train", "torch", "form"]):
            if row["eval"] is not None:
                forms = {mode: Graph.from_json(json.loads(row[mode])) for mode in ("eval", "train") if row[mode]}
                identities = {name: row[name] for name in _IDENTITIES} | {"weights": digest_weights(forms)}
                lines.append(json.dumps([row["id"], identities, dict(subtrees(forms["eval"]))]))
        write_text(path, "\n".join(lines))
    with read_cached(path):
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {id_: Computation(GraphTrace(identities), build_multiset(labels)) for id_, identities, labels in entries}


def read_reference_manifest(folder: Path) -> Manifest:
    """Return the manifest of a snapshot or an extraction. Raises: UserError for any other folder."""
    manifest = read_manifest(folder)
    if manifest.kind not in ("snapshot", "extraction"):
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a snapshot or an extraction")
    return manifest


def check_graphs(folder: Path) -> None:
    """Raise UserError if a folder is no snapshot or extraction, or a snapshot whose graphs another release stored."""
    if read_reference_manifest(folder).kind == "snapshot":
        for _ in _iter_graph_rows(folder, ["graph", "torch", "form"]):
            pass


def _iter_graph_rows(folder: Path, columns: list[str]) -> Iterator[Json]:
    path = folder / "graphs.parquet"
    for row in iterate_rows(path, columns) if path.exists() else ():
        if row["graph"] is not None and (get_public(row["torch"]), row["form"]) != (TORCH, FORM):
            raise UserError(
                f"{folder}: its graphs are form {row['form']} of torch {row['torch']}, here is form {FORM} of"
                f" torch {TORCH}; create the snapshot again, or use that torch"
            )
        yield row


def _read_removed(folder: Path) -> tuple[dict[str, ReferenceCode], dict[str, ReferenceCode]]:
    """Return the codes that were removed as duplicates, by id; and those of them that their graph removed."""
    table = read_table(SNAPSHOT.files(folder, "decisions"), Decision, ("id", "nn", "kept", "stage", "canonical"))
    by_stage = pc.is_in(table["stage"], value_set=pa.array(DUPLICATE_STAGES))
    names = {row["id"]: row["nn"] for row in table.filter(table["kept"]).to_pylist()}
    rows = [row for row in table.filter(by_stage).to_pylist() if row["canonical"] and row["id"] not in names]
    codes = {
        row["id"]: ReferenceCode(row["nn"], row["id"], None, names.get(row["canonical"], row["canonical"][:16]))
        for row in rows
    }
    return codes, {row["id"]: codes[row["id"]] for row in rows if row["stage"] == "graph"}


def _iter_source(source: RecordSource) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield each distinct code of a source, by the first of its names."""
    seen: set[bytes] = set()
    for batch, codes, places in source.coded_batches():
        names = batch.column("nn").to_pylist()
        for (digest, code), first in zip(codes, np.unique(places, return_index=True)[1].tolist(), strict=False):
            if digest not in seen:
                seen.add(digest)
                yield ReferenceCode(names[first], digest.hex()), code
