"""The cost of a computation: parameters and multiply-adds, counted in its canonical graph.

Worked example: a convolution of 3 to 8 channels with a kernel of 3 x 3 that gives maps of 128 x 128 has 8 * 3 * 9
parameters, and 8 * 128 * 128 * 3 * 9 multiply-adds for one image.
"""

from math import prod

from lemur_core.graphs.graph import Graph, Node

#: Layers and cells that multiply every step by all their matrices.
_RECURRENT = frozenset(f"{name}{end}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for end in ("", "_cell"))


def count_parameters(graph: Graph) -> int:
    """Return how many numbers the parameters of a graph hold; a parameter that is used twice counts once.

    Args: graph: of eval mode, at one input size.
    Returns: parameters that the outputs depend on, in single numbers.
    """
    return sum(prod(kind.shape) for node in graph.nodes if node.op == "parameter" for kind in node.outputs)


def count_multiply_adds(graph: Graph) -> int:
    """Return the multiply-adds of one input: of a whole run, divided by the size of the batch.

    Args: graph: of eval mode, at one input size.
    Returns: multiplications of one input; biases, normalization, activations and pooling are not counted.
    """
    inputs = [node.outputs[0].shape for node in graph.nodes if node.op == "input"]
    batch = inputs[0][0] if inputs and inputs[0] else 1
    return sum(_count(graph, node) for node in graph.nodes) // max(1, batch)


def _count(graph: Graph, node: Node) -> int:
    if node.op == "convolution":
        # out, in / groups, kernel; if transposed in, out / groups, kernel
        weight = graph.type_of(node.get("weight")).shape
        spread = graph.type_of(node.get("input")).shape if node.get("transposed") else node.outputs[0].shape
        return prod(spread) * prod(weight[1:])
    if node.op in ("linear", "matmul"):
        return prod(node.outputs[0].shape) * graph.type_of(node.get("input")).shape[-1]
    if node.op == "attention":
        query, key, value = (graph.type_of(node.get(name)).shape for name in ("query", "key", "value"))
        return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if node.op in _RECURRENT:
        shapes = [graph.type_of(ref).shape for ref in node.inputs if graph.nodes[ref.node].op == "parameter"]
        steps = prod(graph.type_of(node.get("input")).shape[:-1])
        return steps * sum(prod(shape) for shape in shapes if len(shape) > 1)
    return 0
