"""One computation, several spellings: rules for the graphs of whole networks, after the canonical form.

These rules hold at the sizes of the run, and in exact arithmetic: the last bits of a result may differ. So they are
not for graphs that are rebuilt at other sizes. `x * sigmoid(x)` is `silu(x)`; a mean over the whole map is one however
it is pooled; slices joined in their order are the tensor; what a bound never reaches is not bounded.

    x * 1, x + 0, x / 1            -> x
    cat([x[:, :4], x[:, 4:]], 1)   -> x
    relu(max_pool2d(relu(x), 2))   -> max_pool2d(relu(x), 2)
    avg_pool2d(x, 8), of 8 by 8    -> mean(x, (2, 3), keepdim=True)
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, isclose, pi, prod, sqrt

from numpy import broadcast_shapes

from lemur_core.graphs.canonical import Args, CanonicalForm, prune
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref, TensorType, reachable, replace_refs

Rule = Callable[["_Unified", Node, Args], Ref | None]
_RULES: dict[str, list[Rule]] = {}
_NEAR = 1e-4  # of the constants in formulas, which people round
_EVERYWHERE = (-inf, inf)
#: Operations whose results are values of their input, or lie between them.
_BETWEEN = frozenset(
    {"reshape", "permute", "slice", "expand", "mean", "amax", "amin", "index", "index_select", "flip", "roll", "gather"}
    | {"max_pool2d_with_indices", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d", "median"}
)
_RANGES = {
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "_softmax": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "relu": (0.0, inf),
    "abs": (0.0, inf),
    "exp": (0.0, inf),
    "softplus": (0.0, inf),
    "sqrt": (0.0, inf),
    "rsqrt": (0.0, inf),
    "var": (0.0, inf),
    "std": (0.0, inf),
    "linalg_vector_norm": (0.0, inf),
}
#: Activations that leave positive numbers as they are.
_RECTIFIERS = frozenset({"relu", "leaky_relu", "abs", "elu", "rrelu_with_noise", "_prelu_kernel"})
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "pow"})


def unify(graph: Graph) -> Graph:
    """Return a graph in which further ways to write a computation are one.

    Args: graph: the canonical graph of a network, at fixed sizes.
    """
    form = _Unified(graph)
    for index in reachable(graph.nodes, (*graph.results, *(target for target, _ in graph.writes))):
        form.take(index)
    writes = tuple((form.of[target], form.of[value]) for target, value in graph.writes)
    unified = replace(graph, nodes=tuple(form.nodes), outputs=form.refs(graph.outputs), writes=writes)
    return prune(replace(unified, reads=form.refs(graph.reads)))


class _Unified(CanonicalForm):
    """The nodes so far, with the rules of this file."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._bounds: dict[Ref, tuple[float, float]] = {}
        self.read = {ref for node in graph.nodes for ref in node.inputs} | set(graph.results)

    def take(self, place: int) -> None:
        """Add one node of the canonical graph."""
        node = self.graph.nodes[place]
        args: Args = {name: replace_refs(value, self.of.__getitem__) for name, value in node.arguments}
        self.place = place
        for rule in _RULES.get(node.op, ()):
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

    def node(self, ref: Argument, *ops: str) -> Node | None:
        """Return the node of a value if it is one of these operations."""
        if not isinstance(ref, Ref):
            return None
        node = self.nodes[ref.node]
        return node if node.op in ops else None

    def number(self, value: Argument) -> float | None:
        """Return a number, or that of a tensor filled with one, else None."""
        if isinstance(value, Ref):
            full = self.node(value, "full")
            value = full.get("value") if full else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def operand(self, node: Node | None) -> tuple[Ref, float] | None:
        """Return the tensor and the number that an operation combines, in either order."""
        if node is None:
            return None
        one, other = node.get("input"), node.get("other")
        for tensor, number in ((one, other), (other, one)):
            value = self.number(number)
            if isinstance(tensor, Ref) and value is not None and self.type(tensor) == node.outputs[0]:
                return tensor, value
        return None

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


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def note(rule: Rule) -> Rule:
        for op in ops:
            _RULES.setdefault(op, []).append(rule)
        return rule

    return note


