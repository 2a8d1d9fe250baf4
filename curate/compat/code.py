"""The features that nn-dup 2.2.4 reads from one code: outline, token stream, fingerprint and family tag.

nn-dup cuts the network classes out of a file, rebuilds that text from token columns without comments and docstrings,
and tokenises the result. The rebuilding is lossy: tabs become single blanks and backslash continuations disappear, so
some valid files fail the second time and have no tokens.
"""

import ast
import io
import math
import re
import tokenize
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from keyword import iskeyword

from lemur_core.similarity.outline import last_name
from lemur_core.source.text import parse_code

#: Keyword arguments that count as hyperparameters.
_SIZES = ("kernel_size", "stride", "padding", "groups", "in_channels", "out_channels", "dim", "width", "depth")
_HYPERPARAMETERS = frozenset({*_SIZES, "num_heads", "heads", "expansion", "hidden_size"})
_SEQUENCE_LIMIT = 256


class NnDupOutline:
    """The parts of one syntax tree that nn-dup uses, in the order of a depth-first walk."""

    def __init__(self, tree: ast.AST) -> None:
        self.classes: list[ast.ClassDef] = []
        self.functions: list[ast.FunctionDef] = []
        self.calls: list[tuple[str, ast.Call]] = []  # with the last name of what they call, if it has one
        waiting = [tree]
        while waiting:
            node = waiting.pop()
            waiting += reversed(list(ast.iter_child_nodes(node)))
            match node:
                case ast.ClassDef():
                    self.classes.append(node)
                case ast.FunctionDef():
                    self.functions.append(node)
                case ast.Call() if name := last_name(node.func):
                    self.calls.append((name, node))

    def network_spans(self) -> list[tuple[int, int]]:
        """Return the lines of the module classes and of the functions called in them, matched by name, in file order.

        Both ends count from 1 and are included.
        """
        modules = [node for node in self.classes if any(last_name(base) == "Module" for base in node.bases)]
        names = {node.name for node in modules}
        called = {
            node.func.id
            for owner in self.classes
            if owner.name in names
            for node in ast.walk(owner)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        chosen = [*modules, *(node for node in self.functions if node.name in called)]
        return sorted((node.lineno, node.end_lineno or node.lineno) for node in chosen)

    def hyperparameters(self) -> tuple[tuple[str, str], ...]:
        """Return the hyperparameter keywords of all calls with the bucket of their value, sorted."""
        keywords = (keyword for _, call in self.calls for keyword in call.keywords)
        named = ((keyword.arg, _bucket(keyword.value)) for keyword in keywords if keyword.arg in _HYPERPARAMETERS)
        return tuple(sorted((name, bucket) for name, bucket in named if name and bucket is not None))


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


def token_stream(source: str, shape: NnDupOutline | None) -> list[str]:
    """Return the normalized tokens of the network part of a source text; an empty list if tokenising fails.

    Args:
        source: a whole file.
        shape: its outline, None if the file does not parse (then the whole file is the network part).
    """
    text, declared = _network_part(source, shape) if shape else (source, frozenset())
    tokens: list[str] = []
    try:
        for kind, string, *_ in tokenize.generate_tokens(io.StringIO(_rebuild(text)).readline):
            if kind == tokenize.NAME:
                tokens.append(_word(string, declared))
            elif kind == tokenize.OP:
                tokens.append(string)
            elif kind in _PLACEHOLDERS:
                tokens.append(_PLACEHOLDERS[kind])
    except _FAILURES:
        return []
    return tokens


_PLACEHOLDERS = {tokenize.NUMBER: "NUM", tokenize.STRING: "STR"}


def _network_part(source: str, shape: NnDupOutline) -> tuple[str, AbstractSet[str]]:
    """Return the lines of module classes and of the functions that they call, or the whole file, and what is declared.

    Lines are those of `str.splitlines`, as in nn-dup, which splits at more characters than Python does.
    """
    spans = shape.network_spans()
    if not spans:
        return source, {*(node.name for node in shape.classes), *(node.name for node in shape.functions)}
    lines = source.splitlines(keepends=True)
    merged: list[list[int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    text = "\n".join("".join(lines[first - 1 : last]) for first, last in merged)
    try:
        tree = parse_code(text, max_depth=None)
    except SyntaxError:  # nn-dup parses the part by itself; when that fails, nothing counts as declared
        return text, frozenset()
    return text, {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}


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
    try:
        shape = NnDupOutline(parse_code(code, max_depth=None))
    except SyntaxError:
        shape = None
    layers = [name for name, _ in shape.calls] if shape else []
    return NnDupFeatures(
        tokens=" ".join(token_stream(code, shape)),
        length=len(code),
        layer_sequence=tuple(layers[:_SEQUENCE_LIMIT]),
        layer_bag=tuple(sorted(Counter(layers).items())),
        hyperparameters=shape.hyperparameters() if shape else (),
        family=_family_of_text(code),
    )


def get_family(name: str, features: NnDupFeatures) -> str:
    """Return the family tag of a record: by the network's name if it has one, else by its code."""
    return next((tag for tag, beginnings in _FAMILY_NAMES if name.startswith(beginnings)), features.family)


def _family_of_text(code: str) -> str:
    text = code.lower()
    return next((tag for tag, words in _FAMILY_WORDS if any(word in text for word in words)), "generic")
