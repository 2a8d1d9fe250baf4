"""Operators and built-in functions applied to what is known."""

import ast
import operator
from collections.abc import Callable, Sequence

from extract.hints.values import MOST_ITEMS, UNKNOWN, Expr, Instance, Partial, Times, bounded, is_plain

_BINARY: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_UNARY: dict[type[ast.unaryop], Callable[..., object]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_BUILTINS: dict[str, Callable[..., object]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "round": round,
    "abs": abs,
    "max": max,
    "min": min,
    "sum": sum,
    "len": len,
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "range": lambda *args: list(_short(range(*args))),
    "enumerate": lambda items: list(enumerate(items)),
    "zip": lambda *items: list(zip(*items, strict=False)),
    "reversed": lambda items: list(reversed(items)),
    "set": lambda items=(): sorted(set(items)),
}
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict)}
#: Functions that give the class of a name, and a class as it is.
_NAMED_LAYERS_OF = frozenset({"get_act_layer", "get_norm_layer", "get_norm_act_layer", "get_aa_layer"})
_NAMED_LAYERS = {
    "relu": Expr("nn.ReLU"),
    "relu6": Expr("nn.ReLU6"),
    "leaky_relu": Expr("nn.LeakyReLU"),
    "gelu": Expr("nn.GELU"),
    "silu": Expr("nn.SiLU"),
    "swish": Expr("nn.SiLU"),
    "hard_swish": Expr("nn.Hardswish"),
    "hard_sigmoid": Expr("nn.Hardsigmoid"),
    "sigmoid": Expr("nn.Sigmoid"),
    "tanh": Expr("nn.Tanh"),
    "batchnorm": Expr("nn.BatchNorm2d"),
    "batchnorm2d": Expr("nn.BatchNorm2d"),
    "layernorm": Expr("nn.LayerNorm"),
}
_FAULTS = (TypeError, ValueError, ZeroDivisionError, OverflowError, LookupError, AttributeError)


def binary(kind: ast.operator, left: object, right: object) -> object:
    """`left kind right`."""
    function = _BINARY.get(type(kind))
    lists = isinstance(left, list | tuple) and isinstance(right, list | tuple | int)
    if function is None or not (lists or (is_plain(left) and is_plain(right))):
        return UNKNOWN
    if isinstance(kind, ast.Pow) and not (isinstance(right, int | float) and abs(right) < 64):
        return UNKNOWN
    sizes = [value for value in (left, right) if isinstance(value, int)]
    if isinstance(left, str | list | tuple) and any(size > MOST_ITEMS for size in sizes):
        return UNKNOWN
    return _apply(function, left, right)


def unary(kind: ast.unaryop, value: object) -> object:
    """`kind value`."""
    if isinstance(kind, ast.Not):
        known = truth(value)
        return UNKNOWN if known is None else not known
    function = _UNARY[type(kind)]
    return _apply(function, value) if is_plain(value) else UNKNOWN


def compare(kind: ast.cmpop, left: object, right: object) -> object:
    """`left kind right`."""
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(kind, ast.Is | ast.IsNot):
        if left is None or right is None or isinstance(right, bool):
            return (left is right) == isinstance(kind, ast.Is)
        return (left == right) == isinstance(kind, ast.Is) if isinstance(left, Expr) else UNKNOWN
    classes = isinstance(left, Expr) and isinstance(right, Expr) and isinstance(kind, ast.Eq | ast.NotEq)
    if not classes and not (is_plain(left) and is_plain(right)):
        return UNKNOWN
    return _apply(_COMPARE[type(kind)], left, right)


def truth(value: object) -> bool | None:
    """Whether a value counts as true; None where that is unknown."""
    if isinstance(value, Expr | Partial | Instance):
        return True
    if value is UNKNOWN or not (value is None or isinstance(value, bool | int | float | str | list | tuple | dict)):
        return None
    return bool(value)


def subscript(value: object, index: object) -> object:
    """`value[index]`."""
    if isinstance(value, str | list | tuple | dict) and isinstance(index, int | str | slice):
        return _apply(operator.getitem, value, index)
    return UNKNOWN


