"""Describe operations whose inputs play different roles, or that give several values.

    x.gather(2, x.topk(3, dim=-1)[1])      places of the 3 largest values over L; picks from the input along L by it

An index is not what it picks, and the place of a maximum is not the maximum.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from string import Formatter

from lemur_core.describe.layouts import Layout
from lemur_core.describe.sentences import (
    OPERATORS,
    RESHAPED,
    SILENT,
    describe,
    find_origin,
    format_number,
    format_sizes,
    join_words,
    name_dimensions,
    name_extent,
)
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref

_PICKS = "picks from {input}{along} by {index}"
#: What an operation does, with its arguments in braces; `along` is its dimension.
TEXTS = {
    "gather": _PICKS,
    "index_select": _PICKS,
    "index": "picks from {input}{along} by {indices}",
    "take": "picks from {input} by {index}",
    "scatter_add": "adds {src} to {input}{along} at the places that {index} says",
    "index_add": "adds {source} to {input}{along} at the places that {index} says",
    "scatter": "{src} put into {input}{along} at the places that {index} says",
    "scatter_reduce": "{reduce} of {src}{along} at the places that {index} says, into {input}",
    "index_put": "{values} put into {input} at the places that {indices} says",
    "index_fill": "{value} put into {input}{along} at the places that {index} says",
    "index_copy": "{source} put into {input}{along} at the places that {index} says",
    "select_scatter": "{src} put into {input} at {index}{along}",
    "slice_scatter": "{src} put into {input} at {start} to {end}{along}",
    "masked_fill": "{value} where {mask} says, else {input}",
    "_euclidean_dist": "distances between all pairs of points of {x1} and {x2}",
    "_cdist_forward": "distances between all pairs of points of {x1} and {x2}",
    "grid_sampler_2d": "samples {input} where {grid} says",
    "grid_sampler_3d": "samples {input} where {grid} says",
    "lerp": "{input} moved towards {end} by {weight}",
    "where": "{input} or {other}, as {condition} says",
    "addcmul": "{input} plus {tensor1} times {tensor2}",
    "addcdiv": "{input} plus {tensor1} divided by {tensor2}",
}
#: The same where an argument of the text is left out: the first text counts whose arguments there are.
OTHER_TEXTS = {
    "scatter": ("{value} put into {input}{along} at the places that {index} says",),
    "slice_scatter": (
        "{src} put into {input} up to {end}{along}",
        "{src} put into {input} from {start} on{along}",
        "{src} put into {input}{along}",
    ),
    "where": ("places where {condition} is not zero",),
}
#: Names of the outputs of operations that have several.
_OUTPUTS = {
    **dict.fromkeys(("topk", "sort", "median", "mode", "kthvalue", "cummax", "cummin"), ("values", "places")),
    **dict.fromkeys(("max", "min"), ("value", "place")),
    "var_mean": ("variance", "mean"),
    "lstm": ("outputs", "last state", "last cell state"),
    **dict.fromkeys(("gru", "rnn_tanh", "rnn_relu"), ("outputs", "last state")),
}


def describe_roles(graph: Graph, node: Node, layouts: Sequence[Layout], name: Callable[[Argument], str]) -> str:
    """Describe an operation whose inputs play different roles.

    Args: name: returns how a sentence names an argument.
    Returns: a phrase; empty if the roles of the inputs are alike.
    """
    present = {"along", *(key for key, _ in node.arguments)}
    templates = [
        text for text in (TEXTS.get(node.op, ""), *OTHER_TEXTS.get(node.op, ())) if list_fields(text) <= present
    ]
    if not templates:
        return ""
    source = node.get("input")
    layout = layouts[source.node] if isinstance(source, Ref) else ""
    dim = node.get("dim")
    if node.op == "index":
        picked = [number for number, item in enumerate(node.get("indices") or ()) if item is not None]
        dim = picked[0] if len(picked) == 1 else None
    along = f" along {name_dimensions(layout, [dim])}" if isinstance(dim, int) and len(layout) > 1 else ""
    texts = {key: _name_all(graph, value, name) for key, value in node.arguments}
    return templates[0].format_map({"along": along} | texts)


def list_fields(text: str) -> set[str]:
    """Return the names of the arguments in a text."""
    return {field for _, field, _, _ in Formatter().parse(text) if field}


def _name_all(graph: Graph, value: Argument, name: Callable[[Argument], str]) -> str:
    if isinstance(value, Ref):
        is_filled = graph.nodes[value.node].op == "full" and graph.type_of(value).shape
        return f"a tensor of {name(value)}" if is_filled else name(value)
    if isinstance(value, tuple):
        return join_words([_name_all(graph, item, name) for item in value if item is not None])
    return str(value) if isinstance(value, int | str) else name(value)


def read_outputs(graph: Graph, index: int, readers: Iterable[int]) -> frozenset[int]:
    """Return which outputs of a node are read, or returned."""
    refs = [ref for reader in readers for ref in graph.nodes[reader].inputs]
    return frozenset(ref.output for ref in (*refs, *graph.outputs) if ref.node == index)


def describe_outputs(node: Node, text: str, used: frozenset[int]) -> str:
    """Change the text of an operation with several outputs to say which of them are used."""
    names = _OUTPUTS.get(node.op)
    if names is None or used == {0} or not used:
        return "variance" + text.removeprefix("variance and mean") if node.op == "var_mean" and used == {0} else text
    if node.op == "var_mean":
        return text if len(used) > 1 else "mean" + text.removeprefix("variance and mean")
    if node.op in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return f"{text}, {'with ' if 0 in used else ''}its last state"
    both = {"places": "their places", "place": "its place"}[names[1]]
    return f"{text}, and {both}" if 0 in used else f"{names[1]} of the {text}"


def name_output(node: Node, ref: Ref, used: frozenset[int]) -> str:
    """Return the prefix that tells an output from the others that are used: `the mean of `; else an empty text."""
    names = _OUTPUTS.get(node.op, ())
    return f"the {names[ref.output]} of " if len(used) > 1 and ref.output < len(names) else ""


# Name values in sentences.
# What depends on an input has a number, `{7}` until the sentences have theirs: `the mean of (1)`. Other values are
# named by their origin: `a learned value for each channel`, `a fixed tensor of 3×3`, `0.5`.


class ValueNames:
    """How sentences name the values of a graph.

    Args:
        reached: the nodes that depend on an input, and the inputs.
        outputs: of the nodes with several outputs, those that are used.
    """

    def __init__(
        self, graph: Graph, layouts: Sequence[Layout], reached: set[int], outputs: Mapping[int, frozenset[int]]
    ) -> None:
        self._graph, self._layouts, self._reached, self._outputs = graph, layouts, reached, outputs

    def name(self, value: Argument, reader: int | None = None) -> str:
        """Return the name of a value or number. Args: reader: the operation that broadcasts it."""
        if not isinstance(value, Ref):
            return format_number(value)
        if value.node not in self._reached:
            return self.name_origin(value.node, reader)
        used = self._outputs.get(value.node, frozenset())
        return f"{name_output(self._graph.nodes[value.node], value, used)}{{{value.node}}}"

    def name_origin(self, index: int, reader: int | None = None) -> str:
        """Describe a value that does not depend on an input. Args: reader: the operation that broadcasts it."""
        node, shape = self._graph.nodes[index], self._graph.nodes[index].outputs[0].shape
        if node.op in ("constant", "full") and isinstance(node.get("value"), int | float):
            return format_number(node.get("value"))
        origin = find_origin(self._graph, index)
        extent = "" if reader is None else name_extent(self._layouts[reader], shape)
        if max(shape, default=1) == 1:
            return f"a {origin} number"
        return f"a {origin} value{extent}" if extent else f"a {origin} tensor of ‹{format_sizes(shape)}›"

    def name_all(self, sources: Sequence[int], reader: int) -> str:
        """Name what an operation reads of other ones."""
        refs = dict.fromkeys(self._graph.nodes[reader].inputs)
        return join_words([self.name(ref) for source in sources for ref in refs if ref.node == source])

    def format_shape(self, index: int) -> str:
        """Return the shape of a value, `N×3×8` if its first dimension is the batch."""
        shape: Sequence[int | str] = self._graph.nodes[index].outputs[0].shape
        return f"‹{format_sizes(['N', *shape[1:]] if self._layouts[index][:1] == 'N' else shape)}›"


# Describe weights that a network computes: standardised ones, masked ones, ones that are never negative.
#     F.conv2d(x, torch.maximum(weight, bound) ** 2)   weights: learned ones, the larger of it and a fixed number,
# square Only the way of the weights themselves is described, not that of their norm, or of a factor.

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
