"""Read docstrings: examples that construct and call a class, and the shapes of arguments."""

import ast
import builtins
import copy
import re
from collections.abc import Iterator, Sequence

from lemur_core.source.text import parse_code, parse_expression
from lemur_core.source.values import ROOTS, Expr, read_imports

_FREE = ROOTS | {"partial"} | frozenset(dir(builtins))
_MAX_CHARACTERS = 600

Example = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]  # arguments, keyword arguments


def examples_in(docstrings: Sequence[str], name: str) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Return the constructor calls and the forward calls in the examples of a class's docstrings."""
    init: dict[Example, None] = {}
    forward: dict[Example, None] = {}
    for text in docstrings:
        reader = _ExampleReader(name)
        reader.read([node for source in _prompts(text) for node in _parse(source)])
        init |= dict.fromkeys(reader.init)
        forward |= dict.fromkeys(reader.forward)
    return tuple(init), tuple(forward)


def _prompts(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if lines and stripped.startswith("..."):
            lines.append(stripped[4:])
            continue
        if lines:
            yield "\n".join(lines)
        lines = [stripped[3:].removeprefix(" ")] if stripped.startswith(">>>") else []
    if lines:
        yield "\n".join(lines)


def _parse(source: str) -> list[ast.stmt]:
    try:
        return parse_code(source.strip("\n")).body
    except SyntaxError:
        return []


class _ExampleReader:
    """Read the calls in one example, with the values of their variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.init: list[Example] = []
        self.forward: list[Example] = []
        self._values: dict[str, ast.expr] = {}
        self._objects: set[str] = {"self"}

    def read(self, body: list[ast.stmt]) -> None:
        for bound, value in read_imports(body)[0].items():
            if isinstance(value, Expr) and value.text != bound:
                self._values[bound] = parse_expression(value.text)
        for node in body:
            for call in [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]:
                self._record_call(call)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if self._is_construction(value):
                self._objects.add(target.id)
                return
            # The name no longer holds an instance of the class.
            self._objects.discard(target.id)
            self._values[target.id] = self._substitute_variables(value)
        elif isinstance(target, ast.Tuple | ast.List):
            items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for number, inner in enumerate(target.elts):
                whole = len(items) == len(target.elts)
                item = items[number] if whole else ast.Subscript(value, ast.Constant(number), ast.Load())
                self._assign(inner, item)

    def _is_construction(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if not isinstance(node.func.value, ast.Call):
                break
            node = node.func.value  # X(…).eval()
        return isinstance(node, ast.Call) and _last(node.func) == self.name

    def _record_call(self, call: ast.Call) -> None:
        function = call.func
        if _last(function) == self.name:
            self._add(self.init, call)
            return
        if isinstance(function, ast.Attribute) and function.attr == "forward":
            function = function.value
        if (isinstance(function, ast.Name) and function.id in self._objects) or self._is_construction(function):
            self._add(self.forward, call)

    def _add(self, calls: list[Example], call: ast.Call) -> None:
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            return
        args = [self._substitute_variables(arg) for arg in call.args]
        kwargs = [(str(keyword.arg), self._substitute_variables(keyword.value)) for keyword in call.keywords]
        if all(self._is_closed(value) for value in (*args, *(value for _, value in kwargs))):
            texts = tuple(ast.unparse(value) for value in args)
            named = tuple((name, ast.unparse(value)) for name, value in kwargs)
            if sum(map(len, (*texts, *(text for _, text in named)))) <= _MAX_CHARACTERS:
                calls.append((texts, named))

    def _substitute_variables(self, node: ast.expr) -> ast.expr:
        return _Substitution(self._values).visit(copy.deepcopy(node)) if self._values else node

    def _is_closed(self, node: ast.expr) -> bool:
        names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
        bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        bound |= {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
        read = {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound
        return not read & self._objects and all(name in _FREE or name.lstrip("_")[:1].isupper() for name in read)


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a variable with its value."""
        return self._values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# -- shapes ----------------------------------------------------------------------------------------------------------

_DIM = r"[A-Za-z_][\w{}\\ /*+'-]*|\d+|\\?text\{[^}]*\}"
#: `(B, N, C)`, `[N, C]`, `(h x w)`; of one dimension `(N,)`.
_SHAPE = re.compile(rf"[(\[]\s*((?:{_DIM})(?:\s*[,x]\s*(?:{_DIM}))+|(?:{_DIM})(?=\s*,\s*\)))\s*,?\s*[)\]]")
_RANK = re.compile(r"\b([1-6])-?[dD](?:imensional)? (?:\w+ )?[tT]ensor\b")
_NAMED = re.compile(r"^\s*(?:[-*#]\s*)?[`*]*(\w+)[`*]*\s*(?:\([^:]*\))?\s*[:=]")
_INPUT = re.compile(r"^\s*(?:[-*]\s*)?(?:\*\*)?[Ii]nputs?(?:\*\*)?\s*(?:\d+)?\s*:")
_SHORT = re.compile(r"[A-Z]\w{0,5}|[bchwntldkqsv]|\d+|[HW]_?\w*")
_SHAPE_WORD = re.compile(r"\b(?:shape|size|shaped|dimensions?|tensor)\b", re.IGNORECASE)
_NO_DIMENSIONS = frozenset({"optional", "tensor", "torch", "default", "none", "true", "false", "and", "or", "union"})
_NO_DIMENSIONS |= {"int", "float", "bool", "str", "list", "tuple", "dict"}
_START = re.compile(r"^\s*(?:Args?|Arguments?|Parameters?|Inputs?|Shapes?)\b")
_END = re.compile(r"^\s*(?:Returns?|Outputs?|Yields?|Raises?)\b\s*:?|^\s*-?\s*(?:\*\*)?Outputs?(?:\*\*)?\s*:")


def list_documented_shapes(text: str, arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield arguments and their documented shapes: `x: (B, N, C)`, "Tensor of shape (batch_size, seq_len, dim)"."""
    argument = ""
    ended = False
    for line in text.splitlines():
        # Shapes of outputs look the same: they are skipped until a section of inputs begins.
        ended = bool(_END.match(line)) or (ended and not _START.match(line) and not _INPUT.match(line))
        if ended or ">>>" in line:
            argument = ""
            continue
        named = _NAMED.match(line)
        if named is not None:
            argument = named[1] if named[1] in arguments else argument if line.startswith("        ") else ""
        if (named is None or not argument) and _INPUT.match(line) and arguments:
            argument = arguments[0]
        dims = next(_dimensions(line), None)
        if dims is not None and argument:
            yield argument, dims


def _dimensions(line: str) -> Iterator[tuple[str, ...]]:
    for match in _SHAPE.finditer(line):
        texts = [part.strip() for part in re.split(r",|(?<=[\w}])\s+x\s+(?=[\w\\])", match[1])]
        names = [re.sub(r"\\text|\\_|[{}\\ ]", "", text) for text in texts]
        if len(names) > 7 or any(name.lower() in _NO_DIMENSIONS or name in {"", "*"} for name in names):
            continue
        if all(_SHORT.fullmatch(name) for name in names) or _SHAPE_WORD.search(line[: match.start()]):
            yield tuple(name if name.isidentifier() else "?" for name in names)
    if rank := _RANK.search(line):
        yield ("?",) * int(rank[1])
