"""What the networks of a corpus compute: traced in the sandbox, one answer a code.

Every network of a task is built with one and the same input and number of classes, so that those which compute the
same become the same graph whatever benchmark they were trained on; one that does not run so is traced as its own
benchmark calls it, and then equals only what was traced at these sizes.

Selection goes by the text and the graphs known so far; the survivors are traced, and it is decided again until all
of them are. What was never traced is near a kept record by its text, so the outcome is the same as if all had been.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from curate.compute.runs import BATCH, Case, answer_of, case_of, open_box, read_parameters
from curate.model.corpus import Corpus
from curate.model.records import Records
from curate.model.select import Rescue
from lemur_core.files.progress import progress
from lemur_core.graphs.graph import unpack
from lemur_core.sandbox import META_PRELOAD, Job, Limits
from lemur_core.similarity.selection import Differ
from manifests.records import Agreement, GraphRow

ENTRY = "lemur_core.graphs.tracing.network:trace_network"

#: CPU seconds and memory decide, so that a busy machine changes nothing.
LIMITS = Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=8 * 2**30)

#: Where all networks of a task are built alike: at the size at which most of LEMUR's were trained.
_TRANSFORM = "norm_256"
_DATASET = {"img-classification": "cifar-10"}

#: What a benchmark hands a network whose record is not known, by task.
DATASETS = {
    **_DATASET,
    "img-segmentation": "coco",
    "obj-detection": "coco",
    "img-captioning": "coco",
    "txt-image": "coco",
    "txt-generation": "wikitext",
}


@dataclass(frozen=True, slots=True)
class Traced:
    """What one code computes, or why that is not known."""

    answer: Mapping[str, Any]  # of the sandbox; only `error` where there is no graph

    @property
    def graph(self) -> str | None:
        """G0: equal for equal computations; None where there is no graph."""
        return self.answer.get("graph")

    @property
    def widths(self) -> str | None:
        """G1: equal for computations that are equal up to widths."""
        return self.answer.get("graph_widths")

    @property
    def runs(self) -> bool | None:
        """Whether it runs; None where that could not be tried."""
        return None if self.category == "unknown_input" else self.graph is not None

    @property
    def error(self) -> str | None:
        """Why there is no graph: a category, a colon, one line."""
        return self.answer.get("error")

    @property
    def missing(self) -> str:
        """The package that it imports and could not find; empty where that is not why there is no graph."""
        return str(self.answer.get("missing", "")).partition(".")[0]

    @property
    def category(self) -> str:
        """The category of that."""
        return (self.error or "").partition(":")[0]

    def agrees(self, other: "Traced") -> Agreement | None:
        """What two codes have in common; None where either has no graph."""
        if self.graph is None or other.graph is None:
            return None
        if self.graph == other.graph:
            return "same"
        return "widths" if self.widths == other.widths else "different"


class NetworkTracer:
    """Traces networks in a sandbox. A context manager; its sandbox starts when needed."""

    def __init__(self, *, jobs: int | None = None, unsafe: bool = False, runtime: Sequence[str] = ()) -> None:
        self._box = open_box([ENTRY], jobs=jobs, unsafe=unsafe, runtime=runtime, limits=LIMITS, preload=META_PRELOAD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def run(self, payloads: Mapping[int, dict[str, Any]], *, wider: bool = True) -> Iterator[tuple[int, Traced]]:
        """What each of these networks computes, by its number, in the order in which they are done.

        Args:
            payloads: `code` and what `given_of` tells.
            wider: try what passes a limit of time once more, with four times the seconds.

        Raises: UserError if no sandbox can be had.
        """
        jobs = [Job(str(number), ENTRY, payload) for number, payload in payloads.items()]
        if not jobs:
            return
        with progress("graphs", len(jobs), "networks") as advance:
            for outcome in self._box.run_within(jobs) if wider else self._box.run(jobs, attempts=1):
                answer = answer_of(outcome)
                if not answer["runs"]:
                    missing = {"missing": answer["missing"]} if answer.get("missing") else {}
                    answer = {"error": f"{answer['category']}: {answer['error']}", **missing}
                yield int(outcome.key), Traced(answer)
                advance(1)

    def trace_records(
        self, records: Mapping[int, Mapping[str, Any]], code_of: Callable[[int], str]
    ) -> dict[int, Traced]:
        """What the networks of some records (`task`, `dataset`, `prm`) compute, by their number.

        Raises: UserError if no sandbox can be had.
        """
        found: dict[int, Traced] = {}
        payloads: dict[int, dict[str, Any]] = {}
        for number, record in records.items():
            given = given_of(record["task"], record["dataset"], read_parameters(record["prm"]))
            if isinstance(given, str):
                found[number] = Traced({"error": f"unknown_input: {given}"})
            else:
                payloads[number] = given | {"code": code_of(number)}
        return found | dict(self.run(payloads))


class GraphTracer(NetworkTracer):
    """Traces the codes of a corpus as they are asked for, and remembers them.

    Args:
        answers: of the sandbox, by id, as far as they are known.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        jobs: int | None = None,
        unsafe: bool = False,
        runtime: Sequence[str] = (),
        answers: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        super().__init__(jobs=jobs, unsafe=unsafe, runtime=runtime)
        self.known: dict[int, Traced] = {}
        self._corpus, self._answers = corpus, answers

    @property
    def graphs(self) -> dict[int, str]:
        """G0 of each code that has a graph."""
        return graphs_of(self.known)

    def trace(self, shown: Mapping[int, int]) -> None:
        """Trace those of these codes that are not known, each as the row that shows it describes it.

        Raises: UserError if no sandbox can be had.
        """
        new = {code: row for code, row in shown.items() if code not in self.known}
        answered = {code: self._answers[id_] for code in new if (id_ := self._corpus.ids[code]) in self._answers}
        self.known |= {code: Traced(answer) for code, answer in answered.items()}
        rest = [code for code in new if code not in answered]
        rows = pa.array([new[code] for code in rest], pa.int64())
        records = self._corpus.rows.take(rows).select(["task", "dataset", "prm"]).to_pylist()
        self.known |= self.trace_records(dict(zip(rest, records, strict=True)), self._corpus.codes.__getitem__)