@_rule("reshape")
def _reshape(form: _Unified, node: Node, args: Args) -> Ref | None:
    return form.reshape(node, args["input"], node.outputs[0].shape)


@_rule("permute")
def _permute(form: _Unified, node: Node, args: Args) -> Ref | None:
    return form.permute(node, args["input"], args["dims"])


# --- what changes nothing -----------------------------------------------------------------------------------------


@_rule("add", "sub", "mul", "div")
def _drop_neutral(form: _Unified, node: Node, args: Args) -> Ref | None:
    neutral = 0.0 if node.op in ("add", "sub") else 1.0
    pairs = [(args["input"], args["other"])]
    pairs += [(args["other"], args["input"])] if node.op in ("add", "mul") else []
    for tensor, number in pairs:
        if isinstance(tensor, Ref) and form.number(number) == neutral and form.type(tensor) == node.outputs[0]:
            return tensor
    return None


@_rule("pow")
def _drop_power(form: _Unified, node: Node, args: Args) -> Ref | None:
    if not isinstance(args["input"], Ref):
        return None
    names = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    exponent = form.number(args["exponent"])
    if exponent in names:
        return _apply(form, node, names[exponent], args["input"])
    return args["input"] if exponent == 1.0 else None


@_rule("constant_pad_nd", *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)))
def _drop_padding(_form: _Unified, _node: Node, args: Args) -> Ref | None:
    return args["input"] if not any(args.get("pad") or args.get("padding") or (0,)) else None


