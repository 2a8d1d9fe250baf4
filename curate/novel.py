"""`lemur novel`: is this network new? The records and blocks nearest to it by text, by structure, by what it computes.

A network is known if the folder would not keep it beside what is there: by the thresholds of its manifest for text and
structure, or because it computes what a record computes. It is traced as the folder's networks were. A rewritten
network is like its record only with that record's hyperparameters, so where none are given, those of the nearest
records are tried too. A block runs inside networks, so it is compared with each module of the network, the network
itself among them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from curate.corpus import fill_store
from curate.features import Features, FeatureStore, FeatureTable, code_features
from curate.graphs import DATASETS, NetworkTracer, Traced, given_of
from curate.options import CurateOptions
from curate.outcome import DUPLICATE_STAGES
from curate.runs import read_parameters
from curate.union import record_files
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.files.markdown import article, plural, ratio, shown
from lemur_core.graphs.graph import FORM, TORCH, Graph, unpack
from lemur_core.graphs.identity import identities_of, similarity, subtrees
from lemur_core.graphs.notation import forms_of
from lemur_core.graphs.parts import parts
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.tokens import Detail
from manifests.manifest import Manifest, read_manifest
from manifests.provenance import SPECS, TABLE
from manifests.records import Agreement

#: Hyperparameters where none are given: those that LEMUR's trainer hands over, at their most frequent values.
PRM: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "epoch": 1, "transform": "norm_256"}

_NEAREST = 5  # by each measure
_TRIED = 3  # of the nearest by graph, with their hyperparameters


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One record or block beside a file. `known` names the stages that would remove the file for it."""

    folder: str
    name: str
    id: str
    stands_for_it: str | None  # the kept record, where this one was removed
    lexical: float
    structural: float
    graph: float | None  # share of the subtrees; None where either has no graph
    agreement: Agreement | None
    part: str = ""  # the module of the file that was compared by graph; empty for the network itself
    operations: int = 0  # nodes of that
    known: tuple[str, ...] = ()

    @property
    def nearness(self) -> tuple[bool, bool, float, int, str]:
        """Known ones first, then equal computations, then by the greatest similarity, the larger ones first."""
        measures = (self.lexical, self.structural, self.graph or 0.0)
        order = (-max(measures), -self.operations, f"{self.name} {self.id}")
        return (not self.known, self.agreement not in ("same", "widths"), *order)


@dataclass(frozen=True, slots=True)
class _Computed:
    """A computation: its identities, and what its similarity to others goes by."""

    traced: Traced
    labels: Counter[str]
    operations: int
    part: str = ""

    def beside(self, other: "_Computed") -> "_Compared | None":
        """How it compares with another one; None where that cannot be told."""
        agreement = self.traced.agrees(other.traced)
        if agreement is None:
            return None
        return _Compared(similarity(self.labels, other.labels), agreement, self.part, self.operations)


@dataclass(frozen=True, slots=True)
class _Compared:
    """How two computations compare: the share of the subtrees in common, and whether they agree."""

    share: float
    agreement: Agreement
    part: str
    operations: int


@dataclass(slots=True)
class _File:
    """A network in question."""

    path: str
    code: str
    id: str
    traced: Traced
    computed: list[_Computed] = field(default_factory=list)  # the network, then its modules; none without a graph
    features: dict[Detail, Features] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Novelty:
    """What was found: `lines` to print as they are, `facts` for JSON."""

    lines: list[str]
    facts: dict[str, Any]

    @property
    def known(self) -> bool:
        """Whether any of the files is known."""
        return bool(self.facts["known"])


