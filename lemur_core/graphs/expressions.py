"""Operations as a person writes them: one Python expression over `torch`, `F` and the methods of tensors for each."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from lemur_core.graphs.graph import Argument, Node, TensorType
from lemur_core.graphs.symbolic import Dimension, Size, difference

#: Stands around the number of a size that no formula was found for.
UNKNOWN = "\0"


REDUCTIONS = ("none", "mean", "sum")


class RebuildError(Exception):
    """What cannot be written; the message says what, in one line."""


class Text(NamedTuple):
    """An expression, and how tightly it binds: as Python's own levels, `ATOM` the tightest."""

    text: str
    binds: int

    def within(self, binds: int) -> str:
        """With brackets where something that binds so tightly stands around it."""
        return self.text if self.binds >= binds else f"({self.text})"


CHOICE, COMPARE, SUM, PRODUCT, UNARY, POWER, ATOM = range(7)


@dataclass(slots=True)
class Call:
    """One operation to write: its node, and its tensors as text; `kinds` are their types, `inner` what a reshape's
    operand was made by, if that is written nowhere else."""

    node: Node
    tensors: Mapping[str, Any]  # an argument that names tensors: a Text, or a list with None where there is none
    kinds: Mapping[str, TensorType]
    number: Callable[[Argument, "Call"], str]  # literals, and sizes that follow the inputs
    like: Text | None  # an input, for device and type
    like_dtype: str
    inner: "Call | None" = None
    takes: int = 1  # how many of its values are wanted, counted to the last of them

    def __getitem__(self, name: str) -> Text:
        found = self.tensors.get(name)
        if isinstance(found, Text):
            return found
        value = self.node.get(name)
        return Text(self.number(value, self), _binds(value.text) if isinstance(value, Size) else ATOM)

    def get(self, name: str) -> Argument:
        """A literal argument."""
        return self.node.get(name)

    def literal(self, name: str) -> str:
        """A literal argument as text."""
        return self.number(self.node.get(name), self)

    def has(self, name: str) -> bool:
        """Whether an argument is there."""
        return name in self.tensors or self.node.get(name) is not None

    def atom(self, name: str = "input") -> str:
        """A tensor on which a method is called."""
        return self[name].within(ATOM)


def _binds(formula: str) -> int:
    """How tightly a formula binds."""
    match ast.parse(formula, mode="eval").body:
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return SUM
        case ast.BinOp(op=ast.Pow()):
            return POWER
        case ast.BinOp():
            return PRODUCT
        case ast.UnaryOp():
            return UNARY
    return ATOM


