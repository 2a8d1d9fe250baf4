"""Inside the sandbox: trace a LEMUR network, constructed and called as LEMUR's trainer does it.

First on the meta device, where tensors have shapes but no values: no memory, hardly any time. A network that needs
values along the way (a branch, a size read from data) is traced on the CPU, with the same operations.

One run is not the whole network. A second run, of another batch size, has to do the same; where numbers were drawn or
values were read on the way, so have runs with other seeds, and every parameter must have been reached. What does not
agree, and what no operation shows (`Recorder.marks`, `find_marks`), makes a graph unique to its code: it equals no
other one, and the answer says why (`varies`).
"""

import hashlib
import itertools
import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, pack
from lemur_core.graphs.identity import compute_identities, digest_weights, identities
from lemur_core.graphs.memory import find_storage
from lemur_core.graphs.networks.source import digest_glue, find_marks, list_batches
from lemur_core.graphs.recorder import Recorder, TooManyOperationsError
from lemur_core.graphs.trace import (
    ROUTES,
    TraceResult,
    both_modes,
    initial_values,
    note_values,
    read_generators,
    run,
    used_parameters,
)
from lemur_core.sandbox.loader import NETWORK
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    install_vocabulary,
    keep_memory,
    make_inputs,
    seed_all,
    step,
    stub_weights,
    tuples,
)

#: The batch that is traced: hardly a constant in a network is made of it.
BATCH = 3
_SEEDS = 3
#: The most operations that are recorded of a mode. A search that a network runs image by image, step by step, takes
#: 100,000; in LEMUR nothing else comes near.
MOST_OPERATIONS = 20_000