def novel(
    paths: Sequence[Path],
    folders: Sequence[Path],
    *,
    task: str = "img-classification",
    prm: str | None = None,
    jobs: int | None = None,
    unsafe: bool = False,
) -> Novelty:
    """Whether these networks are new beside these folders.

    Args:
        paths: Python files: LEMUR networks, or modules, which are compared by text and structure alone.
        folders: snapshots and extractions.
        task: whose inputs the networks take.
        prm: hyperparameters as a JSON object; None: `PRM`, then those of the nearest records.

    Raises: UserError if a file is no Python, or a folder cannot be compared with; UsageError if an option is wrong.
    """
    if task not in DATASETS:
        raise UsageError(f"--task {task}: not known; one of {', '.join(DATASETS)}")
    given = PRM if prm is None else PRM | _parameters(prm)
    files = [_read(path) for path in paths]
    manifests = {folder: _manifest(folder) for folder in folders}
    for detail in {_rules(manifest)["tokens"] for manifest in manifests.values()}:
        for file in files:
            _features(file, detail)  # first: what is no Python is refused before anything runs
    graphs_in = [folder for folder, manifest in manifests.items() if _has_graphs(folder, manifest)]
    notes: list[str] = []
    with NetworkTracer(jobs=jobs, unsafe=unsafe) as tracer:
        if graphs_in:
            _trace(tracer, files, task, given, notes)
        libraries = [_Library.of(folder, manifest, files, jobs) for folder, manifest in manifests.items()]
        found = _nearest(files, libraries)
        if prm is None:
            found = [
                _with_their_parameters(tracer, file, task, near, libraries)
                for file, near in zip(files, found, strict=True)
            ]
    for folder, manifest in manifests.items():
        if folder not in graphs_in:
            what = "networks" if manifest.kind == "snapshot" else "blocks"
            notes.append(f"{folder}: holds no graphs; its {what} are compared by text and structure alone")
    return _told(files, found, notes)


# --- the files ----------------------------------------------------------------------------------------------------


def _parameters(text: str) -> dict[str, Any]:
    found = read_parameters(text)
    if not found and text.strip() != "{}":
        raise UsageError(f"--prm {shown(text, 40)}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
    return found


def _read(path: Path) -> _File:
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"{path}: cannot be read: {said}; give a Python file") from error
    digest = hashlib.sha256(code.encode()).hexdigest()
    return _File(str(path), code, digest, Traced({"error": "not_traced: there are no graphs to compare with"}))


def _features(file: _File, detail: Detail) -> Features:
    if detail not in file.features:
        made = code_features(file.code, detail)
        if isinstance(made, str):
            raise UserError(f"{file.path}: {made}; nothing was compared")
        file.features[detail] = made
    return file.features[detail]


def _trace(tracer: NetworkTracer, files: Sequence[_File], task: str, prm: Mapping[str, Any], notes: list[str]) -> None:
    given = given_of(task, DATASETS[task], prm)
    assert not isinstance(given, str)
    try:
        for number, traced in tracer.run({place: given | {"code": file.code} for place, file in enumerate(files)}):
            _take(files[number], traced)
    except NoSandboxError as error:
        notes.append(f"no file was run: {error}")
        for file in files:
            file.traced = Traced({"error": "not_traced: no sandbox can be had here"})


def _take(file: _File, traced: Traced) -> None:
    file.traced, file.computed = traced, []
    if traced.graph is not None:
        forms = {
            mode: Graph.from_json(unpack(traced.answer[mode])) for mode in ("eval", "train") if mode in traced.answer
        }
        file.computed = [_computed(traced.answer, forms["eval"]), *_modules(forms)]


def _computed(identities: Mapping[str, Any], form: Graph, part: str = "") -> _Computed:
    return _Computed(Traced(identities), subtrees(form), len(form.nodes), part)


def _modules(forms: Mapping[str, Graph]) -> Iterator[_Computed]:
    """What the modules of a network compute, of those that compute the same the first."""
    by_mode = {mode: parts(form) for mode, form in forms.items()}
    seen = set()
    for path, part in by_mode["eval"].items():
        own = {mode: found[path] for mode, found in by_mode.items() if path in found}
        identities = identities_of(own)
        if identities["graph"] not in seen:
            seen.add(identities["graph"])
            yield _computed(identities, part, path)


