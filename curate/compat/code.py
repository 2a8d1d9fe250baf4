"""The features that nn-dup 2.2.4 reads from one code: outline, token stream, fingerprint and family tag.

nn-dup cuts the network classes out of a file, rebuilds that text from token columns without comments and docstrings,
and tokenises the result. The rebuilding is lossy: tabs become single blanks and backslash continuations disappear, so
some valid files fail the second time and have no tokens. Files with such layout, or that do not parse, take the same
steps here (`_rebuild`, `_scan`); for all others one regular expression produces the same stream at a fraction of the
cost (`_plain_stream`).
"""

import ast
import io
import math
import re
import sys
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from keyword import iskeyword
from token import EXACT_TOKEN_TYPES
from typing import NamedTuple

from lemur_core.source.text import parse_code

#: Keyword arguments that count as hyperparameters.
_SIZES = ("kernel_size", "stride", "padding", "groups", "in_channels", "out_channels", "dim", "width", "depth")
_HYPERPARAMETERS = frozenset({*_SIZES, "num_heads", "heads", "expansion", "hidden_size"})
_SEQUENCE_LIMIT = 256
#: Node types without calls, classes or functions, and fields without nodes worth visiting.
_LEAVES = frozenset(
    {ast.Load, ast.Store, ast.Del, ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue}
    | {ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal}
)
_PLAIN_FIELDS = frozenset(
    {"id", "attr", "ctx", "op", "ops", "name", "type_comment", "kind", "conversion", "type_ignores"}
)
_CHILD_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


class Span(NamedTuple):
    """The lines of one statement (1-based, both ends included) and the column where it begins."""

    first: int
    last: int
    column: int


@dataclass(slots=True)
class NnDupOutline:
    """The parts of one syntax tree that nn-dup uses."""

    classes: list[tuple[str, bool, Span, int, int]] = field(default_factory=list)
    functions: list[tuple[str, Span]] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)

    def list_declared(self) -> Iterator[tuple[str, int]]:
        """Yield the name and line of every class and (not async) function."""
        for name, _, span, _, _ in self.classes:
            yield name, span.first
        for name, span in self.functions:
            yield name, span.first

    def network_spans(self) -> list[Span]:
        """Return the module classes and the functions called in them, matched by name as in nn-dup, in file order."""
        modules = {name for name, is_module, *_ in self.classes if is_module}
        called = {
            call.func.id
            for name, _, _, start, stop in self.classes
            if name in modules
            for call in self.calls[start:stop]
            if isinstance(call.func, ast.Name)
        }
        spans = [span for _, is_module, span, _, _ in self.classes if is_module]
        spans += [span for name, span in self.functions if name in called]
        return sorted(spans)

    def layer_sequence(self) -> tuple[str, ...]:
        """Return the last names of all callees in the order of a depth-first walk, cut at a fixed length."""
        return tuple(self._callees()[:_SEQUENCE_LIMIT])

    def layer_bag(self) -> tuple[tuple[str, int], ...]:
        """Return how often each callee is called, by name."""
        return tuple(sorted(Counter(self._callees()).items()))

    def hyperparameters(self) -> tuple[tuple[str, str], ...]:
        """Return the hyperparameter keywords of all calls with the bucket of their value, sorted."""
        pairs = []
        for call in self.calls:
            if not _callee(call):
                continue
            for keyword in call.keywords:
                if keyword.arg in _HYPERPARAMETERS:
                    bucket = _bucket(keyword.value)
                    if bucket is not None:
                        pairs.append((keyword.arg, bucket))
        return tuple(sorted(pairs))

    def _callees(self) -> list[str]:
        return [name for name in map(_callee, self.calls) if name]


def outline(source: str) -> NnDupOutline | None:
    """Return the outline of a source text; None if it does not parse."""
    try:
        return _walk(parse_code(source, max_depth=None))
    except SyntaxError:
        return None


def whole_statements(spans: list[Span]) -> bool:
    """Return True if the spans (in file order) are top-level statements, or lie inside one of them."""
    reach = 0
    for span in spans:
        if span.column == 0:
            reach = max(reach, span.last)
        elif span.last > reach:
            return False
    return True


