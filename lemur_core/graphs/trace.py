"""Inside the sandbox: trace runs of a module as graphs, and summarize one that ran in eval and in train mode."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lemur_core.files import Json
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph, Node, Ref, reachable
from lemur_core.graphs.identity import (
    color_ancestry,
    compute_colors,
    compute_identities,
    label,
    label_without_widths,
    number_nodes,
)
from lemur_core.graphs.memory import UnknownValueError
from lemur_core.graphs.recorder import Recorder

CHANGED = "forward changes what is in no state dict"

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
    with_reads: bool = False,
    computed: Mapping[str, Ref] | None = None,
) -> Graph:
    """Run a module while a recorder is recording.

    Args:
        inputs: positional arguments of `forward`; the tensors in them are the graph's inputs, in the order of `find`.
        named: keyword arguments of `forward`.
        find: the tensors in arguments and results.
        with_reads: whether the values that Python looked at are results, too.
        computed: buffers that the graph holds as the computation of their initial values; none may change.

    Returns: the recorded graph, not yet canonical. Scopes hold the names of parameters, buffers and inputs; a
        positional input is `*0`, the second tensor within it `*0.1`.
    Raises: whatever the module raises; RuntimeError if a buffer of `computed` changed.
    """
    named, computed = named or {}, computed or {}
    for name, parameter in module.named_parameters():
        recorder.leaf("parameter", parameter, name, trained=parameter.requires_grad)
    buffers = {
        name: (computed.get(name) or recorder.leaf("buffer", tensor, name), tensor)
        for name, tensor in module.named_buffers()
    }
    module.train(train)  # some modules now precompute what they keep for eval mode
    leaves = [
        (argument if tensor is value else f"{argument}.{index}", tensor)
        for argument, value in [*((f"*{index}", value) for index, value in enumerate(inputs)), *named.items()]
        for index, tensor in enumerate(find(value))
    ]
    for number, (name, tensor) in enumerate(leaves):
        live = {"trained": True} if tensor.requires_grad else {}  # its gradient counts, too
        recorder.leaf("input", tensor, name, number=number, **live)
    already = len(recorder.reads)
    with recorder.scopes(module):
        output = module(*inputs, **named)
    after = dict(module.named_buffers())  # a buffer may have been replaced
    held = [(before, after.get(name, tensor)) for name, (before, tensor) in buffers.items()]
    reads = list(dict.fromkeys(recorder.reads[already:])) if with_reads else []
    graph = recorder.graph_of(find(output), held, reads)
    if changed := {target for target, _ in graph.writes} & {*computed.values()}:
        raise RuntimeError(f"{CHANGED}: {len(changed)} buffers")
    del output
    recorder.forget()
    return graph


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
    initial: Mapping[str, Ref]  # of each parameter and buffer: its initial value
    route: str
    train_error: str | None

    def answer(self, forms: Mapping[str, Graph]) -> Json:
        """Return the facts about the module that leave the sandbox, without its graphs.

        Args: forms: the canonical graphs by mode.

        Returns: `route`, the identities, `train_error`, `reads_values`, `initial`, `dead_classes`, `unused_parameters`.
        """
        used = used_parameters(forms)
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
        order = number_nodes(form, compute_colors(form, label))
        names = [form.nodes[index].scope for index in order if form.nodes[index].op == "parameter"]
        values = canonical(Graph(tuple(self.recorder.nodes), tuple(self.initial[name] for name in names)))
        colors = color_ancestry(values)
        return hashlib.sha256("\n".join(colors[ref.node].hex() for ref in values.outputs).encode()).hexdigest()

    def _live_classes(self, used: set[str]) -> set[str]:
        """Return the classes that run an operation leading to a result, or that hold a used parameter."""
        nodes = self.recorder.nodes
        results = [ref for graph in self.graphs.values() for ref in graph.results]
        live = {kind for index in reachable(nodes, results) for kind in nodes[index].within}
        holders = {name.rpartition(".")[0] for name in used}
        live |= {type(module) for name, module in self.net.named_modules() if name in holders}
        own = self.file.__name__  # a class of torch may have the same name
        return {kind.__qualname__ for type_ in live for kind in type_.__mro__ if kind.__module__ == own}


def used_parameters(forms: Mapping[str, Graph]) -> set[str]:
    """Return the full names of the parameters that lead to a result.

    Scale and shift of a batch norm of which only the running statistics are used lead to none.

    Args: forms: canonical graphs by mode.
    """
    used: set[str] = set()
    for form in forms.values():
        read = {*form.results, *(ref for node in form.nodes for ref in node.inputs)}
        for index, node in enumerate(form.nodes):
            idle = node.op == "batch_norm" and Ref(index) not in read
            refs = (ref for ref in node.inputs if not (idle and ref in (node.get("weight"), node.get("bias"))))
            used.update(form.nodes[ref.node].scope for ref in refs if form.nodes[ref.node].op == "parameter")
        used.update(form.nodes[ref.node].scope for ref in form.results if form.nodes[ref.node].op == "parameter")
    return used


def initial_values(recorder: Recorder, module: nn.Module) -> dict[str, Ref]:
    """Record the initial value of each parameter and buffer, before the first run.

    Args:
        recorder: it has to see these values first: a run may overwrite a parameter.
        module: its parameters and buffers, of all depths.
    Returns: the values by full name.
    """
    values = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        try:
            values[name] = recorder.value_of(tensor)
        except UnknownValueError:  # a lazy module that took its shapes while nothing was recorded
            values[name] = recorder.leaf("constant", tensor, name)
            if not tensor.requires_grad:
                recorder.note("state whose values nothing tells")
    return values


def read_generators() -> dict[str, Any]:
    """Return the states of the generators that no recorded operation draws from: those of Python and NumPy."""
    state: Any = np.random.get_state(legacy=False)
    numpy = (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"])
    return {"random": random.getstate(), "numpy.random": numpy}


def note_values(graphs: Mapping[str, Graph], initial: Mapping[str, Ref]) -> dict[str, Graph]:
    """Return recorded graphs with the contents of fixed state: its value, or how it was drawn.

    That is each frozen parameter, and each buffer that no run writes: digests of the computation that gives its initial
    value, with widths (`value`) and without (`kind`), and whether it was drawn at random. Other buffers are the state
    of training.

    Args:
        graphs: the graphs of all modes, recorded one after the other.
        initial: from `initial_values`.
    """
    written = {graph.nodes[target.node].scope for graph in graphs.values() for target, _ in graph.writes}
    fixed = {
        node.scope
        for graph in graphs.values()
        for node in graph.nodes
        if node.op in ("buffer", "parameter") and not node.get("trained") and node.scope not in written
    } & initial.keys()
    if not fixed:
        return dict(graphs)
    names = sorted(fixed)
    recorded = max((graph.nodes for graph in graphs.values()), key=len)
    values = canonical(Graph(recorded, tuple(initial[name] for name in names)))
    exact, widths = color_ancestry(values), color_ancestry(values, label_without_widths)
    drawn: set[int] = set()
    for index, node in enumerate(values.nodes):
        if node.get("draw") is not None or any(ref.node in drawn for ref in node.inputs):
            drawn.add(index)
    notes = {}
    for name, ref in zip(names, values.outputs, strict=True):
        suffix = f".{ref.output}" if ref.output else ""
        digests = tuple((key, colors[ref.node].hex() + suffix) for key, colors in (("value", exact), ("kind", widths)))
        notes[name] = (*digests, *((("drawn", True),) if ref.node in drawn else ()))

    def note(node: Node) -> Node:
        if node.scope not in notes or node.op not in ("buffer", "parameter"):
            return node
        return replace(node, arguments=(*node.arguments, *notes[node.scope]))

    return {mode: replace(graph, nodes=tuple(map(note, graph.nodes))) for mode, graph in graphs.items()}


def _classes(file: ModuleType) -> set[str]:
    """Return the names of the modules and autograd functions that a file defines."""
    kinds = (nn.Module, torch.autograd.Function)
    types = (value for value in vars(file).values() if isinstance(value, type) and issubclass(value, kinds))
    return {kind.__qualname__ for kind in types if kind.__module__ == file.__name__}
