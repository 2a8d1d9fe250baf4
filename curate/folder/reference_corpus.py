"""The codes that a network is compared with: records of a snapshot or blocks of an extraction, and their graphs."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace, compare_behaviors
from curate.compute.outcome import DUPLICATE_STAGES
from curate.model.corpus import FeatureStore, fill_store
from curate.model.options import CurateOptions
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file, write_text
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.graphs.graph import FORM, TORCH, Graph, get_public
from lemur_core.graphs.identity import compute_identities, subtrees
from lemur_core.graphs.networks.order import digest_weights
from lemur_core.graphs.serialization import load_graphs
from lemur_core.similarity.overlap import Multiset, OverlapIndex, build_multiset
from lemur_core.similarity.views import Views
from manifests.folders.kinds import EXTRACTION, SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.tables import iterate_rows, read_table, reading
from manifests.provenance import SPECS
from manifests.records import Agreement, Block, Decision, LemurRecord, NetworkRow

#: Part of the name of cached graphs; to be increased whenever what is computed from them changes.
_VERSION = 3
_IDENTITIES = ("graph", "graph_widths", "behavior")


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its identities, and the labels that its similarity to others is computed from.

    `part`: the module of a network that it belongs to; empty for all of it.
    """

    traced: GraphTrace
    labels: Multiset
    operations: int
    part: str = ""

    @property
    def names(self) -> Iterator[str]:
        """What any computation that may agree with it shares with it: its graph, up to widths, or its weights."""
        return filter(None, (self.traced.graph, self.traced.widths, self.traced.answer.get("weights")))


def build_computation(identities: Mapping[str, Any], form: Graph, part: str = "") -> Computation:
    """Return the computation of a graph by its identities."""
    return Computation(GraphTrace(identities), build_multiset(subtrees(form)), len(form.nodes), part)


class GraphSimilarity(NamedTuple):
    """The comparison of two computations: the share of common subtrees, and whether they agree."""

    share: float
    agreement: Agreement
    part: str
    operations: int
    equal_numbers: bool | None = None

    @property
    def closeness(self) -> tuple[bool, bool, float, int]:
        """The sort key, the closest last."""
        return self.agreement == "same", self.agreement == "widths", self.share, self.operations


