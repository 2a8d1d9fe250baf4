"""The flow of data in a graph, and the attention in it.

The flow: which operations depend on an input, and which value is computed from which. Attention: one fused operation,
or a matrix product of values, a softmax, and a weighted sum.
"""

from dataclasses import dataclass, replace

from lemur_core.describe.sentences import find_origin
from lemur_core.graphs.graph import LEAVES, Graph, Node

MAX_STEPS = 3_000  # no ancestors are computed for larger graphs: they take one bit per pair of nodes


class DataFlow:
    """The operations of a graph that depend on an input.

    Attributes:
        live: their indices, in order.
        reached: these, and the inputs.
        users: index of a value -> the live operations that read it, in order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.reached = {index for index, node in enumerate(self.nodes) if node.op == "input"}
        self.live = self._find_live()
        self._ancestors = self._find_ancestors()
        self.users: dict[int, list[int]] = {}
        for index in self.live:
            for ref in self.nodes[index].inputs:
                self.users.setdefault(ref.node, []).append(index)

    def _find_live(self) -> list[int]:
        """Return the operations that depend on an input, in order; all operations if there is no input."""
        # A part of a network that computes from parameters alone would have no description otherwise.
        whole = not self.reached
        backward = {index for index, node in enumerate(self.nodes) if node.op == "cotangent"}
        live = []
        for index, node in enumerate(self.nodes):
            if any(ref.node in backward for ref in node.inputs) and node.op != "custom_gradient":
                backward.add(index)  # custom backward code is not described
            elif node.op not in LEAVES and (whole or any(ref.node in self.reached for ref in node.inputs)):
                self.reached.add(index)
                live.append(index)
        return live

    def _find_ancestors(self) -> dict[int, int]:
        """Return the ancestors of each operation, as bits."""
        ancestors: dict[int, int] = {}
        if len(self.live) <= MAX_STEPS:
            for index in sorted(self.reached):
                bits = 1 << index
                for ref in self.nodes[index].inputs:
                    bits |= ancestors.get(ref.node, 0)
                ancestors[index] = bits
        return ancestors

    def leads_to(self, source: int, target: int) -> bool:
        """Return whether `target` is computed from `source`."""
        # Always False in a graph with more than MAX_STEPS operations, whose ancestors are unknown.
        return source != target and bool(self._ancestors.get(target, 0) >> source & 1)


# -- attention --------------------------------------------

#: Operations that change the form of a value, and none of its elements.
RESHAPING = frozenset({"reshape", "expand", "permute", "cast", "stop_gradient", "upsample_nearest2d", "slice"})
_SCORED = RESHAPING | {"mul", "div", "add", "sub", "masked_fill", "where", "clamp", "tanh", "logical_not"}


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention: what it reads, how its scores are changed, and the nodes that it covers."""

    index: int  # the node of the weighted sum
    read: list[int]  # queries, keys, values
    steps: list[str]
    heads: int | None
    within: frozenset[int]  # nodes covered by it, except the last


def find_attention(flow: DataFlow) -> dict[int, Attention]:
    """Return the attentions by the node of their weighted sum."""
    attentions: dict[int, Attention] = {}
    for index in flow.live:
        node = flow.nodes[index]
        if node.op == "attention":
            attentions[index] = _read_behind(flow, _from_attention(flow, index, node))
        elif node.op == "_softmax":
            match = _from_softmax(flow, index)
            if match is not None:
                attentions[match[0]] = _read_behind(flow, match[1])
    return attentions


def _read_behind(flow: DataFlow, attention: Attention) -> Attention:
    """Trace queries, keys and values back to the values that they are reshaped parts of."""
    # In self-attention, one projection is often cut into three: all lead back to one value only through slices.
    whole = _trace_back(flow, attention, RESHAPING)
    # Slices of several values remain separate values.
    return whole if len(set(whole.read)) == 1 else _trace_back(flow, attention, RESHAPING - {"slice"})


