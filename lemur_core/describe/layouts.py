"""Infer the meaning of the dimensions of each value in a graph from the operations that use it."""

import re
from collections.abc import Iterator

from lemur_core.graphs.graph import LEAVES, Graph, Node

#: One letter per dimension: N batch, C channels, D, H, W space, L length; `?` if unknown.
Layout = str

_SPACE = {1: "L", 2: "HW", 3: "DHW"}
#: Operations that preserve the meaning of each dimension.
_SAME_RANK = frozenset({"constant_pad_nd", "roll", "slice", "stop_gradient", "dropout", "cast"})
_CHANGE_DIMENSIONS = frozenset({"permute", "reshape", "matmul", "convolution", "linear", "index"})
_LAST = frozenset({"linear", "layer_norm", "rms_norm"})  # the channels are the last dimension
#: Operations that treat one dimension unlike another: where nothing tells which dimension is which, no name is given.
_UNEVEN = _CHANGE_DIMENSIONS | _LAST | {"slice", "_softmax", "_log_softmax", "flip", "roll", "cumsum", "sort", "topk"}
_UNEVEN |= {"cat"}
#: Operations whose results have other dimensions than what they read.
_NEW_DIMENSIONS = frozenset({"nonzero", "_cdist_forward", "_euclidean_dist"})
_SECOND = frozenset({"convolution", "batch_norm", "group_norm", "instance_norm"})
#: Operations on images, by name: the channels are the second dimension.
_ON_SPACE = re.compile(r"pixel_(un)?shuffle|.*_pool[123]d|.*upsample|(reflection|replication)_pad|im2col|grid_sampler")
_REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "var", "std", "var_mean", "linalg_vector_norm", "logsumexp"})


def channels_first(rank: int) -> Layout:
    """Return `NCHW` for four dimensions; for one or two, only the certain letters."""
    return "NC" + _SPACE[rank - 2] if 3 <= rank <= 5 else "NC"[:rank] + "?" * max(0, rank - 2)


def channels_last(rank: int) -> Layout:
    """Return `NHWC` for four dimensions."""
    return "N" + _SPACE[rank - 2] + "C" if 3 <= rank <= 5 else "NC"[:rank] + "?" * max(0, rank - 2)


def derive_layout(graph: Graph, index: int) -> Layout | None:
    """Infer the layout of an input with two to five dimensions from the operations on it and on elementwise results.

    A linear layer, or a normalization over the last dimension alone, shows that this dimension is the channels; a
    convolution, a pooling or a batch normalization shows that the second one is. So does a parameter with one value
    for each index of that dimension, or a mean over all others but the batch; at last, a change of their sizes.

    Args: index: position of the input in `graph.nodes`.
    Returns: one letter per dimension, such as `NCHW`; None for another rank, or without such an operation.
    """
    rank = len(graph.nodes[index].outputs[0].shape)
    if not 2 <= rank <= 5:
        return None
    for number, position in _find_uses(graph, index):
        node = graph.nodes[number]
        is_over_last = node.op == "linear" or len(node.get("normalized_shape") or ()) == 1
        if node.op in _LAST and position == 0 and is_over_last:
            return channels_last(rank)
        if position == 0 and node.op == "convolution" and len(node.get("kernel")) == rank - 1:
            return channels_first(rank + 1)[1:]  # one image without a batch
        if position == 0 and (node.op in _SECOND or _ON_SPACE.match(node.op)):
            return channels_first(rank)
        if node.op in ("permute", "reshape"):
            layout = _look_behind(graph, number, rank)
            if layout is not None:
                return layout
        channels = _find_channels(graph, node, rank)
        if channels in (1, rank - 1):
            return channels_first(rank) if channels == 1 else channels_last(rank)
    return _compare_sizes(graph, index) if rank > 3 else None


def _look_behind(graph: Graph, index: int, rank: int) -> Layout | None:
    """Infer the layout of a value from what follows a permutation, or from the pixels that become a sequence."""
    node = graph.nodes[index]
    if node.op == "reshape":
        old, new = graph.type_of(node.inputs[0]).shape, node.outputs[0].shape
        first, last = new[:2] == old[:2], (new[:1], new[-1:]) == (old[:1], old[-1:])
        if (rank, len(new)) != (4, 3) or first == last:
            return None
        return channels_first(rank) if first else channels_last(rank)
    layout = derive_layout(graph, index)
    letters = dict(zip(node.get("dims"), layout or "", strict=False))
    known = "".join(letters.get(dim, "?") for dim in range(rank))
    return known if known in (channels_first(rank), channels_last(rank)) else None


def _find_channels(graph: Graph, node: Node, rank: int) -> int | None:
    """Return the only dimension besides the batch that a reduction keeps, or along which a parameter varies."""
    if node.op in _REDUCTIONS:
        dims = node.get("dim")
        kept = {*range(1, rank)} - {*dims} if isinstance(dims, tuple) and 0 not in dims and rank > 3 else set()
        return kept.pop() if len(kept) == 1 else None
    if node.op in _CHANGE_DIMENSIONS or not node.outputs or len(node.outputs[0].shape) != rank:
        return None
    shapes = [graph.type_of(ref).shape for ref in node.inputs if graph.nodes[ref.node].op == "parameter"]
    varying = {rank - len(shape) + dim for shape in shapes for dim, size in enumerate(shape) if size > 1}
    return varying.pop() if len(varying) == 1 else None