@dataclass(frozen=True, slots=True)
class ReferenceCode:
    """A record or block by name. `prm`: of its representative row; `removed_for`: the record that stands for it."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None


class ReferenceCorpus:
    """The records or blocks of one folder, in memory, compared with one code at a time. Threads may share it.

    Attributes:
        codes: the records that are kept, or the blocks; then records that only their graph removed.
        removed: all records that were removed as duplicates, by id.
        keeps_different: near texts are kept if their graphs differ beyond widths.
        detail, lexical, structural: of the features, and the thresholds.
    """

    def __init__(self, name: str, stated: Mapping[str, Any] = {}) -> None:
        options = CurateOptions()
        self.name, self.of_blocks, self.removed = name, False, dict[str, ReferenceCode]()
        self.detail = stated.get("tokens", options.tokens)
        self.lexical: float = stated.get("lexical_threshold", options.lexical_threshold)
        self.structural: float = stated.get("structural_threshold", options.structural_threshold)
        self.keeps_different = stated.get("graph") == "keep-different"
        self.codes: list[ReferenceCode] = []
        self._iter_codes: Callable[[], Iterator[tuple[ReferenceCode, str]]]
        self._place_graphs({})

    @classmethod
    def load(cls, folder: Path, manifest: Manifest, jobs: int | None, *, graphs: bool) -> "ReferenceCorpus":
        """Read a finished folder. Args: graphs: whether its graphs are compared, too.

        Raises: UserError if the folder cannot be read, or its graphs come from another torch.
        """
        of_blocks = manifest.kind == "extraction"
        with reading(folder, manifest.kind):
            corpus = cls(str(folder), {} if of_blocks else manifest.parameters)
            corpus.of_blocks = of_blocks
            if not of_blocks:
                corpus.removed, by_graph = _read_removed(folder)
                corpus._iter_codes = partial(_iter_records, folder, [corpus.removed[id_] for id_ in by_graph])
            else:
                corpus._iter_codes = partial(_iter_blocks, folder)
            corpus._read_features(jobs)
            if graphs:
                corpus._place_graphs(_load_graphs(folder, of_blocks=of_blocks))
        return corpus

    @classmethod
    def read(cls, source: RecordSource, jobs: int | None) -> "ReferenceCorpus":
        """Read the codes of a source, a batch at a time; names and features stay in memory, and there are no graphs.

        Raises: UserError if the source cannot be read.
        """
        corpus = cls(source.name)
        corpus._iter_codes = partial(_iter_source, source)
        corpus._read_features(jobs)
        corpus.name = source.name  # with the version, which a service states when it is read
        return corpus

    @classmethod
    def gather(
        cls,
        rules: "ReferenceCorpus",
        codes: Iterable[ReferenceCode],
        features: Sequence[Views],
        computations: Mapping[str, Computation],
    ) -> "ReferenceCorpus":
        """Hold some codes by the rules of another corpus. Args: computations: of those that have a graph, by id."""
        corpus = cls("")
        corpus.detail, corpus.lexical, corpus.structural = rules.detail, rules.lexical, rules.structural
        corpus.keeps_different, corpus.codes = rules.keeps_different, list(codes)
        corpus._classes = dict.fromkeys(("lexical", "structural"), np.arange(len(features)))
        corpus._overlaps = {
            "lexical": OverlapIndex((views.shingles, None) for views in features),
            "structural": OverlapIndex((views.elements, None) for views in features),
        }
        corpus._place_graphs(computations)
        return corpus

    def read_codes(self, ids: Collection[str]) -> dict[str, str]:
        """Return the codes of some records or blocks, by id."""
        return {code.id: text for code, text in self._iter_codes() if code.id in ids} if ids else {}

    def _read_features(self, jobs: int | None) -> None:
        """Read all codes, one at a time, and load their features."""
        store = FeatureStore(self.detail)
        digests: list[bytes] = []

        def new_codes() -> Iterator[tuple[bytes, str]]:
            for code, text in self._iter_codes():
                self.codes.append(code)
                digests.append(bytes.fromhex(code.id))
                if digests[-1] not in store:
                    yield digests[-1], text

        new = new_codes()
        if (first := next(new, None)) is not None:  # else nothing is computed, and no progress is shown
            fill_store(store, chain([first], new), self.detail, jobs)
        table = store.table(digests)
        self._classes = {"lexical": table.shingle_set, "structural": table.fingerprint}
        self._overlaps = {
            "lexical": OverlapIndex((table.shingles(number), None) for number in range(len(table.set_sizes))),
            "structural": OverlapIndex((elements, None) for elements in table.elements),
        }

    def similar(self, measure: str, features: Views) -> npt.NDArray[np.float64]:
        """Return the Jaccard similarity of all codes to another one, (codes,); measure: `lexical` or `structural`."""
        own = features.shingles if measure == "lexical" else features.elements
        # Number -1 (no features) picks the last.
        return np.append(self._overlaps[measure].similarities(own), 0.0)[self._classes[measure]]

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

    def compare(self, computations: Sequence[Computation]) -> list[GraphSimilarity | None]:
        """Compare a network, and its modules if these are blocks, with the graph of each code; None if it has none."""
        best: list[GraphSimilarity | None] = [None] * len(self.codes)
        for own in computations if self._graphs else ():
            if own.part and not self.of_blocks:
                continue
            alike = {at for name in own.names for at in self._alike.get(name, ())}
            shares = self._labels.similarities(*own.labels).tolist()
            for (at, other), share in zip(self._graphs.items(), shares, strict=True):
                agreement, equal = own.traced.agrees(other.traced) if at in alike else "different", None
                if at in alike:
                    equal = compare_behaviors(own.traced.behavior, other.traced.behavior)
                sizes = sorted((own.operations, other.operations))
                # Of a module less than half is shared where the sizes say so.
                if agreement is None or (agreement == "different" and own.part and 2 * sizes[0] < sizes[1]):
                    continue
                found, before = GraphSimilarity(share, agreement, own.part, own.operations, equal), best[at]
                if before is None or found.closeness > before.closeness:
                    best[at] = found
        return best


def _load_graphs(folder: Path, *, of_blocks: bool) -> dict[str, Computation]:
    """Return the computation of each code that has a graph, by id; they are worked out once for a file of graphs."""
    source = folder / (SPECS if of_blocks else "graphs.parquet")
    if not source.exists():
        return {}
    path = cache_folder("published") / f"graphs-{_VERSION}-{FORM}-{TORCH}-{sha256_file(source)}.json"
    if not path.exists():
        lines = [
            json.dumps([id_, dict(identities), dict(subtrees(form)), len(form.nodes)])
            for id_, identities, form in _iter_graphs(folder, of_blocks=of_blocks)
        ]
        write_text(path, "\n".join(lines))
    with read_cached(path):
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {
            id_: Computation(GraphTrace(identities), build_multiset(labels), operations)
            for id_, identities, labels, operations in entries
        }


def _iter_graphs(folder: Path, *, of_blocks: bool) -> Iterator[tuple[str, Json, Graph]]:
    """Yield id, identities and graph of each code that has one. Raises: UserError if one cannot be compared."""
    if of_blocks:
        for id_, forms in _iter_block_graphs(folder):
            yield id_, compute_identities(forms), forms["eval"]
        return
    for row in _iter_graph_rows(folder, ["id", *_IDENTITIES, "eval", "train", "torch", "form"]):
        if row["eval"] is not None:
            forms = {mode: Graph.from_json(json.loads(row[mode])) for mode in ("eval", "train") if row[mode]}
            identities = {name: row[name] for name in _IDENTITIES}
            yield row["id"], {**identities, "weights": digest_weights(forms)}, forms["eval"]


def read_reference_manifest(folder: Path) -> Manifest:
    """Return the manifest of a snapshot or an extraction. Raises: UserError for any other folder."""
    manifest = read_manifest(folder)
    if manifest.kind not in ("snapshot", "extraction"):
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a snapshot or an extraction")
    return manifest


def has_graphs(folder: Path, manifest: Manifest) -> bool:
    """Return True if a folder holds the graphs of its codes."""
    if manifest.kind == "snapshot":
        return (folder / "graphs.parquet").exists()
    return bool(manifest.counts.get("graphs", {}).get("blocks"))


def check_graphs(folder: Path) -> None:
    """Raise UserError if the graphs of a finished snapshot or extraction were stored by another release."""
    of_blocks = read_reference_manifest(folder).kind == "extraction"
    for _ in _iter_block_graphs(folder) if of_blocks else _iter_graph_rows(folder, ["graph", "torch", "form"]):
        pass


def _iter_block_graphs(folder: Path) -> Iterator[tuple[str, dict[str, Graph]]]:
    """Yield the SHA-256 of each block's code, and its graphs by mode with the arguments of its trace."""
    with (folder / SPECS).open(encoding="utf-8") as lines:
        for line in lines:
            spec = json.loads(line)
            if spec.get("algorithm") is None:
                continue
            try:
                forms = load_graphs(spec["algorithm"])
            except ValueError as error:
                raise UserError(f"{folder}: {spec['block']}: {error}; extract it again, or use that torch") from error
            yield spec["code_sha256"], forms


