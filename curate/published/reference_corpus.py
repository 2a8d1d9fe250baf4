"""The codes that a network is compared with: records of a snapshot or blocks of an extraction, and their graphs."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from curate.compute.behavior import compare_behaviors
from curate.compute.graphs import GraphTrace
from curate.model.corpus import fill_store
from curate.model.features import FeatureStore
from curate.model.options import CurateOptions
from curate.published.outcome import DUPLICATE_STAGES
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, sha256_file
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.graphs.graph import FORM, TORCH, Graph
from lemur_core.graphs.identity import compute_identities, subtrees
from lemur_core.graphs.networks.order import digest_weights
from lemur_core.graphs.serialization import load_graphs
from lemur_core.similarity import Detail
from lemur_core.similarity.overlap import Multiset, OverlapIndex, build_multiset
from lemur_core.similarity.views import Views
from manifests.folders.kinds import EXTRACTION, SNAPSHOT
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.reading import reading
from manifests.folders.tables import read_table
from manifests.provenance import SPECS
from manifests.records import Agreement, Block, Decision, LemurRecord, NetworkRow

#: Part of the name of cached graphs; to be increased whenever what is computed from them changes.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its identities, and the labels that its similarity to others is computed from."""

    traced: GraphTrace
    labels: Multiset
    operations: int
    part: str = ""


def build_computation(identities: Mapping[str, Any], form: Graph, part: str = "") -> Computation:
    """Return the computation of a graph by its identities; `part`: the module that it belongs to."""
    return Computation(GraphTrace(identities), build_multiset(subtrees(form)), len(form.nodes), part)


class GraphSimilarity(NamedTuple):
    """The comparison of two computations: the share of common subtrees, and whether they agree."""

    share: float
    agreement: Agreement
    part: str
    operations: int
    equal_numbers: bool | None = None


