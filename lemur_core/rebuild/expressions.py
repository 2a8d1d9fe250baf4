"""Write arithmetic, shapes and new tensors idiomatically: with operators and tensor methods."""

from collections.abc import Sequence

from lemur_core.graphs.symbolic import Dimension, Size, subtract_sizes
from lemur_core.rebuild import functionals  # noqa: F401 (importing it registers its operations)
from lemur_core.rebuild.calls import (
    ATOM,
    CHOICE,
    COMPARE,
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


# --- arithmetic -------------------------------------------------------------------------------------------------------


@emits(*_INFIX)
def _infix(call: Operation) -> Text:
    sign, binds = _INFIX[call.node.op]
    if call.has("rounding_mode"):
        return function(
            "torch.div", *(call[name].text for name in ("input", "other")), **call.options(rounding_mode=None)
        )
    other = call["other"]
    # A negative number: `x - 1` instead of `x + -1`.
    if not isinstance(call.tensors.get("other"), Text) and other.text.startswith("-") and sign == "+":
        return Text(f"{call['input'].within(binds)} - {other.text[1:]}", binds)
    if binds == CHOICE:
        return Text(f"{call['input'].within(ATOM)} {sign} {other.within(ATOM)}", COMPARE)
    left = call["input"].within(binds if binds != COMPARE else SUM)
    return Text(f"{left} {sign} {other.within(binds + 1)}", binds)  # `a + (b + c)` rounds differently from `a + b + c`


@emits("neg")
def _negative(call: Operation) -> Text:
    return Text(f"-{call['input'].within(POWER)}", UNARY)


@emits("pow")
def _power(call: Operation) -> Text:
    exponent = call.get("exponent")
    if isinstance(exponent, float) and exponent == int(exponent):
        return Text(f"{call.atom()} ** {int(exponent)}", POWER)
    return Text(f"{call.atom()} ** {call['exponent'].within(POWER)}", POWER)


@emits("logical_not", "bitwise_not")
def _not(call: Operation) -> Text:
    return Text(f"~{call.atom()}", UNARY)


_CASTS = {"float32": "float", "int64": "long", "bool": "bool", "float64": "double"}


@emits("cast")
def _cast(call: Operation) -> Text:
    dtype = call.get("dtype")
    return call.method(_CASTS[dtype]) if dtype in _CASTS else call.method("to", dtype_text(dtype))


@emits("stop_gradient")
def _detach(call: Operation) -> Text:
    return call.method("detach")


@emits("custom_gradient")
def _as_it_is(call: Operation) -> Text:
    return call["input"]


@emits("softmax", "log_softmax")
def _softmax(call: Operation) -> Text:
    return call.method(call.node.op.lstrip("_"), call.literal("dim"))


@emits("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "all", "any", "prod")
def _reduce(call: Operation) -> Text:
    dims, op = call.get("dim"), call.node.op
    rank = len(call.kinds["input"].shape)
    named = call.options(keepdim=False)
    correction = call.get("correction") if op in ("var", "std") else None
    if correction not in (None, 1):
        named["correction"] = repr(int(correction) if correction == int(correction) else correction)
    if call.get("dtype") and op in ("mean", "sum", "prod"):
        named["dtype"] = dtype_text(call.get("dtype"))
    if dims == tuple(range(rank)) and not named and op != "logsumexp":
        return call.method(op)
    if type(dims) is tuple and len(dims) == 1:
        dims = dims[0] if dims[0] < rank - 1 or rank == 1 else -1
    return call.method(op, repr(dims), **named)


@emits("linalg_vector_norm")
def _norm(call: Operation) -> Text:
    named = {"dim": call.literal("dim")} if call.get("dim") is not None else {}
    named |= call.options(keepdim=False)
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
    if not before and after == (1,):
        return call.method("unsqueeze", _dim_argument(start, len(target)))
    if not after and before == (1,):
        return call.method("squeeze", _dim_argument(start, len(source)))
    if len(after) == 1 and len(before) > 1:
        return call.method("flatten", str(start), *([str(start + len(before) - 1)] if end else []))
    if len(before) == 1 and len(after) > 1:
        return call.method("unflatten", _dim_argument(start, len(source)), f"({_dims(call, after)})")
    return call.method("reshape", _dims(call, target))


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
        return call.method("transpose", *map(str, moved))
    return call.method("permute", *map(str, dims))


@emits("expand")
def _expand(call: Operation) -> Text:
    target, source = tuple(call.get("shape")), call.kinds["input"].shape
    kept = (*(None,) * (len(target) - len(source)), *source)
    texts = ["-1" if size == old else call.number(size, call) for size, old in zip(target, kept, strict=True)]
    return call.method("expand", *texts)


@emits("slice")
def _slice(call: Operation) -> Text:
    dim, start, end, step = (call.get(name) for name in ("dim", "start", "end", "step"))
    size = call.kinds["input"].shape[dim]
    first = "" if start == 0 else call.number(start, call)
    if UNKNOWN in first and (distance := _from_end(start, size)):
        first = f"-{distance}"
    distance = _from_end(end, size)
    last = "" if end == size else f"-{distance}" if distance else call.number(end, call)
    step_text = "" if step == 1 else f":{step}"
    return Text(f"{call.atom()}[{':, ' * dim}{first}:{last}{step_text}]", ATOM)


def _from_end(position: Dimension, size: Dimension) -> int:
    """Return the distance from the end, if it is always the same."""
    both_vary = isinstance(position, Size) and isinstance(size, Size)
    return (subtract_sizes(size, position) or 0) if both_vary else 0


@emits("cat")
def _cat(call: Operation) -> Text:
    parts = ", ".join(part.text for part in call.tensors["tensors"])
    dim = call.get("dim")
    return function("torch.cat", f"[{parts}]", *([] if dim == 0 else [str(dim)]))


@emits("index")
def _index(call: Operation) -> Text:
    indices = [":" if item is None else item.text for item in call.tensors["indices"]]
    return Text(f"{call.atom()}[{', '.join(indices)}]", ATOM)


_SLICE_END = 2**63 - 1  # the end of a slice without one


@emits("slice_scatter", "select_scatter", "diagonal_scatter")
def _scatter(call: Operation) -> Text:
    skipped = (("step", 1), ("end", _SLICE_END))
    rest = (item for item in call.node.arguments if item[0] not in ("input", "src") and item not in skipped)
    named = {name: call.number(value, call) for name, value in rest}
    return function(f"torch.{call.node.op}", call["input"].text, call["src"].text, **named)


@emits("constant_pad_nd", "reflection_pad", "replication_pad", "pad_circular")
def _pad(call: Operation) -> Text:
    op = call.node.op
    pads = call.literal("pad" if call.get("pad") is not None else "padding")
    mode = "reflect" if "reflection" in op else "replicate" if "replication" in op else ""
    named = {"mode": repr(mode)} if mode else call.options(value=0)
    return function("F.pad", call["input"].text, pads, **named)


# --- tensors created without inputs -----------------------------------------------------------------------------------


def _dtype_argument(call: Operation, dtype: str) -> dict[str, str]:
    return {} if call.like and dtype == call.like_dtype else {"dtype": dtype_text(dtype)}


def _device_argument(call: Operation) -> dict[str, str]:
    return {"device": f"{call.like.within(ATOM)}.device"} if call.like else {}


@emits("full")
def _full(call: Operation) -> Text:
    value, dtype = call.get("value"), call.get("dtype")
    name = "zeros" if value == 0 else "ones" if value == 1 else "full"
    positional = [call.literal("shape"), *([call.literal("value")] if name == "full" else [])]
    if call.like:
        return function(f"{call.like.within(ATOM)}.new_{name}", *positional, **_dtype_argument(call, dtype))
    return function(f"torch.{name}", *positional, dtype=dtype_text(dtype))


@emits("arange")
def _arange(call: Operation) -> Text:
    start, step = call.get("start"), call.get("step")
    names = (
        ["start", "end", "step"] if step not in (1, None) else ["start", "end"] if start not in (0, None) else ["end"]
    )
    positional = map(call.literal, names)
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
    empty = f"{call.like.within(ATOM)}.new_empty" if call.like else "torch.empty"
    tensor = function(empty, call.literal("size"), **_dtype_argument(call, call.node.outputs[0].dtype))
    positional = [call[name].text for name, _ in call.node.arguments if name not in ("size", "draw")]
    return function(f"{tensor.text}.{op}_", *positional)


@emits("constant")
def _constant(call: Operation) -> Text:
    value, kind = call.get("value"), call.node.outputs[0]
    # 64 digits are a digest, stored in place of many values.
    if value is None or (isinstance(value, str) and len(value) == 64):
        raise RebuildError(f"a constant of {kind.dtype} {'×'.join(map(str, kind.shape))} whose values no graph holds")
    # `number` writes tuples, torch.tensor takes lists; the call in `float("inf")` stays as it is.
    text = call.number(value, call).replace("(", "[").replace(",)", "]").replace(")", "]").replace('float["', 'float("')
    return function("torch.tensor", text.replace('"]', '")'), dtype=dtype_text(kind.dtype), **_device_argument(call))
