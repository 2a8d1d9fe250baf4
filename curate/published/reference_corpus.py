"""What a network is compared with: records of a snapshot, or blocks of an extraction, and what they compute."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from curate.compute.graphs import Traced
from curate.model.corpus import fill_store
from curate.model.features import Features, FeatureStore, FeatureTable
from curate.model.options import CurateOptions
from curate.published.delta_check import record_files
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.graphs.graph import FORM, TORCH, Graph
from lemur_core.graphs.identity import identities_of, similarity, subtrees
from lemur_core.graphs.serialization import forms_of
from lemur_core.similarity.features.minhash import jaccard
from lemur_core.similarity.features.tokens import Detail
from manifests.folders.manifest import Manifest, read_manifest
from manifests.provenance import SPECS, TABLE
from manifests.records import Agreement


@dataclass(frozen=True, slots=True)
class Computed:
    """A computation: its identities, and what its similarity to others goes by."""

    traced: Traced
    labels: Counter[str]
    operations: int
    part: str = ""

    def beside(self, other: "Computed") -> "Compared | None":
        """How it compares with another one; None where that cannot be told."""
        agreement = self.traced.agrees(other.traced)
        if agreement is None:
            return None
        return Compared(similarity(self.labels, other.labels), agreement, self.part, self.operations)


@dataclass(frozen=True, slots=True)
class Compared:
    """How two computations compare: the share of the subtrees in common, and whether they agree."""

    share: float
    agreement: Agreement
    part: str
    operations: int


def computed(identities: Mapping[str, Any], form: Graph, part: str = "") -> Computed:
    """A computation by its identities and its form; `part`: the module that it is of."""
    return Computed(Traced(identities), subtrees(form), len(form.nodes), part)


@dataclass(frozen=True, slots=True)
class Known:
    """A record or block by name. `prm` of the row that shows it; `removed_for`: the record that stands for it."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None


class Library:
    """The records or blocks of one folder with their features, and the rows of its graphs."""

    def __init__(self, folder: Path, manifest: Manifest, codes: Sequence[tuple[Known, str]]) -> None:
        parameters = rules_of(manifest)
        self.folder, self.of_blocks = folder, manifest.kind == "extraction"
        self.detail: Detail = parameters["tokens"]
        self.lexical, self.structural = parameters["lexical_threshold"], parameters["structural_threshold"]
        self.keeps_different = parameters.get("graph") == "keep-different"
        self.known = [known for known, _ in codes]
        self._codes = codes

    @classmethod
    def of(
        cls, folder: Path, manifest: Manifest, ids: Collection[str], graphs: Collection[str], jobs: int | None
    ) -> "Library":
        """What a finished folder holds; of what a snapshot removed those with one of these ids or graphs.

        Raises: UserError if the folder cannot be read, or its graphs are of another torch.
        """
        try:
            codes = _records(folder, ids, graphs) if manifest.kind == "snapshot" else _blocks(folder)
            made = cls(folder, manifest, list(codes))
            made.read_features(jobs)
        except (OSError, KeyError, pa.ArrowException) as error:
            detail = str(error).splitlines()[0]
            raise UserError(f"{folder}: damaged: {detail}; run `lemur verify`, or make it anew") from error
        return made

    def read_features(self, jobs: int | None) -> None:
        """Have the features of all codes; those without any are left out."""
        store = FeatureStore(self.detail)
        digests = [bytes.fromhex(known.id) for known in self.known]
        new = {digest: code for digest, (_, code) in zip(digests, self._codes, strict=True) if digest not in store}
        if new:
            fill_store(store, new.items(), self.detail, jobs)
        self.features: FeatureTable = store.table(digests)
        self._codes = ()

    def similar(self, measure: str, features: Features) -> npt.NDArray[np.float64]:
        """The Jaccard of all records to this file, shape (records,), by text (`lexical`) or by structure."""
        table = self.features
        if measure == "lexical":
            classes = table.shingle_set
            found = [jaccard(features.shingles, table.shingles(number)) for number in range(len(table.set_sizes))]
        else:
            classes = table.fingerprint
            found = [jaccard(features.elements, elements) for elements in table.elements]
        return np.array([*found, 0.0])[classes]  # -1, without features: the last

    def graphs(self, ids: Collection[str]) -> Iterator[tuple[str, Computed]]:
        """What these codes compute, by id, of those that have a graph. Raises: UserError if that cannot be compared."""
        if self.of_blocks:
            yield from _block_graphs(self.folder)
            return
        columns = ["id", "graph", "graph_widths", "eval", "torch", "form"]
        few = list(ids) if len(ids) < len(self.known) else None
        for row in _graph_rows(self.folder, columns, few):
            if row["eval"] is not None:
                yield row["id"], computed(row, Graph.from_json(json.loads(row["eval"])))


