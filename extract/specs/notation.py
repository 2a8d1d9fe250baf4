"""Neutral notation for Python expressions and annotations: the same values, not written as Python code.

`(3, 4, 6, 3)` is `3×4×6×3`, `dict(type="BN", eps=0.001)` is `type BN; eps 0.001`, `partial(nn.LayerNorm, eps=1e-6)` is
`LayerNorm with eps 1e-06`, `None` is `none`. Long values are described by their length; values known only at run
time are `computed`. Annotations are spelled out: `Optional[Tuple[int, int]]` is `tuple of integer · integer or none`.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence

from lemur_core.source.text import parse_expression

#: The maximum characters of a value and tokens of a text; anything longer is only described.
_LONGEST = 100
_TEXT_TOKENS = 5

_CONSTANTS: dict[object, str] = {None: "none", True: "true", False: "false", ...: "unset"}
_EMPTY = {"dict": "empty mapping", "list": "empty sequence", "tuple": "empty sequence", "set": "empty sequence"}
_TENSORS = {"randn": "tensor", "rand": "positive tensor", "randint": "index tensor", "ones": "tensor of ones"}
_TENSORS |= {"zeros": "tensor of zeros", "empty": "tensor", "full": "tensor"}
_FOLDED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_TOKEN = re.compile(r"[A-Za-z0-9_]+|\S")  # strict: each letter of another alphabet is a token


def format_value(node: ast.expr) -> str:
    """Return an expression in neutral notation."""
    notation = _value(node)
    if len(notation) <= _LONGEST:
        return notation
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return f"sequence of {len(node.elts)} values"
    if isinstance(node, ast.Dict):
        return f"mapping of {len(node.keys)} keys"
    return last_part(node.func) or "computed" if isinstance(node, ast.Call) else "computed"


def format_expression(expression: str) -> str:
    """Return the text of an expression in neutral notation; one that is not valid Python is treated as a string."""
    try:
        return format_value(parse_expression(expression))
    except SyntaxError:
        return format_text(expression)


def last_part(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def format_text(value: str) -> str:
    """Return a short text unchanged; describe a longer or unprintable one by its length."""
    if not value:
        return "empty text"
    if value.isprintable() and value.strip() and len(_TOKEN.findall(value)) <= _TEXT_TOKENS and len(value) <= _LONGEST:
        return value
    return f"text of {len(value)} characters"


def fold_number(node: ast.expr) -> float | None:
    """Return the value of a number or of arithmetic on numbers; None for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = fold_number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and type(node.op) in _FOLDED:
        # Folded only if both sides are numbers: `2 * dim` is computed at run time.
        left, right = fold_number(node.left), fold_number(node.right)
        if left is not None and right is not None:
            try:
                return _FOLDED[type(node.op)](left, right)
            except (ArithmeticError, ValueError):
                return None
    return None


def _value(node: ast.expr) -> str:
    number = fold_number(node)
    if number is not None:
        return _number(number)
    match node:
        case ast.Constant(value=str() as string):
            return format_text(string)
        case ast.Constant(value=bytes() as raw):
            return f"{len(raw)} bytes"
        case ast.Constant():
            return _CONSTANTS.get(node.value, "computed")
        case ast.List() | ast.Tuple() | ast.Set():
            return format_sequence(node.elts)
        case ast.Dict():
            keys = [None if key is None else format_value(key) for key in node.keys]
            return _mapping(list(zip(keys, node.values, strict=True)))
        case ast.Call():
            return _call(node)
        case ast.Lambda():
            return "a function"
        case ast.JoinedStr():
            return "text"
        case ast.Starred():
            return f"all of {format_value(node.value)}"
    return last_part(node) or "computed"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else f"{value.bit_length()} bits"
    return repr(value) if math.isfinite(value) else str(value)


def format_sequence(items: Sequence[ast.expr]) -> str:
    """Return `3×4×6×3` for numbers and `a · b` for other values; nested sequences are enclosed in `‹ ›`."""
    if not items:
        return _EMPTY["list"]
    nested = (ast.List, ast.Tuple)
    parts = [f"‹{format_value(item)}›" if isinstance(item, nested) else format_value(item) for item in items]
    if len(parts) == 1:
        return f"only {parts[0]}"
    return ("×" if all(fold_number(item) is not None for item in items) else " · ").join(parts)