#: A network of ours with the layers that most have, for `warm_up`.
_SAMPLE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_shape[1], 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True))
        self.pools = nn.ModuleList([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(8)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(prm["dropout"]), nn.Linear(24, 8), nn.Linear(8, 10))

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([pool(x) for pool in self.pools], dim=1)
        x = x + x * torch.sigmoid(x.mean((2, 3), keepdim=True))
        x = self.norm(x.flatten(2).transpose(1, 2).reshape(x.shape[0], -1, 3, 8)).mean(1)
        return self.head(x)
"""
_SAMPLE_CASE: dict[str, Any] = {"in_shape": [BATCH, 3, 16, 16], "out_shape": [10], "words": 0}
_SAMPLE_CASE |= {"dtype": "float32", "values": [0, 1]}


class _TrackedParameters(dict[str, Any]):
    """Hyperparameters that note which of them are read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._note(key)
        return super().pop(key, *default)

    def _note(self, key: object) -> None:
        if type(key) is str:  # a network may ask for anything; the names of hyperparameters are texts
            self.read.add(key)


@dataclass(frozen=True, slots=True)
class _ModeRuns:
    """A network that ran in both modes.

    Args:
        forms: its canonical graphs by mode.
        marks: what its nodes do not say.
        may_vary: whether numbers were drawn, or values read, that no node shows: another seed may lead elsewhere.
    """

    traced: TraceResult
    forms: Mapping[str, Graph]
    prm_read: Sequence[str]
    marks: frozenset[str]
    may_vary: bool

    @property
    def reads(self) -> bool:
        """True if Python looked at a value that depends on inputs, parameters, state or draws."""
        return any(form.reads for form in self.forms.values())

    @property
    def used(self) -> set[str]:
        """The parameters that lead to a result."""
        return used_parameters(self.forms)


def trace_network(payload: dict[str, Any]) -> dict[str, Any]:
    """Trace one network in eval and in train mode.

    Args:
        payload: `code`; `prm`; `seed`, default 0; `cases`, each as for `lemur_core.sandbox.net.run_network`: the first
            one with which the network runs counts.

    Returns: `{"runs": false, "category", "error", "missing"}`, of the first case, if it fails without a recorder, too;
        `{"runs": true, "category": "not_recorded", "error"}` if it only fails with one; or `{"runs": true, "route",
        "in_shape", "graph", "graph_widths", "graph_repeats", "graph_eval", "train_error", "reads_values", "varies",
        "initial", "glue", "prm_read", "dead_classes", "unused_parameters", "weights"}`, and the graphs `eval` and
        `train`, packed (`unpack`).
    Raises: MemoryError and the like, which the sandbox reports.
    """
    stub_weights()
    keep_memory()
    torch.jit._state.disable()
    seed = int(payload.get("seed", 0))
    try:
        return _trace(payload, seed)
    except TooManyOperationsError:
        runs = _run_plainly(payload, seed)
        too_many = f"it runs more than {MOST_OPERATIONS:,} operations"
        return runs.answer() if isinstance(runs, NetError) else _tell_unrecorded(too_many)


def _trace(payload: Mapping[str, Any], seed: int) -> dict[str, Any]:
    failures: list[NetError] = []
    for case, route in itertools.product(payload["cases"], ROUTES):
        traced = _with_batch(case, BATCH)
        try:
            observed = _observe(payload, traced, route, seed)
        except NetError as error:
            failures.append(error)
        else:
            return _answer(payload, traced, observed, seed)
    runs = _run_plainly(payload, seed)
    if isinstance(runs, NetError):
        return runs.answer()
    last = failures[len(ROUTES) - 1]
    for route in ROUTES:  # its batch may have to be that of the case
        try:
            return _answer(payload, runs, _observe(payload, runs, route, seed), seed)
        except NetError as error:
            last = error
    return _tell_unrecorded(f"{last.category}: {last.detail}")


def _tell_unrecorded(why: str) -> dict[str, Any]:
    return {"runs": True, "category": "not_recorded", "error": why}


def warm_up() -> None:
    """Trace a network of ours, before jobs are forked: each would set up again what torch and Python set up once.

    Nothing that a job could see is left: what it draws from, warnings, the module and its file are as before.
    """
    payload = {"code": _SAMPLE, "prm": {"dropout": 0.5}}
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        with warnings.catch_warnings():
            for route in ROUTES:
                _answer(payload, _SAMPLE_CASE, _observe(payload, _SAMPLE_CASE, route, 0), 0)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
        sys.modules.pop(NETWORK, None)
        Path(f"{NETWORK}.py").unlink(missing_ok=True)


def _with_batch(case: Mapping[str, Any], batch: int) -> dict[str, Any]:
    return {**case, "in_shape": [batch, *case["in_shape"][1:]]}


def _observe(
    payload: Mapping[str, Any], case: Mapping[str, Any], route: str, seed: int, *, again: bool = False
) -> _ModeRuns:
    """Trace a network once. Raises: NetError if it fails.

    Args: again: whether it was traced before, with another seed: the batch sizes are compared already.
    """
    seed_all(seed)
    prm = _TrackedParameters({**payload["prm"], "batch": case["in_shape"][0]})
    install_vocabulary(case["words"])
    recorder = Recorder(route, MOST_OPERATIONS)
    drew: set[str] = set()
    with recorder.recording():
        before = read_generators()
        module = execute(payload["code"])
        net = construct(
            module, tuples(case["in_shape"]), tuples(case["out_shape"]), prm, recorder.device, contract=False
        )
        _initialize(recorder, net, case)
        drew_before = read_generators() != before
        initial = initial_values(recorder, net)
        ran: list[tuple[Any, ...]] = []

        def go(train: bool) -> Graph:
            with recorder.pause():
                inputs = make_inputs(dict(case))
            state = read_generators()
            with step("forward_failed", f"in {'train' if train else 'eval'} mode"), recorder.logging() as log:
                graph = run(recorder, net, [inputs], train=train, with_reads=True)
            if not train:
                ran.extend(log)
            if read_generators() != state:
                drew.add("numbers drawn outside the graph")
            if not graph.outputs:
                raise NetError("wrong_output", "forward gives no tensor")
            return graph

        graphs, error = both_modes(go, NetError, route=route)
        storages = [find_storage(tensor) for tensor in (*net.parameters(), *net.buffers())]
        shared = len(set(storages)) < len(storages)  # a step of training changes both
        marks = recorder.marks | drew | ({"parameters that share memory"} if shared else set())
        if not (again or marks):  # a graph that is unique already need not be found so again
            marks |= _compare_batches(recorder, net, case, ran, list_batches(payload["code"]))
    train_error = None if error is None else f"{error.category}: {error.detail}"
    graphs = {mode: _without_constant_reads(graph) for mode, graph in note_values(graphs, initial).items()}
    traced = TraceResult(module, net, recorder, graphs, initial, route, train_error)
    forms = {mode: canonical(graph) for mode, graph in graphs.items()}
    recorded = Graph(tuple(recorder.nodes), (), (), tuple(recorder.reads))
    may_vary = drew_before or bool(_without_constant_reads(recorded).reads)
    return _ModeRuns(traced, forms, sorted(prm.read), frozenset(marks), may_vary)


def _answer(payload: Mapping[str, Any], case: Mapping[str, Any], first: _ModeRuns, seed: int) -> dict[str, Any]:
    """Return the answer about a network that ran, after the runs that have to agree with the first."""
    marks = set(first.marks) | find_marks(payload["code"])
    used, parameters = first.used, {name for name, _ in first.traced.net.named_parameters()}
    if first.may_vary and not marks:
        own = compute_identities(first.forms)
        for other_seed in range(seed + 1, seed + _SEEDS):
            try:
                other = _observe(payload, case, first.traced.route, other_seed, again=True)
            except NetError:
                marks.add("it fails with another seed")
                continue
            used |= other.used
            if compute_identities(other.forms) != own:
                marks.add("another seed leads to another computation")
                if parameters <= used:  # a further run has nothing to add
                    break
    unused = parameters - used
    if first.reads and unused:
        marks.add("not every parameter is reached")
    unique = hashlib.sha256(payload["code"].encode("utf-8", "surrogatepass")).hexdigest() if marks else ""
    forms = {mode: replace(form, unique=unique) for mode, form in first.forms.items()}
    try:
        packed = {mode: pack(form) for mode, form in forms.items()}
    except ValueError as error:
        return _tell_unrecorded(str(error))
    answer = first.traced.answer(forms)
    suffix = " (not reached in these runs)" if first.reads else ""
    about = {
        "in_shape": case["in_shape"],
        "graph_eval": identities(forms["eval"]).exact,
        "glue": digest_glue(payload["code"]),
        "prm_read": list(first.prm_read),
        "varies": sorted(marks),
        "unused_parameters": [f"{name}{suffix}" for name in sorted(unused)],
        "weights": digest_weights(forms),
    }
    return {"runs": True, **answer, **packed, **about}


def _run_plainly(payload: Mapping[str, Any], seed: int) -> Mapping[str, Any] | NetError:
    """Run a network without a recorder, in eval mode, on the CPU.

    Returns: the case with which it runs, or the failure of the first case.
    """
    failure: NetError | None = None
    for case in payload["cases"]:
        seed_all(seed)
        install_vocabulary(case["words"])
        try:
            module = execute(payload["code"])
            prm = dict(payload["prm"])
            net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), prm, contract=False).eval()
            with step("forward_failed", "in eval mode"), torch.no_grad():
                output = net(make_inputs(case))
            if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
                raise NetError("wrong_output", "forward gives no tensor")
        except NetError as error:
            failure = failure or error
        else:
            return dict(case)
    assert failure is not None
    return failure


