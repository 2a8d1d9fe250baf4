"""One folder in memory, asked from any thread whether a network is new: what `Snapshot.novelty` calls."""

import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from curate.compute.graphs import NetworkTracer
from curate.published.novelty import Novelty, NoveltyIndex
from lemur_core.files.errors import NoSandboxError
from lemur_core.files.progress import hide_in_thread, hide_progress

_STOP_SECONDS = 5.0

_Call = tuple[Callable[[NetworkTracer], Novelty], "Future[Novelty]"]


class NoveltyChecker:
    """The codes of one folder, loaded at the first question, and the sandbox, started at the first one with graphs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._index: NoveltyIndex | None = None
        self._has_graphs = False
        self._calls: dict[tuple[tuple[str, ...], bool], SimpleQueue[_Call | None]] = {}

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
            answer: Future[Novelty] = Future()
            calls = self._start(runtime, unsafe=unsafe)
            calls.put((lambda tracer: index.compare([query], tracer, neighbours=prm is None)[0], answer))
            try:
                return answer.result()
            except NoSandboxError:
                untraced = "no sandbox is available here"
        return index.compare([query], None, untraced=untraced)[0]

    def _load(self, *, graph: bool, jobs: int | None) -> NoveltyIndex:
        with self._lock:
            if self._index is None or (graph and not self._has_graphs):
                with hide_progress():
                    self._index, self._has_graphs = NoveltyIndex([self._folder], jobs=jobs, graphs=graph), graph
            return self._index

    def _start(self, runtime: tuple[str, ...], *, unsafe: bool) -> "SimpleQueue[_Call | None]":
        """Return the queue of a thread with a tracer: a sandbox's server ends with the thread that started it."""
        with self._lock:
            key = runtime, unsafe
            if key not in self._calls:
                calls = self._calls[key] = SimpleQueue()
                options = {"jobs": 1, "runtime": runtime, "unsafe": unsafe}
                thread = threading.Thread(target=_answer_calls, args=(calls, options), daemon=True)
                thread.start()
                weakref.finalize(self, _stop, calls, thread)
            return self._calls[key]


def _answer_calls(calls: "SimpleQueue[_Call | None]", options: Mapping[str, Any]) -> None:
    hide_in_thread()
    with NetworkTracer(**options) as tracer:
        while (call := calls.get()) is not None:
            work, answer = call
            try:
                answer.set_result(work(tracer))
            except BaseException as error:  # noqa: BLE001 (raised where the answer is awaited)
                answer.set_exception(error)


def _stop(calls: "SimpleQueue[_Call | None]", thread: threading.Thread) -> None:
    calls.put(None)
    thread.join(_STOP_SECONDS)
