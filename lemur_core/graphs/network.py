"""Inside the sandbox: what a LEMUR network computes, as LEMUR's trainer constructs and calls it.

First on the meta device, where tensors have shapes and no values: no memory, hardly any time. A network that needs
values on its way (a branch, a size read from data) is traced on the CPU, on the same operations.
"""

import ast
import hashlib
import itertools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, Ref, pack, reachable
from lemur_core.graphs.identity import colours_of, identities_of, label, leading_to, numbered
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    hand_over_vocabulary,
    inputs_of,
    seed_all,
    step,
    stub_weights,
    tuples,
)

_GLUE = ("train_setup", "learn")  # how LEMUR's trainer has a network trained, beside what it computes
_ROUTES = ("meta", "cpu")


@dataclass(frozen=True, slots=True)
class _Traced:
    module: ModuleType
    net: nn.Module
    recorder: Recorder
    graphs: dict[str, Graph]  # by mode, before they are canonical
    initial: dict[str, Ref]  # of each parameter: the value that it was made with
    train_error: str | None


class _Reading(dict[str, Any]):
    """Hyperparameters that note which of them are read."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)


def trace_network(payload: dict[str, Any]) -> dict[str, Any]:
    """Trace one network in eval and in train mode.

    Args:
        payload: `code`; `prm`; `seed`, 0 where it is left out; `cases`, each as `lemur_core.sandbox.net.run_network`
            takes one: the first that the network runs with counts.

    Returns: `{"runs": false, "category", "error", "missing"}`, of the first case, or `{"runs": true, "route",
        "in_shape", "graph", "graph_widths", "graph_repeats", "train_error", "reads_values", "initial", "glue",
        "prm_read", "dead_classes", "unused_parameters"}`, and the graphs `eval` and `train`, packed (`unpack`).
    Raises: MemoryError and the like, which the sandbox tells.
    """
    stub_weights()
    torch.jit._state.disable()
    failures: list[NetError] = []
    for case, route in itertools.product(payload["cases"], _ROUTES):
        seed_all(int(payload.get("seed", 0)))
        prm = _Reading(dict(payload["prm"]))
        try:
            traced = _trace(payload["code"], case, prm, route)
        except NetError as error:
            failures.append(error)
            continue
        about = {"in_shape": case["in_shape"], "glue": glue_of(payload["code"]), "prm_read": sorted(prm.read)}
        return _answer(traced, route) | about
    return failures[len(_ROUTES) - 1].answer()  # on the CPU: what it says is of the network, not of the route


def _trace(code: str, case: dict[str, Any], prm: dict[str, Any], route: str) -> _Traced:
    hand_over_vocabulary(case["words"])
    recorder = Recorder(route)
    graphs: dict[str, Graph] = {}
    train_error = None
    with recorder.recording():
        module = execute(code)
        net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), prm, recorder.device)
        initial = {name: recorder.value_of(tensor) for name, tensor in net.named_parameters()}
        for mode in ("eval", "train"):
            try:
                with recorder.pause():
                    inputs = inputs_of(case)
                with step("forward_failed", f"in {mode} mode"):
                    graphs[mode] = run(recorder, net, [inputs], train=mode == "train")
                if not graphs[mode].outputs:
                    raise NetError("wrong_output", "forward gives no tensor")
            except NetError as error:
                if mode == "eval" or route != _ROUTES[-1]:
                    raise
                train_error = f"{error.category}: {error.detail}"
    graphs = {mode: graph for mode, graph in graphs.items() if graph.outputs}
    return _Traced(module, net, recorder, graphs, initial, train_error)


def _answer(traced: _Traced, route: str) -> dict[str, Any]:
    forms = {mode: canonical(graph) for mode, graph in traced.graphs.items()}
    used = {node.scope for form in forms.values() for node in form.nodes if node.op == "parameter"}
    return {
        "runs": True,
        "route": route,
        **identities_of(forms),
        "train_error": traced.train_error,
        "reads_values": traced.recorder.reads_values,
        "initial": _initial(traced, forms["eval"]),
        "dead_classes": sorted(_classes(traced.module) - _live_classes(traced, used)),
        "unused_parameters": sorted({name for name, _ in traced.net.named_parameters()} - used),
        **{mode: pack(form) for mode, form in forms.items()},
    }


def _initial(traced: _Traced, form: Graph) -> str:
    """How the parameters that are used were made, in the order in which the graph meets them."""
    made = canonical(Graph(tuple(traced.recorder.nodes), tuple(traced.initial.values())))
    colours = leading_to(made)
    by_name = {name: colours[ref.node].hex() for name, ref in zip(traced.initial, made.outputs, strict=True)}
    order = numbered(form, colours_of(form, label))
    names = [form.nodes[place].scope for place in order if form.nodes[place].op == "parameter"]
    return hashlib.sha256("\n".join(by_name[name] for name in names).encode()).hexdigest()


def _classes(module: ModuleType) -> set[str]:
    """The modules and functions with a gradient that a file defines."""
    kinds = (nn.Module, torch.autograd.Function)
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, kinds))
    return {kind.__qualname__ for kind in found if kind.__module__ == module.__name__}


def _live_classes(traced: _Traced, used: set[str]) -> set[str]:
    """Those in which an operation runs that leads to a result, or that hold a parameter which is used."""
    nodes = traced.recorder.nodes
    results = [ref for graph in traced.graphs.values() for ref in graph.results]
    live = {kind for place in reachable(nodes, results) for kind in nodes[place].within}
    holders = {name.rpartition(".")[0] for name in used}
    live |= {type(module) for name, module in traced.net.named_modules() if name in holders}
    return {kind.__qualname__ for found in live for kind in found.__mro__}


def glue_of(code: str) -> str:
    """A digest of how a network has itself trained, without comments and layout."""
    methods = [
        ast.dump(method)
        for found in ast.walk(ast.parse(code))
        if isinstance(found, ast.ClassDef) and found.name == "Net"
        for method in found.body
        if isinstance(method, ast.FunctionDef) and method.name in _GLUE
    ]
    return hashlib.sha256("\n".join(methods).encode()).hexdigest()
