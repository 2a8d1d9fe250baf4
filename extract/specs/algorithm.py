"""What a block computes, for its spec: the graphs of its runs, and sentences that follow from them alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from extract.specs.behaviour import named_input
from lemur_core.describe.layouts import told_layout
from lemur_core.describe.patterns import Told, tell
from lemur_core.graphs.identity import identities_of
from lemur_core.graphs.serialization import forms_of, restore, store
from lemur_core.graphs.sizes import Sized
from lemur_core.graphs.symbolic import at
from manifests.records import Algorithm, Spec

_SHORT = 240  # characters of sentences that a summary takes whole
_FIGURES = 6


#: What a graph is stored as, in what was traced and in a spec alike.
_STORED = ("sizes", "fixed", "train_error", "eval", "train")


def stored_of(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The graphs that were traced, as a spec states them.

    Args:
        answer: of `extract.proofs.trace_guest.trace_block`.
        names: of the parameters that positional arguments of the call go to.
    """
    stored = {name: answer[name] for name in _STORED}
    nodes = stored["eval"]["nodes"]
    inputs = [place for place, form in enumerate(stored["eval"]["operations"]) if form[0] == "input"]
    named = [[*node[:-1], named_input(node[-1], names)] if node[0] in inputs else node for node in nodes]
    return stored | {"eval": stored["eval"] | {"nodes": named}}


def judged(answer: Mapping[str, Any], rebuilds: Literal[True] | str, sizes_fail: str | None) -> dict[str, Any]:
    """What was traced, with what became of it as it was written anew.

    Args: sizes_fail: what is wrong with the formulas; then they are left out.
    """
    stored = {name: answer[name] for name in _STORED}
    if sizes_fail is not None:
        sized = restore(stored)
        trained = None if sized.trained is None else at(sized.trained)
        stored = store(Sized(at(sized.evaluated), trained, {}, f"the formulas do not hold: {sizes_fail}"))
    return {**answer, **stored, "rebuilds": rebuilds}


def algorithm_of(answer: Mapping[str, Any], names: Sequence[str]) -> Algorithm:
    """What was traced, as a spec states it. Args: answer, names: as for `stored_of`."""
    stored = stored_of(answer, names)
    forms = forms_of(stored)
    told = tell(forms["eval"], forms.get("train"))
    return Algorithm(
        sentences=told.sentences,
        motifs=told.motifs,
        told=_in_short(told),
        returns=answer["returns"],
        route=answer["route"],
        reads_values=answer["reads_values"],
        unused_parameters=tuple(answer["unused_parameters"]),
        rebuilds=answer.get("rebuilds"),
        **stored,
    )


def stored_in(algorithm: Algorithm) -> dict[str, Any]:
    """What a spec states of its graphs, for `lemur_core.graphs.serialization.restore`: as `stored_of` gives it."""
    return algorithm.model_dump(mode="json", include=set(_STORED))


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
    if spec.algorithm.rebuilds is True:
        yield from _unwritable(spec.algorithm)
    if not spec.summary.endswith(spec.algorithm.told) and "summary" not in spec.withheld:
        yield "its summary does not end with what is told of its graph"


def _unwritable(algorithm: Algorithm) -> Iterator[str]:
    from lemur_core.rebuild.calls import RebuildError  # here, because they load torch
    from lemur_core.rebuild.rebuild import rebuild

    sized = restore(stored_in(algorithm))
    try:
        rebuild(sized.evaluated, sized.trained)
    except RebuildError as error:
        yield f"states that it rebuilds, but cannot be written: {error}"


def layout_of(algorithm: Algorithm) -> str | None:
    """The layout of the first input, a letter for each dimension, where the graph tells it."""
    form = forms_of(dict(algorithm))["eval"]
    first = (place for place, node in enumerate(form.nodes) if node.op == "input" and node.get("number") == 0)
    return next((told_layout(form, place) for place in first), None)


def _in_short(told: Told) -> str:
    """For the summary: all sentences where they are short, else the figures."""
    whole = " ".join(told.sentences)
    if len(whole) <= _SHORT:
        return whole[:1].upper() + whole[1:]
    figures = "; ".join(told.motifs[:_FIGURES])
    return f"Made of: {figures}." if figures else ""
