"""`lemur novel`: decide whether a network is new; find the nearest records and blocks by text, structure and graph.

A network is known if the folder would not keep it next to its records: by the manifest's thresholds for text and
structure, or because it computes the same as a record. It is traced like the folder's networks. A rewritten network
computes the same as its record only with that record's hyperparameters, so unless `--prm` sets them, those of the
nearest records are tried too. A block runs inside networks, so it is compared with each module of the network,
including the network itself.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from curate.compute.arguments import PRM, TASK_DATASETS, read_parameters
from curate.compute.graphs import GraphTrace, NetworkTracer, build_payload
from curate.model.features import Features, code_features
from curate.published.reference_corpus import (
    Computation,
    GraphSimilarity,
    ReferenceCode,
    ReferenceCorpus,
    build_computation,
    has_graphs,
    read_reference_manifest,
    read_rules,
)
from lemur_core.describe.parts import parts
from lemur_core.files import Json
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.identity import compute_identities
from lemur_core.sandbox.runtime import find_runtime
from lemur_core.similarity import Detail
from manifests.records import Agreement, drop_outcomes

_NEAREST = 5  # by each measure
_TRIED = 3  # of the nearest by graph, with their hyperparameters


@dataclass(frozen=True, slots=True)
class NovelNeighbor:
    """A record or block near a file. `known`: the stages at which the file would be removed as its duplicate."""

    folder: str
    name: str
    id: str
    stands_for_it: str | None  # the kept record, if this one was removed
    lexical: float
    structural: float
    graph: float | None  # the share of common subtrees; None if either has no graph
    agreement: Agreement | None
    part: str = ""  # the module of the file that was compared by graph; empty for the whole network
    operations: int = 0  # number of nodes of that module
    known: tuple[str, ...] = ()

    @property
    def nearness(self) -> tuple[bool, bool, float, int, str]:
        """The sort key: known first, then equal computations, then the most similar, then the largest."""
        measures = (self.lexical, self.structural, self.graph or 0.0)
        order = (-max(measures), -self.operations, f"{self.name} {self.id}")
        return (not self.known, self.agreement not in ("same", "widths"), *order)


@dataclass(slots=True)
class _QueryFile:
    """A network to check."""

    path: str
    code: str
    id: str
    traced: GraphTrace
    computations: list[Computation] = field(default_factory=list)  # the network, then its modules
    features: dict[Detail, Features] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Novelty:
    """The result: `lines` to print as they are, `facts` for JSON, and of each file the nearest codes, nearest first."""

    lines: list[str]
    facts: Json
    nearest: Sequence[list[NovelNeighbor]]

    @property
    def is_known(self) -> bool:
        """True if any of the files is known."""
        return bool(self.facts["known"])


def novel(
    codes: Sequence[Path] | Mapping[str, str],
    folders: Sequence[Path],
    *,
    task: str = "img-classification",
    prm: str | Mapping[str, object] | None = None,
    jobs: int | None = None,
    unsafe: bool = False,
    runtime: Sequence[str] = (),
) -> Novelty:
    """Check whether these networks are new compared with these folders.

    Args:
        codes: Python files, or their texts by name: LEMUR networks, or modules, which are compared by text and
            structure alone.
        folders: snapshots and extractions.
        task: the task whose inputs the networks take.
        prm: hyperparameters, in JSON or not; None: `PRM`, then those of the nearest records.
        jobs: parallel processes; None for one per core.
        unsafe: run the networks without the sandbox.
        runtime: packages that the networks can import in addition to the declared runtime.

    Returns: the lines to print, the facts for JSON, and the nearest codes of each network, in the order of `codes`.
    Raises:
        UserError: A file is not valid Python, or a folder cannot be compared with.
        UsageError: An option is wrong.
    """
    if task not in TASK_DATASETS:
        raise UsageError(f"--task {task}: not known; one of {', '.join(TASK_DATASETS)}")
    find_runtime(tuple(runtime))  # report missing packages before anything runs
    parameters = PRM if prm is None else PRM | _parse_prm(prm)
    texts = codes if isinstance(codes, Mapping) else {str(path): _read(path) for path in codes}
    untraced = GraphTrace({"error": "not_traced: there are no graphs to compare with"})
    files = [
        _QueryFile(name, code, hashlib.sha256(code.encode()).hexdigest(), untraced) for name, code in texts.items()
    ]
    manifests = {folder: read_reference_manifest(folder) for folder in folders}
    for detail in {read_rules(manifest).tokens for manifest in manifests.values()}:
        for file in files:
            _features(file, detail)  # refuse invalid Python before anything runs
    graphs_in = [folder for folder, manifest in manifests.items() if has_graphs(folder, manifest)]
    notes: list[str] = []
    with NetworkTracer(jobs=jobs, unsafe=unsafe, runtime=runtime) as tracer:
        if graphs_in:
            _trace(tracer, files, task, parameters, notes)
        ids, graphs = {file.id for file in files}, {file.traced.graph for file in files if file.traced.graph}
        corpora = [ReferenceCorpus.load(folder, manifest, ids, graphs, jobs) for folder, manifest in manifests.items()]
        nearest = _find_nearest(files, corpora)
        if prm is None:
            nearest = [
                _retry_with_neighbours(tracer, file, task, near, corpora)
                for file, near in zip(files, nearest, strict=True)
            ]
    for folder, manifest in manifests.items():
        if folder not in graphs_in:
            what = "networks" if manifest.kind == "snapshot" else "blocks"
            notes.append(f"{folder}: holds no graphs; its {what} are compared by text and structure alone")
    return _summarize(files, nearest, notes)


# --- the files ----------------------------------------------------------------------------------------------------


def _parse_prm(text: str | Mapping[str, object]) -> Json:
    if not isinstance(text, str):
        return drop_outcomes(text)
    parameters = read_parameters(text)
    if not parameters and text.strip() != "{}":
        raise UsageError(f"--prm {make_visible(text, 40)}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
    return parameters


def _read(path: Path) -> str:
    check_plain(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"{path}: cannot be read: {message}; give a Python file") from error


def _features(file: _QueryFile, detail: Detail) -> Features:
    if detail not in file.features:
        features = code_features(file.code, detail)
        if isinstance(features, str):
            raise UserError(f"{file.path}: {features}; nothing was compared")
        file.features[detail] = features
    return file.features[detail]


def _trace(
    tracer: NetworkTracer, files: Sequence[_QueryFile], task: str, prm: Mapping[str, object], notes: list[str]
) -> None:
    arguments = build_payload(task, TASK_DATASETS[task], prm)
    assert not isinstance(arguments, str)
    try:
        for number, traced in tracer.run({index: arguments | {"code": file.code} for index, file in enumerate(files)}):
            files[number].traced, files[number].computations = traced, _list_computations(traced)
    except NoSandboxError as error:
        notes.append(f"no file was run: {error}")
        for file in files:
            file.traced = GraphTrace({"error": "not_traced: no sandbox is available here"})


def _list_computations(traced: GraphTrace) -> list[Computation]:
    """Return the computations of a network and of its modules; none without a graph."""
    if traced.graph is None:
        return []
    forms: dict[str, Graph] = {
        mode: Graph.from_json(unpack(traced.answer[mode])) for mode in ("eval", "train") if mode in traced.answer
    }
    return [build_computation(traced.answer, forms["eval"]), *_iter_modules(forms)]


def _iter_modules(forms: Mapping[str, Graph]) -> Iterator[Computation]:
    """Return the computations of a network's modules; of equal ones, the first."""
    by_mode = {mode: parts(form) for mode, form in forms.items()}
    seen = set()
    for path, part in by_mode["eval"].items():
        own = {mode: module_graphs[path] for mode, module_graphs in by_mode.items() if path in module_graphs}
        identities = compute_identities(own)
        if identities["graph"] not in seen:
            seen.add(identities["graph"])
            yield build_computation(identities, part, path)