@dataclass(frozen=True, slots=True)
class ReferenceCode:
    """A record or block by name. `prm`: of its representative row; `removed_for`, `stage`: its canonical, and why."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None
    stage: str | None = None


class ReferenceCorpus:
    """The records or blocks of one folder, in memory, compared with one code at a time. Threads may share it.

    Attributes:
        codes: the records that are kept, or the blocks; then records that were traced or removed by their graph.
        removed: the records that were removed as duplicates, by id.
    """

    def __init__(self, name: str, rules: "ReferenceRules", *, of_blocks: bool = False) -> None:
        self.name, self.of_blocks = name, of_blocks
        self.detail, self.lexical, self.structural, self.keeps_different = rules
        self.codes: list[ReferenceCode] = []
        self.removed: dict[str, ReferenceCode] = {}
        self._graphs: _ReferenceGraphs | None = None
        self._iter_codes: Callable[[], Iterator[tuple[ReferenceCode, str]]]

    @classmethod
    def load(cls, folder: Path, manifest: Manifest, jobs: int | None, *, graphs: bool) -> "ReferenceCorpus":
        """Read a finished folder. Args: graphs: whether its graphs are compared, too.

        Raises: UserError if the folder cannot be read, or its graphs come from another torch.
        """
        with reading(folder, manifest.kind):
            corpus = cls(str(folder), read_rules(manifest), of_blocks=manifest.kind == "extraction")
            corpus._iter_codes = partial(_iter_blocks if corpus.of_blocks else _iter_records, folder)
            codes = dict(corpus._iter_codes())
            if not corpus.of_blocks:
                corpus.removed = _read_removed(folder, {code.id: code.name for code in codes})
            computations = _load_graphs(folder, of_blocks=corpus.of_blocks) if graphs else []
            # A removed code is near its record by text, except where its graph removed it.
            far = {id_ for id_, code in corpus.removed.items() if code.stage == "graph"}
            far |= {id_ for id_, _ in computations} & corpus.removed.keys()
            if far:
                rows = SNAPSHOT.rows(folder, NetworkRow, ("id", "nn_code"), ids=far)
                codes |= {corpus.removed[row.id]: row.nn_code for row in rows if row.nn_code}
            corpus.codes = list(codes)
            corpus._read_features([(bytes.fromhex(code.id), text) for code, text in codes.items()], jobs)
            if computations:
                corpus._graphs = _ReferenceGraphs(corpus.codes, computations)
        return corpus

    @classmethod
    def read(cls, source: RecordSource, jobs: int | None) -> "ReferenceCorpus":
        """Read the codes of a source, a batch at a time; names and features stay in memory, and there are no graphs.

        Raises: UserError if the source cannot be read.
        """
        corpus = cls(source.name, _DEFAULT_RULES)
        corpus._iter_codes = partial(_iter_source, source)

        def take() -> Iterator[tuple[bytes, str]]:
            for code, text in corpus._iter_codes():
                corpus.codes.append(code)
                yield bytes.fromhex(code.id), text

        corpus._read_features(take(), jobs)
        corpus.name = source.name  # with the version, which a service states when it is read
        return corpus

    def read_codes(self, ids: Collection[str]) -> dict[str, str]:
        """Return the codes of some records or blocks, by id."""
        return {code.id: text for code, text in self._iter_codes() if code.id in ids} if ids else {}

    def _read_features(self, codes: Iterable[tuple[bytes, str]], jobs: int | None) -> None:
        """Load the features of all codes, which are read as they are needed."""
        store = FeatureStore(self.detail)
        new = ((digest, text) for digest, text in codes if digest not in store)
        if (first := next(new, None)) is not None:
            fill_store(store, chain([first], new), self.detail, jobs)
        digests = [bytes.fromhex(code.id) for code in self.codes]
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

    def compare(self, computations: Sequence[Computation]) -> list[GraphSimilarity | None]:
        """Compare a network, and its modules if these are blocks, with the graph of each code; None if it has none."""
        if self._graphs is None or not computations:
            return [None] * len(self.codes)
        return self._graphs.compare(computations if self.of_blocks else computations[:1])

    def measures(self, weights: str | None) -> bool:
        """Return whether a network of these sizes of parameters may have the numbers of a record."""
        return self._graphs is not None and weights in self._graphs.measured


class _ReferenceGraphs:
    """The computations of codes, compared with others all at once."""

    def __init__(self, codes: Sequence[ReferenceCode], computations: Sequence[tuple[str, Computation]]) -> None:
        numbers = {id_: number for number, (id_, _) in enumerate(computations)}
        self._number = [numbers.get(code.id) for code in codes]
        self._computations = [computation for _, computation in computations]
        self._labels = OverlapIndex(computation.labels for computation in self._computations)
        self._operations = np.array([computation.operations for computation in self._computations])
        self._alike: defaultdict[str, list[int]] = defaultdict(list)  # numbers by graph, by widths and by weights
        for number, computation in enumerate(self._computations):
            traced = computation.traced
            for identity in filter(None, (traced.graph, traced.widths, traced.answer.get("weights"))):
                self._alike[identity].append(number)
        self.measured = {weights for one in self._computations if (weights := one.traced.answer.get("weights"))}

    def compare(self, computations: Sequence[Computation]) -> list[GraphSimilarity | None]:
        count = len(self._computations)
        best: list[GraphSimilarity | None] = [None] * count
        for own in computations:
            shares = self._labels.similarities(*own.labels)
            agreements: list[Agreement | None] = ["different"] * count
            numbers: dict[int, bool | None] = {}
            traced = own.traced
            for identity in filter(None, (traced.graph, traced.widths, traced.answer.get("weights"))):
                for number in self._alike.get(identity, ()):
                    other = self._computations[number].traced
                    agreements[number] = traced.agrees(other)
                    numbers[number] = compare_behaviors(traced.behavior, other.behavior)
            small, large = (f(self._operations, own.operations) for f in (np.minimum, np.maximum))
            likely = (2 * small >= large) | (not own.part)  # else the sizes allow less than half to be shared
            for number in range(count):
                agreement = agreements[number]
                if agreement is not None and (likely[number] or agreement != "different"):
                    compared = GraphSimilarity(
                        float(shares[number]), agreement, own.part, own.operations, numbers.get(number)
                    )
                    before = best[number]
                    if before is None or _closeness(compared) > _closeness(before):
                        best[number] = compared
        return [None if number is None else best[number] for number in self._number]


def _load_graphs(folder: Path, *, of_blocks: bool) -> list[tuple[str, Computation]]:
    """Return the id and computation of each code that has a graph; they are computed once for a file of graphs."""
    source = folder / (SPECS if of_blocks else "graphs.parquet")
    if not source.exists():
        return []
    name = f"graphs-{_VERSION}-{FORM}-{TORCH}-{sha256_file(source)}.npz"
    path = cache_folder("published") / name
    if path.exists():
        with read_cached(path), np.load(path) as arrays:
            return list(_unpack_computations(arrays))
    computations = list(_iter_graphs(folder, of_blocks=of_blocks))
    with atomic_file(path) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **_pack_computations(computations))
    return computations


def _iter_graphs(folder: Path, *, of_blocks: bool) -> Iterator[tuple[str, Computation]]:
    """Yield the id and computation of each code that has a graph. Raises: UserError if one cannot be compared."""
    if of_blocks:
        for id_, forms in _iter_block_graphs(folder):
            yield id_, build_computation(compute_identities(forms), forms["eval"])
        return
    columns = ["id", "graph", "graph_widths", "behavior", "eval", "train", "torch", "form"]
    for row in _iter_graph_rows(folder, columns):
        if row["eval"] is not None:
            modes = ("eval", "train") if row["behavior"] else ("eval",)
            forms = {mode: Graph.from_json(json.loads(row[mode])) for mode in modes if row[mode]}
            identities = {name: row[name] for name in ("graph", "graph_widths", "behavior")}
            if row["behavior"]:  # as the trace of another network states them
                identities["weights"] = digest_weights(forms)
            yield row["id"], build_computation(identities, forms["eval"])


def _pack_computations(computations: Sequence[tuple[str, Computation]]) -> dict[str, npt.NDArray[Any]]:
    facts = [[id_, dict(item.traced.answer), item.operations] for id_, item in computations]
    labels = [item.labels for _, item in computations]
    return {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "elements": np.concatenate([np.empty(0, np.uint64), *(elements for elements, _ in labels)]),
        "counts": np.concatenate([np.empty(0, np.int64), *(counts for _, counts in labels if counts is not None)]),
        "ends": np.cumsum([len(elements) for elements, _ in labels]),
    }


def _unpack_computations(arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[str, Computation]]:
    facts = json.loads(arrays["facts"].tobytes())
    elements, counts, start = arrays["elements"], arrays["counts"], 0
    for (id_, answer, operations), end in zip(facts, arrays["ends"].tolist(), strict=True):
        yield id_, Computation(GraphTrace(answer), (elements[start:end], counts[start:end]), operations)
        start = end


def _closeness(comparison: GraphSimilarity) -> tuple[bool, bool, float, int]:
    return comparison.agreement == "same", comparison.agreement == "widths", comparison.share, comparison.operations


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


_OPTIONS = CurateOptions()
_DEFAULT_RULES = ReferenceRules(_OPTIONS.tokens, _OPTIONS.lexical_threshold, _OPTIONS.structural_threshold, False)


def read_rules(manifest: Manifest) -> ReferenceRules:
    """Return the rules of a snapshot; the defaults for an extraction."""
    if manifest.kind != "snapshot":
        return _DEFAULT_RULES
    stated = manifest.parameters
    thresholds = stated["lexical_threshold"], stated["structural_threshold"]
    return ReferenceRules(stated["tokens"], *thresholds, stated.get("graph") == "keep-different")


def has_graphs(folder: Path, manifest: Manifest) -> bool:
    """Return True if a folder holds the graphs of its codes."""
    if manifest.kind == "snapshot":
        return (folder / "graphs.parquet").exists()
    return bool(manifest.counts.get("graphs", {}).get("blocks"))


def check_graphs(folder: Path) -> None:
    """Raise UserError if the graphs of a snapshot or an extraction were stored by another release.

    Args: folder: the snapshot or the extraction, finished.
    """
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


def _iter_graph_rows(folder: Path, columns: list[str]) -> Iterator[Json]:
    path = folder / "graphs.parquet"
    if not path.exists():
        return
    for batch in ds.dataset(path).to_batches(columns=columns, batch_size=100):
        for row in batch.to_pylist():
            if row["graph"] is not None and (row["torch"], row["form"]) != (TORCH, FORM):
                raise UserError(
                    f"{folder}: its graphs are form {row['form']} of torch {row['torch']}, here is form {FORM} of"
                    f" torch {TORCH}; create the snapshot again, or use that torch"
                )
            yield row


def _iter_records(folder: Path) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the kept records with their codes."""
    for record in SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", "nn_code", "prm")):
        if record.nn_code:  # not withheld from a published copy
            yield ReferenceCode(record.nn, record.id, record.prm), record.nn_code


