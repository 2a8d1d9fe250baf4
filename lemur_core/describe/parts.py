"""Extract single modules of a network: their part of a graph, with values from elsewhere as inputs."""

from collections.abc import Iterator
from itertools import accumulate

from lemur_core.graphs.graph import LEAVES, Graph, Node, Ref


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
        if node.op not in LEAVES and node.scope:
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
