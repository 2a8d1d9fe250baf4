"""The features that nn-dup 2.2.4 reads from one code: outline, token stream, fingerprint and family tag.

nn-dup cuts the network classes out of a file, rebuilds that text from token columns without comments and docstrings,
and tokenises the result. The rebuilding is lossy: tabs become single blanks and backslash continuations disappear, so
some valid files fail the second time and have no tokens.

The stages compare rows by numbers of the distinct sets of their codes, which are kept in sparse matrices.
"""

import ast
import io
import math
import re
import tokenize
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from keyword import iskeyword

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from lemur_core.similarity.outline import last_name
from lemur_core.similarity.tokens import merge_lines
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
    text = "\n".join("".join(lines[first - 1 : last]) for first, last in merge_lines(spans))
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


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHINGLE = 10  # tokens
_BLOCK_CELLS = 4_000_000  # cells of a dense block of Jaccards: 32 MB


@dataclass(frozen=True, slots=True)
class DistinctSets:
    """The distinct sets of an input.

    Attributes:
        number: number of the distinct set that the i-th input set equals.
        matrix: one row per distinct set, one column per element.
        elements: element of column j.
    """

    number: Ints
    matrix: csr_matrix
    sizes: Ints
    elements: list[Hashable]
    both_empty: float  # the Jaccard of two empty sets

    def members(self, number: int) -> list[Hashable]:
        """Return the elements of one set, in an arbitrary but fixed order."""
        start, stop = self.matrix.indptr[number : number + 2]
        return [self.elements[column] for column in self.matrix.indices[start:stop]]

    def jaccards(self, rows: Ints, columns: Ints) -> Iterator[tuple[int, Floats]]:
        """Yield exact Jaccards of sets against sets as dense blocks, each with the index in `rows` of its first row."""
        # The blocks have a bounded size, because the whole matrix of a corpus takes gigabytes.
        height = max(1, _BLOCK_CELLS // max(1, len(columns)))
        other = self.matrix[columns].T.tocsr()
        for start in range(0, len(rows), height):
            block = rows[start : start + height]
            common = np.asarray((self.matrix[block] @ other).todense())
            yield start, self._ratio(common, self.sizes[block][:, None] + self.sizes[columns] - common)

    def jaccards_of_pairs(self, left: Ints, right: Ints) -> Floats:
        """Return the exact Jaccard of each set on the left with the one at the same index on the right."""
        jaccards = np.empty(len(left))
        for start in range(0, len(left), 1_000):
            a, b = left[start : start + 1_000], right[start : start + 1_000]
            common = np.asarray(self.matrix[a].multiply(self.matrix[b]).sum(axis=1)).ravel()
            jaccards[start : start + 1_000] = self._ratio(common, self.sizes[a] + self.sizes[b] - common)
        return jaccards

    def _ratio(self, common: NDArray[np.int64], union: NDArray[np.int64]) -> Floats:
        return np.where(union > 0, common / np.maximum(union, 1), self.both_empty)


def distinct_sets(items: Iterable[Iterable[Hashable]], both_empty: float) -> DistinctSets:
    """Number the distinct sets among the items by first appearance; the elements of an item may repeat."""
    column_of: dict[Hashable, int] = {}
    number_of: dict[bytes, int] = {}
    number: list[int] = []
    columns: list[NDArray[np.int32]] = []
    for item in items:
        ids = np.array(sorted({column_of.setdefault(element, len(column_of)) for element in item}), dtype=np.int32)
        set_number = number_of.setdefault(ids.tobytes(), len(number_of))
        if set_number == len(columns):
            columns.append(ids)
        number.append(set_number)
    sizes = np.array([len(ids) for ids in columns], dtype=np.int64)
    indices = np.concatenate(columns) if columns else np.empty(0, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csr_matrix(
        (np.ones(len(indices), dtype=np.int32), indices, starts), shape=(len(sizes), max(1, len(column_of)))
    )
    return DistinctSets(np.array(number, dtype=np.int64), matrix, sizes, list(column_of), both_empty)


def shingle_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """Return each code's shingle set: all runs of ten tokens, or a single shorter run if there are fewer tokens.

    Two empty sets count as equal.
    """
    stream_of: dict[str, int] = {}
    stream = np.array([stream_of.setdefault(code.tokens, len(stream_of)) for code in features], dtype=np.int64)
    sets = distinct_sets(map(_shingles, stream_of), both_empty=1.0)
    return DistinctSets(sets.number[stream], sets.matrix, sets.sizes, sets.elements, sets.both_empty)


def layer_sets(features: Sequence[NnDupFeatures]) -> DistinctSets:
    """Return each code's set of (layer, count) and (hyperparameter, value) pairs. Two empty sets count as different."""
    return distinct_sets(((*code.layer_bag, *code.hyperparameters) for code in features), both_empty=0.0)


def _shingles(stream: str) -> Iterator[str]:
    tokens = stream.split()
    if tokens:
        for start in range(max(1, len(tokens) - _SHINGLE + 1)):
            yield " ".join(tokens[start : start + _SHINGLE])


_OTHER = re.compile("[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class RowSets:
    """One entry per row in every list; rows without usable code have meaningless entries."""

    names: list[str]  # normalized
    code: list[str]  # digest
    families: list[str]
    quality: list[int]  # smaller is better; equal for ties
    fingerprint: list[int]  # number of the structural fingerprint
    shingles: DistinctSets
    shingles_of: list[int]  # number of the shingle set
    layers: DistinctSets
    layers_of: list[int]  # number of the layer set


def prepare_rows(
    names: Sequence[str],
    code_index: Sequence[int],
    accuracies: Sequence[float | None],
    features: Sequence[NnDupFeatures],
    code_sha: Sequence[str],
) -> RowSets:
    """Compute everything once per code, then assign it to the rows; those without code get what the last one has."""
    plain = {name: normalise_name(name) for name in set(names)}
    shingles, layers = shingle_sets(features), layer_sets(features)
    fingerprints: dict[Hashable, int] = {}
    fingerprint_of = [fingerprints.setdefault(code.fingerprint, len(fingerprints)) for code in features]
    pairs = list(zip(names, code_index, strict=True))
    keys = [
        (math.inf if accuracy is None or math.isnan(accuracy) else -accuracy, -features[code].length, name)
        for (name, code), accuracy in zip(pairs, accuracies, strict=True)
    ]
    rank_of = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    family_of = {(name, code): get_family(name, features[code]) for name, code in set(pairs)}
    return RowSets(
        names=[plain[name] for name in names],
        code=[code_sha[code] for code in code_index],
        families=[family_of[pair] for pair in pairs],
        quality=[rank_of[key] for key in keys],
        fingerprint=[fingerprint_of[code] for code in code_index],
        shingles=shingles,
        shingles_of=shingles.number[list(code_index)].tolist(),
        layers=layers,
        layers_of=layers.number[list(code_index)].tolist(),
    )


def normalise_name(name: str) -> str:
    """Normalize a name or prefix as nn-dup does: lower case, only letters and digits."""
    return _OTHER.sub("", name.lower())


def first_prefix(name: str, prefixes: Sequence[str]) -> int | None:
    """Return the index of the first prefix that a name begins with (all normalized); None if there is none."""
    return next((index for index, prefix in enumerate(prefixes) if name.startswith(prefix)), None)
