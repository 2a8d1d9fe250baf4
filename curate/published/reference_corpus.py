"""The codes that a network is compared with: records of a snapshot or blocks of an extraction, and their graphs."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.dataset as ds

from curate.compute.graphs import GraphTrace
from curate.model.corpus import fill_store
from curate.model.features import Features, FeatureStore, FeatureTable
from curate.model.options import CurateOptions
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.graphs.graph import FORM, TORCH, Graph
from lemur_core.graphs.identity import compute_identities, similarity, subtrees
from lemur_core.graphs.serialization import load_graphs
from lemur_core.similarity import Detail
from lemur_core.similarity.minhash import jaccard
from manifests.folders.formats import EXTRACTION, SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.reading import reading
from manifests.provenance import SPECS
from manifests.records import Agreement, Block, Decision, LemurRecord, Removed


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its identities, and the counts that its similarity to others is computed from."""

    traced: GraphTrace
    labels: Counter[str]
    operations: int
    part: str = ""

    def compare(self, other: "Computation") -> "GraphSimilarity | None":
        """Compare it with another one; None if they cannot be compared."""
        agreement = self.traced.agrees(other.traced)
        if agreement is None:
            return None
        return GraphSimilarity(similarity(self.labels, other.labels), agreement, self.part, self.operations)


class GraphSimilarity(NamedTuple):
    """The comparison of two computations: the share of common subtrees, and whether they agree."""

    share: float
    agreement: Agreement
    part: str
    operations: int


def build_computation(identities: Mapping[str, Any], form: Graph, part: str = "") -> Computation:
    """Return the computation of a graph by its identities; `part`: the module that it belongs to."""
    return Computation(GraphTrace(identities), subtrees(form), len(form.nodes), part)


