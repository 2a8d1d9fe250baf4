"""Computation of a block, for its spec: the traced graphs, and sentences derived only from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from extract.specs.behavior import name_input
from lemur_core.describe.layouts import derive_layouts
from lemur_core.describe.patterns import GraphDescription, describe_graph
from lemur_core.files.markdown import plural
from lemur_core.graphs.graph import DRAWS, Graph
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.serialization import deserialize, load_graphs, restore, store
from lemur_core.graphs.sizes import Sized
from lemur_core.graphs.symbolic import evaluate_graph
from manifests.records import Algorithm, Spec

_LONG = 1_200  # characters of sentences in a summary


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
    answer: Mapping[str, Any], rebuilds: Literal[True] | str, sizes_fail: str | None
) -> dict[str, Any]:
    """Return the trace result with the outcome of rebuilding it.

    Args: sizes_fail: the reason why the size formulas are wrong; if set, they are left out.
    """
    stored = {name: answer[name] for name in _STORED}
    # The graph at the traced sizes is right; only the formulas for other sizes are dropped.
    if sizes_fail is not None:
        sized = restore(stored)
        trained = None if sized.trained is None else evaluate_graph(sized.trained)
        stored |= store(Sized(evaluate_graph(sized.evaluated), trained, {}, f"the formulas do not hold: {sizes_fail}"))
    return {**answer, **stored, "rebuilds": rebuilds}


def build_algorithm(answer: Mapping[str, Any], names: Sequence[str]) -> Algorithm:
    """Return the trace result in the form that a spec states it.

    Args: answer, names: as for `store_graphs`.
    Returns: the graphs with what follows from them alone: sentences, patterns, and the last sentence of the summary.
    """
    stored = store_graphs(answer, names)
    forms = load_graphs(stored)
    description = describe_graph(forms["eval"], forms.get("train"))
    return Algorithm(
        sentences=description.sentences,
        motifs=description.patterns,
        told=_summarize(description),
        returns=answer["returns"],
        route=answer["route"],
        reads_values=answer["reads_values"],
        unused_parameters=tuple(answer["unused_parameters"]),
        rebuilds=answer.get("rebuilds"),
        **stored,
    )


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
        forms = load_graphs(dict(spec.algorithm))
        stated = compute_identities(forms)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"its graph cannot be read: {error}"
        return
    if (stated["graph"], stated["graph_widths"]) != (spec.graph, graph_widths):
        yield "its graph has other identities than the table states"
    description = describe_graph(forms["eval"], forms.get("train"))
    if (description.sentences, description.patterns, _summarize(description)) != tuple(
        getattr(spec.algorithm, name) for name in ("sentences", "motifs", "told")
    ):
        yield "its sentences do not follow from its graph"
    if spec.algorithm.rebuilds is True:
        yield from _unwritable(spec.algorithm)
    if not spec.summary.endswith(spec.algorithm.told) and "summary" not in spec.withheld:
        yield "its summary does not end with the description of its graph"


def _unwritable(algorithm: Algorithm) -> Iterator[str]:
    from lemur_core.rebuild.calls import RebuildError  # here, because they load torch
    from lemur_core.rebuild.rebuild import rebuild

    sized = restore(graphs_in_spec(algorithm))
    try:
        rebuild(sized.evaluated, sized.trained)
    except RebuildError as error:
        yield f"states that it rebuilds, but cannot be written: {error}"


def list_caveats(algorithm: Algorithm) -> list[str]:
    """Return sentences that say that the graph shows one run of several, and what may lead to another one."""
    caveats = ["Numbers that it draws outside torch may change what it computes."] if DRAWS in algorithm.hidden else []
    if algorithm.reads_values:
        caveats.append("Values of its inputs may change what it computes; these are the steps of one run.")
    return caveats


def infer_layout(graph: Graph) -> str | None:
    """Return the layout of the first input, one letter per dimension, as the sentences name it; None if unknown.

    Args: graph: of eval mode.
    """
    first = (index for index, node in enumerate(graph.nodes) if node.op == "input" and node.get("number") == 0)
    layout = next((derive_layouts(graph)[index] for index in first), "?")
    return None if "?" in layout or len(layout) < 2 else layout


def has_one_shape(graphs: Mapping[str, Graph]) -> bool:
    """Return whether the outputs of train mode have the shapes of those of eval mode; False without its graph.

    Args: graphs: by mode.
    """
    shapes = [[graph.type_of(ref).shape for ref in graph.outputs] for graph in graphs.values()]
    return len(shapes) == 2 and shapes[0] == shapes[1]


def _summarize(description: GraphDescription) -> str:
    """Return the text for the summary: the sentences, as many as fit."""
    text, rest = "", list(description.sentences)
    while rest and len(text) + len(rest[0]) <= _LONG:
        text += f" {rest.pop(0)}"
    if rest:
        text += f" And {plural(len(rest), 'further sentence')}."
    return text[1:2].upper() + text[2:]