def _mapping(pairs: Sequence[tuple[str | None, ast.expr]]) -> str:
    return "; ".join(f"{key or 'all of'} {format_value(item)}" for key, item in pairs) or _EMPTY["dict"]


def _call(node: ast.Call) -> str:
    name, args = last_part(node.func), list(node.args)
    named = [(keyword.arg, keyword.value) for keyword in node.keywords]
    if name in _EMPTY and not args:
        return _mapping(named) if named else _EMPTY[name]
    if name in _TENSORS and isinstance(node.func, ast.Attribute):
        # Its shape is one sequence, or separate numbers.
        shape = next((argument for argument in args if isinstance(argument, (ast.Tuple, ast.List))), None)
        sizes = "×".join(format_value(item) for item in (args if shape is None else shape.elts))
        return f"{_TENSORS[name]} {sizes or ('' if shape is None else 'scalar')}".rstrip()
    if name == "partial" and args:
        name, args = format_value(args[0]), args[1:]
    if not name:
        return "computed"
    of = f" of {' · '.join(format_value(item) for item in args)}" if args else ""
    return f"{name}{of}{f' with {_mapping(named)}' if named else ''}"


# --- annotations -----------------------------------------------------------------------------------------------------

_LONGEST_TYPE = 80
_TYPES = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "bool": "flag",
    "Tensor": "tensor",
    "Any": "anything",
    "object": "anything",
    "None": "none",
    "Module": "module",
    "Callable": "function",
    "dict": "mapping",
    "list": "sequence",
    "tuple": "tuple",
    "type": "class",
}
_OBVIOUS: dict[type, str] = {bool: "flag", int: "integer", float: "number", str: "text"}
_SEQUENCES = frozenset({"List", "Sequence", "Iterable", "list", "set", "Set", "FrozenSet", "Collection", "Iterator"})
_MAPPINGS = frozenset({"Dict", "Mapping", "dict", "OrderedDict", "MutableMapping", "DefaultDict"})
_TRANSPARENT = frozenset({"Annotated", "Final", "ClassVar", "Required", "NotRequired"})


def format_type(node: ast.expr | None) -> str | None:
    """Return an annotation in words; None if there is none."""
    if node is None:
        return None
    description = _annotation(node)
    if len(description) <= _LONGEST_TYPE:
        return description
    return _word(last_part(node.value)) if isinstance(node, ast.Subscript) else "anything"


def infer_type(node: ast.expr | None) -> str | None:
    """Return the type of a default value in words, if it is obvious."""
    match node:
        case ast.Constant():
            return _OBVIOUS.get(type(node.value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return infer_type(operand)
        case ast.List() | ast.Tuple():
            return "sequence"
        case ast.Dict():
            return "mapping"
    return None


def _annotation(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=None):
            return "none"
        case ast.Constant(value=str() as text):
            try:
                return _annotation(parse_expression(text))
            except SyntaxError:
                return "anything"
        case ast.BinOp(op=ast.BitOr()):
            return _either([node.left, node.right])
        case ast.Subscript():
            inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            return _subscript(last_part(node.value), inner)
    return _word(last_part(node))


def _word(name: str) -> str:
    if name in _SEQUENCES:
        return "sequence"
    if name in _MAPPINGS:
        return "mapping"
    return _TYPES.get(name, _TYPES.get(name.lower(), name)) or "anything"


def _subscript(name: str, inner: list[ast.expr]) -> str:
    if name == "Optional":
        return _either([*inner, ast.Constant(None)])
    if name == "Union":
        return _either(inner)
    if name == "Literal":
        return f"one of {' · '.join(format_value(item) for item in inner)}"
    if name in ("Tuple", "tuple"):
        if len(inner) == 2 and isinstance(inner[1], ast.Constant) and inner[1].value is ...:
            return f"sequence of {_annotation(inner[0])}"
        return f"tuple of {' · '.join(_annotation(item) for item in inner)}"
    if name in _SEQUENCES and inner:
        return f"sequence of {_annotation(inner[0])}"
    if name in _MAPPINGS and len(inner) == 2:
        return f"mapping of {_annotation(inner[0])} to {_annotation(inner[1])}"
    if name in ("Type", "type") and inner:
        return f"class {_annotation(inner[0])}"
    if name in _TRANSPARENT and inner:
        return _annotation(inner[0])
    return _word(name)


def _either(nodes: list[ast.expr]) -> str:
    return " or ".join(dict.fromkeys(map(_annotation, nodes)))