@dataclass(frozen=True, slots=True)
class ReferenceCode:
    """A record or block by name. `prm`: of its representative row; `removed_for`: its canonical record."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None


class ReferenceCorpus:
    """The records or blocks of one folder with their features, and the rows of its graphs."""

    def __init__(self, folder: Path, manifest: Manifest, codes: Sequence[tuple[ReferenceCode, str]]) -> None:
        self.folder, self.of_blocks = folder, manifest.kind == "extraction"
        self.detail, self.lexical, self.structural, self.keeps_different = read_rules(manifest)
        self.codes = [code for code, _ in codes]
        self._sources = codes

    @classmethod
    def load(
        cls, folder: Path, manifest: Manifest, ids: Collection[str], graphs: Collection[str], jobs: int | None
    ) -> "ReferenceCorpus":
        """Read a finished folder; of a snapshot's removed codes, only those with one of these ids or graphs.

        Raises: UserError if the folder cannot be read, or its graphs come from another torch.
        """
        with reading(folder, manifest.kind):
            codes = _iter_records(folder, ids, graphs) if manifest.kind == "snapshot" else _iter_blocks(folder)
            corpus = cls(folder, manifest, list(codes))
            corpus.read_features(jobs)
        return corpus

    def read_features(self, jobs: int | None) -> None:
        """Load the features of all codes; codes without features are left out."""
        store = FeatureStore(self.detail)
        digests = [bytes.fromhex(code.id) for code in self.codes]
        new = {digest: code for digest, (_, code) in zip(digests, self._sources, strict=True) if digest not in store}
        if new:
            fill_store(store, new.items(), self.detail, jobs)
        self.features: FeatureTable = store.table(digests)
        self._sources = ()

    def similar(self, measure: str, features: Features) -> npt.NDArray[np.float64]:
        """Return the Jaccard similarity of all records to a file, (records,); measure: `lexical` or `structural`."""
        table = self.features
        if measure == "lexical":
            classes = table.shingle_set
            similarities = [
                jaccard(features.shingles, table.shingles(number)) for number in range(len(table.set_sizes))
            ]
        else:
            classes = table.fingerprint
            similarities = [jaccard(features.elements, elements) for elements in table.elements]
        return np.array([*similarities, 0.0])[classes]  # number -1 (no features) picks the last

    def graphs(self, ids: Collection[str]) -> Iterator[tuple[str, Computation]]:
        """Yield the id and computation of each code that has a graph. Raises: UserError if one cannot be compared."""
        if self.of_blocks:
            for id_, forms in _iter_block_graphs(self.folder):
                yield id_, build_computation(compute_identities(forms), forms["eval"])
            return
        columns = ["id", "graph", "graph_widths", "behavior", "eval", "torch", "form"]
        selected = list(ids) if len(ids) < len(self.codes) else None
        for row in _iter_graph_rows(self.folder, columns, selected):
            if row["eval"] is not None:
                yield row["id"], build_computation(row, Graph.from_json(json.loads(row["eval"])))


def read_reference_manifest(folder: Path) -> Manifest:
    """Return the manifest of a snapshot or an extraction. Raises: UserError for any other folder."""
    manifest = read_manifest(folder)
    if manifest.kind not in ("snapshot", "extraction"):
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a snapshot or an extraction")
    return manifest


class ReferenceRules(NamedTuple):
    """The parameters by which two codes are near."""

    tokens: Detail
    lexical: float
    structural: float
    keeps_different: bool  # near texts whose graphs differ beyond widths


def read_rules(manifest: Manifest) -> ReferenceRules:
    """Return the rules of a snapshot; the defaults for an extraction."""
    if manifest.kind != "snapshot":
        options = CurateOptions()
        return ReferenceRules(options.tokens, options.lexical_threshold, options.structural, False)
    stated = manifest.parameters
    thresholds = stated["lexical_threshold"], stated["structural_threshold"]
    return ReferenceRules(stated["tokens"], *thresholds, stated.get("graph") == "keep-different")


def has_graphs(folder: Path, manifest: Manifest) -> bool:
    """Return True if a folder holds the graphs of its codes."""
    if manifest.kind == "snapshot":
        return (folder / "graphs.parquet").exists()
    return bool(manifest.counts.get("graphs", {}).get("blocks"))


def check_graphs(folder: Path) -> None:
    """Raise UserError if the graphs of a snapshot or an extraction were stored by another release."""
    of_blocks = read_reference_manifest(folder).kind == "extraction"
    graphs: Iterator[object] = (
        _iter_block_graphs(folder) if of_blocks else _iter_graph_rows(folder, ["graph", "torch", "form"])
    )
    for _ in graphs:
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


def _iter_graph_rows(folder: Path, columns: list[str], ids: list[str] | None = None) -> Iterator[Json]:
    path = folder / "graphs.parquet"
    if not path.exists():
        return
    chosen = None if ids is None else ds.field("id").isin(ids)
    for batch in ds.dataset(path).to_batches(columns=columns, filter=chosen, batch_size=100):
        for row in batch.to_pylist():
            if row["graph"] is not None and (row["torch"], row["form"]) != (TORCH, FORM):
                raise UserError(
                    f"{folder}: its graphs are form {row['form']} of torch {row['torch']}, here is form {FORM} of"
                    f" torch {TORCH}; create the snapshot again, or use that torch"
                )
            yield row


def _iter_records(folder: Path, ids: Collection[str], graphs: Collection[str]) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the kept records, and those of their duplicates that have one of these ids or graphs."""
    names: dict[str, str] = {}
    for record in SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", "nn_code", "prm")):
        names[record.id] = record.nn
        if record.nn_code:  # not withheld from a published copy
            yield ReferenceCode(record.nn, record.id, record.prm), record.nn_code
    rows = _iter_graph_rows(folder, ["id", "graph", "torch", "form"])
    wanted = {*ids, *(row["id"] for row in rows if row["graph"] in graphs)}
    if wanted <= names.keys():
        return
    decisions = SNAPSHOT.rows(folder, Decision, ("id", "stage", "canonical"))
    canonical_of = {row.id: row.canonical or "" for row in decisions if row.stage in DUPLICATE_STAGES}
    for removed in SNAPSHOT.rows(folder, Removed, ("id", "nn", "nn_code"), ids=wanted):
        if removed.id in canonical_of and removed.nn_code:
            kept = names.get(canonical_of[removed.id], canonical_of[removed.id][:16])
            yield ReferenceCode(removed.nn, removed.id, None, kept), removed.nn_code


def _iter_blocks(folder: Path) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the blocks whose code is in the folder."""
    for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256", "code")):
        if row.code is not None:
            yield ReferenceCode(row.block, row.code_sha256 or ""), row.code
