"""Write arithmetic, shapes and new tensors idiomatically: with operators and tensor methods."""

from collections.abc import Sequence

from lemur_core.graphs.symbolic import Dimension, Size, subtract_sizes
from lemur_core.rebuild import functionals  # noqa: F401 (importing it registers its operations)
from lemur_core.rebuild.calls import (
    ATOM,
    CHOICE,
    COMPARE,
    EMITS,
    POWER,
    PRODUCT,
    SUM,
    UNARY,
    UNKNOWN,
    Operation,
    RebuildError,
    Text,
    by_schema,
    dtype_text,
    emits,
    function,
)

_INFIX = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "matmul": ("@", PRODUCT),
    "remainder": ("%", PRODUCT),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "bitwise_and": ("&", CHOICE),
    "bitwise_or": ("|", CHOICE),
}


def expression(call: Operation) -> Text:
    """Write one operation. Raises: RebuildError if there is no way to write it."""
    emit = EMITS.get(call.node.op)
    return emit(call) if emit else by_schema(call)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@emits(*_INFIX)
def _infix(call: Operation) -> Text:
    sign, binds = _INFIX[call.node.op]
    if call.has("rounding_mode"):
        return function(
            "torch.div", call["input"].text, call["other"].text, rounding_mode=call.literal("rounding_mode")
        )
    right = binds + 1  # `a + (b + c)` rounds differently from `a + b + c`
    other = call["other"]
    # A negative number: `x - 1` instead of `x + -1`.
    if not isinstance(call.tensors.get("other"), Text) and other.text.startswith("-") and sign == "+":
        return Text(f"{call['input'].within(binds)} - {other.text[1:]}", binds)
    if binds == CHOICE:
        return Text(f"{call['input'].within(ATOM)} {sign} {other.within(ATOM)}", COMPARE)
    return Text(f"{call['input'].within(binds if binds != COMPARE else SUM)} {sign} {other.within(right)}", binds)


@emits("neg")
def _negative(call: Operation) -> Text:
    return Text(f"-{call['input'].within(POWER)}", UNARY)


@emits("pow")
def _power(call: Operation) -> Text:
    exponent = call.get("exponent")
    if isinstance(exponent, float) and exponent == int(exponent):
        return Text(f"{call.atom()} ** {int(exponent)}", POWER)
    return Text(f"{call['input'].within(ATOM)} ** {call['exponent'].within(POWER)}", POWER)


@emits("logical_not", "bitwise_not")
def _not(call: Operation) -> Text:
    return Text(f"~{call['input'].within(ATOM)}", UNARY)


@emits("cast")
def _cast(call: Operation) -> Text:
    short = {"float32": "float", "int64": "long", "bool": "bool", "float64": "double"}
    dtype = call.get("dtype")
    return (
        function(f"{call.atom()}.{short[dtype]}")
        if dtype in short
        else function(f"{call.atom()}.to", dtype_text(dtype))
    )


@emits("stop_gradient")
def _detach(call: Operation) -> Text:
    return function(f"{call.atom()}.detach")


@emits("custom_gradient")
def _as_it_is(call: Operation) -> Text:
    return call["input"]


@emits("_softmax", "_log_softmax", "softmax", "log_softmax")
def _softmax(call: Operation) -> Text:
    return function(f"{call.atom()}.{call.node.op.lstrip('_')}", call.literal("dim"))