# --- comparing ----------------------------------------------------------------------------------------------------


def _find_nearest(files: Sequence[_QueryFile], corpora: Sequence[ReferenceCorpus]) -> list[list[NovelNeighbor]]:
    """Return, for each file, the nearest codes by each measure and all that make it known, nearest first."""
    nearest: list[list[NovelNeighbor]] = [[] for _ in files]
    for corpus in corpora:
        graphs = _compare_graphs([file.computations for file in files], corpus, {code.id for code in corpus.codes})
        for index, file in enumerate(files):
            nearest[index] += _find_nearest_in(file, corpus, graphs[index])
    return [sorted(near, key=lambda neighbour: (*neighbour.nearness, neighbour.folder)) for near in nearest]


def _find_nearest_in(
    file: _QueryFile, corpus: ReferenceCorpus, graphs: Mapping[str, GraphSimilarity]
) -> list[NovelNeighbor]:
    features = _features(file, corpus.detail)
    lexical, structural = (corpus.similar(measure, features) for measure in ("lexical", "structural"))
    compared = [graphs.get(code.id) for code in corpus.codes]
    shares = np.array([-1.0 if comparison is None else comparison.share for comparison in compared])
    sizes = np.array([0 if comparison is None else comparison.operations for comparison in compared])
    chosen: set[int] = set()
    for measure in (lexical, structural, shares):
        best = np.lexsort((-sizes, -measure))[:_NEAREST].tolist()
        chosen.update(index for index in best if measure[index] > 0)
    near_enough = (lexical >= corpus.lexical) | (structural >= corpus.structural)
    chosen.update(np.flatnonzero(near_enough).tolist())
    chosen.update(
        index for index, comparison in enumerate(compared) if comparison is not None and comparison.agreement == "same"
    )
    return [
        _make_neighbour(file, corpus, corpus.codes[index], float(lexical[index]), float(structural[index]), comparison)
        for index in sorted(chosen)
        for comparison in [compared[index]]
    ]


