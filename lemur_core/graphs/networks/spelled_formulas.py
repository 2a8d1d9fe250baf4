"""One computation, several spellings: formulas of activations, softmax and norms are the named operations."""

from dataclasses import replace
from math import frexp, isclose, pi, prod, sqrt

from numpy import broadcast_shapes

from lemur_core.graphs.canonical import Args
from lemur_core.graphs.graph import Argument, Node, Ref, TensorType
from lemur_core.graphs.networks.unified import Rules, UnifiedForm

rule = Rules()
_NEAR = 1e-4  # of the constants in formulas, which people round


@rule("group_norm")
def _normalize_all(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write one group without weights as normalization of a whole sample."""
    if args["num_groups"] != 1 or args.get("weight") is not None or args.get("bias") is not None:
        return None
    shape = form.type(args["input"]).shape[1:]
    return form.one(node, "layer_norm", {"input": args["input"], "normalized_shape": shape, "eps": args["eps"]})


# --- formulas of named operations ---------------------------------------------------------------------------------


@rule("mul")
def _square(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    one, other = args["input"], args["other"]
    if one == other and isinstance(one, Ref):
        return form.one(node, "pow", {"input": one, "exponent": 2.0})
    for power, factor in ((one, other), (other, one)):
        if isinstance(factor, Ref) and form.behind(power, "pow", exponent=2.0) == factor:
            return form.one(node, "pow", {"input": factor, "exponent": 3.0})
    return None


@rule("add")
def _double(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    if args["input"] == args["other"] and isinstance(args["input"], Ref):
        return form.one(node, "mul", {"input": args["input"], "other": 2.0})
    return None


@rule("mul", "div")
def _activation(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Recognize activations that are products: silu, mish, hardswish, gelu, hardsigmoid."""
    scale, factors = _list_factors(form, node.op, args)
    if len(factors) == 1:
        x = _find_shifted(form, factors[0]) if isclose(scale, 1 / 6, rel_tol=_NEAR) else None
        return form.apply(node, "hardsigmoid", x) if x is not None else None
    written = [args["input"], args["other"]]
    pairs = [(1.0, written)] if node.op == "mul" and all(isinstance(one, Ref) for one in written) else []
    for by, pair in (*pairs, (scale, factors)):
        for x, gate in (pair, pair[::-1]) if len(pair) == 2 else ():
            name = _name_gate(form, x, gate, by)
            if name in ("none", "tanh"):
                return form.one(node, "gelu", {"input": x, "approximate": name})
            if name:
                return form.apply(node, name, x)
    return None


def _list_factors(form: UnifiedForm, op: str, args: Args) -> tuple[float, list[Ref]]:
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
        inner, pair = form.node(value, "mul"), _list_operand(form, value)
        if pair is not None:
            waiting.insert(0, (pair[0], 1))
            scale *= pair[1]
        elif inner is not None and not factors and not waiting:
            waiting = [(inner.get("input"), 1), (inner.get("other"), 1)]
            if any(form.node(ref, "mul") and not _list_operand(form, ref) for ref, _ in waiting):
                return scale, [value]
        else:
            factors.append(value)
    return scale, factors


def _name_gate(form: UnifiedForm, x: Ref, gate: Ref, scale: float) -> str | None:
    """Return which activation of x a product with a gate is."""
    node = form.nodes[gate.node]
    if node.op in ("sigmoid", "hardsigmoid") and node.inputs == (x,) and isclose(scale, 1.0):
        return "silu" if node.op == "sigmoid" else "hardswish"
    if node.op == "tanh" and isclose(scale, 1.0):
        inner = form.node(node.inputs[0], "softplus")
        plain = inner is not None and inner.inputs == (x,) and inner.get("beta") in (None, 1, 1.0)
        return "mish" if plain else None
    if isclose(scale, 1 / 6, rel_tol=_NEAR) and _find_shifted(form, gate) == x:
        return "hardswish"
    plus_one = form.operand(gate, "add")
    if plus_one is None or plus_one[1] != 1.0 or not isclose(scale, 0.5):
        return None
    pair = _list_operand(form, form.behind(plus_one[0], "erf"))
    if pair is not None:
        return "none" if pair[0] == x and isclose(pair[1], sqrt(0.5), rel_tol=_NEAR) else None
    return "tanh" if _is_cubic(form, form.behind(plus_one[0], "tanh"), x) else None


def _list_operand(form: UnifiedForm, ref: Argument) -> tuple[Ref, float] | None:
    """Return the tensor and the factor of a product, or of a quotient by a number."""
    node, pair = form.node(ref, "mul", "div"), form.operand(ref, "mul", "div")
    if node is None or pair is None or (node.op == "div" and pair[0] != node.get("input")) or not pair[1]:
        return None
    return (pair[0], 1 / pair[1]) if node.op == "div" else pair


def _is_cubic(form: UnifiedForm, ref: Ref | None, x: Ref) -> bool:
    """Return whether a value is `sqrt(2 / pi) * (x + 0.044715 * x ** 3)`."""
    pair = _list_operand(form, ref)
    if pair is None or not isclose(pair[1], sqrt(2 / pi), rel_tol=_NEAR):
        return False
    total = form.node(pair[0], "add")
    if total is None or x not in total.inputs or len(total.inputs) != 2:
        return False
    term = _list_operand(form, total.inputs[1] if total.inputs[0] == x else total.inputs[0])
    cubic = term is not None and form.behind(term[0], "pow", exponent=3.0) == x
    return cubic and term is not None and isclose(term[1], 0.044715, rel_tol=_NEAR)


def _find_shifted(form: UnifiedForm, ref: Ref) -> Ref | None:
    """Return x if a value is `relu6(x + 3)`."""
    shifted = form.operand(form.behind(ref, "clamp", min=0.0, max=6.0), "add")
    return shifted[0] if shifted is not None and shifted[1] == 3.0 else None


@rule("reciprocal")
def _sigmoid(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Recognize `1 / (1 + exp(-x))`, and the inverse of a root."""
    root = form.behind(args["input"], "sqrt")
    if root is not None:
        return form.apply(node, "rsqrt", root)
    shifted = form.operand(args["input"], "add")
    negative = form.behind(shifted[0], "exp") if shifted is not None and shifted[1] == 1.0 else None
    x = form.behind(negative, "neg")
    return form.apply(node, "sigmoid", x) if x is not None else None


@rule("div")
def _softmax(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Recognize `exp(x) / exp(x).sum(dim, keepdim=True)`, with the largest subtracted or not; and x over a root."""
    one, other = args["input"], args["other"]
    root = form.node(other, "sqrt")
    if root is not None and isinstance(one, Ref):
        inverse = form.one(replace(node, outputs=root.outputs), "rsqrt", {"input": root.inputs[0]})
        product = {"input": one, "other": inverse}
        return _root_mean_square(form, node, product) or form.one(node, "mul", product)
    x, total = form.behind(one, "exp"), form.node(other, "sum")
    if x is None or total is None or total.inputs[0] != one or not total.get("keepdim") or len(total.get("dim")) != 1:
        return None
    (dim,) = total.get("dim")
    shifted = form.node(x, "sub")
    if shifted is not None and len(shifted.inputs) == 2:
        source, largest = shifted.inputs
        largest = form.behind(largest, "stop_gradient") or largest
        x = source if form.behind(largest, "amax", dim=(dim,)) == source else x
    return form.one(node, "_softmax", {"input": x, "dim": dim, "half_to_float": False})


@rule("exp", "log")
def _of_softmax(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Recognize `exp(log_softmax(x))` and `log(softmax(x))`."""
    inner = form.node(args["input"], "_log_softmax" if node.op == "exp" else "_softmax")
    if inner is None:
        return None
    return form.one(node, "_softmax" if node.op == "exp" else "_log_softmax", dict(inner.arguments))


@rule("_softmax", "_log_softmax")
def _of_logits(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Softmax does not see what it subtracts: `softmax(log_softmax(x))` is `softmax(x)`."""
    inner = form.behind(args["input"], "_log_softmax", dim=args["dim"])
    return form.one(node, node.op, args | {"input": inner}) if inner is not None else None


@rule("rms_norm")
def _state_eps(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    if args.get("eps") is not None:
        return None
    eps = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    dtype = form.type(args["input"]).dtype
    return form.one(node, "rms_norm", args | {"eps": eps[dtype]}) if dtype in eps else None


@rule("mul")
def _root_mean_square(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Recognize `x * rsqrt(mean(x ** 2, -1, keepdim=True) + eps)`, and its product with a weight."""
    for x, factor in ((args["input"], args["other"]), (args["other"], args["input"])):
        if not isinstance(x, Ref) or not isinstance(factor, Ref):
            continue
        norm = form.node(x, "rms_norm")
        if norm is not None and norm.get("weight") is None and form.type(factor).shape == norm.get("normalized_shape"):
            return form.one(node, "rms_norm", dict(norm.arguments) | {"weight": factor})
        shifted = form.operand(form.behind(factor, "rsqrt"), "add")
        mean = form.node(shifted[0], "mean", keepdim=True) if shifted is not None else None
        if mean is None or shifted is None or form.behind(mean.inputs[0], "pow", exponent=2.0) != x:
            continue
        rank, dims = len(form.type(x).shape), mean.get("dim")
        if dims == tuple(range(rank - len(dims), rank)):
            shape = form.type(x).shape[rank - len(dims) :]
            return form.one(node, "rms_norm", {"input": x, "normalized_shape": shape, "eps": shifted[1]})
    return None


@rule("sqrt")
def _deviation(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write the root of a variance as a deviation."""
    inner = form.node(args["input"], "var")
    return form.one(node, "std", dict(inner.arguments)) if inner is not None else None


@rule("div")
def _mean_of_sum(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write a sum over its number of elements as a mean."""
    total = form.node(args["input"], "sum")
    if total is None or total.get("dtype") is not None:
        return None
    count = prod(form.type(total.inputs[0]).shape[dim] for dim in total.get("dim"))
    return form.one(node, "mean", dict(total.arguments)) if form.number(args["other"]) == count else None


@rule("div")
def _by_power_of_two(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write a quotient by a power of two as a product: it has the same bits."""
    number = form.number(args["other"])
    is_quotient = isinstance(args["input"], Ref) and not args.get("rounding_mode") and "float" in node.outputs[0].dtype
    if not number or not is_quotient or abs(frexp(1 / number)[0]) != 0.5:
        return None
    return form.one(node, "mul", {"input": args["input"], "other": 1 / number})


@rule("addcmul")
def _split_product(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write a product that is added as what it is."""
    factors, value = (args["tensor1"], args["tensor2"]), form.number(args.get("value", 1))
    if value is None:
        return None
    shape = broadcast_shapes(*(form.type(factor).shape for factor in factors))
    kind = TensorType(node.outputs[0].dtype, tuple(shape))
    product = form.one(node, "mul", {"input": factors[0], "other": factors[1]}, kind)
    if value != 1:
        product = form.one(node, "mul", {"input": product, "other": value}, kind)
    return form.one(node, "add", {"input": product, "other": args["input"]})
