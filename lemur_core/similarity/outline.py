"""One walk over a syntax tree: the classes, functions, calls and text of the tree from which codes are compared."""

import ast
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lemur_core.files.foreign import decode_python

#: Training functions that the LEMUR contract requires of every network; they say nothing about the architecture.
CONTRACT_FUNCTIONS = frozenset({"train_setup", "learn", "supported_hyperparameters"})

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})

#: A network's code is tens of kilobytes at most; a file a hundred times larger is data, and is not parsed.
MAX_CODE_BYTES = 1_000_000

#: Whose syntax decides what is no code.
PYTHON = "{}.{}".format(*sys.version_info)

#: The classes around a call (indices, outermost first).
Owners = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class: its name, its bases' last names, whether it defines `forward`, its first and last line."""

    name: str
    bases: tuple[str, ...]
    has_forward: bool
    first: int
    last: int


@dataclass(slots=True)
class Outline:
    """The result of one walk, in source order (pre-order). Lines are counted from 1."""

    classes: list[ClassOutline] = field(default_factory=list)
    #: Name, first and last line; async ones are left out.
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    #: Last names of the called functions, without the contract functions.
    layers: list[str] = field(default_factory=list)
    sizes: list[tuple[str, str]] = field(default_factory=list)  # (what, bucket) of the numbers in those calls
    #: Names that are called directly, contract functions included.
    called: dict[Owners, set[str]] = field(default_factory=dict)
    docstrings: list[tuple[int, int]] = field(default_factory=list)  # (line, UTF-8 column) of a dropped string
    names: set[str] = field(default_factory=set)  # identifiers: names, attributes, classes, functions
    text: list[str] = field(default_factory=list)  # the tree in pre-order, one node after another: injective

    @property
    def tree_digest(self) -> bytes:
        """16 bytes; equal for codes that differ only in comments, docstrings and layout."""
        return hashlib.blake2b("\n".join(self.text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def outline_code(code: str) -> Outline | str:
    """Return the outline of a code, or a short reason why it has none; never raises, whatever the text.

    Args: code: any text, also one with lone surrogates.
    Returns: an Outline, or a reason in one line of at most 200 characters.
    """
    size = len(code) if code.isascii() else len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        return f"too large: {size:,} bytes of code, limit {MAX_CODE_BYTES:,}"
    if not code.strip():
        return "nn_code is empty"
    if "\0" in code:
        return "not Python: contains a null byte"
    try:
        return outline_tree(ast.parse(decode_python(code)))
    except SyntaxError as error:
        return f"not Python for this interpreter: line {error.lineno or 1}: {error.msg}"[:200]
    except ValueError as error:
        return f"not Python: {error}"[:200]
    except (RecursionError, MemoryError):
        return "nested too deeply for Python's parser"


def outline_tree(tree: ast.Module) -> Outline:
    """Return the outline of a module. Iterative, so that deep nesting cannot exhaust the stack."""
    outline = Outline()
    names = outline.names
    owners: Owners = ()
    glue = False
    write = outline.text.append
    stack: list[Any] = [tree]  # nodes, and the (owners, glue) to restore
    pop, push = stack.pop, stack.append
    while stack:
        node = pop()
        kind = type(node)
        # the most frequent kinds first
        if kind is ast.Name:
            names.add(node.id)
            write("=" + node.id)
            continue
        if kind is ast.Constant:
            value = node.value  # literals are never negative
            write("#" + (hex(value) if type(value) is int and value >= _MANY_DIGITS else repr(value)))
            continue
        if kind is ast.Attribute:
            names.add(node.attr)
            write("." + node.attr)
            push(node.value)
            continue
        if kind is ast.Call:
            function, arguments, keywords = node.func, node.args, node.keywords
            if type(function) is ast.Name:
                outline.called.setdefault(owners, set()).add(function.id)
            if not glue and (name := last_name(function)):
                outline.layers.append(name)
                outline.sizes += read_sizes(name, node)
            write(f"Call\n*\n[{len(arguments)}\n[{len(keywords)}")
            stack += keywords[::-1]
            stack += arguments[::-1]
            push(function)
            continue
        if kind is tuple:
            owners, glue = node
            continue
        if kind is ast.ClassDef:
            push((owners, glue))
            owners = (*owners, len(outline.classes))
            outline.classes.append(_outline_class(node))
            names.add(node.name)
        elif kind in _FUNCTIONS:
            push((owners, glue))
            if kind is ast.FunctionDef:
                outline.functions.append((node.name, node.lineno, node.end_lineno or node.lineno))
            names.add(node.name)
            glue = glue or node.name in CONTRACT_FUNCTIONS
        children = _write_fields(node, kind, outline)
        children.reverse()
        stack += children
    return outline


def _write_fields(node: ast.AST, kind: type[ast.AST], outline: Outline) -> list[Any]:
    """Write the title and the plain fields of a node, and return its children, in order."""
    children: list[Any] = []
    write = outline.text.append
    write(kind.__name__)
    for name in kind._fields:
        if name in _SILENT_FIELDS:
            continue
        value = getattr(node, name)
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                _gather_docstrings(value, outline)
                if _is_docstring(node, value[0]):
                    value = value[1:]
                write(f"[{len(value)}")
                children += value
                continue
            write(f"[{len(value)}")
            nodes = [item for item in value if isinstance(item, ast.AST)]
            if len(nodes) < len(value):  # names of `global`, keys of `**` in a dictionary
                write(repr([isinstance(item, ast.AST) or item for item in value]))
            children += nodes
        elif isinstance(value, ast.AST):
            children.append(value)
            write("*")
        else:
            write(repr(value))
    return children


def last_name(node: ast.AST) -> str | None:
    """Return `Conv2d` for `torch.nn.Conv2d` and `Conv2d`; None for other expressions (a call's result, a subscript).

    Args: node: an expression.
    Returns: the name after the last dot.
    """
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


#: Python may refuse to format an int with more decimal digits.
_MANY_DIGITS = 10**4000


def _outline_class(node: ast.ClassDef) -> ClassOutline:
    return ClassOutline(
        name=node.name,
        bases=tuple(name for base in node.bases if (name := last_name(base)) is not None),
        has_forward=any(isinstance(item, _FUNCTIONS) and item.name == "forward" for item in node.body),
        first=node.lineno,
        last=node.end_lineno or node.lineno,
    )


def _is_docstring(owner: ast.AST, statement: ast.stmt) -> bool:
    return (
        isinstance(owner, (ast.Module, ast.ClassDef, *_FUNCTIONS))
        and isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _gather_docstrings(body: Sequence[ast.stmt], outline: Outline) -> None:
    """Record strings where a docstring may be: first in a block, or on the line after a simple statement.

    This is where the published normalization drops a string (right after an INDENT or NEWLINE token); it counts a
    string after a blank line, a comment line or a nested block as code, and so do we.
    """
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Expr):
            before = body[index - 1] if index else None
            if before is None:
                dropped = statement.col_offset > 0 or statement.lineno == 1
            elif hasattr(before, "body"):
                dropped = False
            else:
                dropped = statement.lineno == (before.end_lineno or 0) + 1
            if dropped:
                outline.docstrings.append((statement.lineno, statement.col_offset))


#: Keywords whose numbers describe an architecture, as published.
SIZE_KEYWORDS = frozenset(
    {"kernel_size", "stride", "padding", "groups", "num_heads", "heads", "expansion", "hidden_size"}
    | {"in_channels", "out_channels", "dim", "width", "depth"}
)

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups")
_POOL = ("kernel_size", "stride", "padding")

#: Positional parameters of `torch.nn` layers, so that `Conv2d(3, 64, 3)` reads as its keyword form.
_POSITIONS: dict[str, tuple[str, ...]] = {
    **{f"Conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    **{f"{kind}Pool{n}d": _POOL for kind in ("Max", "Avg") for n in (1, 2, 3)},
    "MultiheadAttention": ("embed_dim", "num_heads"),
    "LSTM": ("input_size", "hidden_size"),
    "GRU": ("input_size", "hidden_size"),
    "RNN": ("input_size", "hidden_size"),
}


def read_sizes(name: str, call: ast.Call) -> list[tuple[str, str]]:
    """Return (what, bucket) of the numbers in a call of `name`: by keyword, known position, or index in the call."""
    positions = _POSITIONS.get(name, ())
    sizes = []
    for index, value in enumerate(call.args):
        if (bucket := _bucket(value)) is None:
            continue
        if index >= len(positions):
            sizes.append((f"{name}#{index}", bucket))
        elif positions[index] in SIZE_KEYWORDS:
            sizes.append((positions[index], bucket))
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in SIZE_KEYWORDS}
    sizes += [(what, bucket) for what, value in named.items() if what and (bucket := _bucket(value)) is not None]
    return sizes


def _bucket(node: ast.expr) -> str | None:
    """Return a number's nearest power of two (`0` if not positive), a tuple of such, or None for anything else."""
    if isinstance(node, ast.Tuple):
        return "(" + ",".join(_bucket(item) or "X" for item in node.elts) + ")" if len(node.elts) <= 8 else None
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        return None
    value = node.value
    if not value > 0:
        return "0"
    if value == math.inf or value >= 2**1000:
        return "inf"
    return str(int(2 ** round(math.log2(value))))
