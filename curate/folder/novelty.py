"""Is a network new? The index behind `Snapshot.novelty` and `lemur gate`, loaded once, and the lines of `lemur novel`.

A network is known if the folder would not keep it next to its records: by the manifest's thresholds for text and
structure, or because it computes the same as a record, by its graph and by its numbers. It is traced like the folder's
networks, with usual hyperparameters. Blocks of an extraction are compared by text and structure.
"""

import hashlib
import os
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from curate.compute.graphs import GraphTrace, NetworkTracer, build_payload, find_candidates
from curate.compute.runs import PRM, read_parameters
from curate.folder.reference_corpus import (
    Computation,
    GraphSimilarity,
    ReferenceCode,
    ReferenceCorpus,
    build_computation,
)
from curate.model.corpus import Features, code_features
from curate.model.options import read_prm
from curate.sources import open_source
from curate.sources.rows import DEFAULT_TASK, TASK_DATASETS, RecordSource, check_task
from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import NoSandboxError, UserError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.files.progress import hide_in_thread
from lemur_core.sandbox.runtime import find_absence
from manifests.records import Agreement, drop_outcomes

NEAREST = 5  # by each measure
_UNTRACED = GraphTrace({"error": "not_traced: it was not asked for"})


_HOW = {
    "exact": "the same code",
    "lexical": "near by text",
    "structural": "near by structure",
    "graph": "computes the same",
}


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
    known: tuple[str, ...] = ()
    equal_numbers: bool | None = None  # None: not compared

    @property
    def how(self) -> str:
        """How it makes a file known, and its name."""
        return f"{', '.join(_HOW[stage] for stage in self.known)}: {self.name}"

    @property
    def nearness(self) -> tuple[bool, bool, bool, float, str]:
        """The sort key: known first, by the same code above all, then equal computations, then the most similar."""
        likeness = max(self.lexical, self.structural, self.graph or 0.0)
        equal = self.agreement in ("same", "widths")
        return not self.known, "exact" not in self.known, not equal, -likeness, f"{self.name} {self.id}"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The code that is nearest by one measure. `similarity`: the Jaccard similarity, 0 to 1."""

    id: str
    name: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Novelty:
    """The novelty of a network, compared with the records of a snapshot or the blocks of an extraction.

    Attributes:
        id: SHA-256 of its code.
        verdict: `known` if the folder would not keep it in addition to its records, else `novel`.
        reason: why, in one line.
        text: the nearest code by tokens; None if nothing is shared.
        structure: the nearest by the layers that it calls.
        graph: the nearest by subtrees of its graph; None if it was not traced.
        behavior: a code whose numbers are equal; None if there is none, or numbers could not change the verdict.
        nearest: the nearest codes by all measures, those that make it known first, then by similarity.
        trace: what it computes; `error` says why that is unknown.
    """

    id: str
    verdict: Literal["known", "novel"]
    reason: str
    text: Nearest | None
    structure: Nearest | None
    graph: Nearest | None
    behavior: Nearest | None
    nearest: tuple[NovelNeighbor, ...]
    trace: GraphTrace = field(repr=False)

    @property
    def known(self) -> bool:
        """True if the folder would not keep the network in addition to its records."""
        return self.verdict == "known"

    @property
    def error(self) -> str | None:
        """Why it was compared by text and structure alone; None if it was traced."""
        return self.trace.error


@dataclass(slots=True)
class Query:
    """A network to check."""

    name: str
    code: str
    id: str
    features: Features
    task: str = DEFAULT_TASK  # whose inputs it takes
    prm: Mapping[str, object] = field(default_factory=dict)  # hyperparameters besides the usual ones
    payload: Json = field(default_factory=dict)  # what it was traced with
    traced: GraphTrace = _UNTRACED
    computation: Computation | None = None  # None if it has no graph

    def set_trace(self, traced: GraphTrace) -> None:
        """Keep what it computes."""
        self.traced = traced
        if traced.graph is not None and self.computation is None:
            self.computation = build_computation(traced.answer, traced.read_graph())
        elif self.computation is not None:
            self.computation = replace(self.computation, traced=traced)


def build_query(name: str, code: str) -> Query | str:
    """Return a query about a code, named for messages; or why the code has no features, in one line."""
    features = code_features(code)
    if isinstance(features, str):
        return features
    return Query(name, code, hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest(), features)


class NoveltyIndex:
    """The codes of some folders, in memory. Threads may share it; each needs a tracer of its own.

    Args:
        folders: snapshots and extractions; or sources of records, of which names and features alone are read.
        jobs: worker processes, for features and graphs that no cache has.
        graphs: whether to load their graphs.
    """

    def __init__(self, folders: Sequence[Path | RecordSource], *, jobs: int | None = None, graphs: bool = True) -> None:
        #: Why no network can be run here; None if it can.
        self.absence = find_absence()
        loads = graphs and self.absence is None
        self.corpora = [ReferenceCorpus(folder, jobs, graphs=loads) for folder in folders]
        self.has_graphs = any(corpus.has_graphs for corpus in self.corpora)

    def read(self, name: str, code: str) -> Query:
        """Return a query about a code. Raises: UserError if it is not valid Python."""
        query = build_query(name, code)
        if isinstance(query, str):
            raise UserError(f"{name}: {query}; nothing was compared")
        return query

    def list_notes(self) -> list[str]:
        """Return why graphs are not compared with a snapshot or a source, if they are not; blocks never have any."""
        if self.absence is not None:
            return [f"no network was run, and no graphs are compared: {self.absence}"]
        names = [item.name for item in self.corpora if not item.has_graphs and (item.of_snapshot or not item.manifest)]
        why = "holds no graphs; its networks are compared by text and structure alone"
        return [f"{name}: {why}; `lemur curate --graph all` makes a snapshot that holds them" for name in names]

    def compare(
        self, queries: Sequence[Query], tracer: NetworkTracer | None, *, untraced: str | None = None
    ) -> list[Novelty]:
        """Compare networks with all folders.

        Args:
            tracer: runs them; None: they are compared by text and structure alone.
            untraced: why they are not traced if there is no tracer; None: there are no graphs here.
        Returns: one result for each query.
        Raises: NoSandboxError if nothing can be run here; UserError if `tracer` fails.
        """
        if tracer is None:
            untraced = untraced or self.absence or "there are no graphs to compare with"
            for query in queries:
                query.traced = GraphTrace({"error": f"not_traced: {untraced}"})
        else:
            for query in queries:
                payload = build_payload(query.task, TASK_DATASETS[query.task], PRM | drop_outcomes(query.prm))
                assert not isinstance(payload, str)
                query.payload = payload | {"code": query.code}
            names = {number: query.name for number, query in enumerate(queries)}
            payloads = {number: query.payload for number, query in enumerate(queries)}
            for number, traced in tracer.run(payloads, names=names):
                queries[number].set_trace(traced)
        nearest = [self._find_nearest(query) for query in queries]
        if tracer is not None:
            self._measure(tracer, queries, nearest)
        return list(map(_summarize, queries, nearest))

    def _find_nearest(self, query: Query) -> list[NovelNeighbor]:
        """Return the nearest codes by each measure and all that make it known, nearest first."""
        found = (near for corpus in self.corpora for near in _find_nearest_in(query, corpus))
        return sorted(found, key=lambda near: (*near.nearness, near.folder))

    def _measure(self, tracer: NetworkTracer, queries: Sequence[Query], nearest: list[list[NovelNeighbor]]) -> None:
        """Compare the numbers of networks with those of records, where that may change the verdict."""
        requests: dict[int, Json] = {}
        unmeasured: dict[tuple[int, int], Query] = {}
        for number, (query, near) in enumerate(zip(queries, nearest, strict=True)):
            answer = query.traced.answer
            settled = any({"exact", "lexical", "structural"} & {*other.known} for other in near)
            open_ = not settled or any(corpus.keeps_different for corpus in self.corpora)
            weights = None if answer.get("varies") else answer.get("weights")
            sized = [(of, at) for of, corpus in enumerate(self.corpora) for at in corpus.find_sized(weights)]
            if open_ and sized:
                requests[number] = query.payload
                unmeasured |= {(of, at): query for of, at in sized if not self.corpora[of].is_measured(at)}
        self._measure_records(tracer, unmeasured)
        answers = {number: queries[number].traced.answer for number in requests}
        for number, numbers in tracer.measure(requests, answers):
            queries[number].set_trace(queries[number].traced.with_numbers(numbers))
            nearest[number] = self._find_nearest(queries[number])

    def _measure_records(self, tracer: NetworkTracer, unmeasured: Mapping[tuple[int, int], Query]) -> None:
        """Measure records whose folder has no numbers of them: no network beside them has parameters of their sizes.

        Args: unmeasured: the networks that they are compared with, by the indices of corpus and code.
        """
        payloads: dict[int, Json] = {}
        places = list(unmeasured)
        codes = [
            corpus.read_codes({corpus.codes[at].id for of, at in places if of == number})
            for number, corpus in enumerate(self.corpora)
        ]
        for number, (of, at) in enumerate(places):
            code, task = self.corpora[of].codes[at], unmeasured[of, at].task
            payload = build_payload(task, TASK_DATASETS[task], read_parameters(code.prm))
            if not isinstance(payload, str) and code.id in codes[of]:
                payloads[number] = payload | {"code": codes[of][code.id]}
        answers = {
            number: traced.answer
            for number, traced in tracer.run(payloads)
            if traced.answer.get("weights") == unmeasured[places[number]].traced.answer["weights"]
            and not traced.answer.get("varies")
        }
        for number, numbers in tracer.measure({number: payloads[number] for number in answers}, answers):
            of, at = places[number]
            self.corpora[of].add_numbers(at, numbers)

    def find_repeats(self, queries: Sequence[Query], tracer: NetworkTracer) -> dict[int, NovelNeighbor]:
        """Compare networks that were compared with the folders with each other, by the rules of the first folder.

        Returns: by index, an earlier one that a network repeats and that repeats none itself.
        """
        answers = {number: query.traced.answer for number, query in enumerate(queries)}
        wanted = find_candidates(answers)
        payloads = {number: queries[number].payload for number in wanted}
        for number, numbers in tracer.measure(payloads, {number: answers[number] for number in wanted}):
            queries[number].set_trace(queries[number].traced.with_numbers(numbers))
        corpus = self.corpora[0].gather(
            [ReferenceCode(query.name, query.id) for query in queries],
            [query.features for query in queries],
            {query.id: query.computation for query in queries if query.computation is not None},
        )
        repeats: dict[int, NovelNeighbor] = {}
        first: set[str] = set()
        for number, query in enumerate(queries):
            known = [near for near in _find_nearest_in(query, corpus) if near.known and near.name in first]
            if known:
                repeats[number] = min(known, key=lambda near: near.nearness)
            else:
                first.add(query.name)
        return repeats


#: Whether two codes are equal but for comments and layout, and their similarities by text, structure and graph.
_Measures = tuple[bool, float, float, GraphSimilarity | None]


def _find_nearest_in(query: Query, corpus: ReferenceCorpus) -> Iterator[NovelNeighbor]:
    lexical, structural = (corpus.similar(measure, query.features) for measure in ("lexical", "structural"))
    compared = corpus.compare(query.computation)
    same = np.array([item is not None and item.agreement == "same" for item in compared], bool)
    shares = np.array([-1.0 if item is None else item.share for item in compared])
    equal = corpus.find_equal(query.features)
    lexical[equal] = 1.0
    # A removed record counts where nothing but its code or its graph leads to it; all do for what has no graph.
    kept = np.array([code.removed_for is None for code in corpus.codes], bool)
    counts = kept | same | equal | (query.computation is None)
    near = same | (lexical >= corpus.lexical) | (structural >= corpus.structural)
    chosen = set(np.flatnonzero(counts & near))
    for measure in (lexical, structural, shares):
        candidates = np.where(counts, measure, -1.0)
        best = np.argsort(-candidates, kind="stable")[:NEAREST]
        chosen.update(best[candidates[best] > 0])
    for at in sorted(map(int, chosen)):
        measures = bool(equal[at]), float(lexical[at]), float(structural[at]), compared[at]
        yield _make_neighbor(query, corpus, corpus.codes[at], measures)
    if query.id in corpus.removed and all(code.id != query.id for code in corpus.codes):
        structure = 1.0 if len(query.features.elements) else 0.0
        yield _make_neighbor(query, corpus, corpus.removed[query.id], (True, 1.0, structure, None))


def _make_neighbor(query: Query, corpus: ReferenceCorpus, code: ReferenceCode, measures: _Measures) -> NovelNeighbor:
    """Return a code as a neighbor of a file, with the stages at which it makes the file known."""
    equal, lexical, structural, compared = measures
    share, agreement, equal_numbers = compared or (None, None, None)
    may_be_near = equal or not (corpus.keeps_different and agreement == "different")
    stages = {
        "exact": code.id == query.id,
        "lexical": may_be_near and lexical >= corpus.lexical,
        "structural": may_be_near and structural >= corpus.structural,
        "graph": agreement == "same",
    }
    known = tuple(stage for stage, applies in stages.items() if applies)
    of_code = (corpus.name, code.name, code.id, code.removed_for)
    return NovelNeighbor(*of_code, lexical, structural, share, agreement, known, equal_numbers)


def _summarize(query: Query, near: Sequence[NovelNeighbor]) -> Novelty:
    known = bool(near and near[0].known)
    reason = near[0].how if known else f"nearest is {near[0].name}" if near else "nothing is like it"
    equal = next((Nearest(other.id, other.name, 1.0) for other in near if other.equal_numbers), None)
    text, structure, graph = (_find_best(near, measure) for measure in ("lexical", "structural", "graph"))
    return Novelty(
        query.id, "known" if known else "novel", reason, text, structure, graph, equal, tuple(near), query.traced
    )


def _find_best(near: Sequence[NovelNeighbor], measure: str) -> Nearest | None:
    best = max(near, key=lambda other: getattr(other, measure) or 0.0, default=None)
    similarity = best and getattr(best, measure)
    return Nearest(best.id, best.name, similarity) if best is not None and similarity else None


# `lemur novel`: files compared with folders, as facts and as lines to print.


def open_reference(name: str) -> Path | RecordSource:
    """Open what codes are compared with, by what `--against` takes. Raises: UserError."""
    if name.partition("@")[0] in ("lemur", "lemur-db"):  # as for `open_source`, also beside a folder of that name
        return open_source(name)
    if Path(name).is_dir():
        return Path(name)
    raise UserError(
        f"{name}: no such folder; --against takes a snapshot, an extraction, lemur[@VERSION] or lemur-db[@VERSION]"
    )


def novel(
    codes: Sequence[Path] | Mapping[str, str],
    folders: Sequence[PathLike],
    *,
    task: str = "img-classification",
    prm: str | Mapping[str, object] | None = None,
    jobs: int | None = None,
    unsafe: bool = False,
    runtime: Sequence[str] = (),
) -> Json:
    """Check whether these networks are new compared with these folders.

    Args:
        codes: Python files, or their texts by name: LEMUR networks, or modules, which are compared by text and
            structure alone.
        folders: snapshots, extractions, or sources of records such as `lemur`.
        task: the task whose inputs the networks take.
        prm: hyperparameters, in JSON or not; None: `PRM`.
        jobs: parallel processes; None for one per core.
        unsafe: run the networks without the sandbox.
        runtime: packages that the networks can import in addition to the declared runtime.
    Returns: `files`, the facts of each network in the order of `codes`; how many are `novel` and `known`; and `notes`.
    Raises:
        UserError: A file is not valid Python, or a folder cannot be compared with.
        UsageError: An option is wrong.
    """
    check_task(task)
    find_absence(runtime)  # report missing packages before anything runs
    parameters = read_parameters(read_prm(prm)) if isinstance(prm, str) else dict(prm or {})
    if not isinstance(codes, Mapping):
        codes = {str(path): read_python_file(path, "give a Python file") for path in codes}
    index = NoveltyIndex([open_reference(os.fspath(name)) for name in folders], jobs=jobs)
    queries = [index.read(name, code) for name, code in codes.items()]  # refuse invalid Python before anything runs
    for query in queries:
        query.task, query.prm = task, parameters
    notes: list[str] = []
    with NetworkTracer(jobs=jobs, unsafe=unsafe, runtime=runtime) as tracer:
        try:
            results = index.compare(queries, tracer if index.has_graphs else None)
        except NoSandboxError as error:
            notes.append(f"no file was run: {error}")
            results = index.compare(queries, None, untraced="no sandbox is available here")
    entries: list[Json] = [
        {
            "file": name,
            "id": novelty.id,
            "verdict": novelty.verdict,
            "reason": novelty.reason,
            "graph": novelty.trace.graph,
            "graph_widths": novelty.trace.widths,
            "error": novelty.error,
            "nearest": [asdict(neighbor) for neighbor in novelty.nearest],
        }
        for name, novelty in zip(codes, results, strict=True)
    ]
    counts = Counter(entry["verdict"] for entry in entries)
    notes += index.list_notes()
    return {"novel": counts["novel"], "known": counts["known"], "files": entries, "notes": notes}


def describe_novelty(facts: Json) -> list[str]:
    """Return what `novel` found, in lines to print."""
    lines = []
    for file in facts["files"]:
        alone = "" if file["error"] is None else f"; judged by text and structure alone: {file['error']}"
        lines.append(f"{file['verdict']}  {file['file']}: {file['reason']}{alone}")
        if file["nearest"]:
            lines.append(f"  {'text':>5}  {'structure':>9}  {'graph':>5}  ")
        for near in file["nearest"][:NEAREST]:
            share = "-" if near["graph"] is None else ratio(near["graph"])
            same = {"same": "the same", "widths": "same up to widths"}.get(near["agreement"] or "", "")
            removed = f", removed for {near['stands_for_it']}" if near["stands_for_it"] else ""
            lines.append(
                f"  {ratio(near['lexical']):>5}  {ratio(near['structural']):>9}  {share:>5}  {same:<18}{near['name']}"
                f" ({near['folder']}{removed})"
            )
        if (more := len(file["nearest"]) - NEAREST) > 0:
            lines.append(f"  and {plural(more, 'more', 'more')}")
    return [make_visible(line) for line in (*lines, *(f"note: {note}" for note in facts["notes"]))]


# One folder in memory, asked from any thread whether a network is new: what `Snapshot.novelty` calls.


class NoveltyChecker:
    """The codes of one folder, loaded at the first question, and the sandbox, started at the first one with graphs.

    All is done in one thread: a sandbox's server and its cache belong to the one that opened them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._indexes: dict[bool, NoveltyIndex] = {}  # with graphs, or without
        self._tracers: dict[tuple[tuple[str, ...], bool], NetworkTracer] = {}
        self._thread = ThreadPoolExecutor(1, initializer=hide_in_thread)
        weakref.finalize(self, _stop, self._thread, self._tracers)

    def __reduce__(self) -> tuple[type["NoveltyChecker"], tuple[Path]]:
        """Copies and other processes load the folder by themselves."""
        return NoveltyChecker, (self._folder,)

    def check(
        self,
        code: str,
        *,
        graph: bool,
        task: str,
        prm: Mapping[str, object] | None,
        runtime: tuple[str, ...],
        unsafe: bool,
        jobs: int | None,
    ) -> Novelty:
        """Compare a network with the folder; the arguments are those of `Snapshot.novelty`."""

        def compare() -> Novelty:
            if graph not in self._indexes:
                self._indexes[graph] = self._indexes.get(True) or NoveltyIndex([self._folder], jobs=jobs, graphs=graph)
            index = self._indexes[graph]
            query = index.read("network.py", code)
            query.task, query.prm = task, prm or {}
            untraced = None if graph else "graph=False"
            if graph and index.has_graphs:
                key = runtime, unsafe
                if key not in self._tracers:
                    self._tracers[key] = NetworkTracer(jobs=1, runtime=runtime, unsafe=unsafe)
                try:
                    return index.compare([query], self._tracers[key])[0]
                except NoSandboxError:
                    untraced = "no sandbox is available here"
            return index.compare([query], None, untraced=untraced)[0]

        return self._thread.submit(compare).result()


def _stop(thread: ThreadPoolExecutor, tracers: Mapping[Any, NetworkTracer]) -> None:
    with suppress(RuntimeError):  # the interpreter is ending, and takes nothing more
        for tracer in tracers.values():
            thread.submit(tracer.__exit__, None, None, None)
    thread.shutdown(wait=False)
