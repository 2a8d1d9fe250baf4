"""Find attention in a graph: one fused operation, or a matrix product of values, a softmax, and a weighted sum."""

from dataclasses import dataclass

from lemur_core.describe.flow import DataFlow
from lemur_core.describe.sentences import find_origin
from lemur_core.graphs.graph import Node

#: Operations that change the form of a value, and none of its elements.
RESHAPING = frozenset({"reshape", "expand", "permute", "cast", "stop_gradient", "upsample_nearest2d", "slice"})
_SCORED = RESHAPING | {"mul", "div", "add", "sub", "masked_fill", "where", "clamp", "tanh", "logical_not"}


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention: what it reads, how its scores are changed, and the nodes that it covers."""

    place: int  # index of the weighted sum
    read: list[int]  # queries, keys, values
    steps: list[str]
    heads: int | None
    within: frozenset[int]  # nodes covered by it, except the last


def find_attention(flow: DataFlow) -> dict[int, Attention]:
    """Return the attentions by the node of their weighted sum."""
    attentions: dict[int, Attention] = {}
    for place in flow.live:
        node = flow.nodes[place]
        if node.op == "attention":
            attentions[place] = _read_behind(flow, _from_attention(flow, place, node))
        elif node.op == "_softmax":
            match = _from_softmax(flow, place)
            if match is not None:
                attentions[match[0]] = _read_behind(flow, match[1])
    return attentions


def _read_behind(flow: DataFlow, attention: Attention) -> Attention:
    """Trace queries, keys and values back to the values that they are reshaped parts of."""
    # In self-attention, one projection is often cut into three: all lead back to one value only through slices.
    whole = _trace_back(flow, attention, RESHAPING)
    if len(set(whole.read)) == 1:
        return whole
    return _trace_back(flow, attention, RESHAPING - {"slice"})  # slices of several values remain separate values


def _trace_back(flow: DataFlow, attention: Attention, through: frozenset[str]) -> Attention:
    read, within, scales = list(attention.read), set(attention.within), dict.fromkeys(range(3), "")
    before: list[int] = []
    while before != read:  # the parts of one value become free only together
        before = list(read)
        for number, place in enumerate(read):
            node = flow.nodes[place]
            factor = node.get("other")
            if not set(flow.users.get(place, ())) <= within | {attention.place} or place not in flow.reached:
                continue
            if node.op == "mul" and isinstance(factor, float):
                scales[number] = f"scaled by {factor:.4g}"
            elif node.op not in through:
                continue
            within.add(place)
            read[number] = node.inputs[0].node
    steps = [attention.steps[0], *dict.fromkeys(filter(None, scales.values())), *attention.steps[1:]]
    return Attention(attention.place, read, steps, attention.heads, frozenset(within))


def _from_attention(flow: DataFlow, place: int, node: Node) -> Attention:
    steps = [f"scores scaled by {node.get('scale'):.4g}"]
    if node.get("is_causal"):
        steps.append("only what came before")
    if node.get("attn_mask") is not None:
        steps.append("plus a mask")
    shape = flow.graph.type_of(node.get("query")).shape
    heads = shape[1] if len(shape) == 4 else None
    read = [node.get(name).node for name in ("query", "key", "value")]
    return Attention(place, read, steps, heads, frozenset())


def _from_softmax(flow: DataFlow, softmax: int) -> tuple[int, Attention] | None:
    """Return scores before a softmax and a weighted sum after it, both matrix products of values."""
    within, steps, place = {softmax}, ["softmax"], flow.nodes[softmax].inputs[0].node
    while flow.nodes[place].op in _SCORED:
        node = flow.nodes[place]
        within.add(place)
        step, onward = _describe_score(flow, node)
        steps += step
        # Scores that something else reads as well are not a step inside the attention.
        if onward is None or len(flow.users.get(place, ())) != 1:
            return None
        place = onward
    if flow.nodes[place].op != "matmul" or not all(ref.node in flow.reached for ref in flow.nodes[place].inputs):
        return None
    within.add(place)
    scores = place
    place = softmax
    while True:
        following = flow.users.get(place, [])
        if len(following) != 1:
            return None
        before, place = place, following[0]
        if flow.nodes[place].op == "matmul":
            break
        if flow.nodes[place].op not in RESHAPING | {"dropout", "mul"}:
            return None
        within.add(place)
    query, key = (ref.node for ref in flow.nodes[scores].inputs)
    values = next((ref.node for ref in flow.nodes[place].inputs if ref.node != before), key)
    # With four dimensions: batch, heads, queries, keys.
    shape = flow.nodes[scores].outputs[0].shape
    heads = shape[1] if len(shape) == 4 else None
    read = [query, key, values]
    return place, Attention(place, read, ["scores", *reversed(steps)], heads, frozenset(within))


def _describe_score(flow: DataFlow, node: Node) -> tuple[list[str], int | None]:
    live = [ref.node for ref in node.inputs if ref.node in flow.reached]
    following = live[0] if live else None
    factor = node.get("other")
    if node.op in ("mul", "div") and isinstance(factor, float | int):
        return [f"scaled by {factor if node.op == 'mul' else 1 / factor:.4g}"], following
    if node.op == "add":
        others = [ref.node for ref in node.inputs if ref.node not in flow.reached]
        learned = any(find_origin(flow.graph, place) == "learned" for place in others)
        return ["plus a learned bias" if learned else "plus a mask"], following
    if node.op in ("masked_fill", "where"):
        return ["masked"], live[-1] if node.op == "where" and live else following
    return [], following
