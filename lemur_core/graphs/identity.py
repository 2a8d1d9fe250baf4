"""Identities of a canonical graph, which decide whether two computations are equal, and a graded similarity.

`G0`: the same computation, including shapes and attributes; `G1`: the same except for widths; `G2`: the same with
repeated stages collapsed. An identity is the SHA-256 of a text that describes the whole graph, so equal identities mean
equal graphs, not merely equal hashes of neighborhoods.

Source: B. Weisfeiler, A. Leman, "The reduction of a graph to canonical form" (1968); N. Shervashidze et al.,
"Weisfeiler-Lehman graph kernels", JMLR 12 (2011), for the graded similarity
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, prod, sqrt
from typing import TypeVar

from lemur_core.graphs.canonical import COMMUTATIVE
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref

_ROUNDS = 2  # refinement rounds, forward and back: its uses distinguish a parameter from others of its shape
_DEPTH = 3  # depth of the subtrees that the graded similarity counts

#: Integers and tuples of them that are widths, or follow from widths; G1 drops them, and keeps all other arguments.
_WIDTHS = frozenset(
    {
        "size", "sizes", "shape", "normalized_shape", "start", "end", "n", "m", "steps", "repeats", "length",
        "num_classes",
    }
)  # fmt: skip
#: Operations whose number may be the root of a width.
_SCALES = frozenset({"mul", "div", "attention"})
_TOLERANCE = 1e-6

Label = Callable[[Graph, Node], str]
_Text = TypeVar("_Text", str, bytes)
InputOrder = Callable[[Node, Sequence[bytes]], Sequence[Ref]]


@dataclass(frozen=True, slots=True)
class Identities:
    """The three identities of a graph, as SHA-256 in hex."""

    exact: str
    widths: str
    repeats: str


def identities(graph: Graph) -> Identities:
    """Return G0, G1 and G2 of a canonical graph."""
    segments = [*collapse_repeats(stages(graph)), *([f"only {graph.unique}"] if graph.unique else [])]
    collapsed = collapse_constants(graph)
    exact, widths = (_digest(_describe(collapsed, by)) for by in (label, label_without_widths))
    return Identities(exact, widths, _digest("\n".join(segments)))


#: The identities of a network, by column name.
IDENTITIES = ("graph", "graph_widths", "graph_repeats")


def compute_identities(forms: Mapping[str, Graph]) -> dict[str, str]:
    """Return the identities of a network from its canonical graphs: G0 and G1 of all modes, G2 of eval mode.

    Args: forms: canonical graphs by mode; `eval` must be among them.
    Returns: a SHA-256 in hexadecimal by column name, as in `IDENTITIES`.
    """
    by_mode = {mode: identities(form) for mode, form in forms.items()}

    def join_modes(name: str) -> str:
        return _digest("\n".join(f"{mode} {getattr(form, name)}" for mode, form in sorted(by_mode.items())))

    return dict(zip(IDENTITIES, (join_modes("exact"), join_modes("widths"), by_mode["eval"].repeats), strict=True))


def label(_graph: Graph, node: Node) -> str:
    """Return the operation and arguments of a node, without the values it reads."""
    return _describe_node(node, lambda _, argument: argument)


def label_without_widths(graph: Graph, node: Node) -> str:
    """Label a node without widths: only the rank of shapes, and of groups only whether there is one per channel."""
    if node.op in LEAVES:
        dtype, shape = node.outputs[0]
        trained = None if node.op == "input" else node.get("trained")  # gradients of inputs are not a width
        literal = node.get("value") if node.op == "constant" and not isinstance(node.get("value"), str) else None
        value = node.get("kind") or literal  # the elements of a large constant usually follow from widths
        return f"{node.op} {dtype} {len(shape)} {trained} {node.get('number')} {value}"
    sizes = tuple(size for ref in node.inputs[:1] for size in graph.type_of(ref).shape[1:])

    def mask(name: str, argument: Argument) -> Argument:
        # A width as a number, but a depthwise convolution is another operation.
        if name == "groups" and node.op == "convolution":
            channels = graph.type_of(node.inputs[0]).shape[1]
            return "one" if argument == 1 else "depthwise" if argument == channels else "some"
        if isinstance(argument, float) and node.op in _SCALES:
            return _find_root(argument, sizes) or argument
        ends = node.op in ("linspace", "logspace") and name in ("start", "end")
        if name not in _WIDTHS or ends or isinstance(argument, bool | str | float) or argument is None:
            return argument
        return f"{len(argument)} sizes" if isinstance(argument, tuple) else "size"

    return _describe_node(node, mask)


def _find_root(number: float, sizes: Sequence[int]) -> str | None:
    """Return of which dimension after the first a number is the root or its inverse, or None."""
    for dim, size in enumerate(sizes):
        for form, known in (("root", sqrt(size)), ("1 / root", 1 / sqrt(size) if size else 0.0)):
            if size > 1 and isclose(number, known, rel_tol=_TOLERANCE):
                return f"{form} of dimension {dim + 1}"
    return None


def collapse_constants(graph: Graph) -> Graph:
    """Return a graph in which each value that depends on no input, parameter or state is one constant.

    It is known by the digest of the computation that gives it, and, for G1, by that without widths. A buffer that no
    run writes and a frozen parameter have these digests of their initial value; if that was drawn at random, they stay
    what they are, since two draws differ. Equal constants become one node.
    """
    colors: dict[int, tuple[bytes, bytes]] = {}
    first: dict[tuple[bytes, bytes, tuple[object, ...]], int] = {}
    kept: dict[int, int] = {}  # a constant -> the first that equals it
    nodes: list[Node] = []

    def move(ref: Ref) -> Ref:
        return Ref(kept.get(ref.node, ref.node), ref.output)

    for index, node in enumerate(graph.nodes):
        if node.op in LEAVES:
            closed = node.op == "constant" or (node.get("kind") is not None and not node.get("drawn"))
        else:
            closed = all(ref.node in colors for ref in node.inputs) and node.get("draw") is None
        if not closed:
            nodes.append(node.move(move) if any(move(ref) != ref for ref in node.inputs) else node)
            continue
        if node.get("kind") is not None:
            colors[index] = (node.get("value").encode(), node.get("kind").encode())
        else:
            exact, widths = (
                _color_by_inputs(by(graph, node), node, [colors[ref.node][which] for ref in node.inputs])
                for which, by in enumerate((label, label_without_widths))
            )
            colors[index] = (exact.hex().encode(), widths.hex().encode())
        source = kept[index] = first.setdefault((*colors[index], node.outputs), index)
        values = (("value", colors[source][0].decode()), ("kind", colors[source][1].decode()))
        nodes.append(replace(node, op="constant", arguments=values))

    return graph.move(nodes, move)


def _color_by_inputs(own: str | bytes, node: Node, inputs: Sequence[bytes]) -> bytes:
    """Color a node by what it is and by the colors of the nodes that it reads."""
    read = [color + bytes([ref.output % 256]) for color, ref in zip(inputs, node.inputs, strict=True)]
    return _compute_color(own, *_order(node, read))


def _order(node: Node, read: list[_Text]) -> list[_Text]:
    """Return what is said of the values that a node reads, the same however a commutative operation was written."""
    return sorted(read) if node.op in COMMUTATIVE else read


def _describe_node(node: Node, show: Callable[[str, Argument], Argument]) -> str:
    # `draw` only tells two draws apart, and depends on the order of the nodes.
    items = [
        f"{name}={_hide_refs(show(name, argument))}" for name, argument in sorted(node.arguments) if name != "draw"
    ]
    if node.op in LEAVES:
        items.append(f"{node.outputs[0].dtype} {list(node.outputs[0].shape)}")
    return f"{node.op} {' '.join(items)}"


def _hide_refs(argument: Argument) -> str:
    """Blank out the values in an argument; they are distinguished by their own nodes."""
    if isinstance(argument, Ref):
        return "%"
    if isinstance(argument, tuple):
        return f"({','.join(_hide_refs(item) for item in argument)})"
    return repr(argument)


def _describe(graph: Graph, label: Label) -> str:
    """Describe a whole graph, independent of the order of its nodes.

    Nodes are numbered in the order in which a walk from the results meets them; operands of commutative operations are
    visited in the order of their colors. Operands of one color are usually interchangeable. If they are not, two
    equal graphs may have different texts, but different graphs never share a text.
    """
    numbers = number_nodes(graph, colors := compute_colors(graph, label))
    lines = []
    for index in numbers:
        read = (f"{numbers[ref.node]}.{ref.output}" for ref in order_inputs(graph.nodes[index], colors))
        lines.append(f"{label(graph, graph.nodes[index])} <- {' '.join(read)}")
    lines.append(f"return {' '.join(f'{numbers[ref.node]}.{ref.output}' for ref in graph.outputs)}")
    lines += sorted(
        f"write {numbers[target.node]} {numbers[value.node]}.{value.output}" for target, value in graph.writes
    )
    lines += [f"read {numbers[ref.node]}.{ref.output}" for ref in graph.reads]
    lines += [f"only {graph.unique}"] if graph.unique else []
    return "\n".join(lines)


def number_nodes(graph: Graph, colors: Sequence[bytes], order: InputOrder | None = None) -> dict[int, int]:
    """Number the nodes so that each comes after the nodes it reads.

    Args:
        colors: one per node; writes are visited in their order.
        order: what a node reads, in the order in which it is visited; None: `order_inputs`.
    Returns: the numbers from 0, by node index; nodes that lead to no result have none.
    """
    order = order or order_inputs
    numbers: dict[int, int] = {}
    writes = sorted(graph.writes, key=lambda write: [(colors[ref.node], ref.output) for ref in reversed(write)])
    # A stack of our own: graphs are deeper than Python's recursion limit.
    results = [*graph.outputs, *(ref for write in writes for ref in reversed(write)), *graph.reads]
    waiting = [(ref.node, False) for ref in results]
    waiting.reverse()
    while waiting:
        index, ready = waiting.pop()
        if index in numbers:
            continue
        if ready:
            numbers[index] = len(numbers)
        else:
            waiting.append((index, True))
            waiting += [(ref.node, False) for ref in reversed(order(graph.nodes[index], colors))]
    return numbers


def color_ancestry(graph: Graph, by: Label = label) -> list[bytes]:
    """Return a color per node from everything that leads to it: equal for equal computations on leaves of one kind."""
    colors: list[bytes] = []
    for node in graph.nodes:
        colors.append(_color_by_inputs(by(graph, node), node, [colors[ref.node].hex().encode() for ref in node.inputs]))
    return colors


def order_inputs(node: Node, colors: Sequence[bytes]) -> tuple[Ref, ...]:
    """Return the values that a node reads, in an order independent of how a commutative operation was written."""
    if node.op in COMMUTATIVE:
        return tuple(sorted(node.inputs, key=lambda ref: (colors[ref.node], ref.output)))
    return node.inputs


def compute_colors(graph: Graph, label: Label) -> list[bytes]:
    """Return a color per node from everything that leads to it and everything that follows from it."""
    users: list[list[tuple[int, str]]] = [[] for _ in graph.nodes]
    for index, node in enumerate(graph.nodes):
        for position, ref in enumerate(node.inputs):
            role = "" if node.op in COMMUTATIVE else str(position)
            users[ref.node].append((index, f"{role}.{ref.output}"))
    ends: dict[int, list[str]] = {}
    for kind, refs in (("return", graph.outputs), ("read", graph.reads)):
        for position, ref in enumerate(refs):
            ends.setdefault(ref.node, []).append(f"{kind} {position}.{ref.output}")
    for target, value in graph.writes:
        ends.setdefault(value.node, []).append(f"write {value.output}")
        ends.setdefault(target.node, []).append("written")
    colors = [_compute_color(label(graph, node)) for node in graph.nodes]
    for _ in range(_ROUNDS):
        for index, node in enumerate(graph.nodes):
            colors[index] = _color_by_inputs(colors[index], node, [colors[ref.node] for ref in node.inputs])
        # Backward, each node sees the new colors of those that use it.
        for index in range(len(graph.nodes) - 1, -1, -1):
            used = sorted(colors[user] + role.encode() for user, role in users[index])
            colors[index] = _compute_color(colors[index], *used, *sorted(ends.get(index, ())))
    return colors


def _compute_color(*parts: str | bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.digest()


def stages(graph: Graph) -> list[str]:
    """Split a graph into stages, ignoring widths: each runs from one bottleneck value to the next."""
    computing = [index for index, node in enumerate(graph.nodes) if node.op not in LEAVES]
    last = {index: index for index in range(len(graph.nodes))}  # the last node that reads it
    for index in computing:
        for ref in graph.nodes[index].inputs:
            last[ref.node] = max(last[ref.node], index)
    for ref in graph.results:
        last[ref.node] = len(graph.nodes)
    completed: list[str] = []
    lines: list[str] = []
    numbers: dict[int, int] = {}
    furthest = -1
    for index in computing:
        node = graph.nodes[index]
        ops = {ref.node: graph.nodes[ref.node].op for ref in node.inputs}
        names = {place: op if op in LEAVES else str(numbers.get(place, "before")) for place, op in ops.items()}
        read = [names[ref.node] for ref in node.inputs]
        numbers[index] = len(numbers)
        lines.append(f"{label_without_widths(graph, node)} <- {' '.join(_order(node, read))}")
        furthest = max([furthest, *(last[place] for place, op in ops.items() if op not in LEAVES)])
        if furthest <= index:  # no earlier value is read again: everything flows through this node
            completed.append("\n".join(lines))
            lines, numbers, furthest = [], {}, last[index]
    return [*completed, "\n".join(lines)] if lines else completed


def collapse_repeats(items: Sequence[str]) -> list[str]:
    """Keep each run of repeats, of one item or of several in turn, only once."""
    kept = list(items)
    # The shortest period first: a run of one item must not be halved as a run of pairs.
    for period in range(1, len(kept) // 2 + 1):
        start = 0
        while start + 2 * period <= len(kept):
            if kept[start : start + period] == kept[start + period : start + 2 * period]:
                del kept[start + period : start + 2 * period]
            else:
                start += 1
    return kept


def subtrees(graph: Graph, depth: int = _DEPTH) -> Counter[str]:
    """Count the Weisfeiler-Lehman labels of the subtrees up to a depth, ignoring widths.

    Args: depth: in operations; each depth from 0 adds one label per node.
    Returns: how often each label occurs, in hexadecimal.
    """
    colors = [_compute_color(label_without_widths(graph, node)) for node in graph.nodes]
    counted = Counter(color.hex() for color in colors)
    for _ in range(depth):
        colors = [
            _compute_color(own, *_order(node, [colors[ref.node] for ref in node.inputs]))
            for own, node in zip(colors, graph.nodes, strict=True)
        ]
        counted.update(color.hex() for color in colors)
    return counted


def similarity(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return the Jaccard similarity of two multisets.

    Args: one, other: how often each key occurs.
    Returns: 1 if they are equal (also if both are empty), 0 if they are disjoint.
    """
    shared = sum(min(count, other.get(key, 0)) for key, count in one.items())
    total = sum(one.values()) + sum(other.values()) - shared
    return shared / total if total else 1.0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Parameters in the order of what a network computes, not of their names or of when they were created: two networks of