def _trace_back(flow: DataFlow, attention: Attention, through: frozenset[str]) -> Attention:
    read, within, scales = list(attention.read), set(attention.within), dict.fromkeys(range(3), "")
    before: list[int] = []
    while before != read:  # the parts of one value become free only together
        before = list(read)
        for number, index in enumerate(read):
            node = flow.nodes[index]
            factor = node.get("other")
            if not set(flow.users.get(index, ())) <= within | {attention.index} or index not in flow.reached:
                continue
            if node.op == "mul" and isinstance(factor, float):
                scales[number] = f"scaled by {factor:.4g}"
            elif node.op not in through:
                continue
            within.add(index)
            read[number] = node.inputs[0].node
    steps = [attention.steps[0], *dict.fromkeys(filter(None, scales.values())), *attention.steps[1:]]
    return replace(attention, read=read, steps=steps, within=frozenset(within))


def _from_attention(flow: DataFlow, index: int, node: Node) -> Attention:
    steps = [f"scores scaled by {node.get('scale'):.4g}"]
    if node.get("is_causal"):
        steps.append("only what came before")
    if node.get("attn_mask") is not None:
        steps.append("plus a mask")
    shape = flow.graph.type_of(node.get("query")).shape
    heads = shape[1] if len(shape) == 4 else None
    read = [node.get(name).node for name in ("query", "key", "value")]
    return Attention(index, read, steps, heads, frozenset())


def _from_softmax(flow: DataFlow, softmax: int) -> tuple[int, Attention] | None:
    """Return scores before a softmax and a weighted sum after it, both matrix products of values."""
    within, steps, index = {softmax}, ["softmax"], flow.nodes[softmax].inputs[0].node
    while flow.nodes[index].op in _SCORED:
        node = flow.nodes[index]
        within.add(index)
        step, onward = _describe_score(flow, node)
        steps += step
        # Scores that something else reads as well are not a step inside the attention.
        if onward is None or len(flow.users.get(index, ())) != 1:
            return None
        index = onward
    if flow.nodes[index].op != "matmul" or not all(ref.node in flow.reached for ref in flow.nodes[index].inputs):
        return None
    within.add(index)
    scores = index
    index = softmax
    while True:
        following = flow.users.get(index, [])
        if len(following) != 1:
            return None
        before, index = index, following[0]
        if flow.nodes[index].op == "matmul":
            break
        if flow.nodes[index].op not in RESHAPING | {"dropout", "mul"}:
            return None
        within.add(index)
    query, key = (ref.node for ref in flow.nodes[scores].inputs)
    values = next((ref.node for ref in flow.nodes[index].inputs if ref.node != before), key)
    # With four dimensions: batch, heads, queries, keys.
    shape = flow.nodes[scores].outputs[0].shape
    heads = shape[1] if len(shape) == 4 else None
    read = [query, key, values]
    return index, Attention(index, read, ["scores", *reversed(steps)], heads, frozenset(within))


def _describe_score(flow: DataFlow, node: Node) -> tuple[list[str], int | None]:
    live = [ref.node for ref in node.inputs if ref.node in flow.reached]
    following = live[0] if live else None
    factor = node.get("other")
    if node.op in ("mul", "div") and isinstance(factor, float | int):
        return [f"scaled by {factor if node.op == 'mul' else 1 / factor:.4g}"], following
    if node.op == "add":
        others = [ref.node for ref in node.inputs if ref.node not in flow.reached]
        learned = any(find_origin(flow.graph, index) == "learned" for index in others)
        return ["plus a learned bias" if learned else "plus a mask"], following
    if node.op in ("masked_fill", "where"):
        fixed = node.op == "masked_fill" and node.inputs[1].node not in flow.reached
        return ["masked by fixed places" if fixed else "masked"], live[-1] if node.op == "where" and live else following
    if node.op in ("mul", "div") and len(live) < len(node.inputs):
        origin = next(find_origin(flow.graph, ref.node) for ref in node.inputs if ref.node not in flow.reached)
        return [f"{'times' if node.op == 'mul' else 'divided by'} a {origin} factor"], following
    return [], following
