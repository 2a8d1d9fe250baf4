"""Extract single modules of a network: their part of a graph, with values from elsewhere as inputs."""

from collections.abc import Iterator
from itertools import accumulate

from lemur_core.graphs.graph import LEAVES, Graph, Node, Ref, replace_refs


def parts(graph: Graph, least: int = 2) -> dict[str, Graph]:
    """Return the graph of each module by its path, for modules that run at least `least` operations.

    Of modules that run the same operations, keep the outermost. A module that is called several times is one part with
    all its calls. The inputs of a part are numbered in the order in which it reads them; its outputs are the values
    that other operations read.
    """
    inside: dict[str, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        if node.op not in LEAVES and node.scope:
            for path in accumulate(node.scope.split("."), lambda outer, name: f"{outer}.{name}"):
                inside.setdefault(path, []).append(place)
    found: dict[tuple[int, ...], str] = {}
    for path in sorted(inside, key=lambda path: (path.count("."), path)):
        if len(inside[path]) >= least:
            found.setdefault(tuple(inside[path]), path)
    read_by = _readers(graph)
    made = ((path, _part(graph, places, read_by)) for places, path in found.items())
    return {path: part for path, part in made if part.outputs}


def _readers(graph: Graph) -> dict[Ref, set[int]]:
    """Return the nodes that read each value; -1 for returned values."""
    found: dict[Ref, set[int]] = {}
    for place, node in enumerate(graph.nodes):
        for ref in node.inputs:
            found.setdefault(ref, set()).add(place)
    for ref in graph.outputs:
        found.setdefault(ref, set()).add(-1)
    return found


def _part(graph: Graph, places: tuple[int, ...], read_by: dict[Ref, set[int]]) -> Graph:
    own = set(places)
    nodes: list[Node] = []
    of: dict[Ref, Ref] = {}
    inputs = 0
    writes = [(target, value) for target, value in graph.writes if value.node in own]
    for place in places:
        for ref in graph.nodes[place].inputs:
            if ref in of:
                continue
            node = graph.nodes[ref.node]
            if node.op in LEAVES and node.op != "input":
                nodes.append(node)
            else:
                nodes.append(Node("input", (("number", inputs),), (graph.type_of(ref),)))
                inputs += 1
            of[ref] = Ref(len(nodes) - 1)
        node = graph.nodes[place]
        given = tuple((name, replace_refs(value, of.__getitem__)) for name, value in node.arguments)
        nodes.append(Node(node.op, given, node.outputs, node.scope))
        of |= {Ref(place, output): Ref(len(nodes) - 1, output) for output in range(len(node.outputs))}
    for target, _ in writes:
        if target not in of:
            nodes.append(graph.nodes[target.node])
            of[target] = Ref(len(nodes) - 1)
    outputs = tuple(of[ref] for ref in _values(graph, places) if read_by.get(ref, set()) - own)
    return Graph(tuple(nodes), outputs, tuple((of[target], of[value]) for target, value in writes))


def _values(graph: Graph, places: tuple[int, ...]) -> Iterator[Ref]:
    for place in places:
        yield from (Ref(place, output) for output in range(len(graph.nodes[place].outputs)))
