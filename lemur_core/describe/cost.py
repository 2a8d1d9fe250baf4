"""The cost of a computation: parameters and multiply-adds, counted in its canonical graph.

Worked example: a convolution of 3 to 8 channels with a kernel of 3 x 3 that gives maps of 128 x 128 has 8 * 3 * 9
parameters, and 8 * 128 * 128 * 3 * 9 multiply-adds for one image.
"""

from collections.abc import Iterator
from itertools import accumulate
from math import prod

from lemur_core.graphs.graph import CONSTRUCTOR, LEAVES, Graph, Node, Ref

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


# Extract single modules of a network: their part of a graph, with values from elsewhere as inputs.


def parts(graph: Graph, least: int = 2) -> dict[str, Graph]:
    """Extract the graph of each module that runs at least `least` operations.

    Of modules that run the same operations, keep the outermost. A module that is called several times is one part with
    all its calls. The inputs of a part are numbered in the order in which it reads them; its outputs are the values
    that other operations read.

    Args: graph: a canonical graph whose nodes have scopes.
    Returns: the graphs by the module's path (`layer1.0.conv2`), outer modules first; none without an output.
    """
    inside: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op not in LEAVES and node.scope not in ("", CONSTRUCTOR):
            for path in accumulate(node.scope.split("."), lambda outer, name: f"{outer}.{name}"):
                inside.setdefault(path, []).append(index)
    # Outer modules first, so that of a wrapper and its only child the wrapper names the part.
    paths: dict[tuple[int, ...], str] = {}
    for path in sorted(inside, key=lambda path: (path.count("."), path)):
        if len(inside[path]) >= least:
            paths.setdefault(tuple(inside[path]), path)
    read_by = _readers(graph)
    graphs = ((path, _part(graph, indices, read_by)) for indices, path in paths.items())
    return {path: part for path, part in graphs if part.outputs}


def _readers(graph: Graph) -> dict[Ref, set[int]]:
    """Return the nodes that read each value; -1 for returned values."""
    readers: dict[Ref, set[int]] = {}
    for index, node in enumerate(graph.nodes):
        for ref in node.inputs:
            readers.setdefault(ref, set()).add(index)
    for ref in graph.outputs:
        readers.setdefault(ref, set()).add(-1)
    return readers


def _part(graph: Graph, indices: tuple[int, ...], read_by: dict[Ref, set[int]]) -> Graph:
    own = set(indices)
    nodes: list[Node] = []
    renumbered: dict[Ref, Ref] = {}
    inputs = 0
    writes = [(target, value) for target, value in graph.writes if value.node in own]
    for index in indices:
        for ref in graph.nodes[index].inputs:
            if ref in renumbered:
                continue
            node = graph.nodes[ref.node]
            if node.op in LEAVES and node.op != "input":
                nodes.append(node)
            else:
                nodes.append(Node("input", (("number", inputs),), (graph.type_of(ref),)))
                inputs += 1
            renumbered[ref] = Ref(len(nodes) - 1)
        nodes.append(graph.nodes[index].move(renumbered.__getitem__))
        renumbered |= {Ref(index, output): Ref(len(nodes) - 1, output) for output in range(len(nodes[-1].outputs))}
    # A buffer that is written and never read has no node yet.
    for target, _ in writes:
        if target not in renumbered:
            nodes.append(graph.nodes[target.node])
            renumbered[target] = Ref(len(nodes) - 1)
    outputs = tuple(renumbered[ref] for ref in _values(graph, indices) if read_by.get(ref, set()) - own)
    return Graph(tuple(nodes), outputs, tuple((renumbered[target], renumbered[value]) for target, value in writes))


def _values(graph: Graph, indices: tuple[int, ...]) -> Iterator[Ref]:
    for index in indices:
        yield from (Ref(index, output) for output in range(len(graph.nodes[index].outputs)))
