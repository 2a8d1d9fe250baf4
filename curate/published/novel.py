"""`lemur novel`: is this network new? The records and blocks nearest to it by text, by structure, by what it computes.

A network is known if the folder would not keep it beside what is there: by the thresholds of its manifest for text and
structure, or because it computes what a record computes. It is traced as the folder's networks were. A rewritten
network is like its record only with that record's hyperparameters, so where none are given, those of the nearest
records are tried too. A block runs inside networks, so it is compared with each module of the network, the network
itself among them.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from curate.compute.graphs import DATASETS, NetworkTracer, Traced, given_of
from curate.compute.runs import read_parameters
from curate.model.features import Features, code_features
from curate.published.reference_corpus import (
    Compared,
    Computed,
    Library,
    computed,
    has_graphs,
    library_manifest,
    rules_of,
)
from lemur_core.describe.parts import parts
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.files.markdown import plural, ratio, shown
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.identity import identities_of
from lemur_core.sandbox.runtime import declared_runtime
from lemur_core.similarity.features.tokens import Detail
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


@dataclass(slots=True)
class _File:
    """A network in question."""

    path: str
    code: str
    id: str
    traced: Traced
    computed: list[Computed] = field(default_factory=list)  # the network, then its modules; none without a graph
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
    runtime: Sequence[str] = (),
) -> Novelty:
    """Whether these networks are new beside these folders.

    Args:
        paths: Python files: LEMUR networks, or modules, which are compared by text and structure alone.
        folders: snapshots and extractions.
        task: whose inputs the networks take.
        prm: hyperparameters as a JSON object; None: `PRM`, then those of the nearest records.
        runtime: what the networks can import besides the declared runtime.

    Raises: UserError if a file is no Python, or a folder cannot be compared with; UsageError if an option is wrong.
    """
    if task not in DATASETS:
        raise UsageError(f"--task {task}: not known; one of {', '.join(DATASETS)}")
    declared_runtime(tuple(runtime))  # what is not installed is said before anything runs
    given = PRM if prm is None else PRM | _parameters(prm)
    files = [_read(path) for path in paths]
    manifests = {folder: library_manifest(folder) for folder in folders}
    for detail in {rules_of(manifest)["tokens"] for manifest in manifests.values()}:
        for file in files:
            _features(file, detail)  # first: what is no Python is refused before anything runs
    graphs_in = [folder for folder, manifest in manifests.items() if has_graphs(folder, manifest)]
    notes: list[str] = []
    with NetworkTracer(jobs=jobs, unsafe=unsafe, runtime=runtime) as tracer:
        if graphs_in:
            _trace(tracer, files, task, given, notes)
        ids, graphs = {file.id for file in files}, {file.traced.graph for file in files if file.traced.graph}
        libraries = [Library.of(folder, manifest, ids, graphs, jobs) for folder, manifest in manifests.items()]
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
        file.computed = [computed(traced.answer, forms["eval"]), *_modules(forms)]


def _modules(forms: Mapping[str, Graph]) -> Iterator[Computed]:
    """What the modules of a network compute, of those that compute the same the first."""
    by_mode = {mode: parts(form) for mode, form in forms.items()}
    seen = set()
    for path, part in by_mode["eval"].items():
        own = {mode: found[path] for mode, found in by_mode.items() if path in found}
        identities = identities_of(own)
        if identities["graph"] not in seen:
            seen.add(identities["graph"])
            yield computed(identities, part, path)


# --- comparing ----------------------------------------------------------------------------------------------------


def _nearest(files: Sequence[_File], libraries: Sequence[Library]) -> list[list[Neighbour]]:
    """Of each file the nearest by each measure in each folder, and all that make it known; the nearest first."""
    found: list[list[Neighbour]] = [[] for _ in files]
    for library in libraries:
        graphs = _compared(files, library, {known.id for known in library.known})
        for place, file in enumerate(files):
            found[place] += _nearest_in(file, library, graphs[place])
    return [sorted(near, key=lambda one: (*one.nearness, one.folder)) for near in found]


def _nearest_in(file: _File, library: Library, graphs: Mapping[str, Compared]) -> list[Neighbour]:
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


def _with_graph(near: Neighbour, found: Compared | None) -> Neighbour:
    """A neighbour with how it compares by graph."""
    if found is None:
        return replace(near, graph=None, agreement=None)
    return replace(near, graph=found.share, agreement=found.agreement, part=found.part, operations=found.operations)


def _judged(file: _File, one: Neighbour, library: Library) -> Neighbour:
    """A neighbour with the stages by which it makes the file known."""
    stages = ["exact"] if one.id == file.id else []
    if not (library.keeps_different and one.agreement == "different"):
        stages += ["lexical"] if one.lexical >= library.lexical else []
        stages += ["structural"] if one.structural >= library.structural else []
    stages += ["graph"] if one.agreement == "same" and not one.part else []
    return replace(one, known=tuple(stages))


def _compared(files: Sequence[_File], library: Library, ids: Collection[str]) -> list[dict[str, Compared]]:
    """Of each file how it compares with those of these codes that have a graph, by id; each graph is read once."""
    found: list[dict[str, Compared]] = [{} for _ in files]
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


def _may_be_near(one: Computed, other: Computed) -> bool:
    """Whether the sizes of two computations allow that they have half of their subtrees in common."""
    return not one.part or 2 * min(one.operations, other.operations) >= max(one.operations, other.operations)


def _closeness(found: Compared) -> tuple[bool, bool, float, int]:
    return found.agreement == "same", found.agreement == "widths", found.share, found.operations


def _with_their_parameters(
    tracer: NetworkTracer, file: _File, task: str, near: list[Neighbour], libraries: Sequence[Library]
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