def _iter_graph_rows(folder: Path, columns: list[str]) -> Iterator[Json]:
    path = folder / "graphs.parquet"
    for row in iterate_rows(path, columns) if path.exists() else ():
        if row["graph"] is not None and (get_public(row["torch"]), row["form"]) != (TORCH, FORM):
            raise UserError(
                f"{folder}: its graphs are form {row['form']} of torch {row['torch']}, here is form {FORM} of"
                f" torch {TORCH}; create the snapshot again, or use that torch"
            )
        yield row


def _iter_records(folder: Path, removed: Iterable[ReferenceCode]) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the kept records, then some removed ones, with their codes, as far as they were not withheld."""
    for record in SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", "nn_code", "prm")):
        if record.nn_code:
            yield ReferenceCode(record.nn, record.id, record.prm), record.nn_code
    by_id = {code.id: code for code in removed}
    for row in SNAPSHOT.rows(folder, NetworkRow, ("id", "nn_code"), ids=by_id.keys()) if by_id else ():
        if row.nn_code:
            yield by_id[row.id], row.nn_code


def _read_removed(folder: Path) -> tuple[dict[str, ReferenceCode], list[str]]:
    """Return the codes that were removed as duplicates, by id; and the ids of those that their graph removed."""
    table = read_table(SNAPSHOT.files(folder, "decisions"), Decision, ("id", "nn", "kept", "stage", "canonical"))
    by_stage = pc.is_in(table["stage"], value_set=pa.array(DUPLICATE_STAGES))
    names = {row["id"]: row["nn"] for row in table.filter(table["kept"]).to_pylist()}
    rows = [row for row in table.filter(by_stage).to_pylist() if row["canonical"] and row["id"] not in names]
    codes = {
        row["id"]: ReferenceCode(row["nn"], row["id"], None, names.get(row["canonical"], row["canonical"][:16]))
        for row in rows
    }
    return codes, list(dict.fromkeys(row["id"] for row in rows if row["stage"] == "graph"))


def _iter_source(source: RecordSource) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield each distinct code of a source, by the first of its names."""
    seen: set[bytes] = set()
    for batch, codes, places in source.coded_batches():
        names = batch.column("nn").to_pylist()
        for (digest, code), first in zip(codes, np.unique(places, return_index=True)[1].tolist(), strict=False):
            if digest not in seen:
                seen.add(digest)
                yield ReferenceCode(names[first], digest.hex()), code


def _iter_blocks(folder: Path) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the blocks whose code is in the folder."""
    for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256", "code")):
        if row.code is not None:
            yield ReferenceCode(row.block, row.code_sha256 or ""), row.code