Emit = Callable[[Call], Text]
_EMITS: dict[str, Emit] = {}
_FUNCTIONAL = frozenset(
    {
        "relu",
        "relu6",
        "silu",
        "gelu",
        "mish",
        "elu",
        "celu",
        "selu",
        "leaky_relu",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "softplus",
        "softshrink",
        "hardshrink",
        "logsigmoid",
        "glu",
        "rrelu",
        "threshold",
        "one_hot",
        "normalize",
        "pixel_shuffle",
        "pixel_unshuffle",
        "grid_sample",
        "pairwise_distance",
        "cosine_similarity",
        "channel_shuffle",
    }
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
_METHODS = frozenset(
    {
        "mean",
        "sum",
        "amax",
        "amin",
        "var",
        "std",
        "prod",
        "all",
        "any",
        "softmax",
        "log_softmax",
        "cumsum",
        "masked_fill",
        "sqrt",
        "rsqrt",
        "exp",
        "log",
        "abs",
        "sigmoid",
        "tanh",
        "sin",
        "cos",
    }
)


def emits(*ops: str) -> Callable[[Emit], Emit]:
    """Notes how these operations are written."""

    def note(emit: Emit) -> Emit:
        _EMITS.update(dict.fromkeys(ops, emit))
        return emit

    return note


def expression(call: Call) -> Text:
    """One operation as text. Raises: RebuildError if there is no way to write it."""
    emit = _EMITS.get(call.node.op)
    return emit(call) if emit else _by_schema(call)


def one_for_all(value: Argument) -> Argument:
    """`(3, 3)` as 3."""
    return value[0] if type(value) is tuple and value and all(item == value[0] for item in value) else value


def function(name: str, *given: str, **named: str) -> Text:
    """A call."""
    return Text(f"{name}({', '.join([*given, *(f'{key}={value}' for key, value in named.items())])})", ATOM)


def _by_schema(call: Call) -> Text:
    """By the operation's own signature, in `torch`, `F` or as a method."""
    op = call.node.op
    names = {name for name, _ in call.node.arguments} - {"draw"}
    schema = _schema(op, names)
    if schema is None:
        raise RebuildError(f"operation {op} has no public form")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in schema.arguments:
        name = "input" if argument.name == "self" else argument.name
        given = call.get(name)
        default = argument.default_value if argument.has_default_value() else None
        is_tensor = name in call.tensors
        if not is_tensor and (given is None or (argument.has_default_value() and _same(given, default))):
            continue
        if name == "reduction":
            named[name] = repr(REDUCTIONS[given])
            continue
        text = _dtype(given) if name == "dtype" else _argument(call, name)
        if argument.kwarg_only or len(positional) != schema.arguments.index(argument):
            named[name] = text
        else:
            positional.append(text)
    if (op in _FUNCTIONAL or "reduction" in named) and hasattr(functional, op):
        return function(f"F.{op}", *positional, **named)
    first = call.tensors.get("input")
    if op in _METHODS and isinstance(first, Text) and hasattr(torch.Tensor, op):
        return function(f"{first.within(ATOM)}.{op}", *positional[1:], **named)
    if hasattr(torch, op) and not op.startswith("_"):
        return function(f"torch.{op}", *positional, **named)
    for before, place in (("linalg_", "torch.linalg."), ("fft_", "torch.fft."), ("special_", "torch.special.")):
        if op.startswith(before):
            return function(place + op.removeprefix(before), *positional, **named)
    if hasattr(functional, op):
        return function(f"F.{op}", *positional, **named)
    if isinstance(first, Text) and hasattr(torch.Tensor, op):
        return function(f"{first.within(ATOM)}.{op}", *positional[1:], **named)
    raise RebuildError(f"operation {op} has no public form")


def _schema(op: str, names: set[str]) -> Any:
    packet = getattr(torch.ops.aten, op, None)
    if packet is None:
        return None
    fitting = []
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        known = {"input" if argument.name == "self" else argument.name for argument in schema.arguments}
        if names <= known and "out" not in overload:
            fitting.append((len(known), overload, schema))
    return min(fitting, key=lambda item: item[:2])[2] if fitting else None


def _same(given: Argument, default: Any) -> bool:
    return bool(type(given) is not tuple and not isinstance(given, Size) and given == default) or (
        type(given) is tuple and isinstance(default, list) and list(given) == default
    )


def _argument(call: Call, name: str) -> str:
    found = call.tensors.get(name)
    if isinstance(found, list):
        return f"[{', '.join('None' if item is None else item.text for item in found)}]"
    return call[name].text if isinstance(found, Text) else call.literal(name)


def _dtype(name: Argument) -> str:
    return f"torch.{name}"


# --- arithmetic -------------------------------------------------------------------------------------------------------


@emits(*_INFIX)
def _infix(call: Call) -> Text:
    sign, binds = _INFIX[call.node.op]
    if call.has("rounding_mode"):
        return function(
            "torch.div", call["input"].text, call["other"].text, rounding_mode=call.literal("rounding_mode")
        )
    right = binds + 1  # `a + (b + c)` is another sum than `a + b + c`, by its rounding
    other = call["other"]
    if not isinstance(call.tensors.get("other"), Text) and other.text.startswith("-") and sign == "+":
        return Text(f"{call['input'].within(binds)} - {other.text[1:]}", binds)
    if binds == CHOICE:
        return Text(f"{call['input'].within(ATOM)} {sign} {other.within(ATOM)}", COMPARE)
    return Text(f"{call['input'].within(binds if binds != COMPARE else SUM)} {sign} {other.within(right)}", binds)


@emits("neg")
def _negative(call: Call) -> Text:
    return Text(f"-{call['input'].within(POWER)}", UNARY)


@emits("pow")
def _power(call: Call) -> Text:
    exponent = call.get("exponent")
    if isinstance(exponent, float) and exponent == int(exponent):
        return Text(f"{call.atom()} ** {int(exponent)}", POWER)
    return Text(f"{call['input'].within(ATOM)} ** {call['exponent'].within(POWER)}", POWER)


@emits("logical_not", "bitwise_not")
def _not(call: Call) -> Text:
    return Text(f"~{call['input'].within(ATOM)}", UNARY)


@emits("cast")
def _cast(call: Call) -> Text:
    short = {"float32": "float", "int64": "long", "bool": "bool", "float64": "double"}
    dtype = call.get("dtype")
    return function(f"{call.atom()}.{short[dtype]}") if dtype in short else function(f"{call.atom()}.to", _dtype(dtype))


@emits("stop_gradient")
def _detach(call: Call) -> Text:
    return function(f"{call.atom()}.detach")


@emits("custom_gradient")
def _as_it_is(call: Call) -> Text:
    return call["input"]


@emits("_softmax", "_log_softmax", "softmax", "log_softmax")
def _softmax(call: Call) -> Text:
    return function(f"{call.atom()}.{call.node.op.lstrip('_')}", call.literal("dim"))


@emits("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "all", "any", "prod")
def _reduce(call: Call) -> Text:
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
        named["dtype"] = _dtype(call.get("dtype"))
    if dims == tuple(range(rank)) and not named and op != "logsumexp":
        return function(f"{call.atom()}.{op}")
    if type(dims) is tuple and len(dims) == 1:
        dims = dims[0] if dims[0] < rank - 1 or rank == 1 else -1
    return function(f"{call.atom()}.{op}", repr(dims), **named)


@emits("linalg_vector_norm")
def _norm(call: Call) -> Text:
    named = {"dim": call.literal("dim")} if call.get("dim") is not None else {}
    if call.get("keepdim"):
        named["keepdim"] = "True"
    order = call.get("ord")
    given = [] if order in (2, None) else [call.literal("ord")]
    return function("torch.linalg.vector_norm", call["input"].text, *given, **named)


# --- shapes -----------------------------------------------------------------------------------------------------------


@emits("reshape")
def _reshape(call: Call) -> Text:
    source, target = call.kinds["input"].shape, tuple(call.get("shape"))
    selected = _selected(call, source, target)
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
        return function(f"{inner}.unsqueeze", _place(start, len(target)))
    if not after and before == (1,):
        return function(f"{inner}.squeeze", _place(start, len(source)))
    if len(after) == 1 and len(before) > 1:
        return function(f"{inner}.flatten", str(start), *([str(start + len(before) - 1)] if end else []))
    if len(before) == 1 and len(after) > 1:
        return function(f"{inner}.unflatten", _place(start, len(source)), f"({_dims(call, after)})")
    return function(f"{inner}.reshape", _dims(call, target))


def _selected(call: Call, source: Sequence[Dimension], target: Sequence[Dimension]) -> Text | None:
    """`x[:, 0]`: one place of a dimension, which then goes."""
    inner = call.inner
    if inner is None or inner.node.op != "slice":
        return None
    dim = inner.get("dim")
    if source[dim] != 1 or (*source[:dim], *source[dim + 1 :]) != tuple(target):
        return None
    return Text(f"{inner.atom()}[{':, ' * dim}{inner.literal('start')}]", ATOM)


def _place(dim: int, rank: int) -> str:
    return "-1" if dim == rank - 1 and dim else str(dim)


def _dims(call: Call, shape: Sequence[Dimension]) -> str:
    """The sizes of a shape; the one that is worst to say is -1."""
    texts = [call.number(size, call) for size in shape]
    hard = [place for place, size in enumerate(shape) if isinstance(size, Size)]
    hard = sorted(hard, key=lambda place: (UNKNOWN not in texts[place], -len(texts[place])))
    if hard and 0 not in shape and not (len(texts[hard[0]]) == 1 and len(hard) == 1 and len(shape) > 2):
        texts[hard[0]] = "-1"
    return ", ".join(texts)


@emits("permute")
def _permute(call: Call) -> Text:
    dims = call.get("dims")
    moved = [place for place, dim in enumerate(dims) if place != dim]
    if len(moved) == 2:
        return function(f"{call.atom()}.transpose", *map(str, moved))
    return function(f"{call.atom()}.permute", ", ".join(map(str, dims)))


@emits("expand")
def _expand(call: Call) -> Text:
    target, source = tuple(call.get("shape")), call.kinds["input"].shape
    kept = (*(None,) * (len(target) - len(source)), *source)
    texts = ["-1" if size == old else call.number(size, call) for size, old in zip(target, kept, strict=True)]
    return function(f"{call.atom()}.expand", *texts)


@emits("slice")
def _slice(call: Call) -> Text:
    dim, start, end, step = (call.get(name) for name in ("dim", "start", "end", "step"))
    size = call.kinds["input"].shape[dim]
    first = "" if start == 0 else call.number(start, call)
    last = "" if end == size else _end(call, end, size)
    if UNKNOWN in first and _from_end(start, size):
        first = f"-{_from_end(start, size)}"
    every = "" if step == 1 else f":{step}"
    return Text(f"{call.atom()}[{':, ' * dim}{first}:{last}{every}]", ATOM)


def _end(call: Call, end: Dimension, size: Dimension) -> str:
    if isinstance(end, Size) and _from_end(end, size):
        return f"-{_from_end(end, size)}"
    return call.number(end, call)


def _from_end(place: Dimension, size: Dimension) -> int:
    """How far from the end, if that is always the same."""
    if not isinstance(place, Size) or not isinstance(size, Size):
        return 0
    return difference(size, place) or 0


@emits("cat")
def _cat(call: Call) -> Text:
    parts = ", ".join(part.text for part in call.tensors["tensors"])
    dim = call.get("dim")
    return function("torch.cat", f"[{parts}]", *([] if dim == 0 else [str(dim)]))


@emits("index")
def _index(call: Call) -> Text:
    places = [":" if item is None else item.text for item in call.tensors["indices"]]
    return Text(f"{call.atom()}[{', '.join(places)}]", ATOM)


@emits("slice_scatter", "select_scatter", "diagonal_scatter")
def _scatter(call: Call) -> Text:
    last = 2**63 - 1
    given = ((name, value) for name, value in call.node.arguments if name not in ("input", "src"))
    named = {
        name: call.number(value, call) for name, value in given if (name, value) not in (("step", 1), ("end", last))
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
def _pad(call: Call) -> Text:
    op = call.node.op
    pads = call.literal("pad" if call.get("pad") is not None else "padding")
    mode = "reflect" if "reflection" in op else "replicate" if "replication" in op else ""
    named = {"mode": repr(mode)} if mode else {}
    value = call.get("value")
    if not mode and value not in (0, None):
        named["value"] = call.literal("value")
    return function("F.pad", call["input"].text, pads, **named)


# --- made from nothing ------------------------------------------------------------------------------------------------


def _typed(call: Call, dtype: str) -> dict[str, str]:
    return {} if dtype == call.like_dtype and call.like else {"dtype": _dtype(dtype)}


def _device(call: Call) -> dict[str, str]:
    return {"device": f"{call.like.within(ATOM)}.device"} if call.like else {}


@emits("full")
def _full(call: Call) -> Text:
    shape = f"({', '.join(call.number(size, call) for size in call.get('shape'))}{',' * (len(call.get('shape')) == 1)})"
    value, dtype = call.get("value"), call.get("dtype")
    name = "zeros" if value == 0 else "ones" if value == 1 else "full"
    given = [shape] if name != "full" else [shape, call.literal("value")]
    if call.like:
        return function(f"{call.like.within(ATOM)}.new_{name}", *given, **_typed(call, dtype))
    return function(f"torch.{name}", *given, dtype=_dtype(dtype))


@emits("arange")
def _arange(call: Call) -> Text:
    start, step = call.get("start"), call.get("step")
    given = [call.literal("end")]
    if start not in (0, None) or step not in (1, None):
        given.insert(0, call.literal("start"))
    if step not in (1, None):
        given.append(call.literal("step"))
    whole = all(isinstance(value, int | Size) for value in (start, call.get("end"), step) if value is not None)
    dtype = call.get("dtype")
    named = {} if dtype == "int64" and whole else {"dtype": _dtype(dtype)}
    return function("torch.arange", *given, **named, **_device(call))


@emits("linspace", "logspace", "eye", "rand", "randn", "randint", "empty", "tril_indices", "triu_indices")
def _made(call: Call) -> Text:
    given = [call.number(value, call) for name, value in call.node.arguments if name not in ("dtype", "draw")]
    return function(f"torch.{call.node.op}", *given, dtype=_dtype(call.get("dtype")), **_device(call))


@emits("uniform", "normal", "bernoulli")
def _drawn(call: Call) -> Text:
    """What is drawn in place into new memory."""
    op = call.node.op
    if isinstance(call.tensors.get("input"), Text):
        return function(f"torch.{op}", call["input"].text)
    if call.get("size") is None:
        return _by_schema(call)
    shape = f"({', '.join(call.number(size, call) for size in call.get('size'))}{',' * (len(call.get('size')) == 1)})"
    dtype = call.node.outputs[0].dtype
    made = f"{call.like.within(ATOM)}.new_empty" if call.like else "torch.empty"
    named = _typed(call, dtype)
    given = [
        call.number(value, call) if name not in call.tensors else call[name].text
        for name, value in call.node.arguments
        if name not in ("size", "draw")
    ]
    return function(f"{function(made, shape, **named).text}.{op}_", *given)


@emits("constant")
def _constant(call: Call) -> Text:
    value, kind = call.get("value"), call.node.outputs[0]
    if value is None or (isinstance(value, str) and len(value) == 64):
        raise RebuildError(f"a constant of {kind.dtype} {'×'.join(map(str, kind.shape))} whose values no graph holds")
    text = call.number(value, call).replace("(", "[").replace(",)", "]").replace(")", "]").replace('float["', 'float("')
    return function("torch.tensor", text.replace('"]', '")'), dtype=_dtype(kind.dtype), **_device(call))


# --- windows and grids ------------------------------------------------------------------------------------------------


def _window(call: Call) -> list[str]:
    kernel, stride, padding = (one_for_all(call.get(name)) for name in ("kernel_size", "stride", "padding"))
    given = [call.number(kernel, call)]
    if stride not in (None, (), kernel):
        given.append(call.number(stride, call))
    elif padding not in (0, None, ()):
        given.append(call.number(kernel, call))
    if padding not in (0, None, ()):
        given.append(call.number(padding, call))
    return given


@emits(
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool1d_with_indices",
)
def _max_pool(call: Call) -> Text:
    name = call.node.op.removesuffix("_with_indices")
    named = {} if one_for_all(call.get("dilation")) in (None, 1) else {"dilation": call.literal("dilation")}
    if call.get("ceil_mode"):
        named["ceil_mode"] = "True"
    if call.takes > 1:
        named["return_indices"] = "True"
    return function(f"F.{name}", call["input"].text, *_window(call), **named)


@emits("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(call: Call) -> Text:
    named = {}
    if call.get("ceil_mode"):
        named["ceil_mode"] = "True"
    if call.get("count_include_pad") is False:
        named["count_include_pad"] = "False"
    if call.get("divisor_override"):
        named["divisor_override"] = call.literal("divisor_override")
    return function(f"F.{call.node.op}", call["input"].text, *_window(call), **named)


@emits(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
)
def _adaptive(call: Call) -> Text:
    size = call.number(one_for_all(call.get("output_size")), call)
    named = {"return_indices": "True"} if "max" in call.node.op and call.takes > 1 else {}
    return function(f"F.{call.node.op.lstrip('_')}", call["input"].text, size, **named)


_UPSAMPLES = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest-exact",
    "_upsample_nearest_exact2d": "nearest-exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_bicubic2d": "bicubic",
    "upsample_trilinear3d": "trilinear",
    "_upsample_bilinear2d_aa": "bilinear",
    "_upsample_bicubic2d_aa": "bicubic",
}


@emits(*_UPSAMPLES)
def _interpolate(call: Call) -> Text:
    op = call.node.op
    named: dict[str, str] = {}
    factors = call.get("scale_factors") or tuple(
        value for name, value in call.node.arguments if name.startswith("scales") and value is not None
    )
    if factors and not any(isinstance(factor, Size) for factor in factors):
        factor = one_for_all(tuple(factors))
        factor = int(factor) if isinstance(factor, float) and factor == int(factor) else factor
        named["scale_factor"] = call.number(factor, call)
    else:
        named["size"] = call.number(tuple(call.get("output_size") or call.node.outputs[0].shape[2:]), call)
    if _UPSAMPLES[op] != "nearest":
        named["mode"] = repr(_UPSAMPLES[op])
    if call.get("align_corners"):
        named["align_corners"] = "True"
    if op.endswith("_aa"):
        named["antialias"] = "True"
    return function("F.interpolate", call["input"].text, **named)


_SAMPLING = ("'bilinear'", "'nearest'", "'bicubic'"), ("'zeros'", "'border'", "'reflection'")


@emits("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid(call: Call) -> Text:
    mode, padding = call.get("interpolation_mode"), call.get("padding_mode")
    named = {"mode": _SAMPLING[0][mode]} if mode else {}
    if padding:
        named["padding_mode"] = _SAMPLING[1][padding]
    named["align_corners"] = repr(bool(call.get("align_corners")))
    return function("F.grid_sample", call["input"].text, call["grid"].text, **named)


@emits("im2col")
def _unfold(call: Call) -> Text:
    return _folding(call, "F.unfold", [])


@emits("col2im")
def _fold(call: Call) -> Text:
    return _folding(call, "F.fold", [call.literal("output_size")])


def _folding(call: Call, name: str, given: list[str]) -> Text:
    named = {}
    for key, usual in (("dilation", 1), ("padding", 0), ("stride", 1)):
        if one_for_all(call.get(key)) != usual:
            named[key] = call.number(one_for_all(call.get(key)), call)
    return function(name, call["input"].text, *given, call.number(one_for_all(call.get("kernel_size")), call), **named)


@emits("attention")
def _attention(call: Call) -> Text:
    width = call.kinds["query"].shape[-1]
    named = {}
    if "attn_mask" in call.tensors:
        named["attn_mask"] = call["attn_mask"].text
    if call.get("dropout_p"):
        named["dropout_p"] = f"{call.literal('dropout_p')} if self.training else 0.0"
    if call.get("is_causal"):
        named["is_causal"] = "True"
    if isinstance(width, Size) or abs(call.get("scale") * width**0.5 - 1) > 1e-9:
        named["scale"] = call.literal("scale")
    if call.get("enable_gqa"):
        named["enable_gqa"] = "True"
    texts = (call[name].text for name in ("query", "key", "value"))
    return function("F.scaled_dot_product_attention", *texts, **named)


@emits("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Call) -> Text:
    op = call.node.op
    if op == "feature_dropout":
        op = {3: "dropout1d", 5: "dropout3d"}.get(len(call.node.outputs[0].shape), "dropout2d")
    return function(f"F.{op}", call["input"].text, call.literal("p"), "self.training")


@emits("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional(call: Call) -> Text:
    kernel = call.number(one_for_all(call.get("kernel_size")), call)
    named = {"output_size": call.number(one_for_all(call.get("output_size")), call)}
    if call.takes > 1:
        named["return_indices"] = "True"
    return function(
        f"F.{call.node.op}", call["input"].text, kernel, **named, _random_samples=call["random_samples"].text
    )


@emits("nll_loss_forward", "nll_loss2d_forward")
def _likelihood(call: Call) -> Text:
    named = {"weight": call["weight"].text} if "weight" in call.tensors else {}
    if call.get("ignore_index") != -100:
        named["ignore_index"] = call.literal("ignore_index")
    if call.get("reduction") != 1:
        named["reduction"] = repr(REDUCTIONS[call.get("reduction")])
    return function("F.nll_loss", call["input"].text, call["target"].text, **named)


@emits("_weight_norm_interface")
def _weight_norm(call: Call) -> Text:
    return function("torch._weight_norm", call["v"].text, call["g"].text, call.literal("dim"))


@emits("torchvision::deform_conv2d")
def _deformed(call: Call) -> Text:
    named = {}
    for name, key in (("stride", "stride"), ("pad", "padding"), ("dilation", "dilation")):
        value = one_for_all((call.get(f"{name}_h"), call.get(f"{name}_w")))
        if value != (0 if name == "pad" else 1):
            named[key] = call.number(value, call)
    if call.get("use_mask"):
        named["mask"] = call["mask"].text
    given = (call[name].text for name in ("input", "offset", "weight", "bias"))
    return function("torchvision.ops.deform_conv2d", *given, **named)


@emits("torchvision::roi_align", "torchvision::roi_pool", "torchvision::ps_roi_align", "torchvision::ps_roi_pool")
def _regions(call: Call) -> Text:
    op = call.node.op.removeprefix("torchvision::")
    size = call.number(one_for_all((call.get("pooled_height"), call.get("pooled_width"))), call)
    named = {"spatial_scale": call.literal("spatial_scale")}
    named |= {name: call.literal(name) for name in ("sampling_ratio", "aligned") if call.get(name) is not None}
    return function(f"torchvision.ops.{op}", call["input"].text, call["rois"].text, size, **named)


@emits("torchvision::nms")
def _suppressed(call: Call) -> Text:
    given = (call[name].text for name in ("dets", "scores", "iou_threshold"))
    return function("torchvision.ops.nms", *given)


@emits("_trilinear")
def _bilinear(call: Call) -> Text:
    given = [call.get(name) for name in ("expand1", "expand2", "expand3", "sumdim")]
    if given != [(1, 3), (0,), (1, 2), (2, 3)]:
        raise RebuildError("operation _trilinear has no public form")
    return function("F.bilinear", *(call[name].text for name in ("i1", "i3", "i2")))


@emits("elu")
def _elu(call: Call) -> Text:
    alpha, scale, inner = (call.get(name) for name in ("alpha", "scale", "input_scale"))
    if scale not in (None, 1.0):
        if abs(scale - _SELU[0]) > 1e-6 or abs(alpha - _SELU[1]) > 1e-6:
            raise RebuildError("operation elu of this scale has no public form")
        return function("F.selu", call["input"].text)
    if inner not in (None, 1.0):
        return function("F.celu", call["input"].text, repr(alpha))
    return function("F.elu", call["input"].text, *([] if alpha == 1.0 else [repr(alpha)]))


_SELU = 1.0507009873554805, 1.6732632423543772


@emits("_prelu_kernel")
def _prelu(call: Call) -> Text:
    return function("F.prelu", call["input"].text, f"{call.atom('weight')}.flatten()")


@emits("native_channel_shuffle")
def _shuffle(call: Call) -> Text:
    return function("F.channel_shuffle", call["input"].text, call.literal("groups"))


@emits("embedding")
def _embedding(call: Call) -> Text:
    return function("F.embedding", call["indices"].text, call["weight"].text)


@emits("layer_norm", "rms_norm")
def _normalise(call: Call) -> Text:
    shape = call.literal("normalized_shape")
    named = {name: call[name].text for name in ("weight", "bias") if name in call.tensors}
    if call.get("eps") is not None:
        named["eps"] = call.literal("eps")
    return function(f"F.{call.node.op}", call["input"].text, shape, **named)


@emits("group_norm")
def _group_norm(call: Call) -> Text:
    named = {name: call[name].text for name in ("weight", "bias") if name in call.tensors}
    return function("F.group_norm", call["input"].text, call.literal("num_groups"), **named, eps=call.literal("eps"))


@emits("batch_norm", "instance_norm")
def _statistics(call: Call) -> Text:
    flag = "training" if call.node.op == "batch_norm" else "use_input_stats"
    names = ("running_mean", "running_var", "weight", "bias")
    named = {name: call[name].text for name in names if name in call.tensors}
    if call.node.op == "batch_norm" and "running_mean" not in named:
        named |= {"running_mean": "None", "running_var": "None"}
    if (call.node.op == "batch_norm") == bool(call.get(flag)):
        named[flag] = repr(bool(call.get(flag)))
    if call.get("momentum") is not None:
        raise RebuildError(f"{call.node.op} that updates what is no layer of its own")
    return function(f"F.{call.node.op}", call["input"].text, **named, eps=call.literal("eps"))


@emits("linear")
def _linear(call: Call) -> Text:
    given = [call[name].text for name in ("input", "weight", "bias") if name in call.tensors]
    return function("F.linear", *given)


@emits("convolution")
def _convolution(call: Call) -> Text:
    rank = len(call.get("kernel"))
    given = [call[name].text for name in ("input", "weight", "bias") if name in call.tensors]
    name = f"F.conv_transpose{rank}d" if call.get("transposed") else f"F.conv{rank}d"
    return function(name, *given, **convolving(call))


def convolving(call: Call) -> dict[str, str]:
    """What a convolution is told beside its channels and kernel."""
    named = {}
    for key, usual in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1), ("groups", 1)):
        value = one_for_all(call.get(key))
        if value not in (usual, None, ()):
            named[key] = call.number(value, call)
    return named
