"""`lemur novel`: is this network new? The records and blocks nearest to it by text, by structure, by what it computes.

A network is known if the folder would not keep it beside what is there: by the thresholds of its manifest for text and
structure, or because it computes what a record computes. It is traced as the folder's networks were. A rewritten
network is like its record only with that record's hyperparameters, so where none are given, those of the nearest
records are tried too.
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
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.files.markdown import article, plural, ratio, shown
from lemur_core.graphs.graph import FORM, TORCH, Graph, unpack
from lemur_core.graphs.identity import similarity, subtrees
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.tokens import Detail
from manifests.manifest import Manifest, read_manifest
from manifests.provenance import TABLE
from manifests.records import Agreement

#: Hyperparameters where none are given: those that LEMUR's trainer hands over, at their most frequent values.
PRM: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "epoch": 1, "transform": "norm_256"}

_Compared = tuple[float, Agreement]  # the share of the subtrees in common, and how two graphs agree
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
    known: tuple[str, ...] = ()

    @property
    def nearness(self) -> tuple[bool, bool, float, str]:
        """Known ones first, then equal computations, then by the greatest similarity."""
        measures = (self.lexical, self.structural, self.graph or 0.0)
        return (not self.known, self.agreement not in ("same", "widths"), -max(measures), f"{self.name} {self.id}")


@dataclass(slots=True)
class _File:
    """A network in question."""

    path: str
    code: str
    id: str
    traced: Traced
    labels: Counter[str] | None = None  # of its graph in eval mode
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
    graphs_in = [folder for folder in folders if (folder / "graphs.parquet").exists()]
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
        if manifest.kind == "snapshot" and folder not in graphs_in:
            notes.append(f"{folder}: holds no graphs; its networks are compared by text and structure alone")
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
    file.traced = traced
    if traced.graph is not None:
        file.labels = subtrees(Graph.from_json(unpack(traced.answer["eval"])))


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

    def __init__(self, folder: Path, parameters: Mapping[str, Any], codes: Sequence[tuple[_Known, str]]) -> None:
        self.folder = folder
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
            made = cls(folder, _rules(manifest), list(codes))
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

    def graphs(self, ids: Collection[str]) -> Iterator[dict[str, Any]]:
        """The graphs of these codes, of those that have one. Raises: UserError if they cannot be compared."""
        columns = ["id", "graph", "graph_widths", "eval", "torch", "form"]
        few = list(ids) if len(ids) < len(self.known) else None
        yield from (row for row in _graph_rows(self.folder, columns, few) if row["graph"] is not None)


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
    for path in sorted((folder / "data" / "records").glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=500, columns=["id", "nn", "nn_code", "prm"]):
                for row in batch.to_pylist():
                    names[row["id"]] = row["nn"]
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
        if row["id"] in stands:
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
    shares = np.array([graphs[known.id][0] if known.id in graphs else -1.0 for known in library.known])
    chosen: set[int] = set()
    for measure in (lexical, structural, shares):
        best = np.argsort(-measure, kind="stable")[:_NEAREST].tolist()
        chosen.update(place for place in best if measure[place] > 0)
    sure = (lexical >= library.lexical) | (structural >= library.structural)
    chosen.update(np.flatnonzero(sure).tolist())
    chosen.update(
        place for place, known in enumerate(library.known) if known.id in graphs and graphs[known.id][1] == "same"
    )
    made = []
    for place in sorted(chosen):
        known = library.known[place]
        share, agreement = graphs.get(known.id, (None, None))
        one = Neighbour(
            str(library.folder),
            known.name,
            known.id,
            known.removed_for,
            float(lexical[place]),
            float(structural[place]),
            share,
            agreement,
        )
        made.append(_judged(file, one, library))
    return made


def _judged(file: _File, one: Neighbour, library: _Library) -> Neighbour:
    """A neighbour with the stages by which it makes the file known."""
    stages = ["exact"] if one.id == file.id else []
    if not (library.keeps_different and one.agreement == "different"):
        stages += ["lexical"] if one.lexical >= library.lexical else []
        stages += ["structural"] if one.structural >= library.structural else []
    stages += ["graph"] if one.agreement == "same" else []
    return replace(one, known=tuple(stages))


def _compared(files: Sequence[_File], library: _Library, ids: Collection[str]) -> list[dict[str, _Compared]]:
    """Of each file how it compares with those of these codes that have a graph, by id; each graph is read once."""
    found: list[dict[str, _Compared]] = [{} for _ in files]
    if all(file.labels is None for file in files):
        return found
    for row in library.graphs(ids):
        if row["id"] not in ids:
            continue
        labels = subtrees(Graph.from_json(json.loads(row["eval"])))
        for file, known in zip(files, found, strict=True):
            agreement = file.traced.agrees(Traced(row))
            if agreement is not None and file.labels is not None:
                known[row["id"]] = similarity(file.labels, labels), agreement
    return found


def _with_their_parameters(
    tracer: NetworkTracer, file: _File, task: str, near: list[Neighbour], libraries: Sequence[_Library]
) -> list[Neighbour]:
    """The neighbours again, those nearest by graph compared with the file as it is with their hyperparameters."""
    prms = {(str(library.folder), known.id): known.prm for library in libraries for known in library.known}
    read = file.traced.answer.get("prm_read", ())
    tried: dict[int, dict[str, Any]] = {}
    by_graph = sorted(
        (place for place, one in enumerate(near) if one.graph), key=lambda place: -(near[place].graph or 0)
    )
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
            if str(library.folder) == near[place].folder and other.labels is not None:
                known = _compared([other], library, {near[place].id})[0]
                share, agreement = known.get(near[place].id, (None, None))
                again[place] = _judged(file, replace(near[place], graph=share, agreement=agreement), library)
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
    alone = "" if file.labels is not None else f"; judged by text and structure alone: {file.traced.error}"
    lines = [f"{'known' if known else 'novel'}  {file.path}: {text}{alone}"]
    if near:
        lines.append(f"  {'text':>5}  {'structure':>9}  {'graph':>5}  ")
    for one in near[:_NEAREST]:
        share = "-" if one.graph is None else ratio(one.graph)
        same = {"same": "the same", "widths": "same up to widths"}.get(one.agreement or "", "")
        removed = f", removed for {one.stands_for_it}" if one.stands_for_it else ""
        lines.append(
            f"  {ratio(one.lexical):>5}  {ratio(one.structural):>9}  {share:>5}  {same:<18}{one.name}"
            f" ({one.folder}{removed})"
        )
    if len(near) > _NEAREST:
        lines.append(f"  and {plural(len(near) - _NEAREST, 'more', 'more')}")
    return lines
