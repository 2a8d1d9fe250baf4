"""Name values in sentences.

What depends on an input has a number, `{7}` until the sentences have theirs: `the mean of (1)`. Other values are named
by their origin: `a learned value for each channel`, `a fixed tensor of 3×3`, `0.5`.
"""

from collections.abc import Mapping, Sequence

from lemur_core.describe.layouts import Layout
from lemur_core.describe.roles import name_output
from lemur_core.describe.sentences import find_origin, format_number, format_sizes, join_words, name_extent
from lemur_core.graphs.graph import Argument, Graph, Ref


class ValueNames:
    """How sentences name the values of a graph.

    Args:
        reached: the nodes that depend on an input, and the inputs.
        outputs: of the nodes with several outputs, those that are used.
    """

    def __init__(
        self, graph: Graph, layouts: Sequence[Layout], reached: set[int], outputs: Mapping[int, frozenset[int]]
    ) -> None:
        self._graph, self._layouts, self._reached, self._outputs = graph, layouts, reached, outputs

    def name(self, value: Argument, reader: int | None = None) -> str:
        """Return the name of a value or number. Args: reader: the operation that broadcasts it."""
        if not isinstance(value, Ref):
            return format_number(value)
        if value.node not in self._reached:
            return self.name_origin(value.node, reader)
        used = self._outputs.get(value.node, frozenset())
        return f"{name_output(self._graph.nodes[value.node], value, used)}{{{value.node}}}"

    def name_origin(self, index: int, reader: int | None = None) -> str:
        """Describe a value that does not depend on an input. Args: reader: the operation that broadcasts it."""
        node, shape = self._graph.nodes[index], self._graph.nodes[index].outputs[0].shape
        if node.op in ("constant", "full") and isinstance(node.get("value"), int | float):
            return format_number(node.get("value"))
        origin = find_origin(self._graph, index)
        extent = "" if reader is None else name_extent(self._layouts[reader], shape)
        if max(shape, default=1) == 1:
            return f"a {origin} number"
        return f"a {origin} value{extent}" if extent else f"a {origin} tensor of ‹{format_sizes(shape)}›"

    def name_all(self, sources: Sequence[int], reader: int) -> str:
        """Name what an operation reads of other ones."""
        refs = dict.fromkeys(self._graph.nodes[reader].inputs)
        return join_words([self.name(ref) for source in sources for ref in refs if ref.node == source])

    def format_shape(self, index: int) -> str:
        """Return the shape of a value, `N×3×8` if its first dimension is the batch."""
        shape: Sequence[int | str] = self._graph.nodes[index].outputs[0].shape
        return f"‹{format_sizes(['N', *shape[1:]] if self._layouts[index][:1] == 'N' else shape)}›"
