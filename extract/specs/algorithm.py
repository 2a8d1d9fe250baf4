"""Computation of a block, for its spec: the traced graphs, and the facts that are read from them alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from extract.specs.behavior import name_input, read_shape
from lemur_core.describe.facts import Facts, list_draws
from lemur_core.graphs.graph import DRAWS, Graph
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.serialization import deserialize, evaluate_modes, fix_sizes, restore
from lemur_core.graphs.sizes import Sized
from lemur_core.graphs.symbolic import Size, evaluate_graph
from manifests.records import Algorithm, Case, Spec

#: What was seen of the recorded runs beside their graphs.
_SEEN = ("returns", "route", "draws", "reads_values", "unused_parameters")
#: Fields that hold a graph, both in trace results and in specs.
_STORED = ("sizes", "fixed", "train_error", "hidden", "eval", "train")


def store_graphs(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the traced graphs in the form that a spec states them.

    Args:
        answer: from `extract.proofs.trace_guest.trace_block`.
        names: names of the parameters that take positional arguments.
    """
    stored = {name: answer[name] for name in _STORED}
    nodes = stored["eval"]["nodes"]
    inputs = [index for index, form in enumerate(stored["eval"]["operations"]) if form[0] == "input"]
    named = [[*node[:-1], name_input(node[-1], names)] if node[0] in inputs else node for node in nodes]
    return stored | {"eval": stored["eval"] | {"nodes": named}}


def read_graph(answer: Mapping[str, Any]) -> Graph:
    """Return the graph of eval mode of a trace result, at the sizes of the run."""
    return evaluate_graph(deserialize(answer["eval"], answer["sizes"]))


def add_rebuild_outcome(
    answer: Mapping[str, Any], outcome: Mapping[str, Any], sizes_fail: str | None
) -> dict[str, Any]:
    """Return the trace result with the outcome of rebuilding it.

    Args:
        outcome: the fields of `Algorithm` about it.
        sizes_fail: the case in which the size formulas are wrong; if set, they are left out.
    """
    # The graph at the traced sizes is right; only the formulas for other sizes are dropped.
    fixed = fix_sizes(answer, f"the formulas do not hold: {sizes_fail}") if sizes_fail is not None else {}
    return {**answer, **fixed, **outcome}


def build_algorithm(answer: Mapping[str, Any], names: Sequence[str], cases: Sequence[Case] = ()) -> Algorithm:
    """Return the trace result in the form that a spec states it.

    Args:
        answer, names: as for `store_graphs`.
        cases: the recorded cases; if one refutes the formulas of sizes, they are left out. If one has other sizes
            where the graph has numbers, the operations say that sizes are of this run alone.
    Returns: the graphs with what follows from them alone: operations and motifs.
    """
    copied = {name: answer[name] for name in _SEEN}
    stored = store_graphs(answer, names)
    sized = restore(stored)
    refuting = next((number for number, sizes in _pair_sizes(sized.evaluated, cases) if _is_refuted(sizes)), None)
    if refuting is not None:
        stored |= fix_sizes(stored, f"sizes that were varied together differ in case {refuting}")
        sized = restore(stored)
    about = {name: answer[name] for name in ("rebuilds", "rebuild_error", "varied") if name in answer}
    facts = _read_facts(sized, stored | copied, cases)
    return Algorithm(**copied, **facts, **({"rebuilds": None} | about), **stored)


def _pair_sizes(graph: Graph, cases: Sequence[Case]) -> Iterator[tuple[int, list[tuple[object, int]]]]:
    """Yield, of each case whose inputs have the graph's dimensions, its number from 1, and stated with found sizes."""
    inputs = {node.scope: node.outputs[0].shape for node in graph.nodes if node.op == "input"}
    outputs = [graph.type_of(ref).shape for ref in graph.outputs]
    for number, case in enumerate(cases, 1):
        found = [read_shape(case.inputs.get(name, "")) or () for name in inputs]
        if list(map(len, found)) != list(map(len, inputs.values())):
            continue
        pairs = [*zip(inputs.values(), found, strict=True)]
        if len(case.outputs) == len(outputs):
            returned = zip(outputs, (read_shape(text) or () for text in case.outputs), strict=True)
            pairs += [(stated, sizes) for stated, sizes in returned if len(stated) == len(sizes)]
        yield number, [pair for stated, sizes in pairs for pair in zip(stated, sizes, strict=True)]


def _is_refuted(sizes: Sequence[tuple[object, int]]) -> bool:
    """Return whether sizes with one formula differ."""
    values = {(stated.text, found) for stated, found in sizes if isinstance(stated, Size)}
    return len(values) > len({text for text, _ in values})


def _read_facts(sized: Sized, seen: Mapping[str, Any], cases: Sequence[Case]) -> dict[str, Any]:
    """Return the facts that graphs give. Args: seen: the fields of `_SEEN` and `hidden`.

    Raises: ValueError, LookupError, TypeError or AttributeError if the graphs are broken.
    """
    pairs = [pair for _, sizes in _pair_sizes(sized.evaluated, cases) for pair in sizes]
    # A size that no formula varies may still be another one in a recorded case.
    numbers = sized.fixed is not None or any(stated != found for stated, found in pairs if isinstance(stated, int))
    branches = seen["reads_values"] or DRAWS in seen["hidden"]
    alone = [*(["sizes"] if numbers else []), *(["branches"] if branches else [])]
    facts = Facts(sized.evaluated, seen["returns"], tuple(alone))
    motifs = [{"kind": m.kind, "operations": m.operations, **m.facts} for m in facts.find_motifs()]
    return {"operations": facts.list_operations(), "motifs": motifs}


def graphs_in_spec(algorithm: Algorithm) -> dict[str, Any]:
    """Return the graphs of a spec in the format of `store_graphs`.

    Args: algorithm: the algorithm of a traced block.
    Returns: what `lemur_core.graphs.serialization.restore` reads.
    """
    return algorithm.model_dump(mode="json", include=set(_STORED))


def algorithm_faults(spec: Spec, graph_widths: str | None) -> Iterator[str]:
    """Yield the faults in the algorithm of a spec. Args: graph_widths: value of that column in the table."""
    if spec.algorithm is None:
        return
    try:
        sized = restore(graphs_in_spec(spec.algorithm))
        forms = evaluate_modes(sized)
        identities = compute_identities(forms)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"its graph cannot be read: {error}"
        return
    if (identities["graph"], identities["graph_widths"]) != (spec.graph, graph_widths):
        yield "its graph has other identities than the table states"
    seen = {name: getattr(spec.algorithm, name) for name in (*_SEEN, "hidden")}
    wanted = _read_facts(sized, seen, spec.cases)
    stated = spec.algorithm.model_dump(mode="json", include=set(wanted), exclude_none=True)
    if json.loads(json.dumps(wanted)) != stated:
        yield "its operations or motifs do not follow from its graph"
    drawn = {(mode, name) for mode, graph in forms.items() for name in list_draws(graph)}
    if not drawn <= {(mode, name) for mode, names in spec.algorithm.draws.items() for name in names}:
        yield "its graph draws what it does not name"
    if spec.algorithm.rebuilds is True:
        yield from _find_unwritable(sized)


def _find_unwritable(sized: Sized) -> Iterator[str]:
    from lemur_core.rebuild.operators import RebuildError  # here, because they load torch
    from lemur_core.rebuild.rebuild import rebuild

    try:
        rebuild(sized.evaluated, sized.trained)
    except RebuildError as error:
        yield f"states that it rebuilds, but cannot be written: {error}"
