"""Measures networks for `benchmarks.prediction` in the sandbox: costs, graph and zero-cost proxies of a sample."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from benchmarks.prediction_data import DATASET, TASK, Indices, Networks, Numbers
from benchmarks.prediction_models import hash_labels
from curate.compute.runs import PRM, NetFailure, build_case, open_box, read_answer
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.sandbox import META_PRELOAD, Limits
from lemur_core.sandbox.stage import Retries, SandboxStage

Answer = TypeVar("Answer", "NetGraph", "NetProxies")

#: Networks that are measured by default: the first ones by id, which is a digest.
GRAPHS, PROXIES = 1_500, 160
#: Images, and their sizes, of graphs and of proxies.
_GRAPH, _SMALL = (3, "norm_256"), (8, "norm_32")
_BUCKETS = 128


@dataclass(frozen=True, slots=True)
class CostRequest:
    """A network to measure, as the functions of `prediction_entry` take it."""

    code: str
    prm: Json
    case: Json
    version: int = 4  # of the entry, whose text is no part of what outcomes are remembered by


@dataclass(frozen=True, slots=True)
class NetGraph:
    """The graph of a network that runs: what it computes, up to widths too, its labels by counts, and its costs."""

    runs: Literal[True]
    graph: str
    widths: str
    labels: dict[str, int]
    parameters: int
    multiply_adds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NetProxies:
    """The zero-cost proxies of a network that runs."""

    runs: Literal[True]
    naswot: float | None
    synflow: float | None
    seconds: float


_LIMITS = Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30)
_ENTRY = "benchmarks.prediction_entry"
TRACED = SandboxStage[NetGraph | NetFailure](
    f"{_ENTRY}:measure_graph", NetGraph | NetFailure, _LIMITS, Retries.NONE, "graphs", "networks"
)
PROXY = SandboxStage[NetProxies | NetFailure](
    f"{_ENTRY}:measure_proxies", NetProxies | NetFailure, _LIMITS, Retries.NONE, "proxies", "networks"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Networks that were measured; each table has a row for every code, NaN for those that were not.

    `tried` and `seconds` (CPU) are of graphs, then of proxies.
    """

    costs: Numbers  # logarithms of parameters and multiply-adds
    labels: Numbers
    proxies: Numbers  # naswot, synflow
    tried: tuple[int, int]
    seconds: tuple[float, float]


def measure_sample(networks: Networks, traced: Indices, run: Indices) -> Sample:
    """Measure networks with the usual hyperparameters of LEMUR.

    Args: traced: the networks to trace. run: those to compute proxies of, which costs more.
    Raises: UserError if no sandbox is available.
    """
    graphs = trace_codes({at: networks.codes[at] for at in traced.tolist()})
    proxies = _measure({at: networks.codes[at] for at in run.tolist()}, PROXY, _SMALL)
    labels = hash_labels([answer.labels for answer in graphs.values()], _BUCKETS)
    costs = np.log1p([[answer.parameters, answer.multiply_adds] for answer in graphs.values()])
    scores = np.array([[answer.naswot, answer.synflow] for answer in proxies.values()], np.float64)
    return Sample(
        _spread(costs.reshape(-1, 2), graphs, len(networks)),
        _spread(labels, graphs, len(networks)),
        _spread(scores.reshape(-1, 2), proxies, len(networks)),
        (len(traced), len(run)),
        (sum(answer.seconds for answer in graphs.values()), sum(answer.seconds for answer in proxies.values())),
    )


def trace_codes(codes: Mapping[int, str]) -> dict[int, NetGraph]:
    """Return the graphs of those of some codes, by number, that run with images of LEMUR's usual size.

    Raises: UserError if no sandbox is available.
    """
    return _measure(codes, TRACED, _GRAPH)


def _measure(
    codes: Mapping[int, str], stage: SandboxStage[Answer | NetFailure], images: tuple[int, str]
) -> dict[int, Answer]:
    batch, transform = images
    case = build_case(TASK, DATASET, transform)
    if isinstance(case, str):
        raise UserError(case)
    shape: tuple[int, ...] = case.in_shape[1:]
    given = asdict(replace(case, in_shape=(batch, *shape), output=None))
    requests = {str(number): CostRequest(code, PRM | {"batch": batch}, given) for number, code in codes.items()}
    answers: dict[int, Answer] = {}
    with open_box([stage], jobs=1, unsafe=False, preload=META_PRELOAD) as box:
        for reply in stage.run(box, requests):
            answer = read_answer(reply)
            if not isinstance(answer, NetFailure):
                answers[int(reply.key)] = answer
    return dict(sorted(answers.items()))


def _spread(rows: Numbers, measured: Iterable[int], count: int) -> Numbers:
    table = np.full((count, rows.shape[1]), np.nan)
    table[list(measured)] = rows
    return table