def library_manifest(folder: Path) -> Manifest:
    """The manifest of a snapshot or an extraction. Raises: UserError if it is another folder."""
    manifest = read_manifest(folder)
    if manifest.kind not in ("snapshot", "extraction"):
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a snapshot or an extraction")
    return manifest


def rules_of(manifest: Manifest) -> Mapping[str, Any]:
    """By which parameters two codes are near: of a snapshot its own, else the defaults of curation."""
    if manifest.kind == "snapshot":
        return manifest.parameters
    options = CurateOptions()
    return asdict(options) | {"structural_threshold": options.structural}


def has_graphs(folder: Path, manifest: Manifest) -> bool:
    """Whether a folder says what its codes compute."""
    if manifest.kind == "snapshot":
        return (folder / "graphs.parquet").exists()
    return bool(manifest.counts.get("graphs", {}).get("blocks"))


def _block_graphs(folder: Path) -> Iterator[tuple[str, Computed]]:
    """What blocks compute, by the SHA-256 of their code, each with the arguments that it was traced with."""
    with (folder / SPECS).open(encoding="utf-8") as lines:
        for line in lines:
            spec = json.loads(line)
            if spec.get("algorithm") is None:
                continue
            try:
                forms = forms_of(spec["algorithm"])
            except ValueError as error:
                raise UserError(f"{folder}: {spec['block']}: {error}; extract anew, or use that torch") from error
            yield spec["code_sha256"], computed(identities_of(forms), forms["eval"])


def _graph_rows(folder: Path, columns: list[str], ids: list[str] | None = None) -> Iterator[dict[str, Any]]:
    path = folder / "graphs.parquet"
    if not path.exists():
        return
    chosen = None if ids is None else ds.field("id").isin(ids)
    for batch in ds.dataset(path).to_batches(columns=columns, filter=chosen, batch_size=100):
        for row in batch.to_pylist():
            if row["graph"] is not None and (row["torch"], row["form"]) != (TORCH, FORM):
                raise UserError(
                    f"{folder}: its graphs are form {row['form']} of torch {row['torch']}, here is form {FORM} of"
                    f" torch {TORCH}; make the snapshot anew, or use that torch"
                )
            yield row


def _records(folder: Path, ids: Collection[str], graphs: Collection[str]) -> Iterator[tuple[Known, str]]:
    """The kept records; of those removed for one of them the ones with one of these ids or graphs."""
    names: dict[str, str] = {}
    for path in record_files(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=500, columns=["id", "nn", "nn_code", "prm"]):
                for row in batch.to_pylist():
                    names[row["id"]] = row["nn"]
                    if row["nn_code"]:  # not withheld from a published copy
                        yield Known(row["nn"], row["id"], row["prm"]), row["nn_code"]
    rows = _graph_rows(folder, ["id", "graph", "torch", "form"])
    wanted = {*ids, *(row["id"] for row in rows if row["graph"] in graphs)}
    if wanted <= names.keys():
        return
    decisions = pq.read_table(folder / "decisions.parquet", columns=["id", "stage", "canonical"]).to_pylist()
    stands = {row["id"]: row["canonical"] for row in decisions if row["stage"] in DUPLICATE_STAGES}
    removed = pq.read_table(folder / "removed.parquet", columns=["id", "nn", "nn_code"], filters=[("id", "in", wanted)])
    for row in removed.to_pylist():
        if row["id"] in stands and row["nn_code"]:
            kept = names.get(stands[row["id"]], stands[row["id"]][:16])
            yield Known(row["nn"], row["id"], None, kept), row["nn_code"]


def _blocks(folder: Path) -> Iterator[tuple[Known, str]]:
    """The blocks whose code is in the folder."""
    with pq.ParquetFile(folder / TABLE) as file:
        for batch in file.iter_batches(batch_size=500, columns=["block", "code_sha256", "code"]):
            for row in batch.to_pylist():
                if row["code"] is not None:
                    yield Known(row["block"], row["code_sha256"]), row["code"]
