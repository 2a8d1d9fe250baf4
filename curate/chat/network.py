"""One kept record with everything that conversations may say about it: its syntax tree and its measurements.

Each experiment on a network runs in the sandbox once.
"""

import ast
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

import numpy as np

from curate.compute.runs import LIMITS, InputCase, NetFailure, RunRequest, open_box, read_answer, read_parameters
from curate.model.corpus import LoadedRecords
from lemur_core.files import Json
from lemur_core.sandbox.stage import SandboxStage
from lemur_core.source.text import parse_code

#: Twice the limits of one run: a network is run with two seeds.
_LIMITS = replace(LIMITS, wall_seconds=2 * LIMITS.wall_seconds, cpu_seconds=2 * LIMITS.cpu_seconds)


class Lab:
    """Answers experiments. A context manager; its sandbox starts with the first experiment that is not cached."""

    def __init__(self, *, jobs: int | None = None, unsafe: bool = False, runtime: Sequence[str] = ()) -> None:
        self._stage = SandboxStage[NetworkFacts | NetFailure](
            "curate.chat.probe:measure", NetworkFacts | NetFailure, _LIMITS, unit="networks"
        )
        self._box = open_box([self._stage], jobs=jobs, unsafe=unsafe, runtime=runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def make(self, experiments: Sequence[RunRequest], what: str) -> list["NetworkFacts | NetFailure"]:
        """Return the answers of `curate.chat.probe:measure`, in order.

        Args: what: what is done, for the progress line.
        Raises: UserError if no sandbox is available.
        """
        stage = replace(self._stage, label=what)
        requests = {str(index): experiment for index, experiment in enumerate(experiments)}
        answers = {reply.key: read_answer(reply) for reply in stage.run(self._box, requests)}
        return [answers[index] for index in requests]


@dataclass(frozen=True, slots=True)
class Reading:
    """The facts in a file's syntax tree. `hyperparameters` is None if no function states them as a literal."""

    hyperparameters: tuple[str, ...] | None
    methods: tuple[str, ...]  # of Net, in order


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """The sandbox's measurements of a network that runs, built and run with two seeds.

    Parameters are elements, each tensor counted once. Multiply-adds are those of calls of convolution and linear
    modules and of the projections of nn.MultiheadAttention for the whole batch, without biases; `attention` states
    whether there are such; functional calls and attention products are not counted. `layers` counts library modules by
    class, composite ones of torch.nn as one, without losses; `own` counts modules of classes that the file defines,
    without the network itself. If the seeds disagree, multiply-adds are 0 and the output is None.
    """

    parameters: int
    trainable: int
    multiply_adds: int
    attention: bool
    output: str | None
    layers: dict[str, int]
    own: dict[str, int]
    optimizers: tuple[str, ...]
    losses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BestResult:
    """The best value recorded on one benchmark, the fewest epochs that reached it, and the training settings."""

    task: str
    dataset: str
    metric: str
    accuracy: float
    epoch: int | None
    transform: str | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class ChatNetwork:
    """A record. `facts` is None if it did not run; `fault` then says why: category, colon, line.

    `reached` are the best results on its own benchmarks by trials with its own hyperparameters.
    """

    id: str
    nn: str
    split: str
    code: str
    reading: Reading
    task: str | None
    dataset: str | None
    pretrained: bool
    prm: Json  # as passed to the network
    case: InputCase | None
    facts: NetworkFacts | None
    fault: str
    reached: tuple[BestResult, ...]

    def experiment(self, code: str) -> RunRequest:
        """Return the experiment of running another code in the same way as this record's network."""
        assert self.case is not None
        return RunRequest(code, asdict(self.case), self.prm)

    @property
    def measurements(self) -> NetworkFacts:
        """The facts of a network that runs."""
        assert self.facts is not None
        return self.facts

    @property
    def batch(self) -> int:
        """The number of samples in the batch that the network was run on."""
        assert self.case is not None
        return self.case.in_shape[0]

    @property
    def call(self) -> str:
        """The arguments with which the network was built, numbers as people would write them."""
        assert self.case is not None
        numbers = {name: value for name, value in self.prm.items() if isinstance(value, float)}
        prm = dict(sorted({**self.prm, **{name: float(f"{value:.3g}") for name, value in numbers.items()}}.items()))
        return f"in_shape={self.case.in_shape!r}, out_shape={self.case.out_shape!r}, prm={prm!r}"


def read_code(code: str) -> Reading:
    """Read a file.

    Raises: SyntaxError if it does not parse.
    """
    tree = parse_code(code, max_depth=None)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    net = next((node for node in reversed(classes) if node.name == "Net"), None)
    return Reading(
        hyperparameters=_hyperparameters(tree),
        methods=tuple(item.name for item in net.body if isinstance(item, ast.FunctionDef)) if net else (),
    )


def _hyperparameters(tree: ast.Module) -> tuple[str, ...] | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "supported_hyperparameters":
            returned = [item.value for item in ast.walk(node) if isinstance(item, ast.Return) and item.value]
            try:
                names = ast.literal_eval(returned[0]) if len(returned) == 1 else None
            except ValueError:
                return None
            if isinstance(names, set | list | tuple | dict) and all(isinstance(name, str) for name in names):
                return tuple(sorted(names))
    return None


def best_results(corpus: LoadedRecords, codes: Sequence[int], shown: Sequence[int]) -> list[tuple[BestResult, ...]]:
    """Return each code's best results over the rows with its representative's task, dataset and prm."""
    index_of = {code: index for index, code in enumerate(codes)}
    wanted = np.flatnonzero(np.isin(corpus.code_of_row, np.array(codes, np.int64)))
    columns = ["task", "dataset", "metric", "epoch", "accuracy", "prm"]
    rows = dict(zip(wanted.tolist(), corpus.rows.take(wanted).select(columns).to_pylist(), strict=True))
    reached: list[list[BestResult]] = [[] for _ in codes]
    for number, row in rows.items():
        benchmark = row["task"], row["dataset"], row["metric"]
        value = row["accuracy"]
        if None in benchmark or value is None or not np.isfinite(value):
            continue
        prm = read_parameters(row["prm"])
        result = BestResult(*benchmark, value, row["epoch"], prm.get("transform"), prm.get("batch"))
        index = index_of[int(corpus.code_of_row[number])]
        home = rows[shown[index]]
        if benchmark[:2] == (home["task"], home["dataset"]) and prm == read_parameters(home["prm"]):
            reached[index].append(result)
    return list(map(_best_values, reached))


def _best_values(trials: Sequence[BestResult]) -> tuple[BestResult, ...]:
    """Return the highest value by task, dataset and metric, with the fewest epochs; of equals the first."""
    best: dict[tuple[str, str, str], BestResult] = {}
    for item in sorted(trials, key=lambda item: (-item.accuracy, math.inf if item.epoch is None else item.epoch)):
        best.setdefault((item.task, item.dataset, item.metric), item)
    return tuple(best[benchmark] for benchmark in sorted(best))