def _compare_sizes(graph: Graph, index: int) -> Layout | None:
    """Infer the layout from the first result: the sizes of space change by one factor, the channels by another."""
    before = graph.nodes[index].outputs[0].shape
    after = graph.type_of(graph.outputs[0]).shape if graph.outputs else ()
    if len(after) != len(before) or after[0] != before[0] or 0 in before:
        return None
    factors = [new / old for old, new in zip(before, after, strict=True)]
    for space, layout in ((factors[2:], channels_first(len(before))), (factors[1:-1], channels_last(len(before)))):
        if len(set(space)) == 1 and space[0] != 1 and factors.count(space[0]) == len(space):
            return layout
    return None


def _is_even(graph: Graph, index: int) -> bool:
    """Return whether all operations on an input treat its dimensions alike, so that any layout is right."""
    rank = len(graph.nodes[index].outputs[0].shape)
    return all(
        node.op not in _UNEVEN and not (node.op in _REDUCTIONS and len(node.get("dim") or ()) not in (0, rank))
        for node in (graph.nodes[number] for number, _ in _find_uses(graph, index))
    )


def _find_uses(graph: Graph, index: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of the operations on a value, or on its elementwise results, with that of the argument."""
    same = {index}
    for number in range(index + 1, len(graph.nodes)):
        node = graph.nodes[number]
        for position, ref in enumerate(node.inputs):
            if ref.node in same:
                yield number, position
                changes = node.op in _CHANGE_DIMENSIONS or node.op in LEAVES
                same_rank = len(node.outputs[0].shape) == len(graph.type_of(ref).shape)
                if node.op in _SAME_RANK or (same_rank and not changes):
                    same.add(number)


def derive_layouts(graph: Graph) -> list[Layout]:
    """Return the layout of the first output of each node.

    Args: graph: at one input size.
    Returns: one layout for each node, in order; one letter for each dimension, `?` where it is unknown.
    """
    layouts: list[Layout] = []
    for index, node in enumerate(graph.nodes):
        rank = len(node.outputs[0].shape) if node.outputs else 0
        layouts.append(_output_layout(graph, index, node, rank, layouts))
    return layouts


def _output_layout(graph: Graph, index: int, node: Node, rank: int, layouts: list[Layout]) -> Layout:
    if node.op == "input":
        usual = rank < 2 or (rank != 3 and _is_even(graph, index))
        return derive_layout(graph, index) or (channels_first(rank) if usual else ("N" + "?" * rank)[:rank])
    sources = (layouts[ref.node] for ref in node.inputs if graph.nodes[ref.node].op not in LEAVES - {"input"})
    if node.op == "matmul":
        return _product_layout(graph, node, rank, layouts)
    if node.op in _NEW_DIMENSIONS:
        return "?" * rank
    inherited = min((layout for layout in sources if len(layout) == rank), key=lambda text: text.count("?"), default="")
    if node.op in _SECOND:
        # A convolution may run along the channels, as one value of each is a sequence, too.
        return inherited if node.op == "convolution" and "C" in inherited[2:] else channels_first(rank)
    if node.op == "permute":
        letters = layouts[node.inputs[0].node]
        return "".join(letters[dim] for dim in node.get("dims")) if len(letters) == rank else "?" * rank
    if node.op == "reshape":
        return _reshape_layout(graph, node, layouts)
    # Weak evidence, used only where the last dimension is unknown.
    if node.op in _LAST and rank > 2 and "?" in inherited:
        return inherited[:-1] + "C"
    if node.op in _LAST and rank in (3, 4, 5):
        return channels_last(rank) if inherited[-1:] != "C" and inherited in ("", channels_first(rank)) else inherited
    if not inherited and node.inputs and node.op in ("mean", "sum", "amax", "amin", "var", "std"):
        gone, source = set(node.get("dim") or ()), layouts[node.inputs[0].node]
        return "".join(letter for dim, letter in enumerate(source) if dim not in gone)[:rank].ljust(rank, "?")
    return inherited or "?" * rank


def _product_layout(graph: Graph, node: Node, rank: int, layouts: list[Layout]) -> Layout:
    """Take rows from the left matrix, columns from the right one; weights that read channels give channels."""
    values = (graph.nodes[ref.node].op not in LEAVES - {"input"} for ref in node.inputs)
    left, right = (layouts[ref.node] if value else "" for ref, value in zip(node.inputs, values, strict=True))
    if len(left) != rank:
        return "?" * rank
    column = right[-1:] if right else "C" if left[-1:] == "C" else "?"
    return left[:-1] + (column or "?")


def _reshape_layout(graph: Graph, node: Node, layouts: list[Layout]) -> Layout:
    """Keep the letters of unchanged dimensions; merged height and width become a length."""
    source = node.inputs[0]
    if graph.nodes[source.node].op == "permute" and graph.nodes[source.node].get("dims") == (0, 1, 3, 2, 4, 5):
        return channels_last(len(node.outputs[0].shape))  # windows, split or merged
    old, new, letters = graph.type_of(source).shape, node.outputs[0].shape, layouts[source.node]
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = letters[head : len(old) - tail]
    room = len(new) - head - tail
    # Space merged with channels, as before a classifier, counts as channels.
    merged = "L" if room == 1 and middle in ("HW", "DHW") else "C" if room == 1 and "C" in middle else "?" * room
    # The inverse of flattening: tokens become an image again.
    if room == 2 and middle == "L" and len(new) == 4:
        merged = "HW"
    return letters[:head] + merged + (letters[len(old) - tail :] if tail else "")