@emits("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "all", "any", "prod")
def _reduce(call: Operation) -> Text:
    dims, op = call.get("dim"), call.node.op
    rank = len(call.kinds["input"].shape)
    named: dict[str, str] = {}
    if call.get("keepdim"):
        named["keepdim"] = "True"
    if op in ("var", "std"):
        correction = call.get("correction")
        if correction is not None and correction != 1:
            named["correction"] = repr(int(correction) if correction == int(correction) else correction)
    if call.get("dtype") and op in ("mean", "sum", "prod"):
        named["dtype"] = dtype_text(call.get("dtype"))
    if dims == tuple(range(rank)) and not named and op != "logsumexp":
        return function(f"{call.atom()}.{op}")
    if type(dims) is tuple and len(dims) == 1:
        dims = dims[0] if dims[0] < rank - 1 or rank == 1 else -1
    return function(f"{call.atom()}.{op}", repr(dims), **named)


@emits("linalg_vector_norm")
def _norm(call: Operation) -> Text:
    named = {"dim": call.literal("dim")} if call.get("dim") is not None else {}
    if call.get("keepdim"):
        named["keepdim"] = "True"
    order = call.get("ord")
    positional = [] if order in (2, None) else [call.literal("ord")]
    return function("torch.linalg.vector_norm", call["input"].text, *positional, **named)


# --- shapes -----------------------------------------------------------------------------------------------------------


@emits("reshape")
def _reshape(call: Operation) -> Text:
    source, target = call.kinds["input"].shape, tuple(call.get("shape"))
    selected = _select(call, source, target)
    if selected:
        return selected
    start = 0
    while start < min(len(source), len(target)) and source[start] == target[start]:
        start += 1
    end = 0
    while end < min(len(source), len(target)) - start and source[-1 - end] == target[-1 - end]:
        end += 1
    before, after = source[start : len(source) - end], target[start : len(target) - end]
    inner = call.atom()
    if not before and after == (1,):
        return function(f"{inner}.unsqueeze", _dim_argument(start, len(target)))
    if not after and before == (1,):
        return function(f"{inner}.squeeze", _dim_argument(start, len(source)))
    if len(after) == 1 and len(before) > 1:
        return function(f"{inner}.flatten", str(start), *([str(start + len(before) - 1)] if end else []))
    if len(before) == 1 and len(after) > 1:
        return function(f"{inner}.unflatten", _dim_argument(start, len(source)), f"({_dims(call, after)})")
    return function(f"{inner}.reshape", _dims(call, target))


def _select(call: Operation, source: Sequence[Dimension], target: Sequence[Dimension]) -> Text | None:
    """Write `x[:, 0]`: select one index of a dimension, which is removed."""
    inner = call.inner
    if inner is None or inner.node.op != "slice":
        return None
    dim = inner.get("dim")
    if source[dim] != 1 or (*source[:dim], *source[dim + 1 :]) != tuple(target):
        return None
    return Text(f"{inner.atom()}[{':, ' * dim}{inner.literal('start')}]", ATOM)


def _dim_argument(dim: int, rank: int) -> str:
    return "-1" if dim == rank - 1 and dim else str(dim)


def _dims(call: Operation, shape: Sequence[Dimension]) -> str:
    """Write the sizes of a shape; the most complicated one becomes -1."""
    texts = [call.number(size, call) for size in shape]
    hard = [index for index, size in enumerate(shape) if isinstance(size, Size)]
    hard = sorted(hard, key=lambda index: (UNKNOWN not in texts[index], -len(texts[index])))
    if hard and 0 not in shape and not (len(texts[hard[0]]) == 1 and len(hard) == 1 and len(shape) > 2):
        texts[hard[0]] = "-1"
    return ", ".join(texts)


@emits("permute")
def _permute(call: Operation) -> Text:
    dims = call.get("dims")
    moved = [index for index, dim in enumerate(dims) if index != dim]
    if len(moved) == 2:
        return function(f"{call.atom()}.transpose", *map(str, moved))
    return function(f"{call.atom()}.permute", ", ".join(map(str, dims)))


@emits("expand")
def _expand(call: Operation) -> Text:
    target, source = tuple(call.get("shape")), call.kinds["input"].shape
    kept = (*(None,) * (len(target) - len(source)), *source)
    texts = ["-1" if size == old else call.number(size, call) for size, old in zip(target, kept, strict=True)]
    return function(f"{call.atom()}.expand", *texts)


@emits("slice")
def _slice(call: Operation) -> Text:
    dim, start, end, step = (call.get(name) for name in ("dim", "start", "end", "step"))
    size = call.kinds["input"].shape[dim]
    first = "" if start == 0 else call.number(start, call)
    last = "" if end == size else _end(call, end, size)
    if UNKNOWN in first and _from_end(start, size):
        first = f"-{_from_end(start, size)}"
    step_text = "" if step == 1 else f":{step}"
    return Text(f"{call.atom()}[{':, ' * dim}{first}:{last}{step_text}]", ATOM)


def _end(call: Operation, end: Dimension, size: Dimension) -> str:
    if isinstance(end, Size) and _from_end(end, size):
        return f"-{_from_end(end, size)}"
    return call.number(end, call)


def _from_end(position: Dimension, size: Dimension) -> int:
    """Return the distance from the end, if it is always the same."""
    if not isinstance(position, Size) or not isinstance(size, Size):
        return 0
    return subtract_sizes(size, position) or 0


@emits("cat")
def _cat(call: Operation) -> Text:
    parts = ", ".join(part.text for part in call.tensors["tensors"])
    dim = call.get("dim")
    return function("torch.cat", f"[{parts}]", *([] if dim == 0 else [str(dim)]))


@emits("index")
def _index(call: Operation) -> Text:
    indices = [":" if item is None else item.text for item in call.tensors["indices"]]
    return Text(f"{call.atom()}[{', '.join(indices)}]", ATOM)


@emits("slice_scatter", "select_scatter", "diagonal_scatter")
def _scatter(call: Operation) -> Text:
    # The end of a slice without one.
    last = 2**63 - 1
    rest = ((name, value) for name, value in call.node.arguments if name not in ("input", "src"))
    named = {
        name: call.number(value, call) for name, value in rest if (name, value) not in (("step", 1), ("end", last))
    }
    return function(f"torch.{call.node.op}", call["input"].text, call["src"].text, **named)


@emits(
    "constant_pad_nd",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "_pad_circular",
)
def _pad(call: Operation) -> Text:
    op = call.node.op
    pads = call.literal("pad" if call.get("pad") is not None else "padding")
    mode = "reflect" if "reflection" in op else "replicate" if "replication" in op else ""
    named = {"mode": repr(mode)} if mode else {}
    value = call.get("value")
    if not mode and value not in (0, None):
        named["value"] = call.literal("value")
    return function("F.pad", call["input"].text, pads, **named)


# --- tensors created without inputs -----------------------------------------------------------------------------------


def _dtype_argument(call: Operation, dtype: str) -> dict[str, str]:
    return {} if dtype == call.like_dtype and call.like else {"dtype": dtype_text(dtype)}


def _device_argument(call: Operation) -> dict[str, str]:
    return {"device": f"{call.like.within(ATOM)}.device"} if call.like else {}


@emits("full")
def _full(call: Operation) -> Text:
    shape = f"({', '.join(call.number(size, call) for size in call.get('shape'))}{',' * (len(call.get('shape')) == 1)})"
    value, dtype = call.get("value"), call.get("dtype")
    name = "zeros" if value == 0 else "ones" if value == 1 else "full"
    positional = [shape] if name != "full" else [shape, call.literal("value")]
    if call.like:
        return function(f"{call.like.within(ATOM)}.new_{name}", *positional, **_dtype_argument(call, dtype))
    return function(f"torch.{name}", *positional, dtype=dtype_text(dtype))


@emits("arange")
def _arange(call: Operation) -> Text:
    start, step = call.get("start"), call.get("step")
    positional = [call.literal("end")]
    if start not in (0, None) or step not in (1, None):
        positional.insert(0, call.literal("start"))
    if step not in (1, None):
        positional.append(call.literal("step"))
    # From integers alone, torch.arange is int64 by default.
    whole = all(isinstance(value, int | Size) for value in (start, call.get("end"), step) if value is not None)
    dtype = call.get("dtype")
    named = {} if dtype == "int64" and whole else {"dtype": dtype_text(dtype)}
    return function("torch.arange", *positional, **named, **_device_argument(call))


@emits("linspace", "logspace", "eye", "rand", "randn", "randint", "empty", "tril_indices", "triu_indices")
def _create(call: Operation) -> Text:
    positional = [call.number(value, call) for name, value in call.node.arguments if name not in ("dtype", "draw")]
    return function(f"torch.{call.node.op}", *positional, dtype=dtype_text(call.get("dtype")), **_device_argument(call))


@emits("uniform", "normal", "bernoulli")
def _draw(call: Operation) -> Text:
    """Write a tensor that is filled in place with random numbers."""
    op = call.node.op
    if isinstance(call.tensors.get("input"), Text):
        return function(f"torch.{op}", call["input"].text)
    if call.get("size") is None:
        return by_schema(call)
    shape = f"({', '.join(call.number(size, call) for size in call.get('size'))}{',' * (len(call.get('size')) == 1)})"
    dtype = call.node.outputs[0].dtype
    empty = f"{call.like.within(ATOM)}.new_empty" if call.like else "torch.empty"
    named = _dtype_argument(call, dtype)
    positional = [
        call.number(value, call) if name not in call.tensors else call[name].text
        for name, value in call.node.arguments
        if name not in ("size", "draw")
    ]
    return function(f"{function(empty, shape, **named).text}.{op}_", *positional)


@emits("constant")
def _constant(call: Operation) -> Text:
    value, kind = call.get("value"), call.node.outputs[0]
    # 64 digits are a digest, stored in place of many values.
    if value is None or (isinstance(value, str) and len(value) == 64):
        raise RebuildError(f"a constant of {kind.dtype} {'×'.join(map(str, kind.shape))} whose values no graph holds")
    # `number` writes tuples, torch.tensor takes lists; the call in `float("inf")` stays as it is.
    text = call.number(value, call).replace("(", "[").replace(",)", "]").replace(")", "]").replace('float["', 'float("')
    return function("torch.tensor", text.replace('"]', '")'), dtype=dtype_text(kind.dtype), **_device_argument(call))
