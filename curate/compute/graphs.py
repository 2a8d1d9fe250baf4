"""Trace what the networks of a corpus compute, in the sandbox, with one answer per code.

All networks of a task are built with the same input and number of classes, so that those which compute the same have
the same graph, whatever benchmark they were trained on. A network that does not run this way is traced as its own
benchmark calls it, and can then only equal networks traced at those sizes.

Selection uses the text and the graphs known so far; the survivors are traced, and selection repeats until all of them
are. Codes that were never traced are near a kept record by text, so the outcome is the same as if all were traced.
"""

import base64
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, Literal, Protocol, Self

import pyarrow as pa
from scipy.cluster.hierarchy import DisjointSet

from curate.compute.runs import BATCH, InputCase, NetFailure, build_case, complete, open_box, read_answer
from curate.model.corpus import LoadedRecords
from lemur_core.files import Json
from lemur_core.files.progress import progress
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.identity import IDENTITIES, compute_identities, identities
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Status
from lemur_core.sandbox.server.received import inflate
from lemur_core.sandbox.stage import SandboxStage
from manifests.records import Agreement, Behavior, GraphRow

#: How Python names a module that is missing.
_MISSING = re.compile(r"No module named '([^\W\d]\w*(?:\.[^\W\d]\w*)*)'")