def _make_neighbour(
    file: _QueryFile,
    corpus: ReferenceCorpus,
    code: ReferenceCode,
    lexical: float,
    structural: float,
    comparison: GraphSimilarity | None,
) -> NovelNeighbor:
    """Return a code as a neighbor of a file, with the stages at which it makes the file known."""
    share, agreement, part, operations = comparison or (None, None, "", 0)
    may_be_near = not (corpus.keeps_different and agreement == "different")
    stages = {
        "exact": code.id == file.id,
        "lexical": may_be_near and lexical >= corpus.lexical,
        "structural": may_be_near and structural >= corpus.structural,
        "graph": agreement == "same" and not part,
    }
    return NovelNeighbor(
        folder=str(corpus.folder),
        name=code.name,
        id=code.id,
        stands_for_it=code.removed_for,
        lexical=lexical,
        structural=structural,
        graph=share,
        agreement=agreement,
        part=part,
        operations=operations,
        known=tuple(stage for stage, applies in stages.items() if applies),
    )


def _compare_graphs(
    computations: Sequence[Sequence[Computation]], corpus: ReferenceCorpus, ids: Collection[str]
) -> list[dict[str, GraphSimilarity]]:
    """Compare the computations of each file with these codes by graph; return the results by id."""
    by_file: list[dict[str, GraphSimilarity]] = [{} for _ in computations]
    for id_, other in corpus.graphs(ids) if any(computations) else ():
        if id_ not in ids:
            continue
        for of_file, comparisons in zip(computations, by_file, strict=True):
            own = of_file if corpus.of_blocks else of_file[:1]
            likely = (one for one in own if one.traced.widths == other.traced.widths or _may_be_near(one, other))
            results = [comparisons.get(id_), *(one.compare(other) for one in likely)]
            if best := max(filter(None, results), key=_closeness, default=None):
                comparisons[id_] = best
    return by_file


def _may_be_near(own: Computation, other: Computation) -> bool:
    """Return True if the sizes of two computations allow half of their subtrees to be shared."""
    return not own.part or 2 * min(own.operations, other.operations) >= max(own.operations, other.operations)


def _closeness(comparison: GraphSimilarity) -> tuple[bool, bool, float, int]:
    return comparison.agreement == "same", comparison.agreement == "widths", comparison.share, comparison.operations


