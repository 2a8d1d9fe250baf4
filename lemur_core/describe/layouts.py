"""Infer the meaning of the dimensions of each value in a graph from the operations that use it."""

from collections.abc import Iterator

from lemur_core.graphs.graph import LEAVES, Graph, Node, Ref

#: One letter per dimension: N batch, C channels, D, H, W space, L length; `?` if unknown.
Layout = str

_SPACE = {1: "L", 2: "HW", 3: "DHW"}
#: Operations that preserve the meaning of each dimension.
_SAME_RANK = frozenset({"constant_pad_nd", "roll", "slice", "stop_gradient", "dropout", "cast"})
_LAST = frozenset({"linear", "layer_norm", "rms_norm"})


def channels_first(rank: int) -> Layout:
    """Return `NCHW` for four dimensions; below three, letters that nothing contradicts."""
    return "NC" + _SPACE[rank - 2] if 3 <= rank <= 5 else "NC"[:rank] + "?" * max(0, rank - 2)


def channels_last(rank: int) -> Layout:
    """Return `NHWC` for four dimensions."""
    return "N" + _SPACE[rank - 2] + "C" if 3 <= rank <= 5 else "NC"[:rank] + "?" * max(0, rank - 2)


def derive_layout(graph: Graph, index: int) -> Layout | None:
    """Infer the layout of an input with three to five dimensions from the operations on it and on elementwise results.

    A normalization over the last dimension alone, or a linear layer over it, makes it the channels; a convolution or a
    batch normalization makes the second dimension the channels.

    Args: index: position of the input in `graph.nodes`.
    Returns: one letter per dimension, such as `NCHW`; None if neither occurs, or for another number of dimensions.
    """
    rank = len(graph.nodes[index].outputs[0].shape)
    if not 3 <= rank <= 5:
        return None
    for node, position in _find_uses(graph, index):
        if node.op in _LAST and position == 0 and _is_over_last(node):
            return channels_last(rank)
        if node.op in ("convolution", "batch_norm", "group_norm", "instance_norm") and position == 0:
            return channels_first(rank)
    return None


def _is_over_last(node: Node) -> bool:
    return node.op == "linear" or len(node.get("normalized_shape") or ()) == 1


def _find_uses(graph: Graph, index: int) -> Iterator[tuple[Node, int]]:
    """Yield the operations on a value, or on elementwise results, each with the index of that argument."""
    same = {index}
    for number in range(index + 1, len(graph.nodes)):
        node = graph.nodes[number]
        for position, ref in enumerate(node.inputs):
            if ref.node in same:
                yield node, position
                if _keeps(graph, node, ref):
                    same.add(number)


def _keeps(graph: Graph, node: Node, ref: Ref) -> bool:
    if node.op in _SAME_RANK:
        return True
    if (
        node.op in ("permute", "reshape", "expand", "matmul", "cat", "convolution", "linear", "index")
        or node.op in LEAVES
    ):
        return False
    return len(node.outputs[0].shape) == len(graph.type_of(ref).shape)


def layouts(graph: Graph) -> list[Layout]:
    """Return the layout of the first output of each node."""
    known: list[Layout] = []
    for index, node in enumerate(graph.nodes):
        rank = len(node.outputs[0].shape) if node.outputs else 0
        known.append(_layout(graph, index, node, rank, known))
    return known


def _layout(graph: Graph, index: int, node: Node, rank: int, known: list[Layout]) -> Layout:
    if node.op == "input":
        return derive_layout(graph, index) or ("N??" if rank == 3 else channels_first(rank))
    before = next((known[ref.node] for ref in node.inputs if len(known[ref.node]) == rank and _is_live(graph, ref)), "")
    if node.op in ("convolution", "batch_norm", "group_norm", "instance_norm"):
        return channels_first(rank)
    if node.op == "permute":
        letters = known[node.inputs[0].node]
        return "".join(letters[dim] for dim in node.get("dims")) if len(letters) == rank else "?" * rank
    if node.op == "reshape":
        return _reshape_layout(graph, node, known)
    # Weak evidence: such a layer names the last dimension only where nothing else has.
    if node.op in _LAST and rank > 2 and "?" in before:
        return before[:-1] + "C"
    if node.op in _LAST and rank in (3, 4, 5):
        return channels_last(rank) if before[-1:] != "C" and before in ("", channels_first(rank)) else before
    if not before and node.inputs and node.op in ("mean", "sum", "amax", "amin", "var", "std"):
        gone, source = set(node.get("dim") or ()), known[node.inputs[0].node]
        return "".join(letter for dim, letter in enumerate(source) if dim not in gone)[:rank].ljust(rank, "?")
    return before or "?" * rank


def _is_live(graph: Graph, ref: Ref) -> bool:
    return graph.nodes[ref.node].op not in LEAVES - {"input"}


def _reshape_layout(graph: Graph, node: Node, known: list[Layout]) -> Layout:
    """Keep the letters of unchanged dimensions; height and width merged into one become a length."""
    source = node.inputs[0]
    if graph.nodes[source.node].op == "permute" and graph.nodes[source.node].get("dims") == (0, 1, 3, 2, 4, 5):
        return channels_last(len(node.outputs[0].shape))  # windows, split or merged
    old, new, letters = graph.type_of(source).shape, node.outputs[0].shape, known[source.node]
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = letters[head : len(old) - tail]
    room = len(new) - head - tail
    # Space merged with channels, as before a classifier, is channels.
    merged = "L" if room == 1 and middle in ("HW", "DHW") else "C" if room == 1 and "C" in middle else "?" * room
    # The inverse of flattening: tokens become an image again.
    if room == 2 and middle == "L" and len(new) == 4:
        merged = "HW"
    return letters[:head] + merged + (letters[len(old) - tail :] if tail else "")
