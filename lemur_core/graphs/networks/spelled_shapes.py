"""One computation, several spellings: shapes, reductions, pooling, and bounds that are never reached."""

from numpy import broadcast_shapes

from lemur_core.graphs.canonical import Args
from lemur_core.graphs.graph import Argument, Node, Ref, TensorType
from lemur_core.graphs.networks.unified import Rules, UnifiedForm

rule = Rules()
#: Activations that leave positive numbers as they are.
_RECTIFIERS = frozenset({"relu", "leaky_relu", "abs", "elu", "rrelu_with_noise", "_prelu_kernel"})
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "pow"})


@rule("reshape")
def _reshape(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    return form.reshape(node, args["input"], node.outputs[0].shape)


@rule("permute")
def _permute(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    return form.permute(node, args["input"], args["dims"])


# --- what changes nothing -----------------------------------------------------------------------------------------


@rule("add", "sub", "mul", "div")
def _drop_neutral(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    neutral = 0.0 if node.op in ("add", "sub") else 1.0
    pairs = [(args["input"], args["other"])]
    pairs += [(args["other"], args["input"])] if node.op in ("add", "mul") else []
    for tensor, number in pairs:
        if isinstance(tensor, Ref) and form.number(number) == neutral and form.type(tensor) == node.outputs[0]:
            return tensor
    return None


@rule("pow")
def _drop_power(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    if not isinstance(args["input"], Ref):
        return None
    names = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    exponent = form.number(args["exponent"])
    if exponent in names:
        return form.apply(node, names[exponent], args["input"])
    return args["input"] if exponent == 1.0 else None


@rule("constant_pad_nd", *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)))
def _drop_padding(_form: UnifiedForm, _node: Node, args: Args) -> Ref | None:
    return args["input"] if not any(args.get("pad") or args.get("padding") or (0,)) else None


@rule("cat")
def _join_slices(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Join slices of one tensor that follow each other."""
    dim = args["dim"]
    parts: list[Ref] = []
    for part in args["tensors"]:
        before, one = (form.node(ref, "slice", dim=dim, step=1) for ref in (parts[-1] if parts else None, part))
        if before and one and before.inputs == one.inputs and before.get("end") == one.get("start"):
            parts[-1] = form.slice(node, one.inputs[0], dim, before.get("start"), one.get("end"))
        else:
            parts.append(part)
    if len(parts) == len(args["tensors"]):
        return None
    return parts[0] if len(parts) == 1 else form.one(node, "cat", {"tensors": tuple(parts), "dim": dim})


@rule("mean", "sum", "amax", "amin", "prod")
def _reduce(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Leave out dimensions of size one; a mean of means, or a sum of sums, is one over all dimensions."""
    source = args["input"]
    before = form.node(source, "reshape")
    inner = form.node(before.inputs[0] if before else source, node.op)
    kind, shape = form.type(source)
    if inner is not None and node.op in ("mean", "sum") and not args.get("dtype") and not inner.get("dtype"):
        kept, dims = inner.get("keepdim"), inner.get("dim")
        places = [dim for dim in range(len(form.type(inner.inputs[0]).shape)) if kept or dim not in dims]
        if (before is None or kept) and len(places) == len(shape):
            both = tuple(sorted({*dims, *(places[dim] for dim in args["dim"])}))
            return _reduce_to(form, node, inner.inputs[0], both)
    wide = tuple(dim for dim in args["dim"] if shape[dim] != 1)
    if len(wide) == len(args["dim"]) or kind != node.outputs[0].dtype:
        return None
    if not wide:
        return form.reshape(node, source, node.outputs[0].shape)
    return _reduce_to(form, node, source, wide)


def _reduce_to(form: UnifiedForm, node: Node, source: Ref, dims: tuple[int, ...]) -> Ref:
    """Reduce dimensions, to the shape of a node."""
    dtype, shape = form.type(source)
    kept = tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    dropped = tuple(size for dim, size in enumerate(shape) if dim not in dims)
    keepdim = node.outputs[0].shape != dropped
    args: Args = {"input": source, "dim": dims, "keepdim": keepdim}
    ref = form.one(node, node.op, args, TensorType(dtype, kept if keepdim else dropped))
    return form.reshape(node, ref, node.outputs[0].shape)


@rule(*_ELEMENTWISE)
def _broadcast(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
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


@rule("hardtanh", "clamp", "clamp_min", "clamp_max", "threshold")
def _clamp(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
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
        return form.apply(node, "relu", source)
    return form.one(node, "clamp", {"input": source, "min": low, "max": high})


@rule(*_RECTIFIERS)
def _rectify(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    scaled = node.op == "elu" and any(args.get(name, 1) != 1 for name in ("scale", "input_scale"))
    return args["input"] if form.bounds(args["input"])[0] >= 0 and not scaled else None


# --- pooling and sizes --------------------------------------------------------------------------------------------


@rule(*(f"{name}{rank}d" for name in ("avg_pool", "_adaptive_avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)))
def _average(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write a mean over the whole map as one, and adaptive pooling to a divisor as plain pooling."""
    rank, is_adaptive = int(node.op[-2]), "adaptive" in node.op
    source: Ref = args["input"]
    shape = form.type(source).shape
    sizes, out = shape[-rank:], node.outputs[0].shape[-rank:]
    if is_adaptive and sizes == out:
        return source
    kernel, padding = (_each(args.get(name), rank) for name in ("kernel_size", "padding"))
    plain = is_adaptive or (not any(padding) and not args.get("divisor_override"))
    if out == (1,) * rank and plain and (is_adaptive or kernel == sizes):
        dims = tuple(range(len(shape) - rank, len(shape)))
        return form.one(node, "mean", {"input": source, "dim": dims, "keepdim": True})
    if is_adaptive:
        if any(size % to for size, to in zip(sizes, out, strict=True)):
            return None
        kernel = tuple(size // to for size, to in zip(sizes, out, strict=True))
        return form.one(node, f"avg_pool{rank}d", {"input": source, "kernel_size": kernel, "stride": kernel})
    changed = args | {
        "kernel_size": kernel,
        "stride": _each(args.get("stride") or kernel, rank),
        "padding": None if plain else padding,
        "count_include_pad": None if plain else args.get("count_include_pad"),
        "ceil_mode": args.get("ceil_mode") or None,
    }
    return form.one(node, node.op, changed) if changed != args else None


@rule(*(name.format(rank) for name in ("adaptive_max_pool{}d", "max_pool{}d_with_indices") for rank in (1, 2, 3)))
def _maximum(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
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


@rule("max", "min")
def _extreme(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """Write the values of `max` over a dimension as `amax`, if its indices are not read."""
    if len(node.outputs) == 2 and form.only_first(node) and isinstance(args.get("dim"), int):
        reduction = {"input": args["input"], "dim": (args["dim"],), "keepdim": bool(args.get("keepdim"))}
        return form.one(node, f"a{node.op}", reduction)
    if len(node.outputs) == 1 and "dim" not in args and "other" not in args:
        dims = tuple(range(len(form.type(args["input"]).shape)))
        return form.one(node, f"a{node.op}", {"input": args["input"], "dim": dims, "keepdim": False})
    return None


@rule("index")
def _index(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    chosen = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(chosen) != 1 or form.type(chosen[0][1]).dtype != "int64" or len(form.type(chosen[0][1]).shape) != 1:
        return None
    dim, index = chosen[0]
    return form.one(node, "index_select", {"input": args["input"], "dim": dim, "index": index})


@rule(*(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d")))
def _interpolate(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
    """State the size of the result alone where a factor says the same."""
    sizes, out = form.type(args["input"]).shape[2:], node.outputs[0].shape[2:]
    stated = args.get("scale_factors") or tuple(v for name, v in args.items() if name.startswith("scales"))
    factors = tuple(float(factor) for factor in stated if isinstance(factor, int | float))
    if factors and (len(factors) != len(sizes) or any(s * f != o for s, f, o in zip(sizes, factors, out, strict=True))):
        return None
    kept = {name: value for name, value in args.items() if not name.startswith("scale")}
    return form.one(node, node.op, kept | {"output_size": out})


@rule("convolution")
def _pad_inside(form: UnifiedForm, node: Node, args: Args) -> Ref | None:
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