def _retry_with_neighbours(
    tracer: NetworkTracer, file: _QueryFile, task: str, near: list[NovelNeighbor], corpora: Sequence[ReferenceCorpus]
) -> list[NovelNeighbor]:
    """Compare a file again with its nearest neighbors by graph, using their hyperparameters; return all neighbors."""
    codes = {(str(corpus.folder), code.id): (corpus, code) for corpus in corpora for code in corpus.codes}
    origins = [codes[neighbour.folder, neighbour.id] for neighbour in near]
    names_read = file.traced.answer.get("prm_read", ())
    requests: dict[int, Json] = {}
    records = [index for index, (_, code) in enumerate(origins) if near[index].graph and code.prm is not None]
    for index in sorted(records, key=lambda index: -(near[index].graph or 0))[:_TRIED]:
        own = read_parameters(origins[index][1].prm)
        arguments = build_payload(task, TASK_DATASETS[task], own)
        differs = any(own.get(name) != PRM.get(name) for name in names_read if name != "batch")
        if near[index].agreement != "same" and differs and not isinstance(arguments, str):
            requests[index] = arguments | {"code": file.code}
    updated = list(near)
    for index, traced in tracer.run(requests) if requests else ():
        if computations := _list_computations(traced):
            corpus, code = origins[index]
            comparison = _compare_graphs([computations], corpus, {code.id})[0].get(code.id)
            updated[index] = _make_neighbour(
                file, corpus, code, near[index].lexical, near[index].structural, comparison
            )
    return sorted(updated, key=lambda neighbour: (*neighbour.nearness, neighbour.folder))


# --- the output ---------------------------------------------------------------------------------------------------

_HOW = {
    "exact": "the same code",
    "lexical": "near by text",
    "structural": "near by structure",
    "graph": "computes the same",
}


def _summarize(files: Sequence[_QueryFile], nearest: Sequence[list[NovelNeighbor]], notes: Sequence[str]) -> Novelty:
    entries: list[Json] = []
    lines: list[str] = []
    for file, near in zip(files, nearest, strict=True):
        known = bool(near and near[0].known)
        entries.append(
            {
                "file": file.path,
                "id": file.id,
                "verdict": "known" if known else "novel",
                "graph": file.traced.graph,
                "graph_widths": file.traced.widths,
                "error": file.traced.error,
                "nearest": [asdict(neighbour) for neighbour in near],
            }
        )
        lines += _verdict(file, near, known=known)
    lines += [f"note: {note}" for note in notes]
    counts = Counter(entry["verdict"] for entry in entries)
    facts = {"novel": counts["novel"], "known": counts["known"], "files": entries, "notes": list(notes)}
    return Novelty([make_visible(line) for line in lines], facts, nearest)


def _verdict(file: _QueryFile, near: Sequence[NovelNeighbor], *, known: bool) -> list[str]:
    if not near:
        text = "nothing is like it"
    elif known:
        text = f"{', '.join(_HOW[stage] for stage in near[0].known)}: {near[0].name}"
    else:
        text = f"nearest is {near[0].name}"
    alone = "" if file.computations else f"; judged by text and structure alone: {file.traced.error}"
    lines = [f"{'known' if known else 'novel'}  {file.path}: {text}{alone}"]
    if near:
        lines.append(f"  {'text':>5}  {'structure':>9}  {'graph':>5}  ")
    for neighbour in near[:_NEAREST]:
        share = "-" if neighbour.graph is None else ratio(neighbour.graph)
        same = {"same": "the same", "widths": "same up to widths"}.get(neighbour.agreement or "", "")
        removed = f", removed for {neighbour.stands_for_it}" if neighbour.stands_for_it else ""
        removed += f"; by the file's {neighbour.part}" if neighbour.part else ""
        lines.append(
            f"  {ratio(neighbour.lexical):>5}  {ratio(neighbour.structural):>9}  {share:>5}  {same:<18}{neighbour.name}"
            f" ({neighbour.folder}{removed})"
        )
    if len(near) > _NEAREST:
        lines.append(f"  and {plural(len(near) - _NEAREST, 'more', 'more')}")
    return lines
