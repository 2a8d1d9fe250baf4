"""Outline of a closed file: its definitions, and facts about its classes. Each text is parsed once."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from lemur_core.graphs.formulas import evaluate_formula
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Lines, normalise, parse_code, parse_expression
from manifests.records import SpecArgument

METHODS = ("__init__", "forward")

#: Signatures of the one PyTorch class whose forward is often inherited.
_SEQUENTIAL = {
    "__init__": (SpecArgument(name="args", kind="more positional"),),
    "forward": (SpecArgument(name="input", kind="positional"),),
}
#: Stated where a base outside of the file defines the method.
_INHERITED = (SpecArgument(name="args", kind="more positional"), SpecArgument(name="kwargs", kind="more keyword"))
_WITHOUT_ARGUMENTS = frozenset({"Module", "object", "ABC", "Generic", "Protocol"})


@dataclass(frozen=True, slots=True)
class ClassStatement:
    """One class statement."""

    name: str
    bases: tuple[str, ...]
    methods: Mapping[str, tuple[SpecArgument, ...]]  # METHODS that it defines -> arguments without self


@dataclass(frozen=True, slots=True)
class SpecOutline:
    """The definitions of a file, also in its branches and loops, by name; the last one of a name counts.

    Attributes:
        classes, functions: those of the file.
        names: all names that its statements bind, without placeholders (`Config = object`).
        texts: the text of each class at the left margin, with its decorators.
    """

    classes: Mapping[str, ClassStatement] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)

    def lineage(self, name: str) -> Iterator[ClassStatement]:
        """Yield a class and those of its bases that the file defines, nearest first, without repetition."""
        waiting, seen = [name], set()
        while waiting:
            current = waiting.pop(0)
            facts = self.classes.get(current)
            if facts is not None and current not in seen:
                seen.add(current)
                yield facts
                # Bases before the siblings of the class: nearly the order in which Python looks methods up.
                waiting = [*facts.bases, *waiting]

    def method(self, name: str, method: str) -> tuple[SpecArgument, ...]:
        """Return the arguments of a method: its own, inherited in the file, or any if a base outside of it has them."""
        lineage = list(self.lineage(name))
        arguments = next((facts.methods[method] for facts in lineage if method in facts.methods), None)
        if arguments is not None:
            return arguments
        outside = {base for facts in lineage for base in facts.bases if base not in self.classes} - _WITHOUT_ARGUMENTS
        if "Sequential" in outside:
            return _SEQUENTIAL[method]
        return _INHERITED if outside else ()


@lru_cache(maxsize=1_000)
def read_outline(code: str) -> SpecOutline:
    """Return the outline of a closed file; empty if it is not valid Python."""
    try:
        text = normalise(code)
        body = parse_code(text).body
    except SyntaxError:
        return SpecOutline()
    classes: dict[str, ClassStatement] = {}
    functions, names, lines = set(), set[str](), Lines(text)
    waiting: list[ast.AST] = [*reversed(body)]
    while waiting:
        match waiting.pop():
            case ast.ClassDef(name=name) as node:
                classes[name] = _class(node)
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.add(name)
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(value=ast.Name(id="object")):
                pass
            case other:
                waiting += reversed(list(ast.iter_child_nodes(other)))
    texts = {}
    for item in body:
        if isinstance(item, ast.ClassDef):
            first = min([item.lineno, *(decorator.lineno for decorator in item.decorator_list)])
            texts[item.name] = text[lines.start(first) : lines.span(item)[1]].decode()
    return SpecOutline(MappingProxyType(classes), frozenset(functions), frozenset(names), MappingProxyType(texts))


def _class(node: ast.ClassDef) -> ClassStatement:
    methods: dict[str, tuple[SpecArgument, ...]] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods[item.name] = _arguments(item)
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Name) and item.value.id in methods:
            for target in item.targets:
                if name := last_name(target):
                    methods[name] = methods[item.value.id]
    bases = tuple(name for base in node.bases if (name := last_name(base.func if isinstance(base, ast.Call) else base)))
    kept = {name: methods[name] for name in METHODS if name in methods}
    return ClassStatement(node.name, bases, MappingProxyType(kept))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[SpecArgument, ...]:
    """Return a method's arguments without `self` or `cls`."""
    signature = node.args
    positional = [*signature.posonlyargs, *signature.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(signature.defaults)) + list(signature.defaults)
    if not any(last_name(decorator) == "staticmethod" for decorator in node.decorator_list):
        positional, defaults = positional[1:], defaults[1:]
    items = {
        "positional": zip(positional, defaults, strict=True),
        "more positional": [(signature.vararg, None)],
        "keyword": zip(signature.kwonlyargs, signature.kw_defaults, strict=True),
        "more keyword": [(signature.kwarg, None)],
    }
    return tuple(_argument(kind, arg, default) for kind, pairs in items.items() for arg, default in pairs if arg)


def _argument(kind: str, arg: ast.arg, default: ast.expr | None) -> SpecArgument:
    value = None if default is None else format_value(default)
    type_ = format_type(arg.annotation) or infer_type(default)
    return SpecArgument.model_validate({"name": arg.arg, "kind": kind, "type": type_, "default": value})


# --- notation ---------------------------------------------------------------------------------------------------------

# Neutral notation for Python expressions and annotations: the same values, not written as Python code.
#
# `(3, 4, 6, 3)` is `3×4×6×3`, `dict(type="BN", eps=0.001)` is `type BN; eps 0.001`, and `partial(nn.LayerNorm,
# eps=1e-6)` is `LayerNorm with eps 1e-06`, `None` is `none`. Long values are described by their length; values known
# only at run time are `computed`. Annotations have one spelling: `Optional[Tuple[int, int]]` is `tuple[int, int] |
# None`.

#: The maximum characters of a value and of a type, and tokens of a text; anything longer is only described.
_LONGEST, _LONGEST_TYPE = 100, 80
_TEXT_TOKENS = 5

_CONSTANTS: dict[object, str] = {None: "none", True: "true", False: "false", ...: "unset"}
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
            parts = [f"‹{_value(item)}›" if isinstance(item, nested) else _value(item) for item in node.elts]
            if len(parts) < 2:
                return f"only {parts[0]}" if parts else "empty sequence"
            return (" · " if None in map(_number, node.elts) else "×").join(parts)
        case ast.Dict(keys=[]):
            return "empty mapping"
        case ast.Dict():
            return _join(
                (None if key is None else _value(key), item) for key, item in zip(node.keys, node.values, strict=True)
            )
        case ast.Call() if name := last_name(node.func):
            of = f" of {' · '.join(map(format_value, node.args))}" if node.args else ""
            named = _join((keyword.arg, keyword.value) for keyword in node.keywords)
            return f"{name}{of}{f' with {named}' if named else ''}"
        case ast.Lambda():
            return "a function"
        case ast.Attribute(attr="name" | "value") if last_name(node.value):  # of a member of an enumeration
            return f"{last_name(node.value)}.{node.attr}"
    return last_name(node) or "computed"


def _join(pairs: Iterable[tuple[str | None, ast.expr]]) -> str:
    return "; ".join(f"{'all of' if key is None else key} {format_value(item)}" for key, item in pairs)


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