# one computation get the same order even where they are written differently. A walk from the results visits what each
# operation reads, first the value with most parameters behind it. Example: for `bias + weight @ x`, where x comes from
# a convolution, the convolution's weight is first, then `weight`, then `bias`.


def order_parameters(forms: Mapping[str, Graph]) -> tuple[list[str], list[str]]:
    """Return the names of the parameters that results depend on, and of the buffers that some run updates.

    Both are in the order in which the walk meets them; eval mode comes first.
    """
    parameters: dict[str, None] = {}
    state: dict[str, None] = {}
    for mode in sorted(forms):  # eval, then train
        graph, written = forms[mode], {target.node for target, _ in forms[mode].writes}
        for index in _walk(graph):
            node = graph.nodes[index]
            if node.op == "parameter" or (node.op == "buffer" and index in written):
                (parameters if node.op == "parameter" else state)[node.scope] = None
    return list(parameters), list(state)


def count_weights(forms: Mapping[str, Graph]) -> list[int]:
    """Return the elements of the parameters that results depend on, sorted: equal for what may compute the same."""
    sizes: dict[str, int] = {}
    for graph in forms.values():
        sizes |= {node.scope: prod(node.outputs[0].shape) for node in graph.nodes if node.op == "parameter"}
    return sorted(sizes.values())


