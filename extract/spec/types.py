"""Annotations in plain words: `Optional[Tuple[int, int]]` is `tuple of integer · integer or none`."""

import ast

from extract.spec.notation import name_of, value_of

_LONGEST = 80
_WORDS = {
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
_SEQUENCES = frozenset({"List", "Sequence", "Iterable", "list", "set", "Set", "FrozenSet", "Collection", "Iterator"})
_MAPPINGS = frozenset({"Dict", "Mapping", "dict", "OrderedDict", "MutableMapping", "DefaultDict"})
_TRANSPARENT = frozenset({"Annotated", "Final", "ClassVar", "Required", "NotRequired"})


def type_of(node: ast.expr | None) -> str | None:
    """An annotation in words; None for none."""
    if node is None:
        return None
    told = _told(node)
    return told if len(told) <= _LONGEST else _outer(node)


def type_of_default(node: ast.expr | None) -> str | None:
    """What a default says of its type, where that is plain."""
    match node:
        case ast.Constant(value=bool()):
            return "flag"
        case ast.Constant(value=int()):
            return "integer"
        case ast.Constant(value=float()):
            return "number"
        case ast.Constant(value=str()):
            return "text"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return type_of_default(operand)
        case ast.List() | ast.Tuple():
            return "sequence"
        case ast.Dict():
            return "mapping"
    return None


def _told(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=None):
            return "none"
        case ast.Constant(value=str() as inner):
            try:
                return _told(ast.parse(inner.strip(), mode="eval").body)
            except (SyntaxError, ValueError, RecursionError):
                return "anything"
        case ast.BinOp(op=ast.BitOr()):
            return _either([node.left, node.right])
        case ast.Subscript():
            return _subscript(name_of(node.value), _inner(node))
    return _word(name_of(node))


def _word(name: str) -> str:
    if name in _SEQUENCES:
        return "sequence"
    if name in _MAPPINGS:
        return "mapping"
    return _WORDS.get(name, _WORDS.get(name.lower(), name)) or "anything"


def _outer(node: ast.expr) -> str:
    return _word(name_of(node.value)) if isinstance(node, ast.Subscript) else "anything"


def _inner(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _subscript(name: str, inner: list[ast.expr]) -> str:
    if name == "Optional":
        return _either([*inner, ast.Constant(None)])
    if name == "Union":
        return _either(inner)
    if name == "Literal":
        return f"one of {' · '.join(value_of(item) for item in inner)}"
    if name in ("Tuple", "tuple"):
        if len(inner) == 2 and isinstance(inner[1], ast.Constant) and inner[1].value is ...:
            return f"sequence of {_told(inner[0])}"
        return f"tuple of {' · '.join(_told(item) for item in inner)}"
    if name in _SEQUENCES and inner:
        return f"sequence of {_told(inner[0])}"
    if name in _MAPPINGS and len(inner) == 2:
        return f"mapping of {_told(inner[0])} to {_told(inner[1])}"
    if name in ("Type", "type") and inner:
        return f"class {_told(inner[0])}"
    if name in _TRANSPARENT and inner:
        return _told(inner[0])
    return _word(name)


def _either(nodes: list[ast.expr]) -> str:
    told = dict.fromkeys(_told(node) for node in nodes)
    return " or ".join(told)
