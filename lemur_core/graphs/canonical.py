"""Canonical form: different spellings of the same computation become the same nodes.

Every rule preserves the values bit for bit and may change only their layout in memory. Views become `reshape`,
`permute`, `slice` and `expand`; a view of a tensor filled with one number becomes such a tensor; operations without an
effect are removed; equal operations on equal values are merged; nodes that reach no result are dropped. The operands of
commutative operations are sorted last, by their content (`identity.ordered`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod, sqrt
from typing import Any

from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref, TensorType, reachable, refs_in, replace_refs

#: Operations whose two operands may be swapped.
COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "eq", "ne"}
    | {f"{kind}_{name}" for kind in ("logical", "bitwise") for name in ("and", "or", "xor")}
)

_SAME = frozenset({"clone", "alias", "detach", "lift_fresh", "lift", "contiguous", "positive"})
_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze"})
_PRODUCT = frozenset({"mm", "bmm", "mv", "dot"})
_PARTS = frozenset({"split", "split_with_sizes", "unbind", "unsafe_split"})
_REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "var", "std", "logsumexp", "all", "any", "prod"})
_NORMS = frozenset({"batch_norm", "instance_norm"})
_DIMENSIONS = frozenset({"dim", "dims", "dim0", "dim1"})
_CONSTANT_FILLS = dict.fromkeys(("zero", "zeros", "zeros_like", "new_zeros"), 0.0)
_CONSTANT_FILLS |= dict.fromkeys(("ones", "ones_like", "new_ones"), 1.0)
_FULL = dict.fromkeys(("full", "full_like", "new_full"), "fill_value") | {"fill": "value", "scalar_tensor": "s"}
_CREATED = ("arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices", "randn", "rand", "randint")
_LIKE = {"rand_like": "rand", "randn_like": "randn", "empty_like": "empty", "new_empty": "empty"}

_SLICE_END = 2**63 - 1  # the end of a slice without one

Args = dict[str, Argument]


def canonical(graph: Graph) -> Graph:
    """Return the canonical form of a recorded graph.

    Args: graph: the recorded graph of one run; it is not changed.
    Returns: only the operations that lead to outputs and writes; equal operations on equal values are one node.
    """
    form = CanonicalForm(graph)
    for index in reachable(graph.nodes, graph.results):
        form.take(index)
    for target, _ in graph.writes:
        if target not in form.of:  # a buffer that is written, but never read
            form.take(target.node)
    moved = graph.move(form.nodes, form.of.__getitem__)
    return prune(replace(moved, writes=tuple((target, value) for target, value in moved.writes if target != value)))


def prune(graph: Graph) -> Graph:
    """Return a graph without the nodes that lead to no result."""
    # The write to a buffer names it even if nothing reads its old value.
    kept = reachable(graph.nodes, (*graph.results, *(target for target, _ in graph.writes)))
    new_index = {old: new for new, old in enumerate(kept)}

    def renumber(ref: Ref) -> Ref:
        return Ref(new_index[ref.node], ref.output)

    return graph.move([graph.nodes[old].move(renumber) for old in kept], renumber)


class CanonicalForm:
    """The nodes so far; an operation on the same values occurs only once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.of: dict[Ref, Ref] = {}
        self._places: dict[tuple[Any, ...], int] = {}
        self._live: set[int] = set()
        self._draws = 0

    def take(self, index: int) -> None:
        """Add one recorded node to this form."""
        node = self.graph.nodes[index]
        args: Args = {
            "input" if name == "self" else name: replace_refs(value, self.of.__getitem__)
            for name, value in node.arguments
        }
        if "draw" in args:
            # Recorded as the number of a node, which changes if operations are dropped.
            args["draw"], self._draws = self._draws, self._draws + 1
        for output, ref in enumerate(self._values(node, args)):
            self.of[Ref(index, output)] = ref

    def _values(self, node: Node, args: Args) -> Sequence[Ref]:
        if node.op in LEAVES:
            # Two parameters of one shape are two values; equal constants are one.
            return self.add(node, node.op, args, unique=node.op in ("parameter", "buffer", "input"))
        if node.op in _SAME:
            return [args["input"]]
        if node.op in _PARTS:
            return _parts(self, node, args)
        if node.op in _NORMS:
            return self.add(node, node.op, _norm(args))
        if node.op in _RULES:
            return [_RULES[node.op](self, node, args)]
        for name in _DIMENSIONS & args.keys():
            args[name] = self.positive(args[name], args)
        if args.get("stride") == () and "kernel_size" in args:  # of pooling: adjacent windows
            args["stride"] = args["kernel_size"]
        return self.add(node, node.op, args)

    def add(self, node: Node, op: str, args: Mapping[str, Argument], *, unique: bool = False) -> list[Ref]:
        """Add a node with the outputs, scope and classes of another, or return an equal one that exists already."""
        arguments = tuple((name, value) for name, value in args.items() if value is not None)
        key = (op, arguments, node.outputs, len(self.nodes) if unique else None)
        index = self._places.setdefault(key, len(self.nodes))
        if index == len(self.nodes):
            new = replace(node, op=op, arguments=arguments)
            self.nodes.append(new)
            trained = op in ("parameter", "input") and bool(args.get("trained"))
            if trained or (op != "stop_gradient" and any(ref.node in self._live for ref in new.inputs)):
                self._live.add(index)
        return [Ref(index, output) for output in range(len(node.outputs))]

    def one(self, node: Node, op: str, args: Mapping[str, Argument], kind: TensorType | None = None) -> Ref:
        """Add one node with one output."""
        return self.add(replace(node, outputs=(kind or node.outputs[0],)), op, args)[0]

    def type(self, ref: Ref) -> TensorType:
        """Return dtype and shape of a value."""
        return self.nodes[ref.node].outputs[ref.output]

    def is_live(self, ref: Ref) -> bool:
        """Return whether a gradient could flow through a value to a parameter."""
        return ref.node in self._live

    def positive(self, dim: Argument, args: Args) -> Argument:
        """Return dimensions as non-negative indices."""
        first = next((ref for value in args.values() for ref in refs_in(value)), None)
        if first is None:
            return dim
        rank = len(self.type(first).shape)
        if isinstance(dim, tuple):
            return tuple(item % rank if rank else 0 for item in dim)
        return dim % rank if rank and isinstance(dim, int) else dim

    def full(self, node: Node, value: Argument, kind: TensorType) -> Ref:
        """Return a tensor filled with one number."""
        dtype, shape = kind
        return self.one(node, "full", {"shape": shape, "value": _number(value, dtype), "dtype": dtype}, kind)

    def _part(self, node: Node, source: Ref, kind: TensorType, op: str, args: Args) -> Ref:
        """Rearrange the elements of a value; a tensor filled with one number becomes a new one."""
        if self.nodes[source.node].op == "full":
            return self.full(node, self.nodes[source.node].get("value"), kind)
        return self.one(node, op, {"input": source} | args, kind)

    def reshape(self, node: Node, source: Ref, shape: tuple[int, ...]) -> Ref:
        """Return the same elements in another shape."""
        dtype = self.type(source).dtype
        if self.nodes[source.node].op == "reshape":
            source = self.nodes[source.node].inputs[0]
        # A reduction followed by an `unsqueeze` is the reduction with `keepdim`.
        if self.nodes[source.node].op in _REDUCTIONS:
            source = self._match_keepdim(self.nodes[source.node], shape)
        if self.type(source).shape == shape:
            return source
        return self._part(node, source, TensorType(dtype, shape), "reshape", {"shape": shape})

    def _match_keepdim(self, reduction: Node, shape: tuple[int, ...]) -> Ref:
        """Return a reduction with `keepdim` if that results in this shape, else one without."""
        dtype, before = reduction.outputs[0].dtype, self.type(reduction.get("input")).shape
        dims = reduction.get("dim")
        kept = tuple(1 if dim in dims else size for dim, size in enumerate(before))
        dropped = tuple(size for dim, size in enumerate(before) if dim not in dims)
        keeps = shape == kept
        args = dict(reduction.arguments) | {"keepdim": keeps}
        return self.one(reduction, reduction.op, args, TensorType(dtype, kept if keeps else dropped))

    def permute(self, node: Node, source: Ref, dims: tuple[int, ...]) -> Ref:
        """Reorder dimensions."""
        before = self.nodes[source.node]
        if before.op == "permute":
            inner = before.get("dims")
            source, dims = before.inputs[0], tuple(inner[dim] for dim in dims)
        if dims == tuple(range(len(dims))):
            return source
        dtype, shape = self.type(source)
        kind = TensorType(dtype, tuple(shape[dim] for dim in dims))
        return self._part(node, source, kind, "permute", {"dims": dims})

    def slice(self, node: Node, source: Ref, dim: int, start: int, end: int, step: int = 1) -> Ref:
        """Slice one dimension."""
        dtype, shape = self.type(source)
        size = shape[dim]
        # As in Python: negative bounds count from the end, and bounds beyond an end are moved to it.
        start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, end))
        if (start, end, step) == (0, size, 1):
            return source
        count = max(0, -(-(end - start) // step))
        kind = TensorType(dtype, (*shape[:dim], count, *shape[dim + 1 :]))
        return self._part(node, source, kind, "slice", {"dim": dim, "start": start, "end": end, "step": step})

    def expand(self, node: Node, source: Ref, shape: tuple[int, ...]) -> Ref:
        """Broadcast along dimensions of size one."""
        dtype, before = self.type(source)
        if before == shape:
            return source
        return self._part(node, source, TensorType(dtype, shape), "expand", {"shape": shape})

    def cast(self, node: Node, source: Ref, dtype: str) -> Ref:
        """Convert to another dtype."""
        before, shape = self.type(source)
        if before == dtype:
            return source
        return self.one(node, "cast", {"input": source, "dtype": dtype}, TensorType(dtype, shape))


Rule = Callable[[CanonicalForm, Node, Args], Ref]
_RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def note(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(ops, rule))
        return rule

    return note


@_rule(*_RESHAPES)
def _reshape(form: CanonicalForm, node: Node, args: Args) -> Ref:
    dtype = node.outputs[0].dtype
    if form.type(args["input"]).dtype != dtype:  # `view(dtype)`: the same bits, read as other numbers
        return form.one(node, "view_dtype", {"input": args["input"], "dtype": dtype})
    return form.reshape(node, args["input"], node.outputs[0].shape)


@_rule("as_strided")
def _as_strided(form: CanonicalForm, node: Node, args: Args) -> Ref:
    """Keep a view by strides, since it depends on the layout in memory, unless it is the whole tensor unchanged."""
    shape, strides = form.type(args["input"]).shape, args.get("source")
    whole = strides is None and args["size"] == shape and not args.get("storage_offset")
    if whole and args["stride"] == tuple(prod(shape[dim + 1 :]) for dim in range(len(shape))):
        source: Ref = args["input"]
        return source
    return form.one(node, "as_strided", args | {"storage_offset": args.get("storage_offset") or 0})


@_rule("permute", "transpose", "t", "numpy_T", "movedim")
def _permute(form: CanonicalForm, node: Node, args: Args) -> Ref:
    rank = len(node.outputs[0].shape)
    dims = list(range(rank))
    if node.op == "permute":
        dims = list(form.positive(args["dims"], args))
    elif node.op == "transpose":
        first, second = form.positive(args["dim0"], args), form.positive(args["dim1"], args)
        dims[first], dims[second] = dims[second], dims[first]
    else:
        dims.reverse()
    return form.permute(node, args["input"], tuple(dims))


@_rule("expand", "expand_as", "broadcast_to")
def _expand(form: CanonicalForm, node: Node, args: Args) -> Ref:
    return form.expand(node, args["input"], node.outputs[0].shape)


@_rule("slice")
def _slice(form: CanonicalForm, node: Node, args: Args) -> Ref:
    size = form.type(args["input"]).shape[dim := form.positive(args["dim"], args)]
    start, end = args["start"] or 0, size if args["end"] is None else args["end"]
    return form.slice(node, args["input"], dim, start, end, args["step"])


@_rule("slice_scatter")
def _slice_scatter(form: CanonicalForm, node: Node, args: Args) -> Ref:
    whole = {"start": 0, "end": _SLICE_END, "step": 1}
    args |= {name: value for name, value in whole.items() if name in args and args[name] is None}
    size = form.type(args["input"]).shape[form.positive(args["dim"], args)]
    if args["start"] == 0 and args["end"] >= size and args["step"] == 1:  # the source is overwritten completely
        return form.cast(node, args["src"], node.outputs[0].dtype)
    return form.one(node, node.op, args)


@_rule("index_put")
def _index_put(form: CanonicalForm, node: Node, args: Args) -> Ref:
    """Write one number to selected positions: neither their order nor duplicates matter.

    With a mask, this holds only for a scalar: other tensors need one number per true element, which depends on values.
    """
    source = form.nodes[args["values"].node]
    chosen = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if source.op != "full" or isinstance(source.get("value"), Ref) or args["accumulate"] or len(chosen) != 1:
        return form.one(node, node.op, args)
    (dim, index), value = chosen[0], source.get("value")
    dtype, shape = form.type(index)
    if dtype in ("bool", "uint8") and not form.type(args["values"]).shape:
        after = len(node.outputs[0].shape) - dim - len(shape)
        mask = form.reshape(node, index, shape + (1,) * after)
        return _fill_masked(form, node, {"input": args["input"], "mask": mask, "value": value})
    if dtype == "int64":
        positions = form.reshape(node, index, (prod(shape),))
        return _index_fill(form, node, {"input": args["input"], "dim": dim, "index": positions, "value": value})
    return form.one(node, node.op, args)


@_rule("masked_fill")
def _fill_masked(form: CanonicalForm, node: Node, args: Args) -> Ref:
    mask = form.cast(node, args["mask"], "bool")
    value = _number(args["value"], node.outputs[0].dtype)
    return form.one(node, "masked_fill", {"input": args["input"], "mask": mask, "value": value})


@_rule("index_fill")
def _index_fill(form: CanonicalForm, node: Node, args: Args) -> Ref:
    dim, value = form.positive(args["dim"], args), _number(args["value"], node.outputs[0].dtype)
    return form.one(node, "index_fill", args | {"dim": dim, "value": value})


@_rule("select")
def _select(form: CanonicalForm, node: Node, args: Args) -> Ref:
    dim = form.positive(args["dim"], args)
    index = args["index"] % form.type(args["input"]).shape[dim]
    return form.reshape(node, form.slice(node, args["input"], dim, index, index + 1), node.outputs[0].shape)


@_rule("stack")
def _stack(form: CanonicalForm, node: Node, args: Args) -> Ref:
    shape = node.outputs[0].shape
    dim = args["dim"] % len(shape)
    parts = tuple(form.reshape(node, part, (*shape[:dim], 1, *shape[dim + 1 :])) for part in args["tensors"])
    return _cat(form, node, {"tensors": parts, "dim": dim})


@_rule("cat")
def _cat(form: CanonicalForm, node: Node, args: Args) -> Ref:
    # torch.cat skips tensors of shape (0,), whatever the rank of the others.
    parts = tuple(part for part in args["tensors"] if form.type(part).shape != (0,)) or args["tensors"][:1]
    dim = args["dim"] % len(node.outputs[0].shape)
    return form.one(node, "cat", {"tensors": parts, "dim": dim}) if len(parts) > 1 else parts[0]


@_rule("_to_copy")
def _to_copy(form: CanonicalForm, node: Node, args: Args) -> Ref:
    return form.cast(node, args["input"], node.outputs[0].dtype)


@_rule("copy")
def _copy(form: CanonicalForm, node: Node, args: Args) -> Ref:
    dtype, shape = node.outputs[0]
    return form.expand(node, form.cast(node, args["src"], dtype), shape)


@_rule("add", "sub", "rsub")
def _sum(form: CanonicalForm, node: Node, args: Args) -> Ref:
    first, second, factor = args["input"], args["other"], args.get("alpha", 1)
    if factor != 1 and isinstance(second, Ref):
        second = form.one(node, "mul", {"input": second, "other": float(factor)})
    elif factor != 1:
        second *= factor
    if node.op == "rsub":
        first, second = second, first
    return form.one(node, "add" if node.op == "add" else "sub", {"input": first, "other": second})


@_rule("square")
def _square(form: CanonicalForm, node: Node, args: Args) -> Ref:
    return form.one(node, "pow", {"input": args["input"], "exponent": 2.0})


@_rule(*_PRODUCT)
def _product(form: CanonicalForm, node: Node, args: Args) -> Ref:
    first, second = (value for value in args.values() if isinstance(value, Ref))
    return form.one(node, "matmul", {"input": first, "other": second})


@_rule(*_REDUCTIONS)
def _reduce(form: CanonicalForm, node: Node, args: Args) -> Ref:
    rank = len(form.type(args["input"]).shape)
    dims = args.get("dim")
    if dims is None or dims == ():  # in torch, an empty tuple also means all dimensions
        dims = tuple(range(rank))
    dims = form.positive(dims if isinstance(dims, tuple) else (dims,), args)
    return form.one(node, node.op, args | {"dim": tuple(sorted(dims)), "keepdim": bool(args.get("keepdim"))})


@_rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(form: CanonicalForm, node: Node, args: Args) -> Ref:
    drops = args["train"] and args["p"]
    source: Ref = args["input"]
    return form.one(node, node.op, args | {"p": float(args["p"])}) if drops else source


@_rule("stop_gradient")
def _stop(form: CanonicalForm, node: Node, args: Args) -> Ref:
    # No gradient could flow through the value, so there is none to stop.
    return form.one(node, node.op, args) if form.is_live(args["input"]) else args["input"]


@_rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
def _convolution(form: CanonicalForm, node: Node, args: Args) -> Ref:
    kernel = form.type(args["weight"]).shape[2:]

    def expand(value: Argument) -> tuple[int, ...]:
        values = value if isinstance(value, tuple) else (value,)
        return tuple(values) * (len(kernel) // len(values))

    dilation = expand(args["dilation"])
    padding: Argument = args["padding"]
    if padding == "valid":
        padding = 0
    if padding == "same":
        # An odd total is padded by one more at the end, which one number per dimension cannot express.
        total = [rate * (size - 1) for rate, size in zip(dilation, kernel, strict=True)]
        padding = tuple(size // 2 for size in total) if not any(size % 2 for size in total) else padding
    return form.one(
        node,
        "convolution",
        {
            "input": args["input"],
            "weight": args["weight"],
            "bias": args["bias"],
            "kernel": kernel,
            "stride": expand(args["stride"]),
            "padding": padding if padding == "same" else expand(padding),
            "dilation": dilation,
            "groups": args["groups"],
            "transposed": bool(args.get("transposed")) or "transpose" in node.op,
            "output_padding": expand(args.get("output_padding", 0)),
        },
    )


@_rule("scaled_dot_product_attention")
def _attention(form: CanonicalForm, node: Node, args: Args) -> Ref:
    width = form.type(args["query"]).shape[-1]
    scale = 1 / sqrt(width) if args["scale"] is None else float(args["scale"])
    rounded = float(f"{scale:.12g}")  # width ** -0.5 differs from this in the last bit
    return form.one(node, "attention", args | {"scale": rounded, "dropout_p": float(args["dropout_p"])})


@_rule(*_CONSTANT_FILLS, *_FULL)
def _full(form: CanonicalForm, node: Node, args: Args) -> Ref:
    value = _CONSTANT_FILLS[node.op] if node.op in _CONSTANT_FILLS else args[_FULL[node.op]]
    return form.full(node, value, node.outputs[0])


def _number(value: Argument, dtype: str) -> Argument:
    """Convert a number as a tensor of this dtype would: integer types truncate it."""
    if not isinstance(value, int | float):
        return value
    if "float" in dtype or "complex" in dtype:
        return float(value)
    if dtype == "bool":
        return bool(value)
    return int(value) if isfinite(value) else value


@_rule(*_LIKE)
def _like(form: CanonicalForm, node: Node, args: Args) -> Ref:
    dtype, shape = node.outputs[0]
    return form.one(node, _LIKE[node.op], {"size": shape, "dtype": dtype, "draw": args.get("draw")})


@_rule(*_CREATED)
def _create(form: CanonicalForm, node: Node, args: Args) -> Ref:
    if node.op == "arange":
        args = {"start": 0, "step": 1} | args
    return form.one(node, node.op, args | {"dtype": node.outputs[0].dtype})


def _parts(form: CanonicalForm, node: Node, args: Args) -> list[Ref]:
    """Express `split` and similar operations as one slice per part."""
    dim = form.positive(args["dim"], args)
    refs, start = [], 0
    for kind in node.outputs:
        end = start + (1 if node.op == "unbind" else kind.shape[dim])
        refs.append(form.reshape(node, form.slice(node, args["input"], dim, start, end), kind.shape))
        start = end
    return refs


def _norm(args: Args) -> Args:
    """Drop the momentum if no statistics are updated, because they are fixed or not kept."""
    trains = args.get("training") or args.get("use_input_stats")
    return args if trains and args["running_mean"] is not None else args | {"momentum": None}