@dataclass(frozen=True, slots=True)
class NetGraphs:
    """The answer about a network that runs.

    `eval` and `train` are packed graphs (`lemur_core.graphs.graph.unpack`); `varies` says why its graph is unique to
    its code: what one run shows is not all that it computes. Only networks of equal `weights`, the sizes of their
    parameters, may compute the same.
    """

    runs: Literal[True]
    route: str
    in_shape: list[int]
    graph: str
    graph_widths: str
    graph_repeats: str
    graph_eval: str
    train_error: str | None
    reads_values: bool
    initial: str
    glue: str
    prm_read: list[str]
    dead_classes: list[str]
    unused_parameters: list[str]
    weights: str
    eval: str
    train: str | None = None
    varies: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError if a graph cannot be read."""
        for packed in (self.eval, self.train):
            if packed is not None:
                unpack(packed)

    def to_json(self) -> Json:
        """Return its facts by name; without `train` if there is no train mode."""
        facts = asdict(self)
        if self.varies:
            facts["graph_eval"] = identify_eval(Graph.from_json(unpack(self.eval)))
        if self.train is None:
            del facts["train"]
        return facts


def identify_eval(graph: Graph) -> str:
    """Return the identity of a graph of eval mode. What makes a graph unique to its code is left out: a network that
    draws while it is trained may be in eval mode what another one is, and what was seen to be the same shares a split.
    """
    return identities(replace(graph, unique="")).exact


@dataclass(frozen=True, slots=True)
class NetUnrecorded:
    """The answer about a network that runs, but fails while it is recorded: the network is not at fault."""

    runs: Literal[True]
    category: Literal["not_recorded"]
    error: str


# Numbers, a second opinion on graphs (`docs/graphs.md`): only networks whose parameters have the sizes of another
# one's can compute the same, so only those are measured.

#: Images are measured at these sizes first, then at the size of the trace: the same computation for less.
_SIZES = (32, 64, 128)
_BATCH = 3
_IMAGE = 4  # dimensions


@dataclass(frozen=True, slots=True)
class BehaviorRequest:
    """A network to measure, as `lemur_core.graphs.networks.behavior.measure_behavior` takes it."""

    code: str
    prm: Json
    cases: Sequence[Json]
    eval: str
    train: str | None


@dataclass(frozen=True, slots=True)
class NetBehavior:
    """The answer about a network that runs: a digest of rounded numbers, None if they say nothing of its parameters.

    Behind the digest, after "@", are the sizes of the inputs: one computation may take smaller ones in one spelling.
    """

    runs: Literal[True]
    behavior: Behavior | None
    behavior_eval: Behavior | None  # of eval mode alone


NUMBERS = ("behavior", "behavior_eval")

#: CPU seconds and memory decide, so a busy machine does not change the result.
LIMITS = Limits(wall_seconds=3600, cpu_seconds=240, memory_bytes=8 * 2**30)
TRACE = SandboxStage[NetGraphs | NetUnrecorded | NetFailure](
    "lemur_core.graphs.networks.trace:trace_network", NetGraphs | NetUnrecorded | NetFailure, LIMITS
)

MEASURE = SandboxStage[NetBehavior | NetFailure](
    "lemur_core.graphs.networks.behavior:measure_behavior",
    NetBehavior | NetFailure,
    Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=8 * 2**30),
    retries=False,
    label="behavior",
    unit="networks",
)

#: How all networks of a task are built: at the size at which most of LEMUR's were trained.
_TRANSFORM = "norm_256"
_DATASET = {"img-classification": "cifar-10"}
_DROPOUT = 0.25  # a rate that a record states is not part of what its network computes; whether it drops is


@dataclass(frozen=True, slots=True)
class GraphTrace:
    """The computation of one code, or why it is unknown."""

    answer: Mapping[str, Any]  # of the sandbox; only `error` if there is no graph

    @property
    def graph(self) -> str | None:
        """G0: equal for equal computations; None if there is no graph."""
        return self.answer.get("graph")

    @property
    def widths(self) -> str | None:
        """G1: equal for computations that are equal up to widths."""
        return self.answer.get("graph_widths")

    @property
    def behavior(self) -> str | None:
        """Equal for computations whose numbers are equal; None if they were not measured."""
        return self.answer.get("behavior")

    @property
    def runs(self) -> bool | None:
        """True if it runs; None if that could not be tried."""
        if self.category in ("unknown_input", "not_traced"):
            return None
        return self.graph is not None or self.category == "not_recorded"

    @property
    def error(self) -> str | None:
        """Why there is no graph: a category, a colon, one line."""
        return self.answer.get("error")

    @property
    def missing(self) -> str:
        """The imported package that is missing, as the error names it; empty if there is a graph or another error."""
        named = _MISSING.findall(self.error or "") if self.category == "missing_dependency" else ()
        return named[-1].partition(".")[0] if named else ""

    @property
    def category(self) -> str:
        """The category of `error`."""
        return (self.error or "").partition(":")[0]

    def read_stored(self, mode: str = "eval") -> Json:
        """Return the graph of a mode as it is stored; `NetGraphs` has checked it. Raises: KeyError if there is none."""
        stored: Json = json.loads(inflate(base64.b64decode(self.answer[mode])))
        return stored

    def read_graph(self, mode: str = "eval") -> Graph:
        """Return the graph of a mode. Raises: KeyError if there is none."""
        return Graph.from_json(self.read_stored(mode))

    def with_numbers(self, numbers: Json) -> "GraphTrace":
        """Return it with what was measured."""
        return GraphTrace({**self.answer, **numbers})

    def agrees(self, other: "GraphTrace") -> Agreement | None:
        """Compare two codes by what they compute; None if either has no graph."""
        if self.graph is None or other.graph is None:
            return None
        equal = compare_behaviors(self.behavior, other.behavior)
        if self.graph == other.graph if equal is None else equal:
            return "same"
        return "widths" if self.widths == other.widths and self.graph != other.graph else "different"


class NetworkTracer:
    """Traces networks in a sandbox. A context manager; its sandbox starts when needed."""

    def __init__(self, *, jobs: int | None = None, unsafe: bool = False, runtime: Sequence[str] = ()) -> None:
        # One that ran out of its seconds would do so again.
        crashed = frozenset({Status.CRASHED})
        self._box = open_box(
            [TRACE, MEASURE], jobs=jobs, unsafe=unsafe, runtime=runtime, preload=META_PRELOAD, transient=crashed
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def run(self, payloads: Mapping[int, Json], *, names: Mapping[int, str] = {}) -> Iterator[tuple[int, GraphTrace]]:
        """Yield what each of these networks computes, by its number, in order of completion.

        Args:
            payloads: `code` and the arguments from `build_payload`.
            names: for the progress.
        Raises: UserError if no sandbox is available.
        """
        jobs = [
            Job(str(number), TRACE.guest, payload, TRACE.limits, name=names.get(number) or "")
            for number, payload in payloads.items()
        ]
        if not jobs:
            return
        with progress("graphs", len(jobs), "networks") as advance:
            for reply in TRACE.run_jobs(self._box, jobs):
                answer = read_answer(reply)
                if isinstance(answer, NetFailure):
                    yield int(reply.key), GraphTrace({"error": answer.fault})
                elif isinstance(answer, NetUnrecorded):
                    yield int(reply.key), GraphTrace({"error": f"not_recorded: {' '.join(answer.error.split())}"})
                else:
                    yield int(reply.key), GraphTrace(answer.to_json())
                advance(1)

    def measure(
        self,
        payloads: Mapping[int, Json],
        answers: Mapping[int, Mapping[str, Any]],
        names: Mapping[int, str] = {},
    ) -> Iterator[tuple[int, Json]]:
        """Yield `behavior` and `behavior_eval` of networks by their number; null if unknown.

        A network whose graph is unique to its code has no `behavior`: it may be in eval mode what another one is.

        Args: payloads: as for `run`. answers: of their traces. names: for the progress.
        Raises: UserError if no sandbox is available.
        """
        requests = {str(number): build_request(payloads[number], answers[number]) for number in payloads}
        if not requests:
            return
        for reply in MEASURE.run(self._box, requests, {str(number): name for number, name in names.items()}):
            answer = read_answer(reply)
            numbers: Json = {name: getattr(answer, name, None) for name in NUMBERS}
            if answers[int(reply.key)].get("varies"):  # one run does not show all that it computes in training
                numbers["behavior"] = None
            yield int(reply.key), numbers


class CorpusTracer(Protocol):
    """Says what the codes of a corpus compute, on demand."""

    known: dict[int, GraphTrace]

    def trace(self, representatives: Mapping[int, int]) -> dict[int, GraphTrace]:
        """Trace those of these codes that are not known yet, each with the parameters of its representative row.

        Returns: what is known of these and of all codes before.
        """


class GraphTracer(NetworkTracer):
    """Traces codes on demand, and remembers the results.

    Args: rows: a table with `nn`, `task`, `dataset` and `prm`. code_of: returns the text of a code.
    """

    def __init__(self, rows: pa.Table, code_of: Callable[[int], str], **options: Any) -> None:
        super().__init__(**options)
        self.known: dict[int, GraphTrace] = {}
        self._table, self._code_of = rows.select(["nn", "task", "dataset", "prm"]), code_of
        self._rows: dict[int, int] = {}

    def trace(self, representatives: Mapping[int, int]) -> dict[int, GraphTrace]:
        """Trace codes, as `CorpusTracer` says; those that may compute what another one does are measured, too.

        Raises: UserError if no sandbox is available.
        """
        new = {code_index: row for code_index, row in representatives.items() if code_index not in self.known}
        self._rows |= new
        payloads, names = self._build_payloads(list(new))
        for code_index in new.keys() - payloads.keys():
            self.known[code_index] = GraphTrace({"error": f"unknown_input: {names.pop(code_index)}"})
        self.known |= dict(self.run(payloads, names=names))
        answers = {code_index: trace.answer for code_index, trace in self.known.items()}
        payloads, names = self._build_payloads(find_candidates(answers))
        for code_index, numbers in self.measure(payloads, answers, names):
            self.known[code_index] = self.known[code_index].with_numbers(numbers)
        return self.known

    def _build_payloads(self, code_indices: Sequence[int]) -> tuple[dict[int, Json], dict[int, str]]:
        """Return the sandbox's inputs for codes, and their names; a code without one has the reason as its name."""
        payloads, names = dict[int, Json](), dict[int, str]()
        rows = self._table.take(pa.array([self._rows[code_index] for code_index in code_indices], pa.int64()))
        for code_index, row in zip(code_indices, rows.to_pylist(), strict=True):
            code = self._code_of(code_index)
            payload = build_payload(*complete(row, code))
            if isinstance(payload, str):
                names[code_index] = payload
            else:
                names[code_index] = row["nn"] or ""
                payloads[code_index] = payload | {"code": code}
        return payloads, names


