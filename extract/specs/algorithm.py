"""What a block computes, for its spec: the graphs of its runs, and sentences that follow from them alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from extract.specs.behaviour import named_input
from lemur_core.graphs.graph import Graph, unpack
from lemur_core.graphs.identity import identities_of
from lemur_core.graphs.layouts import told_layout
from lemur_core.graphs.motifs import Told, tell
from lemur_core.graphs.notation import forms_of, to_notation
from manifests.records import Algorithm, Spec

_SHORT = 240  # characters of sentences that a summary takes whole
_FIGURES = 6


def algorithm_of(answer: Mapping[str, Any], names: Sequence[str]) -> Algorithm:
    """What was traced, as a spec states it.

    Args:
        answer: of `extract.probing.tracing.trace_block`.
        names: of the parameters that positional arguments of the call go to.
    """
    forms = {
        mode: _with_names(Graph.from_json(unpack(answer[mode])), names) for mode in ("eval", "train") if mode in answer
    }
    trained = forms.get("train")
    told = tell(forms["eval"], trained)
    return Algorithm(
        sentences=told.sentences,
        motifs=told.motifs,
        told=_in_short(told),
        returns=answer["returns"],
        route=answer["route"],
        reads_values=answer["reads_values"],
        unused_parameters=tuple(answer["unused_parameters"]),
        train_error=answer["train_error"],
        eval=to_notation(forms["eval"]),
        train=None if trained is None or trained == forms["eval"] else to_notation(trained),
    )


def algorithm_faults(spec: Spec, graph_widths: str | None) -> Iterator[str]:
    """What is wrong with what a spec says that its block computes. Args: graph_widths: of the table."""
    if spec.algorithm is None:
        return
    try:
        forms = forms_of(dict(spec.algorithm))
        stated = identities_of(forms)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"its graph cannot be read: {error}"
        return
    if (stated["graph"], stated["graph_widths"]) != (spec.graph, graph_widths):
        yield "its graph has other identities than the table states"
    told = tell(forms["eval"], forms.get("train"))
    if (told.sentences, told.motifs, _in_short(told)) != tuple(
        getattr(spec.algorithm, name) for name in ("sentences", "motifs", "told")
    ):
        yield "its sentences do not follow from its graph"
    if not spec.summary.endswith(spec.algorithm.told) and "summary" not in spec.withheld:
        yield "its summary does not end with what is told of its graph"


def layout_of(algorithm: Algorithm) -> str | None:
    """The layout of the first input, a letter for each dimension, where the graph tells it."""
    form = forms_of(dict(algorithm))["eval"]
    first = (place for place, node in enumerate(form.nodes) if node.op == "input" and node.get("number") == 0)
    return next((told_layout(form, place) for place in first), None)


def _with_names(form: Graph, names: Sequence[str]) -> Graph:
    nodes = (replace(n, scope=named_input(n.scope, names)) if n.op == "input" else n for n in form.nodes)
    return replace(form, nodes=tuple(nodes))


def _in_short(told: Told) -> str:
    """For the summary: all sentences where they are short, else the figures."""
    whole = " ".join(told.sentences)
    if len(whole) <= _SHORT:
        return whole[:1].upper() + whole[1:]
    figures = "; ".join(told.motifs[:_FIGURES])
    return f"Made of: {figures}." if figures else ""
