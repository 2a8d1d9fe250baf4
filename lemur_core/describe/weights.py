"""Describe weights that a network computes: standardised ones, masked ones, ones that are never negative.

    F.conv2d(x, torch.maximum(weight, bound) ** 2)   weights: learned ones, the larger of it and a fixed number, square

Only the way of the weights themselves is described, not that of their norm, or of a factor.
"""

from collections.abc import Iterator, Sequence
from math import prod

from lemur_core.describe.layouts import Layout
from lemur_core.describe.sentences import OPERATORS, RESHAPED, SILENT, describe, find_origin, format_number
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Ref

_STANDARDISING = frozenset({"batch_norm", "instance_norm", "layer_norm", "var_mean", "var", "std"})
_NORMS = frozenset({"linalg_vector_norm", "_weight_norm_interface", "norm"})
_MOVING = frozenset({"reshape", "permute", "slice", "custom_gradient", "stop_gradient"})
_MOST_CHANGES = 5


def describe_weights(graph: Graph, index: int, layouts: Sequence[Layout]) -> str:
    """Describe weights that are computed, as in `, standardised weights`; an empty text for plain parameters."""
    steps = _list_steps(graph, index)
    ops = {graph.nodes[step].op for step in steps}
    if ops & _STANDARDISING or {"mean", "sub"} <= ops:
        return ", standardised weights" if ops & _STANDARDISING else ", weights without their mean"
    if ops & _NORMS:
        return ", weights divided by their norm"
    origin = find_origin(graph, index)
    if not steps or origin != "learned":
        return "" if graph.nodes[index].op == "parameter" else f", {origin} weights"
    texts = list(_list_changes(graph, index, layouts))[::-1]
    if len(texts) > _MOST_CHANGES:
        return ", learned weights"
    return f", weights: learned ones, {', '.join(texts)}" if texts else ""


def _list_steps(graph: Graph, index: int) -> list[int]:
    """Return the operations that lead to a value."""
    waiting, steps = [index], set[int]()
    while waiting:
        step = waiting.pop()
        if step not in steps and graph.nodes[step].op not in LEAVES:
            steps.add(step)
            waiting += [ref.node for ref in _inputs(graph, step)]
    return sorted(steps)


def _inputs(graph: Graph, index: int) -> tuple[Ref, ...]:
    """Return what an operation reads, without what only the backward computation of a gradient of its own does."""
    node = graph.nodes[index]
    return node.inputs[:1] if node.op == "custom_gradient" else node.inputs


def _list_changes(graph: Graph, index: int, layouts: Sequence[Layout]) -> Iterator[str]:
    """Yield what changes learned weights on their way, the last change first."""
    while graph.nodes[index].op not in LEAVES:
        node = graph.nodes[index]
        learned = [ref for ref in _inputs(graph, index) if find_origin(graph, ref.node) == "learned"]
        # Of several, the weights are the largest: the others are their norm, a factor for each channel.
        main = max(learned, key=lambda ref: prod(graph.type_of(ref).shape))
        if node.op in OPERATORS:
            operands = [value for name, value in node.arguments if name in ("input", "other") and value != main]
            yield f"{OPERATORS[node.op]} {_name_operand(graph, operands[0])}" if operands else "with themselves"
        elif node.op not in SILENT | _MOVING:
            text = describe(graph, index, layouts)
            if text and not text.startswith(RESHAPED):
                yield text
        index = main.node


def _name_operand(graph: Graph, value: Argument) -> str:
    if not isinstance(value, Ref):
        return format_number(value)
    kind = "number" if max(graph.type_of(value).shape, default=1) == 1 else "tensor"
    return f"a {find_origin(graph, value.node)} {kind}"