@_rule("cat")
def _join_slices(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Join slices of one tensor that follow each other."""
    dim = args["dim"]
    parts: list[Ref] = []
    for part in args["tensors"]:
        before, one = form.node(parts[-1] if parts else None, "slice"), form.node(part, "slice")
        follows = (
            before is not None
            and one is not None
            and before.inputs == one.inputs
            and (before.get("dim"), before.get("step")) == (one.get("dim"), one.get("step")) == (dim, 1)
            and before.get("end") == one.get("start")
        )
        if follows and before is not None and one is not None:
            parts[-1] = form.slice(node, one.inputs[0], dim, before.get("start"), one.get("end"))
        else:
            parts.append(part)
    if len(parts) == len(args["tensors"]):
        return None
    return parts[0] if len(parts) == 1 else form.one(node, "cat", {"tensors": tuple(parts), "dim": dim})


@_rule("mean", "sum", "amax", "amin", "prod")
def _reduce(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Leave out dimensions of size one; a mean of means, or a sum of sums, is one over all dimensions."""
    source = args["input"]
    before = form.node(source, "reshape")
    inner = form.node(before.inputs[0] if before else source, node.op)
    kind, shape = form.type(source)
    if inner is not None and node.op in ("mean", "sum") and not args.get("dtype") and not inner.get("dtype"):
        kept = inner.get("keepdim")
        dims = inner.get("dim")
        rank = len(form.type(inner.inputs[0]).shape)
        if before is None or kept:
            places = [dim for dim in range(rank) if kept or dim not in dims]
            if len(places) == len(shape):
                both = tuple(sorted({*dims, *(places[dim] for dim in args["dim"])}))
                return _reduce_to(form, node, inner.inputs[0], both)
    wide = tuple(dim for dim in args["dim"] if shape[dim] != 1)
    if len(wide) == len(args["dim"]) or kind != node.outputs[0].dtype:
        return None
    if not wide:
        return form.reshape(node, source, node.outputs[0].shape)
    return _reduce_to(form, node, source, wide)


def _reduce_to(form: _Unified, node: Node, source: Ref, dims: tuple[int, ...]) -> Ref:
    """Reduce dimensions, to the shape of a node."""
    dtype, shape = form.type(source)
    kept = tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    dropped = tuple(size for dim, size in enumerate(shape) if dim not in dims)
    keepdim = node.outputs[0].shape != dropped
    args: Args = {"input": source, "dim": dims, "keepdim": keepdim}
    ref = form.one(node, node.op, args, TensorType(dtype, kept if keepdim else dropped))
    return form.reshape(node, ref, node.outputs[0].shape)


@_rule(*_ELEMENTWISE)
def _broadcast(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Leave out an `expand` that the operation does by itself."""
    changed = dict(args)
    for name, other in (("input", "other"), ("other", "input")):
        expanded = form.node(changed.get(name), "expand")
        if expanded is None or not isinstance(changed.get(other), Ref):
            continue
        shapes = [form.type(expanded.inputs[0]).shape, form.type(changed[other]).shape]
        if broadcast_shapes(*shapes) == node.outputs[0].shape:
            changed[name] = expanded.inputs[0]
    return form.one(node, node.op, changed) if changed != args else None


# --- bounds that are never reached --------------------------------------------------------------------------------


@_rule("hardtanh", "clamp", "clamp_min", "clamp_max", "threshold")
def _clamp(form: _Unified, node: Node, args: Args) -> Ref | None:
    names = {"hardtanh": ("min_val", "max_val"), "threshold": ("threshold", "")}.get(node.op, ("min", "max"))
    low, high = (args.get(name) for name in names)
    if any(isinstance(bound, Ref) for bound in (low, high)):
        return None
    if node.op == "threshold" and (low != 0 or args.get("value") != 0):
        return None
    source: Ref = args["input"]
    least, most = form.bounds(source)
    low = None if low is None or float(low) <= least else float(low)
    high = None if high is None or float(high) >= most else float(high)
    if low is None and high is None:
        return source
    if low == 0 and high is None:
        return _apply(form, node, "relu", source)
    return form.one(node, "clamp", {"input": source, "min": low, "max": high})


@_rule(*_RECTIFIERS)
def _rectify(form: _Unified, node: Node, args: Args) -> Ref | None:
    scaled = node.op == "elu" and any(args.get(name, 1) != 1 for name in ("scale", "input_scale"))
    return args["input"] if form.bounds(args["input"])[0] >= 0 and not scaled else None


# --- pooling and sizes --------------------------------------------------------------------------------------------


@_rule(*(f"{name}{rank}d" for name in ("avg_pool", "_adaptive_avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)))
def _average(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write a mean over the whole map as one, and adaptive pooling to a divisor as plain pooling."""
    rank = int(node.op[-2])
    source: Ref = args["input"]
    shape = form.type(source).shape
    sizes, out = shape[-rank:], node.outputs[0].shape[-rank:]
    if sizes == out and "adaptive" in node.op:
        return source
    plain = "adaptive" in node.op or (
        _each(args.get("padding"), rank) == (0,) * rank and not args.get("divisor_override")
    )
    whole = "adaptive" in node.op or _each(args["kernel_size"], rank) == sizes
    if out == (1,) * rank and plain and whole:
        dims = tuple(range(len(shape) - rank, len(shape)))
        return form.one(node, "mean", {"input": source, "dim": dims, "keepdim": True})
    if "adaptive" in node.op and not any(size % to for size, to in zip(sizes, out, strict=True)):
        kernel = tuple(size // to for size, to in zip(sizes, out, strict=True))
        return form.one(node, f"avg_pool{rank}d", {"input": source, "kernel_size": kernel, "stride": kernel})
    if "adaptive" in node.op:
        return None
    kernel = _each(args["kernel_size"], rank)
    changed = args | {
        "kernel_size": kernel,
        "stride": _each(args.get("stride") or kernel, rank),
        "padding": None if plain else _each(args.get("padding"), rank),
        "count_include_pad": None if plain else args.get("count_include_pad"),
        "ceil_mode": args.get("ceil_mode") or None,
    }
    return form.one(node, node.op, changed) if changed != args else None


@_rule(*(f"{name}{rank}d" for name in ("adaptive_max_pool",) for rank in (1, 2, 3)))
@_rule(*(f"max_pool{rank}d_with_indices" for rank in (1, 2, 3)))
def _maximum(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write a maximum over the whole map as one."""
    rank = int(node.op[node.op.index("pool") + 4])
    shape = form.type(args["input"]).shape
    whole = "adaptive" in node.op or (
        _each(args["kernel_size"], rank) == shape[-rank:]
        and not any(_each(args.get("padding"), rank))
        and _each(args.get("dilation") or 1, rank) == (1,) * rank
    )
    if node.outputs[0].shape[-rank:] != (1,) * rank or not whole or not form.only_first(node):
        return None
    dims = tuple(range(len(shape) - rank, len(shape)))
    return form.one(node, "amax", {"input": args["input"], "dim": dims, "keepdim": True})


def _each(value: Argument, rank: int) -> tuple[int, ...]:
    values = value if isinstance(value, tuple) else (value or 0,)
    return tuple(values) if len(values) == rank else tuple(values) * rank


@_rule("max", "min")
def _extreme(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write the values of `max` over a dimension as `amax`, if its indices are not read."""
    if len(node.outputs) == 2 and form.only_first(node) and isinstance(args.get("dim"), int):
        reduction = {"input": args["input"], "dim": (args["dim"],), "keepdim": bool(args.get("keepdim"))}
        return form.one(node, f"a{node.op}", reduction)
    if len(node.outputs) == 1 and "dim" not in args and "other" not in args:
        dims = tuple(range(len(form.type(args["input"]).shape)))
        return form.one(node, f"a{node.op}", {"input": args["input"], "dim": dims, "keepdim": False})
    return None


@_rule("index")
def _index(form: _Unified, node: Node, args: Args) -> Ref | None:
    chosen = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(chosen) != 1 or form.type(chosen[0][1]).dtype != "int64" or len(form.type(chosen[0][1]).shape) != 1:
        return None
    dim, index = chosen[0]
    return form.one(node, "index_select", {"input": args["input"], "dim": dim, "index": index})


@_rule(*(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d")))
def _interpolate(form: _Unified, node: Node, args: Args) -> Ref | None:
    """State the size of the result alone where a factor says the same."""
    sizes, out = form.type(args["input"]).shape[2:], node.outputs[0].shape[2:]
    stated = args.get("scale_factors") or tuple(v for name, v in args.items() if name.startswith("scales"))
    factors = tuple(float(factor) for factor in stated if isinstance(factor, int | float))
    if factors and (len(factors) != len(sizes) or any(s * f != o for s, f, o in zip(sizes, factors, out, strict=True))):
        return None
    kept = {name: value for name, value in args.items() if not name.startswith("scale")}
    return form.one(node, node.op, kept | {"output_size": out})


@_rule("convolution")
def _pad_inside(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Let a convolution pad with zeros by itself."""
    pad = form.node(args["input"], "constant_pad_nd")
    if pad is None or args["transposed"] or args["padding"] == "same" or form.number(pad.get("value") or 0.0) != 0.0:
        return None
    rank = len(args["kernel"])
    amounts = tuple(pad.get("pad")) + (0,) * (2 * rank - len(pad.get("pad")))
    pairs = [amounts[2 * dim : 2 * dim + 2] for dim in range(rank)]
    if len(amounts) > 2 * rank or any(before != after or before < 0 for before, after in pairs):
        return None
    padding = tuple(old + pair[0] for old, pair in zip(args["padding"], reversed(pairs), strict=True))
    return form.one(node, "convolution", args | {"input": pad.inputs[0], "padding": padding})


@_rule("group_norm")
def _normalize_all(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write one group without weights as normalization of a whole sample."""
    if args["num_groups"] != 1 or args.get("weight") is not None or args.get("bias") is not None:
        return None
    shape = form.type(args["input"]).shape[1:]
    return form.one(node, "layer_norm", {"input": args["input"], "normalized_shape": shape, "eps": args["eps"]})


# --- formulas of named operations ---------------------------------------------------------------------------------


@_rule("mul")
def _square(form: _Unified, node: Node, args: Args) -> Ref | None:
    one, other = args["input"], args["other"]
    if one == other and isinstance(one, Ref):
        return form.one(node, "pow", {"input": one, "exponent": 2.0})
    for power, factor in ((one, other), (other, one)):
        square = form.node(power, "pow")
        if square is not None and square.get("exponent") == 2.0 and square.inputs[0] == factor:
            return form.one(node, "pow", {"input": factor, "exponent": 3.0})
    return None


@_rule("add")
def _double(form: _Unified, node: Node, args: Args) -> Ref | None:
    if args["input"] == args["other"] and isinstance(args["input"], Ref):
        return form.one(node, "mul", {"input": args["input"], "other": 2.0})
    return None


@_rule("mul", "div")
def _activation(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Recognize activations that are products: silu, mish, hardswish, gelu, hardsigmoid."""
    scale, factors = _list_factors(form, node.op, args)
    if len(factors) == 1:
        return _hard_sigmoid(form, node, scale, factors[0])
    written = [args["input"], args["other"]]
    pairs = [(1.0, written)] if node.op == "mul" and all(isinstance(one, Ref) for one in written) else []
    for by, pair in (*pairs, (scale, factors)):
        for x, gate in (pair, pair[::-1]) if len(pair) == 2 else ():
            name = _name_gate(form, x, gate, by)
            if name in ("none", "tanh"):
                return form.one(node, "gelu", {"input": x, "approximate": name})
            if name:
                return _apply(form, node, name, x)
    return None


def _list_factors(form: _Unified, op: str, args: Args) -> tuple[float, list[Ref]]:
    """Return the number and the tensors whose product an operation is: one or two, through products with numbers."""
    scale, factors = 1.0, list[Ref]()
    waiting = [(args["input"], 1), (args["other"], -1 if op == "div" else 1)]
    waiting.sort(key=lambda item: form.number(item[0]) is None)  # numbers first
    while waiting:
        value, power = waiting.pop(0)
        number = form.number(value)
        if number is not None:
            scale *= number**power if number else 0.0
            continue
        if power < 0 or not isinstance(value, Ref):  # a complex number is a text
            return 0.0, []
        inner, pair = form.node(value, "mul", "div"), _list_operand(form, value)
        if pair is not None:
            waiting.insert(0, (pair[0], 1))
            scale *= pair[1]
        elif inner is not None and inner.op == "mul" and not factors and not waiting:
            waiting = [(inner.get("input"), 1), (inner.get("other"), 1)]
            if any(form.node(ref, "mul") and not _list_operand(form, ref) for ref, _ in waiting):
                return scale, [value]
        else:
            factors.append(value)
    return scale, factors


def _name_gate(form: _Unified, x: Ref, gate: Ref, scale: float) -> str | None:
    """Return which activation of x a product with a gate is."""
    node = form.nodes[gate.node]
    if node.op in ("sigmoid", "hardsigmoid") and node.inputs == (x,) and isclose(scale, 1.0):
        return "silu" if node.op == "sigmoid" else "hardswish"
    if node.op == "tanh" and isclose(scale, 1.0):
        inner = form.node(node.inputs[0], "softplus")
        plain = inner is not None and inner.inputs == (x,) and inner.get("beta") in (None, 1, 1.0)
        return "mish" if plain else None
    if node.op == "clamp" and isclose(scale, 1 / 6, rel_tol=_NEAR) and _is_relu6_of(form, node, x):
        return "hardswish"
    plus_one = form.operand(node) if node.op == "add" else None
    if plus_one is None or plus_one[1] != 1.0 or not isclose(scale, 0.5):
        return None
    inside = form.nodes[plus_one[0].node]
    if inside.op == "erf":
        pair = _list_operand(form, inside.inputs[0])
        return "none" if pair is not None and pair[0] == x and isclose(pair[1], sqrt(0.5), rel_tol=_NEAR) else None
    if inside.op == "tanh" and _is_cubic(form, inside.inputs[0], x):
        return "tanh"
    return None


def _list_operand(form: _Unified, ref: Argument) -> tuple[Ref, float] | None:
    """Return the tensor and the factor of a product, or of a quotient by a number."""
    node = form.node(ref, "mul", "div")
    pair = form.operand(node)
    if node is None or pair is None or (node.op == "div" and pair[0] != node.get("input")) or not pair[1]:
        return None
    return (pair[0], 1 / pair[1]) if node.op == "div" else pair


def _is_cubic(form: _Unified, ref: Ref, x: Ref) -> bool:
    """Return whether a value is `sqrt(2 / pi) * (x + 0.044715 * x ** 3)`."""
    pair = _list_operand(form, ref)
    if pair is None or not isclose(pair[1], sqrt(2 / pi), rel_tol=_NEAR):
        return False
    total = form.node(pair[0], "add")
    if total is None or x not in total.inputs or len(total.inputs) != 2:
        return False
    other = total.inputs[1] if total.inputs[0] == x else total.inputs[0]
    term = _list_operand(form, other)
    power = form.node(term[0], "pow") if term is not None else None
    cubic = power is not None and power.get("exponent") == 3.0 and power.inputs == (x,)
    return cubic and term is not None and isclose(term[1], 0.044715, rel_tol=_NEAR)


def _is_relu6_of(form: _Unified, node: Node, x: Ref) -> bool:
    """Return whether a clamp is `relu6(x + 3)`."""
    if (node.get("min"), node.get("max")) != (0.0, 6.0):
        return False
    shifted = form.operand(form.node(node.inputs[0], "add"))
    return shifted == (x, 3.0)


def _hard_sigmoid(form: _Unified, node: Node, scale: float, ref: Ref) -> Ref | None:
    inner = form.node(ref, "clamp")
    if inner is None or not isclose(scale, 1 / 6, rel_tol=_NEAR):
        return None
    shifted = form.operand(form.node(inner.inputs[0], "add"))
    if shifted is None or not _is_relu6_of(form, inner, shifted[0]):
        return None
    return _apply(form, node, "hardsigmoid", shifted[0])


@_rule("reciprocal")
def _sigmoid(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Recognize `1 / (1 + exp(-x))`, and the inverse of a root."""
    root = form.node(args["input"], "sqrt")
    if root is not None:
        return _apply(form, node, "rsqrt", root.inputs[0])
    shifted = form.operand(form.node(args["input"], "add"))
    power = form.node(shifted[0], "exp") if shifted is not None and shifted[1] == 1.0 else None
    negative = form.node(power.inputs[0], "neg") if power is not None else None
    return _apply(form, node, "sigmoid", negative.inputs[0]) if negative is not None else None


@_rule("div")
def _softmax(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Recognize `exp(x) / exp(x).sum(dim, keepdim=True)`, with the largest subtracted or not; and x over a root."""
    one, other = args["input"], args["other"]
    root = form.node(other, "sqrt")
    if root is not None and isinstance(one, Ref):
        inverse = form.one(replace(node, outputs=root.outputs), "rsqrt", {"input": root.inputs[0]})
        return _root_mean_square(form, node, {"input": one, "other": inverse}) or form.one(
            node, "mul", {"input": one, "other": inverse}
        )
    power, total = form.node(one, "exp"), form.node(other, "sum")
    if (
        power is None
        or total is None
        or total.inputs[0] != one
        or not total.get("keepdim")
        or len(total.get("dim")) != 1
    ):
        return None
    x = power.inputs[0]
    (dim,) = total.get("dim")
    shifted = form.node(x, "sub")
    if shifted is not None and len(shifted.inputs) == 2:
        largest = form.nodes[shifted.inputs[1].node]
        largest = form.nodes[largest.inputs[0].node] if largest.op == "stop_gradient" else largest
        if largest.op == "amax" and largest.get("dim") == (dim,) and largest.inputs[0] == shifted.inputs[0]:
            x = shifted.inputs[0]
    return form.one(node, "_softmax", {"input": x, "dim": dim, "half_to_float": False})


@_rule("exp", "log")
def _of_softmax(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Recognize `exp(log_softmax(x))` and `log(softmax(x))`."""
    inner = form.node(args["input"], "_log_softmax" if node.op == "exp" else "_softmax")
    if inner is None:
        return None
    return form.one(node, "_softmax" if node.op == "exp" else "_log_softmax", dict(inner.arguments))


@_rule("_softmax", "_log_softmax")
def _of_logits(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Softmax does not see what it subtracts: `softmax(log_softmax(x))` is `softmax(x)`."""
    inner = form.node(args["input"], "_log_softmax")
    if inner is None or inner.get("dim") != args["dim"]:
        return None
    return form.one(node, node.op, args | {"input": inner.inputs[0]})


@_rule("rms_norm")
def _state_eps(form: _Unified, node: Node, args: Args) -> Ref | None:
    if args.get("eps") is not None:
        return None
    eps = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    dtype = form.type(args["input"]).dtype
    return form.one(node, "rms_norm", args | {"eps": eps[dtype]}) if dtype in eps else None


@_rule("mul")
def _root_mean_square(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Recognize `x * rsqrt(mean(x ** 2, -1, keepdim=True) + eps)`, and its product with a weight."""
    for x, factor in ((args["input"], args["other"]), (args["other"], args["input"])):
        if not isinstance(x, Ref) or not isinstance(factor, Ref):
            continue
        norm = form.node(x, "rms_norm")
        if norm is not None and norm.get("weight") is None and form.type(factor).shape == norm.get("normalized_shape"):
            return form.one(node, "rms_norm", dict(norm.arguments) | {"weight": factor})
        root = form.node(factor, "rsqrt")
        shifted = form.operand(form.node(root.inputs[0], "add")) if root is not None else None
        mean = form.node(shifted[0], "mean") if shifted is not None else None
        power = form.node(mean.inputs[0], "pow") if mean is not None and mean.get("keepdim") else None
        rank = len(form.type(x).shape)
        if power is None or mean is None or shifted is None or power.inputs != (x,) or power.get("exponent") != 2.0:
            continue
        if mean.get("dim") == tuple(range(rank - len(mean.get("dim")), rank)):
            shape = form.type(x).shape[rank - len(mean.get("dim")) :]
            return form.one(node, "rms_norm", {"input": x, "normalized_shape": shape, "eps": shifted[1]})
    return None


@_rule("sqrt")
def _deviation(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write the root of a variance as a deviation."""
    inner = form.node(args["input"], "var")
    return form.one(node, "std", dict(inner.arguments)) if inner is not None else None


@_rule("div")
def _mean_of_sum(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write a sum over its number of elements as a mean."""
    total = form.node(args["input"], "sum")
    if total is None or total.get("dtype") is not None:
        return None
    count = prod(form.type(total.inputs[0]).shape[dim] for dim in total.get("dim"))
    return form.one(node, "mean", dict(total.arguments)) if form.number(args["other"]) == count else None


@_rule("div")
def _by_power_of_two(form: _Unified, node: Node, args: Args) -> Ref | None:
    """Write a quotient by a power of two as a product: it has the same bits."""
    number = form.number(args["other"])
    if (
        number is None
        or not isinstance(args["input"], Ref)
        or args.get("rounding_mode")
        or "float" not in node.outputs[0].dtype
    ):
        return None
    exact = number and float(1 / number).hex().rstrip("0").partition("p")[0].strip("-").rstrip("0") in ("0x1.", "0x1")
    if not exact and not isinstance(args["other"], Ref):
        return None
    return form.one(node, "mul", {"input": args["input"], "other": 1 / number}) if exact else None


def _apply(form: _Unified, node: Node, op: str, source: Ref) -> Ref:
    return form.one(node, op, {"input": source})