def call_builtin(name: str, args: Sequence[object]) -> object:
    """A built-in function, or one of the small helpers that every codebase has."""
    if name == "isinstance" and len(args) == 2:
        return _is_instance(*args)
    if name.lstrip("_") in {"to_2tuple", "pair", "to_3tuple", "triple", "to_1tuple", "single"} and len(args) == 1:
        times = 3 if name.lstrip("_") in {"to_3tuple", "triple"} else 1 if "1" in name or "single" in name else 2
        return repeated(args[0], times)
    if name in {"to_ntuple", "_ntuple"} and len(args) == 1 and isinstance(args[0], int):
        return Times(args[0])
    if name == "calculate_drop_path_rates" and len(args) >= 2:
        return _drop_rates(*args[:3])
    if name in _NAMED_LAYERS_OF and args:
        return _NAMED_LAYERS.get(args[0], UNKNOWN) if isinstance(args[0], str) else args[0]
    if name in {"make_divisible", "_make_divisible"} and 1 <= len(args) <= 2:
        return _divisible(*args)
    sequences = name in {"len", "list", "tuple", "enumerate", "zip", "reversed"}
    if name not in _BUILTINS or not (sequences or all(is_plain(value) for value in args)):
        return UNKNOWN
    if sequences and not all(isinstance(value, list | tuple | dict | str) for value in args):
        return UNKNOWN
    return _apply(_BUILTINS[name], *args)


def repeated(value: object, count: int) -> object:
    """A value as a tuple of so many; a sequence stays as it is."""
    if isinstance(value, list | tuple):
        return tuple(value)
    return UNKNOWN if value is UNKNOWN else bounded((value,) * count)


def linspace(args: Sequence[object]) -> object:
    """`torch.linspace(start, end, steps)` as a list."""
    if len(args) != 3 or not isinstance(args[2], int) or not 0 < args[2] <= MOST_ITEMS:
        return UNKNOWN
    start, end = args[0], args[1]
    if not isinstance(start, int | float) or not isinstance(end, int | float):
        return UNKNOWN
    step = (end - start) / max(1, args[2] - 1)
    return [round(start + number * step, 4) for number in range(args[2])]


def split(items: Sequence[object], sizes: object) -> object:
    """The items in groups of these sizes, as `Tensor.split` gives them."""
    if not isinstance(sizes, list | tuple) or not all(isinstance(size, int) for size in sizes):
        return UNKNOWN
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [list(items[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _drop_rates(rate: object, depths: object, stagewise: object = False) -> object:
    """timm's rates of stochastic depth: for each layer, in groups by stage where depths are given by stage."""
    if isinstance(depths, int):
        return linspace([0.0, rate, depths])
    if not isinstance(depths, list | tuple) or stagewise is not False:
        return UNKNOWN
    total = call_builtin("sum", [depths])
    rates = linspace([0.0, rate, total])
    return split(rates, depths) if isinstance(rates, list) else UNKNOWN


def _divisible(value: object, divisor: object = 8) -> object:
    """The nearest multiple, as MobileNet's code has it; it does not go down by more than 10%."""
    if not isinstance(value, int | float) or not isinstance(divisor, int) or divisor <= 0:
        return UNKNOWN
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


def _is_instance(value: object, kind: object) -> object:
    kinds = kind if isinstance(kind, tuple | list) else [kind]
    if not is_plain(value):
        return UNKNOWN if not isinstance(value, list | tuple | dict) else _matches(value, kinds)
    return _matches(value, kinds)


def _matches(value: object, kinds: Sequence[object]) -> object:
    known = [_TYPES.get(item.text) for item in kinds if isinstance(item, Expr)]
    if any(isinstance(value, item) for item in known if item is not None):
        return True
    named = [item.text.rpartition(".")[2] for item in kinds if isinstance(item, Expr)]
    if isinstance(value, list | tuple) and any(name in {"Sequence", "Iterable"} for name in named):
        return True
    return False if len(named) == len(kinds) else UNKNOWN


def _apply(function: Callable[..., object], *args: object) -> object:
    try:
        return bounded(function(*args))
    except _FAULTS:
        return UNKNOWN


def _short(items: range) -> range:
    return items[:MOST_ITEMS]