def build_request(payload: Json, answer: Mapping[str, Any]) -> BehaviorRequest:
    """Return the request of a network that was traced.

    Args: payload: `code`, `cases` and `prm`, as it was traced with; answer: of the trace.
    """
    traced = list(answer["in_shape"])  # its batch may be its own
    case = next({**case, "in_shape": traced} for case in payload["cases"] if list(case["in_shape"])[1:] == traced[1:])
    smaller: list[Json] = []
    if len(traced) == _IMAGE:
        _, channels, height, _ = traced
        smaller = [{**case, "in_shape": [_BATCH, channels, size, size]} for size in _SIZES if size < height]
    return BehaviorRequest(payload["code"], payload["prm"], [*smaller, case], answer["eval"], answer.get("train"))


def find_candidates(answers: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the networks that may compute what another one does and were not measured, by their numbers.

    Args: answers: of the traces; those without a graph compare with none.
    Returns: numbers of `answers`, ascending.
    """
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, answer in answers.items():
        if answer.get("weights"):
            groups[answer["weights"]].append(number)
    return sorted(
        number
        for members in groups.values()
        if len(members) > 1
        for number in members
        if "behavior" not in answers[number]
    )


def compare_behaviors(one: str | None, other: str | None) -> bool | None:
    """Return whether two networks have equal numbers; None if inputs of equal sizes were not measured."""
    if one is None or other is None or one.partition("@")[2] != other.partition("@")[2]:
        return None
    return one == other


def find_faults(traces: Iterable[tuple[str | None, str | None]]) -> list[str]:
    """Return the graphs that have several behaviors: they do not say all that the networks compute.

    Args: traces: graph and behavior of each network.
    """
    behaviors: defaultdict[str, set[str]] = defaultdict(set)
    for graph, behavior in traces:
        if graph is not None and behavior is not None:
            behaviors[graph].add(behavior)
    return sorted(
        graph
        for graph, several in behaviors.items()
        if any(compare_behaviors(*pair) is False for pair in combinations(several, 2))
    )


def get_computations(known: Mapping[int, GraphTrace]) -> dict[int, str]:
    """Return what each code that has a graph computes: equal for codes that compute the same.

    Equal numbers decide, and equal graphs where numbers of equal inputs are not known. Codes whose graph has several
    numbers compute the same only if their numbers are equal.
    """
    faults = set(find_faults((traced.graph, traced.behavior) for traced in known.values()))
    equal: DisjointSet = DisjointSet()
    for traced in known.values():
        for identity in filter(None, (traced.graph, traced.behavior)):
            equal.add(identity)
        if traced.graph and traced.behavior and traced.graph not in faults:
            equal.merge(traced.graph, traced.behavior)
    names = {identity: min(group) for group in equal.subsets() for identity in group}
    return {
        code_index: names[(traced.behavior if traced.graph in faults else None) or traced.graph]
        for code_index, traced in known.items()
        if traced.graph is not None
    }


def build_payload(task: str | None, dataset: str | None, prm: Mapping[str, object]) -> Json | str:
    """Return the sandbox's input for a network of this benchmark, without its code, or why it is unknown.

    Args:
        task, dataset: as the record states them; None if it states none.
        prm: hyperparameters; its `transform` sizes the images of the second case.
    Returns: `cases`, one or two kinds of input (those shared by all networks of the task, then those of `prm` if they
        differ), and `prm` with the batch size of the cases and one rate of dropout for all networks; or a reason in one
        line if neither case is known.
    """
    # Equal inputs make the graphs of a task comparable; the record's own ones are the alternative.
    shared = build_case(task, _DATASET.get(task or "", dataset), _TRANSFORM)
    own = build_case(task, dataset, prm.get("transform"))
    cases = [asdict(case) for case in (shared, own if own != shared else None) if isinstance(case, InputCase)]
    if not cases:
        return str(own)
    rates = {
        name: _DROPOUT
        for name, value in prm.items()
        if "dropout" in name and isinstance(value, float) and 0 < value < 1
    }
    return {"cases": cases, "prm": {**prm, **rates, "batch": BATCH}}


def graph_rows(corpus: LoadedRecords, traced: Mapping[int, GraphTrace]) -> Iterator[Json]:
    """Yield the rows of `GraphRow`, by id."""
    for code_index in sorted(traced, key=corpus.ids.__getitem__):
        answer = traced[code_index].answer
        graphs = {mode: traced[code_index].read_stored(mode) for mode in ("eval", "train") if mode in answer}
        versions = {name: graphs["eval"][name] for name in ("torch", "form")} if graphs else {}
        texts = {mode: json.dumps(graph, separators=(",", ":")) for mode, graph in graphs.items()}
        columns = {name: answer.get(name) for name in GraphRow.model_fields}
        yield columns | {"eval": None, "train": None} | versions | texts | {"id": corpus.ids[code_index]}


def read_graph_row(row: Json) -> Json:
    """Return a row of `graphs.parquet` as the sandbox answered it, its identities worked out again."""
    graphs = {mode: row.pop(mode) for mode in ("eval", "train")}
    for name in ("torch", "form"):
        row.pop(name)
    answer = {name: value for name, value in row.items() if value is not None}
    if graphs["eval"] is None:
        return answer
    packed = {mode: base64.b64encode(zlib.compress(text.encode(), 1)).decode() for mode, text in graphs.items() if text}
    forms = {mode: Graph.from_json(json.loads(text)) for mode, text in graphs.items() if text}
    own = {**dict.fromkeys(IDENTITIES), **compute_identities(forms), "graph_eval": identify_eval(forms["eval"])}
    return {**answer, **own, **packed}