def _walk(tree: ast.AST) -> NnDupOutline:
    """Build the outline in a depth-first walk; an index on the stack marks the end of that class."""
    result = NnDupOutline()
    stack: list[ast.AST | int] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            # Popped after all nodes of the class, so the number of calls up to here is where they end.
            result.classes[node] = (*result.classes[node][:4], len(result.calls))
            continue
        kind = type(node)
        if kind is ast.Call:
            result.calls.append(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.ClassDef):
            stack.append(len(result.classes))
            is_module = any(_last_name(base) == "Module" for base in node.bases)
            result.classes.append((node.name, is_module, _span(node), len(result.calls), 0))
        elif isinstance(node, ast.FunctionDef):
            result.functions.append((node.name, _span(node)))
        fields = _CHILD_FIELDS.get(kind)
        if fields is None:
            fields = _CHILD_FIELDS[kind] = tuple(name for name in reversed(node._fields) if name not in _PLAIN_FIELDS)
        for name in fields:
            child = getattr(node, name, None)
            if child.__class__ is list:
                stack += [
                    item for item in reversed(child) if item.__class__ not in _LEAVES and isinstance(item, ast.AST)
                ]
            elif child.__class__ not in _LEAVES and isinstance(child, ast.AST):
                stack.append(child)
    return result


def _span(node: ast.ClassDef | ast.FunctionDef) -> Span:
    return Span(node.lineno, node.end_lineno or node.lineno, node.col_offset)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _callee(call: ast.Call) -> str | None:
    return _last_name(call.func)


def _bucket(value: ast.expr) -> str | None:
    """Return a number as the nearest power of two (0 for small and negative ones); tuples element by element."""
    if isinstance(value, ast.Tuple):
        return "(" + ",".join(_bucket(item) or "X" for item in value.elts) + ")"
    if not (isinstance(value, ast.Constant) and isinstance(value.value, int | float)):
        return None
    try:
        number = float(value.value)
        return str(int(2 ** round(math.log2(number)))) if number > 0 else "0"
    except (OverflowError, ValueError):  # integers beyond the range of floats, infinity
        return None


#: Beginnings of names that stay in the stream, besides keywords, declared names, and names with a capital letter after
#: the first (which covers the rest of nn-dup's lists: LSTM, ReLU, SEBlock, ModuleList, ...).
_KEPT_BEGINNINGS = (
    *("Conv", "Batch", "Layer", "Group", "Instance", "Max", "Avg", "Adaptive", "Dropout", "Linear", "Flatten"),
    *("Multihead", "Transformer", "Upsample", "Squeeze", "Sequential", "Module", "Fractal", "Dense"),
)
_FAILURES = (SyntaxError, tokenize.TokenError)  # IndentationError is a SyntaxError
_COMMENT = re.compile(r"#.*$", re.MULTILINE)
#: Layout that rebuilding changes: tabs, form feeds, carriage returns, continuation lines.
_FRAGILE = re.compile(r"[\t\f\r]|\\\n")

_DIGITS = r"[0-9](?:_?[0-9])*"
_LEXEMES = (
    r"(?:\#[^\n]*)?\n(?:\ *(?:\#[^\n]*)?\n)*",  # the end of a line, with comments, empty and comment lines after it
    r"\#[^\n]*\Z",
    r'(?:[bB][rR]?|[rR][bBfF]?|[fF][rR]?|[uU])?(?:"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')",
    r"[A-Za-z_]\w*",
    r"0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+",
    rf"(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?[jJ]?",
    "|".join(re.escape(operator) for operator in sorted(EXACT_TOKEN_TYPES, reverse=True)),
    r"[^\ ]",  # anything else: not plain
)
_LEXEME = re.compile(r"\ *(" + "|".join(_LEXEMES) + ")", re.DOTALL)
_LINE_END, _STRING, _NUMBER = "\n", "STR", "NUM"


class _NotPlainError(Exception):
    """The text contains something that the fast path is not proven for."""


class _NetworkPart(NamedTuple):
    """The text of a file's network classes and their helper functions."""

    text: str
    declared: AbstractSet[str]  # names of the classes and functions in it
    parses: bool  # known to consist of whole statements


