"""One computation, several spellings: rules for the graphs of whole networks, after the canonical form.

These rules hold at the sizes of the run, and in exact arithmetic: the last bits of a result may differ. So they are
not for graphs that are rebuilt at other sizes. `x * sigmoid(x)` is `silu(x)`; a mean over the whole map is one however
it is pooled; slices joined in their order are the tensor; what a bound never reaches is not bounded.

    x * 1, x + 0, x / 1            -> x
    cat([x[:, :4], x[:, 4:]], 1)   -> x
    relu(max_pool2d(relu(x), 2))   -> max_pool2d(relu(x), 2)
    avg_pool2d(x, 8), of 8 by 8    -> mean(x, (2, 3), keepdim=True)
"""

from lemur_core.graphs.canonical import prune
from lemur_core.graphs.graph import Graph, reachable
from lemur_core.graphs.networks import spelled_formulas, spelled_shapes
from lemur_core.graphs.networks.unified import UnifiedForm

_RULES = (spelled_shapes.rule, spelled_formulas.rule)


def unify(graph: Graph) -> Graph:
    """Return a graph in which further ways to write a computation are one.

    Args: graph: the canonical graph of a network, at fixed sizes.
    """
    form = UnifiedForm(graph, _RULES)
    for index in reachable(graph.nodes, (*graph.results, *(target for target, _ in graph.writes))):
        form.take(index)
    return prune(graph.move(form.nodes, form.of.__getitem__))
