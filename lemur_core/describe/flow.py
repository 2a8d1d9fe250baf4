"""The flow of data in a graph: which operations depend on an input, and which value is computed from which."""

from lemur_core.graphs.graph import LEAVES, Graph

MAX_STEPS = 3_000  # of larger graphs, ancestors are not computed: they take a bit for each pair


class DataFlow:
    """The operations of a graph that depend on an input.

    Attributes:
        live: their indices, in order.
        reached: these, and the inputs.
        users: index of a value -> the live operations that read it, in order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.reached: set[int] = set()
        self.live = self._find_live()
        self._ancestors = self._find_ancestors()
        self.users: dict[int, list[int]] = {}
        for place in self.live:
            for ref in self.nodes[place].inputs:
                self.users.setdefault(ref.node, []).append(place)

    def _find_live(self) -> list[int]:
        """Return the operations that depend on an input, in order; all operations if there is no input."""
        reached: set[int] = {place for place, node in enumerate(self.nodes) if node.op == "input"}
        # A part of a network may compute from parameters alone, and would have no description.
        whole = not reached
        backward = {place for place, node in enumerate(self.nodes) if node.op == "cotangent"}
        live = []
        for place, node in enumerate(self.nodes):
            if any(ref.node in backward for ref in node.inputs) and node.op != "custom_gradient":
                backward.add(place)  # custom backward code is not described
            elif node.op not in LEAVES and (whole or any(ref.node in reached for ref in node.inputs)):
                reached.add(place)
                live.append(place)
        self.reached = reached
        return live

    def _find_ancestors(self) -> dict[int, int]:
        """Return the ancestors of each operation, as bits."""
        ancestors: dict[int, int] = {}
        if len(self.live) <= MAX_STEPS:
            for place in sorted(self.reached):
                bits = 1 << place
                for ref in self.nodes[place].inputs:
                    bits |= ancestors.get(ref.node, 0)
                ancestors[place] = bits
        return ancestors

    def leads_to(self, one: int, other: int) -> bool:
        """Return whether the second value is computed from the first one."""
        # Always False in a graph with more than MAX_STEPS operations, whose ancestors are unknown.
        return one != other and bool(self._ancestors.get(other, 0) >> one & 1)
