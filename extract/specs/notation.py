"""Neutral notation for Python expressions and annotations: the same values, not written as Python code.

`(3, 4, 6, 3)` is `3×4×6×3`, `dict(type="BN", eps=0.001)` is `type BN; eps 0.001`, `partial(nn.LayerNorm, eps=1e-6)` is
`LayerNorm with eps 1e-06`, `None` is `none`. Long values are described by their length; values known only at run
time are `computed`. Annotations have one spelling: `Optional[Tuple[int, int]]` is `tuple[int, int] | None`.
"""

import ast
import re
from collections.abc import Iterable

from lemur_core.graphs.symbolic import evaluate_formula
from lemur_core.source.scopes import last_name
from lemur_core.source.text import parse_expression

#: The maximum characters of a value and of a type, and tokens of a text; anything longer is only described.
_LONGEST, _LONGEST_TYPE = 100, 80
_TEXT_TOKENS = 5

_CONSTANTS: dict[object, str] = {None: "none", True: "true", False: "false", ...: "unset"}
_TENSORS = {"randn": "tensor", "rand": "positive tensor", "randint": "index tensor", "ones": "tensor of ones"}
_TENSORS |= {"zeros": "tensor of zeros", "empty": "tensor", "full": "tensor"}
_EMPTY = {"dict": "empty mapping", "list": "empty sequence", "tuple": "empty sequence", "set": "empty sequence"}
_TOKEN = re.compile(r"[A-Za-z0-9_]+|\S")  # strict: each letter of another alphabet is a token


def format_value(node: ast.expr) -> str:
    """Return an expression in neutral notation."""
    notation = _value(node)
    if len(notation) <= _LONGEST:
        return notation
    match node:
        case ast.List() | ast.Tuple() | ast.Set():
            return f"sequence of {len(node.elts)} values"
        case ast.Dict():
            return f"mapping of {len(node.keys)} keys"
        case ast.Call():
            return last_name(node.func) or "computed"
    return "computed"


def format_expression(expression: str) -> str:
    """Return the text of an expression in neutral notation; one that is not valid Python is treated as a string."""
    try:
        return format_value(parse_expression(expression))
    except SyntaxError:
        return _text(expression)


def _text(value: str) -> str:
    """Return a short text unchanged; describe a longer or unprintable one by its length."""
    if not value:
        return "empty text"
    if value.isprintable() and value.strip() and len(_TOKEN.findall(value)) <= _TEXT_TOKENS and len(value) <= _LONGEST:
        return value
    return f"text of {len(value)} characters"


def _number(node: ast.expr) -> str | None:
    """Return the value of a number or of arithmetic on numbers; None for anything else."""
    if not isinstance(node, ast.Constant | ast.UnaryOp | ast.BinOp):
        return None
    try:
        return repr(evaluate_formula(ast.unparse(node), {}))
    except ValueError:  # `2 * dim` is computed at run time
        return None


def _value(node: ast.expr) -> str:
    number = _number(node)
    if number is not None:
        return number
    match node:
        case ast.Constant(value=str() as text):
            return _text(text)
        case ast.Constant(value=None | True | False):
            return _CONSTANTS[node.value]
        case ast.Constant(value=value) if value is ...:
            return _CONSTANTS[...]
        case ast.List() | ast.Tuple() | ast.Set():
            # `3×4×6×3` for numbers, `a · b` for other values; nested sequences are enclosed.
            nested = (ast.List, ast.Tuple)
            parts = [
                f"‹{format_value(item)}›" if isinstance(item, nested) else format_value(item) for item in node.elts
            ]
            if len(parts) < 2:
                return f"only {parts[0]}" if parts else _EMPTY["list"]
            return (" · " if None in map(_number, node.elts) else "×").join(parts)
        case ast.Dict():
            keys = ["all of" if key is None else format_value(key) for key in node.keys]
            return _mapping(zip(keys, node.values, strict=True))
        case ast.Call():
            return _call(node)
        case ast.Lambda():
            return "a function"
        case ast.Attribute(attr="name" | "value") if last_name(node.value):  # of a member of an enumeration
            return f"{last_name(node.value)}.{node.attr}"
    return last_name(node) or "computed"


def _mapping(pairs: Iterable[tuple[str, ast.expr]]) -> str:
    return "; ".join(f"{key} {format_value(item)}" for key, item in pairs) or _EMPTY["dict"]


def _call(node: ast.Call) -> str:
    name, args = last_name(node.func), list(node.args)
    named = [(keyword.arg or "all of", keyword.value) for keyword in node.keywords]
    if name in _EMPTY and not args:
        return _mapping(named) if named else _EMPTY[name]
    if name in _TENSORS and isinstance(node.func, ast.Attribute):
        # Its shape is one sequence, or separate numbers.
        shape = next((argument for argument in args if isinstance(argument, ast.Tuple | ast.List)), None)
        sizes = "×".join(format_value(item) for item in (args if shape is None else shape.elts))
        return f"{_TENSORS[name]} {sizes or ('' if shape is None else 'scalar')}".rstrip()
    if name == "partial" and args:
        name, args = format_value(args[0]), args[1:]
    if not name:
        return "computed"
    of = f" of {' · '.join(map(format_value, args))}" if args else ""
    return f"{name}{of}{f' with {_mapping(named)}' if named else ''}"


# --- annotations -----------------------------------------------------------------------------------------------------

_SPELLINGS = {"List": "list", "Tuple": "tuple", "Dict": "dict", "Set": "set", "Type": "type", "": "Any"}


def format_type(node: ast.expr | None) -> str | None:
    """Return an annotation in one spelling, without modules; None if there is none, or it is long."""
    spelling = "" if node is None else _spell_type(node)
    return spelling if 0 < len(spelling) <= _LONGEST_TYPE else None


def infer_type(node: ast.expr | None) -> str | None:
    """Return the type of a default value, if it is obvious."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return type(node.value).__name__
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return infer_type(operand)
        case ast.List() | ast.Tuple() | ast.Dict():
            return type(node).__name__.lower()
    return None


def _spell_type(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            try:
                return _spell_type(parse_expression(text))
            except SyntaxError:
                return "Any"
        case ast.Constant():
            return ast.unparse(node)
        case ast.BinOp(op=ast.BitOr()):
            return _join_types(node.left, node.right)
        case ast.List():
            return f"[{', '.join(map(_spell_type, node.elts))}]"
        case ast.Subscript():
            name = last_name(node.value)
            inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            if name in ("Optional", "Union"):
                return _join_types(*inner, *([ast.Constant(None)] if name == "Optional" else []))
            if name in ("Annotated", "Final", "ClassVar"):
                return _spell_type(inner[0])
            parts = map(ast.unparse if name == "Literal" else _spell_type, inner)
            return f"{_SPELLINGS.get(name, name)}[{', '.join(parts)}]"
    return _SPELLINGS.get(last_name(node), last_name(node))


def _join_types(*nodes: ast.expr) -> str:
    return " | ".join(dict.fromkeys(map(_spell_type, nodes)))
