"""Inside the sandbox: trace a LEMUR network, constructed and called as LEMUR's trainer does it.

First on the meta device, where tensors have shapes but no values: no memory, hardly any time. A network that needs
values along the way (a branch, a size read from data) is traced on the CPU, with the same operations.
"""

import ast
import hashlib
import itertools
from typing import Any

import torch

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, pack
from lemur_core.graphs.record.recorder import Recorder
from lemur_core.graphs.tracing.trace import ROUTES, TraceResult, both_modes, initial_values, run
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    install_vocabulary,
    make_inputs,
    seed_all,
    step,
    stub_weights,
    tuples,
)

_GLUE = ("train_setup", "learn")  # methods with which LEMUR's trainer trains a network, besides its computation


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


def trace_network(payload: dict[str, Any]) -> dict[str, Any]:
    """Trace one network in eval and in train mode.

    Args:
        payload: `code`; `prm`; `seed`, default 0; `cases`, each as for `lemur_core.sandbox.net.run_network`: the first
            one with which the network runs counts.

    Returns: `{"runs": false, "category", "error", "missing"}`, of the first case, or `{"runs": true, "route",
        "in_shape", "graph", "graph_widths", "graph_repeats", "train_error", "reads_values", "initial", "glue",
        "prm_read", "dead_classes", "unused_parameters"}`, and the graphs `eval` and `train`, packed (`unpack`).
    Raises: MemoryError and the like, which the sandbox reports.
    """
    stub_weights()
    torch.jit._state.disable()
    failures: list[NetError] = []
    for case, route in itertools.product(payload["cases"], ROUTES):
        seed_all(int(payload.get("seed", 0)))
        prm = _TrackedParameters(dict(payload["prm"]))
        try:
            traced = _trace(payload["code"], case, prm, route)
        except NetError as error:
            failures.append(error)
            continue
        about = {"in_shape": case["in_shape"], "glue": digest_glue(payload["code"]), "prm_read": sorted(prm.read)}
        forms = {mode: canonical(graph) for mode, graph in traced.graphs.items()}
        try:
            packed = {mode: pack(form) for mode, form in forms.items()}
        except ValueError as error:
            return NetError("too_large", str(error)).answer()
        return {"runs": True, **traced.answer(forms), **packed, **about}
    return failures[len(ROUTES) - 1].answer()  # on the CPU: this error is due to the network, not to the route


def _trace(code: str, case: dict[str, Any], prm: dict[str, Any], route: str) -> TraceResult:
    install_vocabulary(case["words"])
    recorder = Recorder(route)
    with recorder.recording():
        module = execute(code)
        net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), prm, recorder.device)
        initial = initial_values(recorder, net)

        def go(train: bool) -> Graph:
            with recorder.pause():
                inputs = make_inputs(case)
            with step("forward_failed", f"in {'train' if train else 'eval'} mode"):
                graph = run(recorder, net, [inputs], train=train)
            if not graph.outputs:
                raise NetError("wrong_output", "forward gives no tensor")
            return graph

        graphs, error = both_modes(go, NetError, route=route)
    train_error = None if error is None else f"{error.category}: {error.detail}"
    return TraceResult(module, net, recorder, graphs, initial, route, train_error)


def digest_glue(code: str) -> str:
    """Digest how a network trains itself, without comments and layout."""
    methods = [
        ast.dump(method)
        for statement in ast.walk(ast.parse(code))
        if isinstance(statement, ast.ClassDef) and statement.name == "Net"
        for method in statement.body
        if isinstance(method, ast.FunctionDef) and method.name in _GLUE
    ]
    return hashlib.sha256("\n".join(methods).encode()).hexdigest()