# --- what they are compared with ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A record or block by name. `prm` of the row that shows it; `removed_for`: the record that stands for it."""

    name: str
    id: str
    prm: str | None = None
    removed_for: str | None = None


class _Library:
    """The records or blocks of one folder with their features, and the rows of its graphs."""

    def __init__(self, folder: Path, manifest: Manifest, codes: Sequence[tuple[_Known, str]]) -> None:
        parameters = _rules(manifest)
        self.folder, self.of_blocks = folder, manifest.kind == "extraction"
        self.detail: Detail = parameters["tokens"]
        self.lexical, self.structural = parameters["lexical_threshold"], parameters["structural_threshold"]
        self.keeps_different = parameters.get("graph") == "keep-different"
        self.known = [known for known, _ in codes]
        self._codes = codes

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, files: Sequence[_File], jobs: int | None) -> "_Library":
        """What a finished folder holds.

        Raises: UserError if the folder cannot be read, or its graphs are of another torch.
        """
        try:
            codes = _records(folder, files) if manifest.kind == "snapshot" else _blocks(folder)
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

    def graphs(self, ids: Collection[str]) -> Iterator[tuple[str, _Computed]]:
        """What these codes compute, by id, of those that have a graph. Raises: UserError if that cannot be compared."""
        if self.of_blocks:
            yield from _block_graphs(self.folder)
            return
        columns = ["id", "graph", "graph_widths", "eval", "torch", "form"]
        few = list(ids) if len(ids) < len(self.known) else None
        for row in _graph_rows(self.folder, columns, few):
            if row["eval"] is not None:
                yield row["id"], _computed(row, Graph.from_json(json.loads(row["eval"])))


def _manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest.kind not in ("snapshot", "extraction"):
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a snapshot or an extraction")
    return manifest


def _rules(manifest: Manifest) -> Mapping[str, Any]:
    """By which parameters two codes are near: of a snapshot its own, else the defaults of curation."""
    if manifest.kind == "snapshot":
        return manifest.parameters
    options = CurateOptions()
    return asdict(options) | {"structural_threshold": options.structural}


def _has_graphs(folder: Path, manifest: Manifest) -> bool:
    if manifest.kind == "snapshot":
        return (folder / "graphs.parquet").exists()
    return bool(manifest.counts.get("graphs", {}).get("blocks"))


def _block_graphs(folder: Path) -> Iterator[tuple[str, _Computed]]:
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
            yield spec["code_sha256"], _computed(identities_of(forms), forms["eval"])


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


def _records(folder: Path, files: Sequence[_File]) -> Iterator[tuple[_Known, str]]:
    """The kept records; of those removed for one of them the ones that are a file, or compute the same."""
    names: dict[str, str] = {}
    for path in record_files(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=500, columns=["id", "nn", "nn_code", "prm"]):
                for row in batch.to_pylist():
                    names[row["id"]] = row["nn"]
                    if row["nn_code"]:  # not withheld from a published copy
                        yield _Known(row["nn"], row["id"], row["prm"]), row["nn_code"]
    wanted = {one.id for one in files}
    graphs = {one.traced.graph for one in files} - {None}
    wanted |= {row["id"] for row in _graph_rows(folder, ["id", "graph", "torch", "form"]) if row["graph"] in graphs}
    if wanted <= names.keys():
        return
    decisions = pq.read_table(folder / "decisions.parquet", columns=["id", "stage", "canonical"]).to_pylist()
    stands = {row["id"]: row["canonical"] for row in decisions if row["stage"] in DUPLICATE_STAGES}
    removed = pq.read_table(folder / "removed.parquet", columns=["id", "nn", "nn_code"], filters=[("id", "in", wanted)])
    for row in removed.to_pylist():
        if row["id"] in stands and row["nn_code"]:
            kept = names.get(stands[row["id"]], stands[row["id"]][:16])
            yield _Known(row["nn"], row["id"], None, kept), row["nn_code"]