def token_stream(source: str, shape: NnDupOutline | None) -> list[str]:
    """Return the normalized tokens of the network part of a source text; an empty list if tokenising fails.

    Args:
        source: a whole file.
        shape: its outline, None if the file does not parse (then the whole file is the network part).
    """
    part = _network_part(source, shape) if shape else _NetworkPart(source, frozenset(), False)
    if part.parses and part.text.isascii() and not _FRAGILE.search(part.text):
        try:
            return _plain_stream(part.text, part.declared)
        except _NotPlainError:
            pass
    return _scan(_rebuild(part.text), part.declared)


def _network_part(source: str, shape: NnDupOutline) -> _NetworkPart:
    """Return the lines of module classes and of the functions that they call; the whole file if there are none.

    Lines are those of `str.splitlines`, as in nn-dup, which splits at more characters than Python does.
    """
    spans = shape.network_spans()
    if not spans:
        return _NetworkPart(source, {name for name, _ in shape.list_declared()}, True)
    lines = source.splitlines(keepends=True)
    merged: list[list[int]] = []
    for first, last, _ in spans:
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    text = "\n".join("".join(lines[first - 1 : last]) for first, last in merged)
    if not whole_statements(spans) or len(lines) != source.count("\n") + (not source.endswith("\n")):
        alone = outline(text)  # nn-dup parses the part by itself; when that fails, nothing counts as declared
        return _NetworkPart(text, {name for name, _ in alone.list_declared()} if alone else frozenset(), False)
    firsts = [first for first, _ in merged]
    inside = ((name, line, bisect_right(firsts, line) - 1) for name, line in shape.list_declared())
    declared = {name for name, line, at in inside if at >= 0 and line <= merged[at][1]}
    return _NetworkPart(text, declared, True)


class _Normal(dict[str, str]):
    """Maps lexemes to tokens, filled on demand; line endings become line feeds."""

    def __init__(self, declared: AbstractSet[str]) -> None:
        super().__init__()
        self.declared = declared

    def __missing__(self, lexeme: str) -> str:
        first = lexeme[0]
        if lexeme[-1] in "\"'" and len(lexeme) > 1:
            if sys.version_info >= (3, 12) and first in "fFrR" and "f" in lexeme[:2].lower():
                raise _NotPlainError  # formatted strings are several tokens there
            token = _STRING
        elif first.isalpha() or first == "_":
            token = _word(lexeme, self.declared)
        elif first.isdigit() or (first == "." and lexeme[1:2].isdigit()):
            token = _NUMBER
        elif first in "#\n":
            token = _LINE_END
        elif lexeme in EXACT_TOKEN_TYPES:
            token = lexeme
        else:
            raise _NotPlainError
        self[lexeme] = token
        return token


def _plain_stream(text: str, declared: AbstractSet[str]) -> list[str]:
    """Return the token stream of a text of whole statements without fragile layout.

    Rebuilding such a text keeps the column of every token, so nn-dup's second pass sees the same tokens, provided that
    a docstring that it drops leaves an empty line behind. It drops a string that follows a line end or an indentation
    immediately: not after an empty line or a dedent.
    """
    lexemes: list[str] = _LEXEME.findall(text)
    normal = _Normal(declared)
    tokens = [normal[lexeme] for lexeme in lexemes]
    depth, counted, dropped = 0, 0, []
    at = -1
    while (at := _next_line_string(tokens, at)) >= 0:
        depth += _count_open_brackets(tokens[counted:at])
        counted = at
        if depth > 0:
            continue  # a string on a further line of a statement
        before = tokens[at - 2] if at > 1 else ""
        if before == ":":
            if tokens[at + 1 : at + 2] not in ([], [_LINE_END]):
                raise _NotPlainError
            dropped.append(at)
        elif before == "" or lexemes[at - 1].count("\n") == 1:
            raise _NotPlainError  # the first token of the text, or a bare string that dedents may precede
    # From the end, so that the indexes before stay valid.
    for at in reversed(dropped):
        del tokens[at]
    return [token for token in tokens if token != _LINE_END]


def _next_line_string(tokens: list[str], after: int) -> int:
    """Return the next index where a string begins a line or the text; -1 if there is none."""
    at = after
    try:
        while True:
            at = tokens.index(_STRING, at + 1)
            if at == 0 or tokens[at - 1] == _LINE_END:
                return at
    except ValueError:
        return -1


def _count_open_brackets(tokens: list[str]) -> int:
    """Return how many more brackets are opened than closed."""
    count = tokens.count
    return count("(") + count("[") + count("{") - count(")") - count("]") - count("}")