def _initialize(recorder: Recorder, net: nn.Module, case: Mapping[str, Any]) -> None:
    """Give lazy modules their parameters, as the first batch does."""
    if any(map(is_lazy, (*net.parameters(), *net.buffers()))):
        with recorder.pause():
            inputs = make_inputs(dict(case))
        with step("forward_failed", "the first batch, for lazy modules"), torch.no_grad():
            net.eval()(inputs)
        net.train()


def _compare_batches(
    recorder: Recorder, net: nn.Module, case: Mapping[str, Any], ran: Sequence[tuple[Any, ...]], sizes: Sequence[int]
) -> set[str]:
    """Return a mark if a network does something else with another batch size, in eval mode.

    Args:
        ran: the log of the run in eval mode.
        sizes: the batch sizes to try, from `list_batches`.
    """
    if case["in_shape"][0] != BATCH:
        return {"it takes one batch size only"}
    for batch in sizes:
        with recorder.pause():
            inputs = make_inputs(_with_batch(case, batch))
        compared = _ComparedLog(ran, batch, ends=batch == sizes[0])
        try:
            with step("forward_failed"), recorder.logging(light=True):
                recorder.log = compared
                net.train(False)(inputs)
        except _OtherComputation:
            pass
        except NetError:
            if batch == sizes[0]:
                return {"it takes one batch size only"}
            continue  # it need not take a batch of one, say
        if compared.differs or next(compared.rest, None) is not None:
            return {"another batch size leads to another computation"}
    return set()


class _OtherComputation(BaseException):
    """Ends a run that did something else than the run that it is compared with."""


class _ComparedLog(list[tuple[Any, ...]]):
    """A log that compares each operation with the next one of a run of the batch `BATCH`, and keeps nothing.

    Args: ends: whether a difference ends the run: whatever follows, even a failure, changes nothing.
    """

    def __init__(self, ran: Sequence[tuple[Any, ...]], batch: int, *, ends: bool) -> None:
        super().__init__()
        self.rest, self.differs, self._batch, self._ends = iter(ran), False, batch, ends

    def append(self, operation: tuple[Any, ...], /) -> None:
        """Compare the next operation. Raises: _OtherComputation if that ends the run."""
        known = next(self.rest, ())
        agrees = len(known) == len(operation) and known[0] is operation[0]
        self.differs |= not (agrees and all(_agree(*pair, self._batch) for pair in zip(known, operation, strict=True)))
        if self.differs and self._ends:
            raise _OtherComputation


def _agree(one: Any, two: Any, batch: int) -> bool:
    """Return whether two numbers are equal, or the same multiple of the batch size."""
    if type(one) is not type(two):
        return False
    return one is two or one == two or (type(one) is int and one * batch == two * BATCH) or one != one


def _without_constant_reads(graph: Graph) -> Graph:
    """Drop the values read that depend on no input, parameter, state or draw: they are the same in every run."""
    if not graph.reads:
        return graph
    constant: list[bool] = []
    for node in graph.nodes:
        leaf = node.op in ("input", "parameter", "buffer", "cotangent")
        constant.append(not leaf and node.get("draw") is None and all(constant[ref.node] for ref in node.inputs))
    return replace(graph, reads=tuple(ref for ref in graph.reads if not constant[ref.node]))