def digest_weights(forms: Mapping[str, Graph]) -> str:
    """Return an identity that graphs have in common if they may compute the same, by the sizes of their parameters.

    Args: forms: the graphs of one network, by mode.
    Returns: 64 hexadecimal digits.
    """
    return hashlib.sha256(repr(count_weights(forms)).encode()).hexdigest()


def _walk(graph: Graph) -> dict[int, int]:
    """Number the nodes behind the results, each after those that it reads, the longest way first."""
    behind = _weigh(graph)
    colors = compute_colors(graph, label)
    keys = [b"%020d%020d" % pair + color for pair, color in zip(behind, colors, strict=True)]

    def longest_first(node: Node, keys: Sequence[bytes]) -> list[Ref]:
        """Return what a node reads: which operand is written first says nothing."""
        refs = order_inputs(node, keys)
        if node.op in ("addcmul", "addcdiv"):  # as where product and sum are two operations
            refs = (*refs[1:], refs[0])
        return sorted(refs, key=lambda ref: behind[ref.node], reverse=True)

    return number_nodes(graph, keys, longest_first)


def _weigh(graph: Graph) -> list[tuple[int, int]]:
    """Return how many parameters lead to each node, and their elements: the same however the way is written."""
    sizes: list[int] = []
    sets: list[int] = []
    for node in graph.nodes:
        if node.op == "parameter":
            sizes.append(prod(node.outputs[0].shape))
            sets.append(1 << (len(sizes) - 1))
        else:
            behind = 0
            for ref in node.inputs:
                behind |= sets[ref.node]
            sets.append(behind)
    totals: dict[int, tuple[int, int]] = {}
    for members in sets:
        if members not in totals:
            totals[members] = (members.bit_count(), sum(size for bit, size in enumerate(sizes) if members >> bit & 1))
    return [totals[members] for members in sets]
