"""Inside the sandbox: trace runs of a module as graphs, and summarize one that ran in eval and in train mode.

A LEMUR network is constructed and called as LEMUR's trainer does it; first on the meta device, where tensors have
shapes but no values: no memory, hardly any time. A network that needs values along the way (a branch, a size read from
data) is traced on the CPU, with the same operations.
"""

import ast
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lemur_core.files import Json
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, Ref, pack, reachable
from lemur_core.graphs.identity import color_ancestry, compute_colors, compute_identities, label, number_nodes
from lemur_core.graphs.recorder import Recorder
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

Failure = TypeVar("Failure", bound=Exception)

#: Devices to record on: "meta" first, without values; "cpu" where values are needed along the way.
ROUTES = ("meta", "cpu")


def flatten_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, in the order of `torch.utils._pytree`.

    Args: value: any nested lists, tuples and dicts; other leaves are ignored.
    Returns: each occurrence, so a tensor may appear twice.
    """
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def run(
    recorder: Recorder,
    module: nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any] | None = None,
    *,
    train: bool,
    find: Callable[[Any], Sequence[Tensor]] = flatten_tensors,
) -> Graph:
    """Run a module while a recorder is recording.

    Args:
        inputs: positional arguments of `forward`; the tensors in them are the graph's inputs, in the order of `find`.
        named: keyword arguments of `forward`.
        find: the tensors in arguments and results.

    Returns: the recorded graph, not yet canonical. Scopes hold the names of parameters, buffers and inputs; a
        positional input is `*0`, the second tensor within it `*0.1`.
    Raises: whatever the module raises.
    """
    named = named or {}
    for name, parameter in module.named_parameters():
        recorder.leaf("parameter", parameter, name, trained=parameter.requires_grad)
    buffers = {name: (recorder.leaf("buffer", tensor, name), tensor) for name, tensor in module.named_buffers()}
    module.train(train)  # some modules now precompute what they keep for eval mode
    leaves = [
        (argument if tensor is value else f"{argument}.{index}", tensor)
        for argument, value in [*((f"*{index}", value) for index, value in enumerate(inputs)), *named.items()]
        for index, tensor in enumerate(find(value))
    ]
    for number, (name, tensor) in enumerate(leaves):
        live = {"trained": True} if tensor.requires_grad else {}  # its gradient counts, too
        recorder.leaf("input", tensor, name, number=number, **live)
    with recorder.scopes(module):
        output = module(*inputs, **named)
    after = dict(module.named_buffers())  # a buffer may have been replaced
    held = [(before, after.get(name, tensor)) for name, (before, tensor) in buffers.items()]
    return recorder.graph_of(find(output), held)


def both_modes(
    go: Callable[[bool], Graph], failure: type[Failure], *, route: str
) -> tuple[dict[str, Graph], Failure | None]:
    """Record eval and train mode.

    Args:
        go: records one run, in train mode if called with True; raises `failure` if that fails.
        route: on the last route a module may fail in train mode.

    Returns: the graphs by mode, and the error if there is none of train mode.
    Raises: `failure` in eval mode, and in train mode on the other routes.
    """
    graphs = {"eval": go(False)}
    try:
        graphs["train"] = go(True)
    except failure as error:
        if route != ROUTES[-1]:
            raise
        return graphs, error
    return graphs, None


@dataclass(frozen=True, slots=True)
class TraceResult:
    """A module of a file that ran while a recorder was recording."""

    file: ModuleType
    net: nn.Module
    recorder: Recorder
    graphs: Mapping[str, Graph]  # by mode, not yet canonical
    initial: Mapping[str, Ref]  # of each parameter: its initial value
    route: str
    train_error: str | None

    def answer(self, forms: Mapping[str, Graph]) -> Json:
        """Return the facts about the module that leave the sandbox, without its graphs.

        Args: forms: the canonical graphs by mode.

        Returns: `route`, the identities, `train_error`, `reads_values`, `initial`, `dead_classes`, `unused_parameters`.
        """
        used = {node.scope for form in forms.values() for node in form.nodes if node.op == "parameter"}
        return {
            "route": self.route,
            **compute_identities(forms),
            "train_error": self.train_error,
            "reads_values": self.recorder.reads_values,
            "initial": self._initial(forms["eval"]),
            "dead_classes": sorted(_classes(self.file) - self._live_classes(used)),
            "unused_parameters": sorted({name for name, _ in self.net.named_parameters()} - used),
        }

    def _initial(self, form: Graph) -> str:
        """Digest how the used parameters are initialized, in the order in which the graph meets them."""
        values = canonical(Graph(tuple(self.recorder.nodes), tuple(self.initial.values())))
        colors = color_ancestry(values)
        by_name = {name: colors[ref.node].hex() for name, ref in zip(self.initial, values.outputs, strict=True)}
        order = number_nodes(form, compute_colors(form, label))
        names = [form.nodes[index].scope for index in order if form.nodes[index].op == "parameter"]
        return hashlib.sha256("\n".join(by_name[name] for name in names).encode()).hexdigest()

    def _live_classes(self, used: set[str]) -> set[str]:
        """Return the classes that run an operation leading to a result, or that hold a used parameter."""
        nodes = self.recorder.nodes
        results = [ref for graph in self.graphs.values() for ref in graph.results]
        live = {kind for index in reachable(nodes, results) for kind in nodes[index].within}
        holders = {name.rpartition(".")[0] for name in used}
        live |= {type(module) for name, module in self.net.named_modules() if name in holders}
        return {kind.__qualname__ for type_ in live for kind in type_.__mro__}


def initial_values(recorder: Recorder, module: nn.Module) -> dict[str, Ref]:
    """Record the initial value of each parameter, before the first run.

    Args:
        recorder: it has to see these values first: a run may overwrite a parameter.
        module: its parameters, of all depths.
    Returns: the values by the parameter's full name.
    """
    return {name: recorder.value_of(tensor) for name, tensor in module.named_parameters()}


def _classes(file: ModuleType) -> set[str]:
    """Return the names of the modules and autograd functions that a file defines."""
    kinds = (nn.Module, torch.autograd.Function)
    types = (value for value in vars(file).values() if isinstance(value, type) and issubclass(value, kinds))
    return {kind.__qualname__ for kind in types if kind.__module__ == file.__name__}


# -- networks of LEMUR --------------------------------------------

_GLUE = ("train_setup", "learn")  # methods with which LEMUR's trainer trains a network, besides its computation


class _TrackedParameters(dict[str, Any]):
    """Hyperparameters that note which of them are read."""

    def __init__(self, values: Json) -> None:
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


def trace_network(payload: Json) -> Json:
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


def _trace(code: str, case: Json, prm: Json, route: str) -> TraceResult:
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
