"""The graph of a whole network while further ways to write a computation become one, and the rules' table."""

from collections.abc import Callable, Sequence
from math import inf

from lemur_core.graphs.canonical import Args, CanonicalForm
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref, replace_refs

#: What a node is instead, from the form, the node and its arguments; None: it stays.
Rule = Callable[["UnifiedForm", Node, Args], Ref | None]
_EVERYWHERE = (-inf, inf)
#: Operations whose results are values of their input, or lie between them.
_BETWEEN = frozenset(
    {"reshape", "permute", "slice", "expand", "mean", "amax", "amin", "index", "index_select", "flip", "roll", "gather"}
    | {"max_pool2d_with_indices", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d", "median"}
)
_RANGES = {
    **dict.fromkeys(("sigmoid", "hardsigmoid", "_softmax", "softmax"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), (-1.0, 1.0)),
    **dict.fromkeys(("relu", "abs", "exp", "softplus", "sqrt", "rsqrt"), (0.0, inf)),
    **dict.fromkeys(("var", "std", "linalg_vector_norm"), (0.0, inf)),
}


class Rules(dict[str, list[Rule]]):
    """Rules by the operation of the nodes that they may replace, in the order in which they are tried."""

    def __call__(self, *ops: str) -> Callable[[Rule], Rule]:
        """Register the decorated rule for these operations."""

        def note(rule: Rule) -> Rule:
            for op in ops:
                self.setdefault(op, []).append(rule)
            return rule

        return note


class UnifiedForm(CanonicalForm):
    """The nodes so far. Args: rules: tables of rules, tried in this order."""

    def __init__(self, graph: Graph, rules: Sequence[Rules]) -> None:
        super().__init__(graph)
        self._rules = rules
        self._bounds: dict[Ref, tuple[float, float]] = {}
        self.read = {ref for node in graph.nodes for ref in node.inputs} | set(graph.results)

    def take(self, place: int) -> None:
        """Add one node of the canonical graph."""
        node = self.graph.nodes[place]
        args: Args = {name: replace_refs(value, self.of.__getitem__) for name, value in node.arguments}
        self.place = place
        for rule in (rule for rules in self._rules for rule in rules.get(node.op, ())):
            ref = rule(self, node, args)
            if ref is not None and self.type(ref) == node.outputs[0]:
                self.of[Ref(place)] = ref
                return
        unique = node.op in LEAVES and node.op not in ("constant", "cotangent")
        for output, ref in enumerate(self.add(node, node.op, args, unique=unique)):
            self.of[Ref(place, output)] = ref

    def only_first(self, node: Node) -> bool:
        """Return whether nothing reads the further outputs of the node that is being taken."""
        return not any(Ref(self.place, output) in self.read for output in range(1, len(node.outputs)))

    def node(self, ref: Argument, *ops: str, **arguments: Argument) -> Node | None:
        """Return the node of a value if it is one of these operations, with these arguments."""
        node = self.nodes[ref.node] if isinstance(ref, Ref) else None
        if node is None or node.op not in ops:
            return None
        return node if all(node.get(name) == value for name, value in arguments.items()) else None

    def behind(self, ref: Argument, *ops: str, **arguments: Argument) -> Ref | None:
        """Return the first value that such a node reads."""
        node = self.node(ref, *ops, **arguments)
        return node.inputs[0] if node is not None else None

    def number(self, value: Argument) -> float | None:
        """Return a number, or that of a tensor filled with one, else None."""
        if isinstance(value, Ref):
            full = self.node(value, "full")
            value = full.get("value") if full else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def operand(self, ref: Argument, *ops: str) -> tuple[Ref, float] | None:
        """Return the tensor and the number that one of these operations combines, in either order."""
        node = self.node(ref, *ops)
        if node is None:
            return None
        one, other = node.get("input"), node.get("other")
        for tensor, number in ((one, other), (other, one)):
            value = self.number(number)
            if isinstance(tensor, Ref) and value is not None and self.type(tensor) == node.outputs[0]:
                return tensor, value
        return None

    def apply(self, node: Node, op: str, source: Ref) -> Ref:
        """Add a node of an operation of one tensor alone."""
        return self.one(node, op, {"input": source})

    def bounds(self, ref: Ref) -> tuple[float, float]:
        """Return bounds of the elements of a value."""
        if ref not in self._bounds:
            self._bounds[ref] = self._find_bounds(self.nodes[ref.node]) if ref.output == 0 else _EVERYWHERE
        return self._bounds[ref]

    def _find_bounds(self, node: Node) -> tuple[float, float]:
        if node.op in _RANGES:
            return _RANGES[node.op]
        if node.op == "full":
            number = self.number(node.get("value"))
            return (number, number) if number is not None else _EVERYWHERE
        if node.op == "clamp":
            low, high = (self.number(node.get(name)) for name in ("min", "max"))
            return -inf if low is None else low, inf if high is None else high
        if node.op == "pow" and node.get("exponent") in (2.0, 4.0):
            return 0.0, inf
        source = node.get("input")
        if node.op in _BETWEEN and isinstance(source, Ref):
            return self.bounds(source)
        if node.op in ("sum", "dropout", "feature_dropout", "avg_pool2d") and isinstance(source, Ref):
            return (0.0, inf) if self.bounds(source)[0] >= 0 else _EVERYWHERE
        if node.op == "cat":
            parts = [self.bounds(part) for part in node.get("tensors")]
            return min(low for low, _ in parts), max(high for _, high in parts)
        if node.op in ("add", "mul", "div"):
            operands = [node.get(name) for name in ("input", "other")]
            lows = [self.bounds(item)[0] if isinstance(item, Ref) else self.number(item) for item in operands]
            return (0.0, inf) if all(low is not None and low >= 0 for low in lows) else _EVERYWHERE
        return _EVERYWHERE