def _blocks(folder: Path) -> Iterator[tuple[_Known, str]]:
    """The blocks whose code is in the folder."""
    with pq.ParquetFile(folder / TABLE) as file:
        for batch in file.iter_batches(batch_size=500, columns=["block", "code_sha256", "code"]):
            for row in batch.to_pylist():
                if row["code"] is not None:
                    yield _Known(row["block"], row["code_sha256"]), row["code"]


# --- comparing ----------------------------------------------------------------------------------------------------


def _nearest(files: Sequence[_File], libraries: Sequence[_Library]) -> list[list[Neighbour]]:
    """Of each file the nearest by each measure in each folder, and all that make it known; the nearest first."""
    found: list[list[Neighbour]] = [[] for _ in files]
    for library in libraries:
        graphs = _compared(files, library, {known.id for known in library.known})
        for place, file in enumerate(files):
            found[place] += _nearest_in(file, library, graphs[place])
    return [sorted(near, key=lambda one: (*one.nearness, one.folder)) for near in found]


def _nearest_in(file: _File, library: _Library, graphs: Mapping[str, _Compared]) -> list[Neighbour]:
    features = _features(file, library.detail)
    lexical, structural = (library.similar(measure, features) for measure in ("lexical", "structural"))
    compared = [graphs.get(known.id) for known in library.known]
    shares = np.array([-1.0 if one is None else one.share for one in compared])
    sizes = np.array([0 if one is None else one.operations for one in compared])
    chosen: set[int] = set()
    for measure in (lexical, structural, shares):
        best = np.lexsort((-sizes, -measure))[:_NEAREST].tolist()
        chosen.update(place for place in best if measure[place] > 0)
    sure = (lexical >= library.lexical) | (structural >= library.structural)
    chosen.update(np.flatnonzero(sure).tolist())
    chosen.update(place for place, one in enumerate(compared) if one is not None and one.agreement == "same")
    made = []
    for place in sorted(chosen):
        known = library.known[place]
        near = Neighbour(
            str(library.folder),
            known.name,
            known.id,
            known.removed_for,
            float(lexical[place]),
            float(structural[place]),
            None,
            None,
        )
        made.append(_judged(file, _with_graph(near, compared[place]), library))
    return made


def _with_graph(near: Neighbour, found: _Compared | None) -> Neighbour:
    """A neighbour with how it compares by graph."""
    if found is None:
        return replace(near, graph=None, agreement=None)
    return replace(near, graph=found.share, agreement=found.agreement, part=found.part, operations=found.operations)


def _judged(file: _File, one: Neighbour, library: _Library) -> Neighbour:
    """A neighbour with the stages by which it makes the file known."""
    stages = ["exact"] if one.id == file.id else []
    if not (library.keeps_different and one.agreement == "different"):
        stages += ["lexical"] if one.lexical >= library.lexical else []
        stages += ["structural"] if one.structural >= library.structural else []
    stages += ["graph"] if one.agreement == "same" and not one.part else []
    return replace(one, known=tuple(stages))


def _compared(files: Sequence[_File], library: _Library, ids: Collection[str]) -> list[dict[str, _Compared]]:
    """Of each file how it compares with those of these codes that have a graph, by id; each graph is read once."""
    found: list[dict[str, _Compared]] = [{} for _ in files]
    if not any(file.computed for file in files):
        return found
    for id_, other in library.graphs(ids):
        if id_ not in ids:
            continue
        for file, known in zip(files, found, strict=True):
            own = file.computed if library.of_blocks else file.computed[:1]
            likely = (one for one in own if one.traced.widths == other.traced.widths or _may_be_near(one, other))
            best = max(filter(None, (one.beside(other) for one in likely)), key=_closeness, default=None)
            if best is not None and (id_ not in known or _closeness(best) > _closeness(known[id_])):
                known[id_] = best
    return found


def _may_be_near(one: _Computed, other: _Computed) -> bool:
    """Whether the sizes of two computations allow that they have half of their subtrees in common."""
    return not one.part or 2 * min(one.operations, other.operations) >= max(one.operations, other.operations)