def apart(known: Mapping[int, Traced], graphs: str) -> Differ | None:
    """Which codes are no near-duplicates since their graphs differ, where `graphs` is keep-different; else None."""
    return (lambda one, other: known[one].agrees(known[other]) == "different") if graphs == "keep-different" else None


def graphs_of(known: Mapping[int, Traced]) -> dict[int, str]:
    """G0 of each code that has a graph."""
    return {code: traced.graph for code, traced in known.items() if traced.graph is not None}


def given_of(task: str | None, dataset: str | None, prm: Mapping[str, Any]) -> dict[str, Any] | str:
    """What the sandbox is given beside the code of a network of this benchmark, or why that cannot be told."""
    shared = case_of(task, _DATASET.get(task or "", dataset), _TRANSFORM)
    own = case_of(task, dataset, prm.get("transform"))
    cases = [asdict(case) for case in (shared, own if own != shared else None) if isinstance(case, Case)]
    if not cases:
        return str(own)
    return {"cases": cases, "prm": {**prm, "batch": BATCH}}


def choose_traced(records: Records, choose: Callable[[Records], Rescue], tracer: GraphTracer) -> Rescue:
    """Select until every kept record was traced: the outcome is that of tracing all of them first.

    Args:
        choose: the selection by text and by the graphs that the tracer knows.
    """
    while True:
        chosen = choose(records)
        kept = {code: records.shown[code] for code, verdict in chosen.verdicts.items() if verdict.stage is None}
        if kept.keys() <= tracer.known.keys():
            return chosen
        tracer.trace(kept)


def graph_rows(corpus: Corpus, traced: Mapping[int, Traced]) -> Iterator[dict[str, Any]]:
    """Rows of `GraphRow`, by id."""
    for code in sorted(traced, key=corpus.ids.__getitem__):
        answer = traced[code].answer
        graphs = {mode: unpack(answer[mode]) for mode in ("eval", "train") if mode in answer}
        made = {name: graphs["eval"][name] for name in ("torch", "form")} if graphs else {}
        texts = {mode: json.dumps(graph, separators=(",", ":")) for mode, graph in graphs.items()}
        columns = {name: answer.get(name) for name in GraphRow.model_fields}
        yield columns | {"eval": None, "train": None} | made | texts | {"id": corpus.ids[code]}