def _read_removed(folder: Path, names: Mapping[str, str]) -> dict[str, ReferenceCode]:
    """Return the codes that were removed as duplicates, by id. Args: names: of the kept ones, by id."""
    table = read_table(SNAPSHOT.files(folder, "decisions"), Decision, ("id", "nn", "stage", "canonical"))
    rows = table.filter(pc.is_in(table["stage"], value_set=pa.array(DUPLICATE_STAGES))).to_pylist()
    return {
        row["id"]: ReferenceCode(
            row["nn"], row["id"], None, names.get(row["canonical"], row["canonical"][:16]), row["stage"]
        )
        for row in rows
        if row["canonical"] and row["id"] not in names
    }


def _iter_source(source: RecordSource) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield each distinct code of a source, by the first of its names."""
    seen: set[str] = set()
    for batch in source.batches():
        encoded = batch.column("nn_code").dictionary_encode()
        names: dict[int, str] = {}
        for index, name in zip(encoded.indices.to_pylist(), batch.column("nn").to_pylist(), strict=True):
            names.setdefault(index, name)
        for index, code in enumerate(encoded.dictionary.to_pylist()):
            id_ = hashlib.sha256(code.encode()).hexdigest()
            if id_ not in seen:
                seen.add(id_)
                yield ReferenceCode(names[index], id_), code


def _iter_blocks(folder: Path) -> Iterator[tuple[ReferenceCode, str]]:
    """Yield the blocks whose code is in the folder."""
    for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256", "code")):
        if row.code is not None:
            yield ReferenceCode(row.block, row.code_sha256 or ""), row.code