def _closeness(found: _Compared) -> tuple[bool, bool, float, int]:
    return found.agreement == "same", found.agreement == "widths", found.share, found.operations


def _with_their_parameters(
    tracer: NetworkTracer, file: _File, task: str, near: list[Neighbour], libraries: Sequence[_Library]
) -> list[Neighbour]:
    """The neighbours again, those nearest by graph compared with the file as it is with their hyperparameters."""
    prms = {(str(library.folder), known.id): known.prm for library in libraries for known in library.known}
    read = file.traced.answer.get("prm_read", ())
    tried: dict[int, dict[str, Any]] = {}
    records = [place for place, one in enumerate(near) if one.graph and prms[one.folder, one.id] is not None]
    by_graph = sorted(records, key=lambda place: -(near[place].graph or 0))
    for place in by_graph[:_TRIED]:
        own = read_parameters(prms[near[place].folder, near[place].id])
        given = given_of(task, DATASETS[task], own)
        differs = any(own.get(name) != PRM.get(name) for name in read if name != "batch")
        if near[place].agreement != "same" and differs and not isinstance(given, str):
            tried[place] = given | {"code": file.code}
    again = list(near)
    for place, traced in tracer.run(tried) if tried else ():
        other = _File(file.path, file.code, file.id, file.traced)
        _take(other, traced)
        for library in libraries:
            if str(library.folder) == near[place].folder and other.computed:
                known = _compared([other], library, {near[place].id})[0]
                again[place] = _judged(file, _with_graph(near[place], known.get(near[place].id)), library)
    return sorted(again, key=lambda one: (*one.nearness, one.folder))


# --- telling it ---------------------------------------------------------------------------------------------------

_HOW = {
    "exact": "the same code",
    "lexical": "near by text",
    "structural": "near by structure",
    "graph": "computes the same",
}


def _told(files: Sequence[_File], found: Sequence[list[Neighbour]], notes: Sequence[str]) -> Novelty:
    entries: list[dict[str, Any]] = []
    lines: list[str] = []
    for file, near in zip(files, found, strict=True):
        known = bool(near and near[0].known)
        entries.append(
            {
                "file": file.path,
                "id": file.id,
                "verdict": "known" if known else "novel",
                "graph": file.traced.graph,
                "graph_widths": file.traced.widths,
                "error": file.traced.error,
                "nearest": [asdict(one) for one in near],
            }
        )
        lines += _verdict(file, near, known=known)
    lines += [f"note: {note}" for note in notes]
    counts = Counter(entry["verdict"] for entry in entries)
    facts = {"novel": counts["novel"], "known": counts["known"], "files": entries, "notes": list(notes)}
    return Novelty([shown(line) for line in lines], facts)


def _verdict(file: _File, near: Sequence[Neighbour], *, known: bool) -> list[str]:
    if not near:
        text = "nothing is like it"
    elif known:
        text = f"{', '.join(_HOW[stage] for stage in near[0].known)}: {near[0].name}"
    else:
        text = f"nearest is {near[0].name}"
    alone = "" if file.computed else f"; judged by text and structure alone: {file.traced.error}"
    lines = [f"{'known' if known else 'novel'}  {file.path}: {text}{alone}"]
    if near:
        lines.append(f"  {'text':>5}  {'structure':>9}  {'graph':>5}  ")
    for one in near[:_NEAREST]:
        share = "-" if one.graph is None else ratio(one.graph)
        same = {"same": "the same", "widths": "same up to widths"}.get(one.agreement or "", "")
        removed = f", removed for {one.stands_for_it}" if one.stands_for_it else ""
        removed += f"; by the file's {one.part}" if one.part else ""
        lines.append(
            f"  {ratio(one.lexical):>5}  {ratio(one.structural):>9}  {share:>5}  {same:<18}{one.name}"
            f" ({one.folder}{removed})"
        )
    if len(near) > _NEAREST:
        lines.append(f"  and {plural(len(near) - _NEAREST, 'more', 'more')}")
    return lines
