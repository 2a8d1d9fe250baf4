"""Is a network new? The index behind `Snapshot.novelty` and `lemur gate`, loaded once, and the lines of `lemur novel`.

A network is known if the folder would not keep it next to its records: by the manifest's thresholds for text and
structure, or because it computes the same as a record, by its graph and by its numbers. It is traced like the folder's
networks. A rewritten network computes the same as its record only with that record's hyperparameters, so unless they
are given, those of the nearest records are tried too. Blocks of an extraction are compared by text and structure.
"""

import hashlib
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from curate.compute.graphs import GraphTrace, NetworkTracer, build_payload, find_candidates
from curate.compute.runs import DEFAULT_TASK, PRM, TASK_DATASETS, read_parameters
from curate.folder.reference_corpus import (
    Computation,
    GraphSimilarity,
    ReferenceCode,
    ReferenceCorpus,
    build_computation,
)
from curate.model.corpus import Features, code_features
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.files.progress import hide_in_thread, hide_progress
from lemur_core.sandbox.runtime import find_absence
from manifests.records import Agreement, drop_outcomes

NEAREST = 5  # by each measure
_TRIED = 3  # of the nearest by graph, with their hyperparameters
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
    operations: int = 0  # number of nodes of its graph
    known: tuple[str, ...] = ()
    equal_numbers: bool | None = None  # None: not compared

    @property
    def how(self) -> str:
        """How it makes a file known, and its name."""
        return f"{', '.join(_HOW[stage] for stage in self.known)}: {self.name}"

    @property
    def nearness(self) -> tuple[bool, bool, bool, float, int, str]:
        """The sort key: known first, by the same code above all, then equal computations, then the most similar, then
        the largest.
        """
        measures = (self.lexical, self.structural, self.graph or 0.0)
        order = (-max(measures), -self.operations, f"{self.name} {self.id}")
        return (not self.known, "exact" not in self.known, self.agreement not in ("same", "widths"), *order)


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
    computations: list[Computation] = field(default_factory=list)  # with its own hyperparameters first

    def set_numbers(self, numbers: Json) -> None:
        """Keep what was measured of it."""
        self.traced = self.traced.with_numbers(numbers)
        self.computations[0] = replace(self.computations[0], traced=self.traced)


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
        """Return why graphs are not compared with a snapshot, if they are not."""
        if self.absence is not None:
            return [f"no file was run, and no graphs are compared: {self.absence}"]
        without = (corpus.name for corpus in self.corpora if corpus.of_snapshot and not corpus.has_graphs)
        return [f"{name}: holds no graphs; its networks are compared by text and structure alone" for name in without]

    def compare(
        self,
        queries: Sequence[Query],
        tracer: NetworkTracer | None,
        *,
        neighbors: bool = True,
        untraced: str | None = None,
    ) -> list[Novelty]:
        """Compare networks with all folders.

        Args:
            tracer: runs them; None: they are compared by text and structure alone.
            neighbors: run them with the hyperparameters of their nearest records, too, where that may decide.
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
                queries[number].traced = traced
                queries[number].computations = _list_computations(traced)
        nearest = [self._find_nearest(query) for query in queries]
        if tracer is not None:
            self._measure(tracer, queries, nearest)
            if neighbors:
                self._try_neighbors(tracer, queries, nearest)
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
            queries[number].set_numbers(numbers)
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
            queries[number].set_numbers(numbers)
        corpus = self.corpora[0].gather(
            [ReferenceCode(query.name, query.id) for query in queries],
            [query.features for query in queries],
            {query.id: query.computations[0] for query in queries if query.computations},
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

    def _try_neighbors(
        self, tracer: NetworkTracer, queries: Sequence[Query], nearest: list[list[NovelNeighbor]]
    ) -> None:
        """Compare networks again as they run with the hyperparameters of their nearest neighbors by graph."""
        trials = [
            (number, payload)
            for number, (query, near) in enumerate(zip(queries, nearest, strict=True))
            if not (near and near[0].known)  # no further graph changes that
            for payload in self._list_trials(query, near)
        ]
        tried = set()
        for trial, traced in tracer.run(dict(enumerate(payload for _, payload in trials))):
            number = trials[trial][0]
            queries[number].computations += _list_computations(traced)
            tried.add(number)
        for number in tried:
            nearest[number] = self._find_nearest(queries[number])

    def _list_trials(self, query: Query, near: Sequence[NovelNeighbor]) -> Iterator[Json]:
        """Yield what to trace for the neighbors whose hyperparameters may lead to another graph."""
        read = [name for name in query.traced.answer.get("prm_read", ()) if name != "batch"]
        stated = {(corpus.name, code.id): code.prm for corpus in self.corpora for code in corpus.codes}
        records = [other for other in near if other.graph and stated.get((other.folder, other.id)) is not None]
        for other in sorted(records, key=lambda other: -(other.graph or 0))[:_TRIED]:
            prm = read_parameters(stated[other.folder, other.id])
            payload = build_payload(query.task, TASK_DATASETS[query.task], prm)
            # One rate of dropout is used for all networks, so most hyperparameters that differ are the same here.
            if (
                not isinstance(payload, str)
                and other.agreement != "same"
                and any(payload["prm"].get(name) != query.payload["prm"].get(name) for name in read)
            ):
                yield payload | {"code": query.code}


def _list_computations(traced: GraphTrace) -> list[Computation]:
    return [] if traced.graph is None else [build_computation(traced.answer, traced.read_graph())]


def _find_nearest_in(query: Query, corpus: ReferenceCorpus) -> Iterator[NovelNeighbor]:
    lexical, structural = (corpus.similar(measure, query.features) for measure in ("lexical", "structural"))
    compared = corpus.compare(query.computations)
    same = np.array([item is not None and item.agreement == "same" for item in compared], bool)
    shares = np.array([-1.0 if item is None else item.share for item in compared])
    sizes = np.array([0 if item is None else item.operations for item in compared])
    own = np.array([code.id == query.id for code in corpus.codes], bool)
    # A removed record counts where nothing but its id or its graph leads to it; all do for what has no graph.
    kept = np.array([code.removed_for is None for code in corpus.codes], bool)
    counts = kept | same | own | (not query.computations)
    near = same | own | (lexical >= corpus.lexical) | (structural >= corpus.structural)
    chosen = set(np.flatnonzero(counts & near))
    for measure in (lexical, structural, shares):
        candidates = np.where(counts, measure, -1.0)
        best = np.lexsort((-sizes, -candidates))[:NEAREST]
        chosen.update(best[candidates[best] > 0])
    for at in sorted(map(int, chosen)):
        yield _make_neighbor(query, corpus, corpus.codes[at], float(lexical[at]), float(structural[at]), compared[at])
    if query.id in corpus.removed and not own.any():
        structure = 1.0 if len(query.features.elements) else 0.0
        yield _make_neighbor(query, corpus, corpus.removed[query.id], 1.0, structure, None)


def _make_neighbor(
    query: Query,
    corpus: ReferenceCorpus,
    code: ReferenceCode,
    lexical: float,
    structural: float,
    compared: GraphSimilarity | None,
) -> NovelNeighbor:
    """Return a code as a neighbor of a file, with the stages at which it makes the file known."""
    share, agreement, operations, equal_numbers = compared or (None, None, 0, None)
    may_be_near = not (corpus.keeps_different and agreement == "different")
    stages = {
        "exact": code.id == query.id,
        "lexical": may_be_near and lexical >= corpus.lexical,
        "structural": may_be_near and structural >= corpus.structural,
        "graph": agreement == "same",
    }
    known = tuple(stage for stage, applies in stages.items() if applies)
    of_code = (corpus.name, code.name, code.id, code.removed_for)
    return NovelNeighbor(*of_code, lexical, structural, share, agreement, operations, known, equal_numbers)


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


# `lemur novel`: files compared with folders, as lines to print and as facts.


@dataclass(frozen=True, slots=True)
class NovelFiles:
    """The result: `lines` to print as they are, `facts` for JSON, and of each file the nearest codes, nearest first."""

    lines: list[str]
    facts: Json
    nearest: Sequence[Sequence[NovelNeighbor]]

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
) -> NovelFiles:
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
    find_absence(runtime)  # report missing packages before anything runs
    parameters = None if prm is None else _parse_prm(prm)
    if not isinstance(codes, Mapping):
        codes = {str(path): read_python_file(path, "give a Python file") for path in codes}
    index = NoveltyIndex(folders, jobs=jobs)
    queries = [index.read(name, code) for name, code in codes.items()]  # refuse invalid Python before anything runs
    for query in queries:
        query.task, query.prm = task, parameters or {}
    notes: list[str] = []
    with NetworkTracer(jobs=jobs, unsafe=unsafe, runtime=runtime) as tracer:
        try:
            results = index.compare(queries, tracer if index.has_graphs else None, neighbors=parameters is None)
        except NoSandboxError as error:
            notes.append(f"no file was run: {error}")
            results = index.compare(queries, None, untraced="no sandbox is available here")
    notes += index.list_notes()
    return _print_results(list(codes), results, notes)


def _parse_prm(text: str | Mapping[str, object]) -> Json:
    if not isinstance(text, str):
        return dict(text)
    parameters = read_parameters(text)
    if not parameters and text.strip() != "{}":
        raise UsageError(f"--prm {make_visible(text, 40)}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
    return parameters


def _print_results(names: Sequence[str], results: Sequence[Novelty], notes: Sequence[str]) -> NovelFiles:
    entries: list[Json] = []
    lines: list[str] = []
    for name, novelty in zip(names, results, strict=True):
        entries.append(
            {
                "file": name,
                "id": novelty.id,
                "verdict": novelty.verdict,
                "graph": novelty.trace.graph,
                "graph_widths": novelty.trace.widths,
                "error": novelty.error,
                "nearest": [asdict(neighbor) for neighbor in novelty.nearest],
            }
        )
        lines += _verdict(name, novelty)
    lines += [f"note: {note}" for note in notes]
    counts = Counter(entry["verdict"] for entry in entries)
    facts = {"novel": counts["novel"], "known": counts["known"], "files": entries, "notes": list(notes)}
    return NovelFiles([make_visible(line) for line in lines], facts, [novelty.nearest for novelty in results])


def _verdict(name: str, novelty: Novelty) -> list[str]:
    near = novelty.nearest
    alone = "" if novelty.error is None else f"; judged by text and structure alone: {novelty.error}"
    lines = [f"{novelty.verdict}  {name}: {novelty.reason}{alone}"]
    if near:
        lines.append(f"  {'text':>5}  {'structure':>9}  {'graph':>5}  ")
    for neighbor in near[:NEAREST]:
        share = "-" if neighbor.graph is None else ratio(neighbor.graph)
        same = {"same": "the same", "widths": "same up to widths"}.get(neighbor.agreement or "", "")
        removed = f", removed for {neighbor.stands_for_it}" if neighbor.stands_for_it else ""
        lines.append(
            f"  {ratio(neighbor.lexical):>5}  {ratio(neighbor.structural):>9}  {share:>5}  {same:<18}{neighbor.name}"
            f" ({neighbor.folder}{removed})"
        )
    if len(near) > NEAREST:
        lines.append(f"  and {plural(len(near) - NEAREST, 'more', 'more')}")
    return lines


# One folder in memory, asked from any thread whether a network is new: what `Snapshot.novelty` calls.


class NoveltyChecker:
    """The codes of one folder, loaded at the first question, and the sandbox, started at the first one with graphs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._index: NoveltyIndex | None = None
        self._has_graphs = False
        self._tracers: dict[tuple[tuple[str, ...], bool], tuple[ThreadPoolExecutor, NetworkTracer]] = {}

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
        index = self._load(graph=graph, jobs=jobs)
        query = index.read("network.py", code)
        query.task, query.prm = task, prm or {}
        untraced = None if graph else "graph=False"
        if graph and index.has_graphs:
            thread, tracer = self._start(runtime, unsafe=unsafe)
            try:
                return thread.submit(index.compare, [query], tracer, neighbors=prm is None).result()[0]
            except NoSandboxError:
                untraced = "no sandbox is available here"
        return index.compare([query], None, untraced=untraced)[0]

    def _load(self, *, graph: bool, jobs: int | None) -> NoveltyIndex:
        with self._lock:
            if self._index is None or (graph and not self._has_graphs):
                with hide_progress():
                    self._index, self._has_graphs = NoveltyIndex([self._folder], jobs=jobs, graphs=graph), graph
            return self._index

    def _start(self, runtime: tuple[str, ...], *, unsafe: bool) -> tuple[ThreadPoolExecutor, NetworkTracer]:
        """Return a thread with its tracer: a sandbox's server and its cache belong to the thread that opened them."""
        with self._lock:
            if (runtime, unsafe) not in self._tracers:
                thread = ThreadPoolExecutor(1, initializer=hide_in_thread)
                tracer = thread.submit(NetworkTracer, jobs=1, runtime=runtime, unsafe=unsafe).result()
                self._tracers[runtime, unsafe] = thread, tracer
                weakref.finalize(self, _stop, thread, tracer)
            return self._tracers[runtime, unsafe]


def _stop(thread: ThreadPoolExecutor, tracer: NetworkTracer) -> None:
    with suppress(RuntimeError):  # the interpreter is ending, and takes nothing more
        thread.submit(tracer.__exit__, None, None, None)
    thread.shutdown(wait=False)
