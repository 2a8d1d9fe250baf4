"""Describe operations whose inputs play different roles, or that give several values.

    x.gather(2, x.topk(3, dim=-1)[1])      places of the 3 largest values over L; picks from the input along L by it

An index is not what it picks, and the place of a maximum is not the maximum.
"""

from collections.abc import Callable, Iterable, Sequence
from string import Formatter

from lemur_core.describe.layouts import Layout
from lemur_core.describe.sentences import join_words, name_dimensions
from lemur_core.graphs.graph import Argument, Graph, Node, Ref

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
