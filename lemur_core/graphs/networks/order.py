"""Order the parameters of a network by what it computes, not by their names or by when they were created.

Two networks of one computation get the same order even where they are written differently: a walk from the results
visits what each operation reads, first the value with most parameters behind it. Example: for `bias + weight @ x`,
where x comes from a convolution, the convolution's weight is first, then `weight`, then `bias`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from math import prod

from lemur_core.graphs.graph import Graph, Node, Ref
from lemur_core.graphs.identity import compute_colors, label, number_nodes, order_inputs


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
