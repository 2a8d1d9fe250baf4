"""`lemur novel`: files compared with folders, as lines to print and as facts. `curate.published.novelty` compares."""

import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from curate.compute.graphs import NetworkTracer
from curate.compute.runs import TASK_DATASETS, read_parameters
from curate.published.novelty import NEAREST, NovelNeighbor, Novelty, NoveltyIndex
from lemur_core.files import Json
from lemur_core.files.errors import NoSandboxError, UsageError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.files.progress import hide_in_thread, hide_progress
from lemur_core.sandbox.runtime import find_absence


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
            results = index.compare(queries, tracer if index.with_graphs else None, neighbors=parameters is None)
        except NoSandboxError as error:
            notes.append(f"no file was run: {error}")
            results = index.compare(queries, None, untraced="no sandbox is available here")
    if index.absence is not None:
        notes.append(f"no file was run, and no graphs are compared: {index.absence}")
    for folder, manifest in index.manifests.items():
        if index.absence is None and folder not in index.with_graphs:
            what = "networks" if manifest.kind == "snapshot" else "blocks"
            notes.append(f"{folder}: holds no graphs; its {what} are compared by text and structure alone")
    return _summarize(list(codes), results, notes)


def _parse_prm(text: str | Mapping[str, object]) -> Json:
    if not isinstance(text, str):
        return dict(text)
    parameters = read_parameters(text)
    if not parameters and text.strip() != "{}":
        raise UsageError(f"--prm {make_visible(text, 40)}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
    return parameters


def _summarize(names: Sequence[str], results: Sequence[Novelty], notes: Sequence[str]) -> NovelFiles:
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
        removed += f"; by the file's {neighbor.part}" if neighbor.part else ""
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
        if graph and index.with_graphs:
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