def _rebuild(text: str) -> str:
    """Rebuild the text from its tokens by column, without comments and docstrings.

    If tokenising fails, return the text with everything cut from each number sign to the end of its line.
    """
    pieces: list[str] = []
    before = tokenize.INDENT
    line, column = -1, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                continue
            docstring = token.type == tokenize.STRING and before in (tokenize.INDENT, tokenize.NEWLINE)
            before = token.type
            if docstring:
                continue
            if token.start[0] > line:
                column = 0
            pieces += " " * (token.start[1] - column), token.string
            line, column = token.end
    except (*_FAILURES, ValueError, RecursionError):
        return _COMMENT.sub("", text)
    return "".join(pieces)


def _scan(text: str, declared: AbstractSet[str]) -> list[str]:
    """Return the normalized tokens of a text; an empty list if tokenising fails."""
    placeholders = {tokenize.NUMBER: _NUMBER, tokenize.STRING: _STRING}
    tokens: list[str] = []
    try:
        for kind, string, *_ in tokenize.generate_tokens(io.StringIO(text).readline):
            if kind == tokenize.NAME:
                tokens.append(_word(string, declared))
            elif kind == tokenize.OP:
                tokens.append(string)
            elif kind in placeholders:
                tokens.append(placeholders[kind])
    except _FAILURES:
        return []
    return tokens


def _word(name: str, declared: AbstractSet[str]) -> str:
    """Return a name's token: the name itself if it says something about the architecture, else ID."""
    is_kept = (
        name in declared
        or iskeyword(name)
        or name.startswith(_KEPT_BEGINNINGS)
        or any(letter.isupper() for letter in name[1:])
    )
    return name if is_kept else "ID"


#: Family tags by words anywhere in the text (ignoring case); the first match counts.
_FAMILY_WORDS = (
    ("fractal", ("fractalblock", "fractalunit", "fractal_fn")),
    ("transformer", ("transformerencoderlayer", "multiheadattention")),
    ("mobile", ("depthwise", "mobilenet")),
    ("resnet", ("resnet", "residual")),
    ("densenet", ("dense",)),
    ("vgg", ("vgg",)),
)
#: Family tags by the beginning of a network's name (case-sensitive). Other names are tagged by the text.
_FAMILY_NAMES = (
    ("fractal", ("Fractal",)),
    ("resnet", ("ResNet",)),
    ("vgg", ("VGG",)),
    ("densenet", ("DenseNet",)),
    ("mobile", ("MobileNet",)),
    ("transformer", ("Transformer", "BERT", "GPT")),
    ("generic", ("RAG", "Rag", "rag")),
)


@dataclass(frozen=True, slots=True)
class NnDupFeatures:
    """The features of one code that nn-dup compares. They depend on the code alone, so they can be cached."""

    tokens: str  # the token stream joined by blanks; empty if nn-dup gets none
    length: int  # characters of the code
    layer_sequence: tuple[str, ...]
    layer_bag: tuple[tuple[str, int], ...]
    hyperparameters: tuple[tuple[str, str], ...]
    family: str  # by the text alone; see get_family for the part of the name

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """The structural fingerprint: equal for two codes exactly if nn-dup's hash of it is equal."""
        return self.layer_sequence, self.layer_bag, self.hyperparameters


def nndup_features(code: str) -> NnDupFeatures:
    """Compute the features of one source text. Never raises for a text that can be encoded, parseable or not."""
    shape = outline(code)
    structure = shape or NnDupOutline()
    return NnDupFeatures(
        tokens=" ".join(token_stream(code, shape)),
        length=len(code),
        layer_sequence=structure.layer_sequence(),
        layer_bag=structure.layer_bag(),
        hyperparameters=structure.hyperparameters(),
        family=_family_of_text(code),
    )


def get_family(name: str, features: NnDupFeatures) -> str:
    """Return the family tag of a record: by the network's name if it has one, else by its code."""
    return next((tag for tag, beginnings in _FAMILY_NAMES if name.startswith(beginnings)), features.family)


def _family_of_text(code: str) -> str:
    text = code.lower()
    return next((tag for tag, words in _FAMILY_WORDS if any(word in text for word in words)), "generic")
